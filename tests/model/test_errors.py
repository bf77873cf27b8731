"""The tree of errors: names and codes are a promise; one table serves both directions."""

from __future__ import annotations

import re
from typing import Any

import pytest

from holdfast.model import errors

SURFACE = {2, 3, 4, 5, 6, 7, 8, 124}


def subclasses(cls: type[errors.HoldfastError]) -> set[type[errors.HoldfastError]]:
    return {cls} | {s for c in cls.__subclasses__() for s in subclasses(c)}


def test_every_class_is_in_the_table_once_and_in_the_drawing() -> None:
    known = {
        cls for cls in subclasses(errors.HoldfastError) if cls.__module__ == errors.__name__
    } - {errors.HoldfastError}
    assert known == set(errors.ALL)
    assert len(errors.BY_NAME) == len(errors.ALL)
    assert all(cls.__name__ in (errors.__doc__ or "") for cls in errors.ALL)


def test_the_codes_are_those_of_the_surface() -> None:
    assert {cls.exit_code for cls in errors.ALL} == SURFACE
    for cls in errors.ALL:
        parent = cls.__mro__[1]
        assert parent is errors.HoldfastError or cls.exit_code == parent.exit_code  # type: ignore[attr-defined]
        assert re.fullmatch(r"[a-z_]+", cls.name)


@pytest.mark.parametrize("cls", errors.ALL)
def test_an_error_survives_the_wire(cls: type[errors.HoldfastError]) -> None:
    sent = cls("what happened", "what to do", foreground="vim")
    got = errors.from_wire(sent.to_wire())
    assert type(got) is cls and (got.message, got.recover, got.facts) == (
        "what happened",
        "what to do",
        {"foreground": "vim"},
    )
    assert got.exit_code == cls.exit_code and got.retry_safe == cls.retry_safe
    assert cls("x").recover == cls.default_recover


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"name": "from_the_future", "code": 4, "message": "m", "recover": "r"}, 4),
        ({"name": "x", "code": 99}, 1),
        ({}, 1),
        ({"name": None, "code": "4"}, 1),
        ({"name": "busy", "facts": "nonsense"}, 4),
        ({"name": "busy", "message": 7, "recover": None}, 4),
    ],
)
def test_an_error_of_another_release_becomes_the_class_of_its_code(
    body: dict[str, Any], code: int
) -> None:
    got = errors.from_wire(body)
    assert got.exit_code == code and isinstance(got.message, str) and isinstance(got.recover, str)


def test_facts_cannot_overwrite_the_error_itself() -> None:
    got = errors.from_wire(
        {
            "name": "busy",
            "message": "m",
            "recover": "r",
            "facts": {"message": "evil", "recover": "evil", "self": 1},
        }
    )
    assert (got.message, got.recover) == ("m", "r")


def test_a9_a_peer_can_deny_but_not_claim_that_a_retry_is_safe() -> None:
    assert errors.from_wire({"name": "timed_out", "retry_safe": False}).retry_safe is False
    assert errors.from_wire({"name": "outcome_unknown", "retry_safe": True}).retry_safe is False


def test_errors_that_are_safe_to_retry() -> None:
    safe = {cls.name for cls in errors.ALL if cls.retry_safe}
    assert safe == {
        *("turn_held", "busy", "held", "stale", "unfinished", "changed", "not_listening"),
        *("unavailable", "saved", "timed_out"),
    }
