"""Every error on the wire, and back, as in tests/vectors/errors.json."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.model import errors
from tests.vectors import cases

FILE = "errors.json"


def error(given: dict[str, Any]) -> dict[str, Any]:
    kind = errors.BY_NAME[given["name"]]
    return kind(given["message"], given["recover"], **given["facts"]).to_wire()


def foreign(given: dict[str, Any]) -> dict[str, Any]:
    """The local form of an error of another release."""
    return errors.from_wire(given).to_wire()


MAKE = {"error": error, "foreign": foreign}


@pytest.mark.parametrize("case", cases.load(FILE), ids=cases.name)
def test_an_error_is_told_as_it_was(case: cases.Case) -> None:
    assert cases.made(MAKE, case) == case["expected"]


@pytest.mark.parametrize("case", cases.load(FILE, "error"), ids=cases.name)
def test_an_error_is_read_back_unchanged(case: cases.Case) -> None:
    assert errors.from_wire(case["expected"]).to_wire() == case["expected"]


def test_every_error_has_a_vector() -> None:
    named = {case["input"]["name"] for case in cases.load(FILE, "error")}
    assert named == {kind.name for kind in errors.ALL}
