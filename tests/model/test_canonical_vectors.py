"""The canonical spelling, and signatures in every domain, byte for byte as in canonical.json."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.model import base64url, canonical, ids, signing
from tests.vectors import cases

FILE = "canonical.json"


def spelled(given: dict[str, Any]) -> str:
    return canonical.encode(given["value"]).hex()


def read(given: dict[str, Any]) -> Any:
    return {"value": canonical.decode(bytes.fromhex(given["data"]))}


def signature(given: dict[str, Any]) -> dict[str, Any]:
    private = bytes.fromhex(given["private"])
    made = signing.sign(private, given["domain"], bytes.fromhex(given["message"]))
    return {"key": signing.show(signing.public(private)), "signature": made.hex()}


def base64(given: dict[str, Any]) -> str:
    return base64url.encode(bytes.fromhex(given["data"]))


def session(given: dict[str, Any]) -> str:
    return ids.session_id(bytes.fromhex(given["random"]))


MAKE = {
    "spelled": spelled,
    "read": read,
    "signature": signature,
    "base64url": base64,
    "session": session,
}


@pytest.mark.parametrize("case", cases.load(FILE), ids=cases.name)
def test_there_is_the_one_spelling_that_there_was(case: cases.Case) -> None:
    assert cases.made(MAKE, case) == case["expected"]


@pytest.mark.parametrize("case", cases.load(FILE, "spelled"), ids=cases.name)
def test_canonical_bytes_are_read_back(case: cases.Case) -> None:
    if isinstance(case["expected"], str):
        found = canonical.decode(bytes.fromhex(case["expected"]))
        assert found == case["input"]["value"]


@pytest.mark.parametrize("case", cases.load(FILE, "signature"), ids=cases.name)
def test_a_signature_is_over_its_domain_and_the_message(case: cases.Case) -> None:
    key = signing.read(case["expected"]["key"])
    message = bytes.fromhex(case["input"]["message"])
    made = bytes.fromhex(case["expected"]["signature"])
    assert signing.verify(key, case["input"]["domain"], message, made)
    assert not signing.verify(key, case["input"]["domain"] + "x", message, made)


@pytest.mark.parametrize("case", cases.load(FILE, "base64url"), ids=cases.name)
def test_base64url_is_read_back(case: cases.Case) -> None:
    assert base64url.decode(case["expected"]).hex() == case["input"]["data"]
