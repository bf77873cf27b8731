"""Routes, passes, registrations, derived keys and tokens, as in tests/vectors/relays.json."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.core.sealed import channel_key as static
from holdfast.core.sealed import route
from holdfast.home.keys import Identity, route_key
from holdfast.host.relays import uplinks
from holdfast.model import agreement, signing
from holdfast.relay import admin
from holdfast.wire import carried
from tests.vectors import cases

FILE = "relays.json"


def found(given: dict[str, Any]) -> str:
    return route.route(bytes.fromhex(given["key"])).hex()


def told(given: dict[str, Any]) -> str:
    """The digest of a pass."""
    return route.digest(bytes.fromhex(given["pass"])).hex()


def hook(given: dict[str, Any]) -> str:
    """The pass of a route that takes webhooks."""
    return route.hook_pass(bytes.fromhex(given["route"])).hex()


def message(given: dict[str, Any]) -> str:
    """A request that a relay carries in plain text, or its answer."""
    fields, body = dict(given), bytes.fromhex(given["body"])
    del fields["body"]
    kind = carried.Answer if "status" in fields else carried.Request
    whole, read = carried.head(kind(**fields, length=len(body))) + body, carried.Incoming()
    assert read.feed(whole) and read.head == kind(**fields, length=len(body)) and read.body == body
    return whole.hex()


def registration(given: dict[str, Any]) -> dict[str, Any]:
    private, nonce = bytes.fromhex(given["private"]), bytes.fromhex(given["nonce"])
    where = (given["relay"], nonce, given["generation"])
    return {
        "statement": route.statement(signing.public(private), *where).hex(),
        "signature": route.sign(private, *where).hex(),
    }


def derived(given: dict[str, Any]) -> str:
    return agreement.derive(bytes.fromhex(given["seed"]), bytes.fromhex(given["purpose"])).hex()


def at_relay(given: dict[str, Any]) -> dict[str, Any]:
    """The key of a machine at a relay, and the pass of an operator's key there."""
    seed, relay = bytes.fromhex(given["seed"]), given["relay"]
    machine = Identity("machine", "machine", signing.public(seed), 0, seed, False, "")
    key = bytes.fromhex(given["key"])
    private = route_key(machine, relay)
    passing = agreement.derive(seed, uplinks.PASS + relay.encode() + b"\0" + key)
    return {
        "private": private.hex(),
        "route": route.route(signing.public(private)).hex(),
        "pass": passing.hex(),
        "digest": route.digest(passing).hex(),
    }


def channel_key(given: dict[str, Any]) -> dict[str, Any]:
    """The identity behind a sealed channel."""
    other = bytes.fromhex(given["static"]) if given["static"] else None
    signed = static.sign(bytes.fromhex(given["seed"]), other)
    return {"statement": signed.statement.hex(), "signature": signed.signature.hex()}


def token(given: dict[str, Any]) -> str:
    return admin.digest(given["token"]).hex()


MAKE = {
    "route": found,
    "pass": told,
    "registration": registration,
    "derived": derived,
    "at a relay": at_relay,
    "static": channel_key,
    "token": token,
    "hook": hook,
    "carried": message,
}


@pytest.mark.parametrize("case", cases.load(FILE), ids=cases.name)
def test_the_values_that_a_relay_knows_do_not_change(case: cases.Case) -> None:
    assert cases.made(MAKE, case) == case["expected"]


@pytest.mark.parametrize("case", cases.load(FILE, "registration"), ids=cases.name)
def test_a_registration_holds_for_its_relay_and_connection(case: cases.Case) -> None:
    given = case["input"]
    if "refused" not in case["expected"]:
        key = signing.public(bytes.fromhex(given["private"]))
        assert route.verify(
            key,
            given["relay"],
            bytes.fromhex(given["nonce"]),
            given["generation"],
            bytes.fromhex(case["expected"]["signature"]),
        )
        said = json.loads(bytes.fromhex(case["expected"]["statement"]))
        assert (said["relay"], said["generation"]) == (given["relay"], given["generation"])


@pytest.mark.parametrize("case", cases.load(FILE, "static"), ids=cases.name)
def test_the_key_of_a_channel_is_read(case: cases.Case) -> None:
    seed = bytes.fromhex(case["input"]["seed"])
    own = agreement.public(agreement.derive(seed, b"static/1")).hex()
    raw = [bytes.fromhex(case["expected"][one]) for one in ("statement", "signature")]
    assert static.read(signing.public(seed), *raw).hex() == (case["input"]["static"] or own)
