"""Statements, entries, heads and acknowledgements, byte for byte as in record_parts.json."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.core.record import examine, record, statement
from holdfast.core.record.uncovered import Uncovered
from holdfast.model import canonical, signing
from tests.vectors import cases

FILE = "record_parts.json"
BYTES = ("statement", "signature", "content", "salt")


def said(given: dict[str, Any]) -> dict[str, Any]:
    """The statement of an actor, also for a range of keys or through a bridge."""
    fields = dict(given["fields"])
    body = statement.statement(on_behalf_of=fields.pop("for", None), **fields)
    signature = statement.sign_statement(bytes.fromhex(given["private"]), body)
    return {"statement": body.hex(), "signature": signature.hex()}


def committed(given: dict[str, Any]) -> str:
    return statement.commit(bytes.fromhex(given["salt"]), bytes.fromhex(given["content"]))


def keys(given: dict[str, Any]) -> dict[str, Any]:
    """The cover of a range of keys, made at once and collected by a client."""
    pressed = [(number, bytes.fromhex(data)) for number, data in given["keys"]]
    gathered = Uncovered()
    for number, data in pressed:
        gathered.add(number, data, 0)
    ranges = []
    while (one := gathered.take()) is not None:
        ranges.append([one.first, one.last, one.content.hex()])
    return {"content": statement.keys_content(pressed).hex(), "ranges": ranges}


def client(given: dict[str, Any]) -> str:
    return statement.client_id(given["number"])


def entry(given: dict[str, Any]) -> dict[str, Any]:
    """An entry with a place: bytes, hash and line in an export."""
    draft: dict[str, Any] = {
        name: bytes.fromhex(value) if name in BYTES else value
        for name, value in given["draft"].items()
    }
    if "originators" in draft:
        draft["originators"] = tuple(draft["originators"])
    written = record.chain(
        record.Draft(**draft), given["seq"], given["prev"], given["time"], given["late"]
    )
    return {
        "body": written.body.hex(),
        "hash": written.hash,
        "line": record.entry_line(written).hex(),
    }


def head(given: dict[str, Any]) -> dict[str, Any]:
    signed = record.head(bytes.fromhex(given["private"]), **given["fields"])
    return {
        "body": signed.body.hex(),
        "signature": signed.signature.hex(),
        "line": record.signed_line("head", signed).hex(),
    }


def ack(given: dict[str, Any]) -> dict[str, Any]:
    written = record.Written(given["session"], given["seq"], given["hash"], 0, b"")
    signed = record.ack(
        bytes.fromhex(given["private"]), written, given["client"], given["number"], given["time"]
    )
    return {
        "body": signed.body.hex(),
        "signature": signed.signature.hex(),
        "line": record.signed_line("ack", signed).hex(),
    }


def header(given: dict[str, Any]) -> dict[str, Any]:
    signed = record.header(bytes.fromhex(given["private"]), **given["fields"])
    return {
        "body": signed.body.hex(),
        "signature": signed.signature.hex(),
        "line": record.signed_line("header", signed).hex(),
    }


MAKE = {
    "statement": said,
    "commit": committed,
    "keys": keys,
    "client": client,
    "entry": entry,
    "head": head,
    "ack": ack,
    "header": header,
}
DOMAINS = {"statement": "act/1", "head": "head/1", "ack": "ack/1", "header": "export/1"}


@pytest.mark.parametrize("case", cases.load(FILE), ids=cases.name)
def test_p2_the_parts_of_the_record_do_not_change(case: cases.Case) -> None:
    assert cases.made(MAKE, case) == case["expected"]


@pytest.mark.parametrize(
    "case", [c for c in cases.load(FILE) if c["of"] in DOMAINS], ids=cases.name
)
def test_p2_signatures_are_bound_to_their_purpose(case: cases.Case) -> None:
    found = case["expected"]
    body = bytes.fromhex(found.get("body") or found["statement"])
    key = signing.public(bytes.fromhex(case["input"]["private"]))
    signature = bytes.fromhex(found["signature"])
    assert signing.verify(key, DOMAINS[case["of"]], body, signature)
    assert canonical.encode(canonical.decode(body)) == body


@pytest.mark.parametrize("case", cases.load(FILE, "statement"), ids=cases.name)
def test_p1_a_statement_is_read_back_unchanged(case: cases.Case) -> None:
    found, key = case["expected"], signing.public(bytes.fromhex(case["input"]["private"]))
    said = statement.read_statement(
        bytes.fromhex(found["statement"]), bytes.fromhex(found["signature"]), signing.show(key)
    )
    given = {
        name: value
        for name, value in case["input"]["fields"].items()
        if value is not None or name == "seen"
    }
    assert said == {"v": 1, **given}


def test_p2_every_field_of_an_entry_has_a_vector() -> None:
    bodies = [case["expected"].get("body") for case in cases.load(FILE, "entry")]
    found = [json.loads(bytes.fromhex(body)) for body in bodies if body]
    assert set().union(*found) == examine.REQUIRED.keys() | examine.OPTIONAL.keys()
    assert examine.REQUIRED.keys() in [set(one) for one in found]
