"""Codes, links, proofs, meetings, recoveries and stored forms (invitations.json)."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
import spake2

from holdfast.core.people import invitation, join_code, recovery
from holdfast.core.sealed import meeting, route
from holdfast.model import agreement, signing
from tests.vectors import cases

FILE = "invitations.json"


def code(given: dict[str, Any]) -> dict[str, Any]:
    """The displayed code and the derived keys for given random bytes."""
    made, machine = join_code.make(bytes.fromhex(given["random"])), bytes.fromhex(given["machine"])
    private = join_code.private(made, machine)
    said = bytes.fromhex(given["statement"])
    return {
        "id": made.id,
        "secret": made.secret,
        "shown": made.show(),
        "url": join_code.url(made, machine),
        "private": private.hex(),
        "verifier": signing.public(private).hex(),
        "proof": join_code.prove(made, machine, said).hex(),
        "pass": join_code.pass_of(signing.public(private)).hex(),
        "password": meeting.password(made).hex(),
    }


def place(given: dict[str, Any]) -> dict[str, Any]:
    """The meeting place of a typed code."""
    key = meeting.route_key(given["id"])
    return {
        "private": key.hex(),
        "route": route.route(signing.public(key)).hex(),
        "pass": meeting.pass_(given["id"]).hex(),
    }


def met(given: dict[str, Any]) -> dict[str, Any]:
    """The messages of a meeting with fixed random bytes, as a carrier sees them."""

    def chance(count: int) -> bytes:
        return b"\x05" * count

    with pytest.MonkeyPatch.context() as patch:
        for name in ("SPAKE2_A", "SPAKE2_B"):
            patch.setattr(spake2, name, partial(getattr(spake2, name), entropy_f=chance))
        patch.setattr(agreement, "generate", lambda: chance(32))
        raw = [bytes.fromhex(given[name]) for name in ("route", "password")]
        sides = [
            meeting.Meeting(first, raw[0], bytes.fromhex(given[whose]), raw[1], 0.0)
            for first, whose in ((True, "joiner"), (False, "host"))
        ]
        seen = list(sides[0].start().send)
        way, turn = list(seen), 1
        while way:
            way = [one for message in way for one in sides[turn].receive(message, 0.0).send]
            seen, turn = seen + way, 1 - turn
        seen += sides[0].send(b"hello", 0.0)
        assert sides[1].receive(seen[-1], 0.0).data == b"hello"
        return {"messages": cases.bare(seen), "hash": sides[0].handshake_hash.hex()}


def fingerprint(given: dict[str, Any]) -> dict[str, Any]:
    found = join_code.fingerprint(bytes.fromhex(given["key"]))
    return {"fingerprint": found, "shown": join_code.group(found)}


def link(given: dict[str, Any]) -> str:
    doors = tuple((url, bytes.fromhex(where)) for url, where in given["doors"])
    key = bytes.fromhex(given["key"])
    where = join_code.Elsewhere(key, bytes.fromhex(given["static"]), doors)
    return join_code.url(join_code.Code(*given["code"]), key, where)


def kept(given: dict[str, Any]) -> str:
    """A row of the store."""
    return json.dumps(invitation.write(invitation.read(given)))


def recovered(given: dict[str, Any]) -> dict[str, Any]:
    raw = {name: bytes.fromhex(given[name]) for name in ("private", "key", "nonce")}
    said, signature = recovery.sign(
        raw["private"], given["name"], given["kind"], raw["key"], given["at"], raw["nonce"]
    )
    return {"statement": said.hex(), "signature": signature.hex()}


MAKE = {
    "code": code,
    "meeting": place,
    "fingerprint": fingerprint,
    "link": link,
    "kept": kept,
    "recovery": recovered,
    "met": met,
}


@pytest.mark.parametrize("case", cases.load(FILE), ids=cases.name)
def test_an_invitation_does_not_change(case: cases.Case) -> None:
    assert cases.made(MAKE, case) == case["expected"]


@pytest.mark.parametrize("case", cases.load(FILE, "code"), ids=cases.name)
def test_a_code_is_read_as_it_was_shown_and_its_proof_holds(case: cases.Case) -> None:
    found, machine = case["expected"], bytes.fromhex(case["input"]["machine"])
    meant = (found["id"], found["secret"])
    assert join_code.read(found["shown"]) == (meant, None)
    assert join_code.read(found["shown"].lower().replace("-", " ")) == (meant, None)
    assert join_code.read(found["url"]) == (meant, join_code.fingerprint(machine))
    raw = [
        bytes.fromhex(one)
        for one in (found["verifier"], case["input"]["statement"], found["proof"])
    ]
    assert join_code.holds(*raw)


@pytest.mark.parametrize("case", cases.load(FILE, "link"), ids=cases.name)
def test_a_link_is_read_back_unchanged(case: cases.Case) -> None:
    given, found = case["input"], join_code.elsewhere(case["expected"])
    assert found is not None and cases.bare(tuple(found)) == [
        given["key"],
        given["static"],
        given["doors"],
    ]
    assert join_code.read(case["expected"])[0] == tuple(given["code"])


@pytest.mark.parametrize("case", cases.load(FILE, "kept"), ids=cases.name)
def test_a_row_of_another_release_is_read(case: cases.Case) -> None:
    assert case["expected"] in (json.dumps(case["input"]), {"refused": "ValueError"})


@pytest.mark.parametrize("case", cases.load(FILE, "recovery"), ids=cases.name)
def test_a_recovery_is_read_back_unchanged(case: cases.Case) -> None:
    given, found = case["input"], case["expected"]
    machine = signing.public(bytes.fromhex(given["private"]))
    read = recovery.read(
        machine, bytes.fromhex(found["statement"]), bytes.fromhex(found["signature"]), given["at"]
    )
    assert cases.bare(tuple(read)) == [
        machine.hex(),
        *(given[name] for name in ("name", "kind", "key", "at", "nonce")),
    ]
