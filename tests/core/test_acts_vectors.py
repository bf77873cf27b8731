"""The signed bytes of every act, as frozen in tests/vectors/acts.json."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.core.record import acts, statement
from holdfast.model import signing
from tests.vectors import cases

FILE = "acts.json"


def act(request: dict[str, Any]) -> dict[str, Any]:
    """Where an act is recorded, as what, and the content that its actor commits to.

    Hosts before the typed contract kept objects of their own in the request, under names with `!`.
    """
    op, fields = request["op"], {key: request[key] for key in request if key[-1] != "!"}
    return {
        "act": acts.is_act(op, fields),
        "place": acts.place(op, fields),
        "kind": acts.kind(op, fields),
        "content": acts.content(op, fields).hex(),
    }


def signed(given: dict[str, Any]) -> dict[str, Any]:
    """From a request to its signed parts: content, commitment, statement, signature."""
    op, fields = given["request"]["op"], given["request"]
    content, salt = acts.content(op, fields), bytes.fromhex(given["salt"])
    place = given["place"]
    said = statement.statement(
        given["machine"],
        place["id"],
        place["epoch"],
        given["client"],
        fields["seq"],
        acts.kind(op, fields),
        given["binding"],
        place["seen"],
        statement.commit(salt, content),
        once=fields.get("once"),
    )
    signature = statement.sign_statement(bytes.fromhex(given["private"]), said)
    return {
        "content": content.hex(),
        "commit": statement.commit(salt, content),
        "statement": said.decode(),
        "signature": signature.hex(),
    }


MAKE = {"act": act, "signed": signed}


@pytest.mark.parametrize("case", cases.load(FILE), ids=cases.name)
def test_p1_an_act_is_signed_as_it_was(case: cases.Case) -> None:
    assert cases.made(MAKE, case) == case["expected"]


@pytest.mark.parametrize("case", cases.load(FILE, "act"), ids=cases.name)
def test_p1_the_number_the_signature_and_the_patience_are_not_signed(case: cases.Case) -> None:
    if "refused" not in case["expected"]:
        without = {
            key: value
            for key, value in case["input"].items()
            if key not in ("seq", "signed", "hold", "once")
        }
        assert act(without) == case["expected"]


@pytest.mark.parametrize("case", cases.load(FILE, "act"), ids=cases.name)
def test_p1_the_order_of_the_fields_does_not_matter(case: cases.Case) -> None:
    turned = {**case, "input": dict(reversed(case["input"].items()))}
    assert cases.made(MAKE, turned) == case["expected"]


@pytest.mark.parametrize("case", cases.load(FILE, "signed"), ids=cases.name)
def test_p1_a_signed_act_is_read_back(case: cases.Case) -> None:
    given, found = case["input"], case["expected"]
    key = signing.show(signing.public(bytes.fromhex(given["private"])))
    said = statement.read_statement(
        found["statement"].encode(), bytes.fromhex(found["signature"]), key
    )
    assert said == json.loads(found["statement"]) and said["commit"] == found["commit"]


def test_p1_different_requests_have_different_contents() -> None:
    """Of cases on the machine: a difference in a signed field is a difference in the bytes."""
    seen: dict[str, dict[str, Any]] = {}
    for case in cases.load(FILE, "act"):
        asked = {
            key: value
            for key, value in case["input"].items()
            if value is not None
            and not key.endswith("!")
            and key not in ("seq", "signed", "hold", "once", "meeting")  # `once`: the statement
        }
        content = case["expected"].get("content")
        if content and case["expected"]["place"] == "machine":
            assert seen.setdefault(content, asked) == asked
    assert len(seen) > 20
