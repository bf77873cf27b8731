"""Every request as bytes on the wire and as the host decodes it (tests/vectors/requests.json).

The vectors are complete: each operation has a request with every field and a request with the
required fields only. The signed content of an act is the same on both sides.
"""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.contract.codec import Field, decode, encode, request_fields
from holdfast.core.contract.table import OPERATIONS
from holdfast.core.record import acts
from holdfast.wire import frames
from tests.vectors import cases

FILE = "requests.json"


def request(given: dict[str, Any]) -> dict[str, Any]:
    """The frame, and the fields with the defaults that the host fills in."""
    body = given["body"]
    return {
        "frame": frames.request(given["number"], body).hex(),
        "taken": encode(decode(OPERATIONS[body["op"]].request, body["op"], body)),
    }


MAKE = {"request": request}


@pytest.mark.parametrize("case", cases.load(FILE), ids=cases.name)
def test_a_request_is_sent_and_taken_as_it_was(case: cases.Case) -> None:
    assert cases.made(MAKE, case) == case["expected"]


@pytest.mark.parametrize("case", cases.load(FILE), ids=cases.name)
def test_sent_requests_are_read_back(case: cases.Case) -> None:
    (found,) = frames.Splitter(frames.FROM_CLIENT).feed(bytes.fromhex(case["expected"]["frame"]))
    assert found[0] == 2
    assert frames.read_request(found[1]) == (case["input"]["number"], case["input"]["body"])


def fields_of(op: str) -> dict[str, Field]:
    return request_fields(OPERATIONS[op].request)


def required(op: str) -> set[str]:
    return {name for name, field in fields_of(op).items() if field.required}


def sent(file: str, of: str, op: str) -> list[set[str]]:
    """The fields of each request for this operation."""
    found = [case["input"].get("body", case["input"]) for case in cases.load(file, of)]
    return [set(body) - {"op"} for body in found if body["op"] == op]


@pytest.mark.parametrize("op", OPERATIONS)
def test_every_operation_has_a_request_with_all_fields_and_one_with_the_least(op: str) -> None:
    fields = sent(FILE, "request", op)
    assert set(fields_of(op)) in fields and required(op) in fields


@pytest.mark.parametrize("op", [op for op in OPERATIONS if OPERATIONS[op].act])
def test_p1_every_act_has_content_of_all_fields_and_of_the_least(op: str) -> None:
    fields = sent("acts.json", "act", op)
    assert set(fields_of(op)) - {"signed"} in fields and required(op) - {"signed"} in fields


def test_p1_every_signed_and_recorded_act_has_vectors() -> None:
    """The table of operations and the vectors name the same acts."""
    named = {case["input"]["op"] for case in cases.load("acts.json", "act")}
    assert named == {op for op in OPERATIONS if OPERATIONS[op].act}


@pytest.mark.parametrize("case", cases.load("acts.json", "act"), ids=cases.name)
def test_p1_defaults_do_not_change_the_signed_content_on_a_session(case: cases.Case) -> None:
    """On the machine, absent and default differ: the host looks at the request as it was sent."""
    body = case["input"]
    keys = body.get("keys", [])
    names = isinstance(keys, list) and all(isinstance(key, str) for key in keys)
    whole = names and set(body) <= {"op", *fields_of(body["op"])}
    if case["expected"].get("act") and case["expected"]["place"] != "machine" and whole:
        signed = {"statement": "", "signature": "", "salt": ""}
        taken: object = decode(
            OPERATIONS[body["op"]].request, body["op"], {**body, "signed": signed}
        )
        assert acts.content(body["op"], encode(taken)).hex() == case["expected"]["content"]
