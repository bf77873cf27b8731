"""Forged envelopes: used after revocation, with additional rights, or spliced from others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast import home as homes
from holdfast.client.identity import identity
from holdfast.core.people import envelope
from holdfast.core.people.envelope import Chain, Link, Scope
from holdfast.model import base64url, canonical, signing
from holdfast.model.errors import HoldfastError, NotAllowed, Refused
from holdfast.model.rights import RIGHTS
from holdfast.wire import frames
from tests.support.installation import Installation, installation
from tests.support.peers.hostile_client import Lines, Wire


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home"), "[turn]\nidle_s = 600\n") as made:
        yield made


def secret(hf: Installation, name: str) -> bytes:
    return identity(homes.resolve(hf.env), name).secret()


def public(hf: Installation, name: str) -> bytes:
    return identity(homes.resolve(hf.env), name).public


def held(hf: Installation, name: str) -> list[Chain]:
    wire = Wire(hf, name, 100)
    try:
        return [envelope.decode(text) for text in wire.request("envelopes")["envelopes"]]
    finally:
        wire.close()


def forged(private: bytes, above: Chain, holder: bytes, **changed: Any) -> Chain:
    """Add a signed link, without asking whether the link is allowed."""
    last = envelope.read(above[-1].body)
    fields: dict[str, Any] = {
        "v": envelope.VERSION,
        "issuer": signing.show(signing.public(private)),
        "holder": signing.show(holder),
        "rights": sorted(last.rights),
        "scope": last.scope.show(),
        "nonce": base64url.encode(bytes(16)),
        "parent": base64url.encode(last.id),
        **changed,
    }
    body = canonical.encode(fields)
    return (*above, Link(body, signing.sign(private, envelope.DOMAIN, body)))


# ---------------------------------------------------------------- revoked


def test_a5_the_next_key_of_a_revoked_operator_is_not_typed(hf: Installation) -> None:
    """Attached, holding the turn, with keys on the wire at that moment.

    No key that comes after the answer to the revocation is read.
    """
    hf.people("ann", rights="execute")
    room = Lines(hf, "revoked")
    ann, boss = Wire(hf, "ann", 101), Wire(hf, "tester", 102)
    ann.attach("revoked")
    ann.say(frames.input_(1, b"before\n", frames.INPUT_ACK))
    ann.taken(1)
    boss.request("operator.revoke", name="ann")
    try:
        ann.say(*(frames.input_(n, b"after\n", frames.INPUT_ACK) for n in range(2, 50)))
    except HoldfastError as e:
        assert isinstance(e, NotAllowed)
    else:
        assert isinstance(ann.dropped(), NotAllowed)
    with pytest.raises(NotAllowed, match="revoked"):
        Wire(hf, "ann", 103)
    boss.request("seize", session="revoked")
    boss.request("send", session="revoked", text="last\n")
    room.become("before", "last")


def test_a5_handed_on_rights_end_with_the_key_they_came_through(hf: Installation) -> None:
    """Two steps down the chain, attached, and typing; the old envelope is no way back."""
    hf.people("lead", rights="execute,grant")
    hf.people(
        "agent", "subagent", rights=""
    )  # people, since the gate asks first about the grants and keys of agents
    room = Lines(hf, "chain")
    hf.ok("--as", "lead", "grant", "agent", "--rights", "observe,input,grant", "--own-key")
    hf.ok("--as", "agent", "grant", "subagent", "--rights", "observe,input", "--own-key")
    texts = [envelope.encode(chain) for chain in (*held(hf, "agent"), *held(hf, "subagent"))]
    sub = Wire(hf, "subagent", 104)
    sub.attach("chain")
    sub.say(frames.input_(1, b"before\n", frames.INPUT_ACK))
    sub.taken(1)
    boss = Wire(hf, "tester", 105)
    boss.request("operator.revoke", name="lead")
    try:
        sub.say(frames.input_(2, b"after\n", frames.INPUT_ACK))
    except HoldfastError as e:
        assert isinstance(e, NotAllowed)
    else:
        assert isinstance(sub.dropped(), NotAllowed)
    for text in texts:
        with pytest.raises(NotAllowed):
            boss.request("grant", envelope=text)
    with pytest.raises(NotAllowed):
        Wire(hf, "subagent", 106).request("send", session="chain", text="after\n", seq=1)
    boss.request("seize", session="chain")
    boss.request("send", session="chain", text="last\n")
    room.become("before", "last")


# ---------------------------------------------------------------- widened


WIDER: dict[str, Callable[[Installation, Chain], Chain]] = {
    "more rights": lambda hf, c: forged(
        secret(hf, "giver"),
        c,
        public(hf, "taker"),
        rights=sorted({*envelope.read(c[-1].body).rights, "halt"}),
    ),
    "every right": lambda hf, c: forged(
        secret(hf, "giver"), c, public(hf, "taker"), rights=sorted(RIGHTS)
    ),
    "no session": lambda hf, c: forged(
        secret(hf, "giver"),
        c,
        public(hf, "taker"),
        scope={k: v for k, v in envelope.read(c[-1].body).scope.show().items() if k != "session"},
    ),
    "for longer": lambda hf, c: forged(
        secret(hf, "giver"),
        c,
        public(hf, "taker"),
        scope={**envelope.read(c[-1].body).scope.show(), "expires": int(time.time()) + 10**6},
    ),
    "for ever": lambda hf, c: forged(
        secret(hf, "giver"),
        c,
        public(hf, "taker"),
        scope={k: v for k, v in envelope.read(c[-1].body).scope.show().items() if k != "expires"},
    ),
    "signed by another": lambda hf, c: forged(secret(hf, "taker"), c, public(hf, "taker")),
    "in another's name": lambda hf, c: forged(
        secret(hf, "taker"), c, public(hf, "taker"), issuer=signing.show(public(hf, "giver"))
    ),
    "of another parent": lambda hf, c: forged(
        secret(hf, "giver"), c, public(hf, "taker"), parent=base64url.encode(bytes(32))
    ),
    "without a parent": lambda hf, c: forged(secret(hf, "giver"), c, public(hf, "taker"))[-1:],
    "its own root": lambda hf, c: envelope.delegate(
        secret(hf, "taker"), (), public(hf, "taker"), RIGHTS, Scope(), bytes(16)
    ),
    "an unknown right": lambda hf, c: forged(
        secret(hf, "giver"), c, public(hf, "taker"), rights=["observe", "zzz"]
    ),
    "an unknown limit": lambda hf, c: forged(
        secret(hf, "giver"),
        c,
        public(hf, "taker"),
        scope={**envelope.read(c[-1].body).scope.show(), "zzz": 1},
    ),
    "cut in the middle": lambda hf, c: forged(secret(hf, "giver"), c, public(hf, "taker"))[1:],
    "one of a stranger": lambda hf, c: forged(secret(hf, "giver"), c, signing.public(bytes(32))),
    "a flipped bit": lambda hf, c: (
        *c[:-1],
        Link(c[-1].body, bytes([c[-1].signature[0] ^ 1]) + c[-1].signature[1:]),
    ),
}


@pytest.fixture(scope="module")
def given(hf: Installation) -> Chain:
    """The rights of giver: some rights in one session, for an hour."""
    hf.people("giver", "taker", rights="")
    hf.new("one", "--", "cat")
    hf.new("two", "--", "cat")
    hf.ok(
        "grant", "giver", "--rights", "observe,input,grant", "--session", "one", "--expires", "1h"
    )
    return held(hf, "giver")[0]


@pytest.mark.parametrize("how", WIDER)
def test_a5_no_envelope_is_wider_than_its_parent(hf: Installation, given: Chain, how: str) -> None:
    before = hf.ask("operator.ls")
    taker = Wire(hf, "taker", 107)
    with pytest.raises(Refused):
        taker.request("grant", envelope=envelope.encode(WIDER[how](hf, given)))
    with pytest.raises(NotAllowed):
        taker.request("send", session="one", text="x", seq=1)
    taker.close()
    assert hf.ask("operator.ls") == before


def test_a5_spliced_from_two_envelopes_of_one_giver(hf: Installation, given: Chain) -> None:
    """Each link is true; together the links were never given."""
    hf.people("other-taker", rights="")
    hf.ok("grant", "giver", "--rights", "observe,grant", "--session", "two")
    wide = next(
        chain
        for chain in held(hf, "giver")
        if envelope.read(chain[-1].body).scope.session
        != envelope.read(given[-1].body).scope.session
    )
    link = forged(secret(hf, "giver"), given, public(hf, "other-taker"))[-1]
    taker = Wire(hf, "other-taker", 108)
    with pytest.raises(NotAllowed):
        taker.request("grant", envelope=envelope.encode((*wide, link)))
    with pytest.raises(NotAllowed):
        taker.request("view", session="two")
    taker.request(
        "grant", envelope=envelope.encode((*given, link))
    )  # the unchanged envelope counts: this test can fail
    taker.request("view", session="one")
    with pytest.raises(NotAllowed):
        taker.request("view", session="two")
    taker.close()
