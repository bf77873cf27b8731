"""Against a relay that behaves arbitrarily (T2, P1).

No act happens without the actor's signature, here and now. No act happens twice, and none can be
read. Tampering ends the channel and never the session, and once the relay behaves again all
connections continue by themselves.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import home as homes
from holdfast.client import remote
from holdfast.client.gone import HostGone
from holdfast.client.link import Link
from holdfast.home import machines
from holdfast.model import signing
from holdfast.model.errors import HoldfastError, PeerFault
from holdfast.wire import outer
from tests.support.commands.through_relay import connect, invitation
from tests.support.examples import examples
from tests.support.installation import Installation, eventually, installation
from tests.support.peers.hostile_client import Lines
from tests.support.simulation.crooked_carrier import DOWN, UP, Crooked, honest

ACTS = (
    "drop",
    "twice",
    "later",
    "flip",
    "shorten",
    "again",
    "replay",
    "splice",
    "reflect",
    "invent",
    "close",
    "credit",
    "cut",
)


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory, relay: Crooked) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("there"), "[turn]\nidle_s = 0.2\n") as made:
        connect(made, relay)
        yield made


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, there: Installation) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("here")) as made:
        for name in ("ann", "bob"):
            made.ok(
                "join",
                invitation(there),
                "--as",
                name,
            )
        made.ok("machines", "rename", machines.listing(homes.resolve(made.env))[0].name, "box")
        yield made


pytestmark = pytest.mark.usefixtures("honest_again")


@pytest.fixture
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients give up a silent connection after a second: here silence is the relay's doing."""
    monkeypatch.setattr(remote, "REMOTE_SILENCE_S", 1.0)


def to_box(here: Installation, operator: str = "ann", **other: Any) -> Link:
    home = homes.resolve(here.env)
    machine = machines.find(home, "box", operator)
    return Link(
        home, operator, "test", False, None, machine._replace(**other) if other else machine
    )


class Crook:
    """Misbehaves in one way after the other with the frames that pass, then behaves."""

    def __init__(self, relay: Crooked, plan: list[tuple[int, str]]) -> None:
        self.relay, self.old = relay, list(relay.seen)
        self.due, self.passed, self.held = dict(plan), 0, list[outer.Frame]()
        self.lock = threading.Lock()

    def __call__(
        self, direction: str, stream: int, frame: outer.Frame
    ) -> list[outer.Frame | float]:
        self.passed += 1
        held, self.held = self.held, []
        act = self.due.pop(self.passed, "")
        if not isinstance(frame, outer.Data):
            act = (
                act
                if act in ("close", "cut", "drop") and not isinstance(frame, outer.Close)
                else ""
            )
        return [*self.done(act, direction, stream, frame), *held]

    def done(self, act: str, direction: str, stream: int, frame: Any) -> list[outer.Frame | float]:
        payload = frame.payload if isinstance(frame, outer.Data) else b""
        past = [f for d, s, f in self.old if d == direction and isinstance(f, outer.Data)]
        match act:
            case "drop":
                return []
            case "twice":
                return [frame, frame]
            case "later":
                self.held = [frame]
                return []
            case "flip":
                at = int.from_bytes(os.urandom(2), "big") % len(payload)
                return [
                    frame._replace(
                        payload=payload[:at]
                        + bytes([payload[at] ^ 1 << at % 8])
                        + payload[at + 1 :]
                    )
                ]
            case "shorten":
                return [frame._replace(payload=payload[:-1] or b"x")]
            case "again":
                return [
                    *[
                        f
                        for d, s, f in self.relay.seen
                        if d == direction and s == stream and isinstance(f, outer.Data)
                    ][:3],
                    frame,
                ]
            case "replay":
                return [*past[-3:], frame]
            case "splice":
                return [past[len(past) // 2], frame] if past else [frame]
            case "reflect":
                with contextlib.suppress(KeyError, RuntimeError):
                    back = [
                        f
                        for d, s, f in self.relay.seen
                        if d != direction and s == stream and isinstance(f, outer.Data)
                    ]
                    return [back[-1], frame] if back else [frame]
                return [frame]
            case "invent":
                return [outer.Data(stream, os.urandom(80)), frame]
            case "close":
                return [frame, outer.Close(stream, outer.AWAY, "so it says")]
            case "credit":
                return [frame, outer.Credit(stream, 1 << 18)]
            case "cut":
                for ws, _, _ in list(self.relay._streams.values()):
                    ws.transport.abort()
                return []
        return [frame]


@pytest.mark.usefixtures("little_patience")
@settings(max_examples=examples(10), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.integers(1, 60), st.sampled_from(ACTS)), min_size=1, max_size=6))
def test_t2_against_any_relay_each_line_is_typed_once_in_order_or_not_at_all(
    here: Installation, there: Installation, relay: Crooked, plan: list[tuple[int, str]]
) -> None:
    name = f"room-{os.urandom(4).hex()}"
    room = Lines(there, name)
    pid = there.get(name)["pid"]
    relay.meddle = Crook(relay, plan)
    ann, typed = to_box(here), list[str]()
    for n in range(6):
        try:
            ann.request("send", session=name, text=f"line {n}\n")
        except HoldfastError:  # the relay won: the outcome is unknown, or the act was not done
            ann.close()
            relay.meddle = honest
        else:
            typed.append(f"line {n}")
    ann.close()
    relay.meddle = honest
    last = to_box(here)
    last.request("send", session=name, text="last\n")
    last.close()
    eventually(lambda: room.lines[-1:] == ["last"], "the last line")
    got = room.lines
    assert got[-1] == "last" and len(set(got)) == len(got), "nothing twice"
    assert [line for line in got if line in typed] == typed and set(got) <= {
        *typed,
        *(f"line {n}" for n in range(6)),
        "last",
    }
    assert got == [*sorted(got[:-1]), "last"] and there.get(name)["pid"] == pid
    there.end(name)


def test_t2_an_impostor_with_another_key_is_refused(
    here: Installation, there: Installation
) -> None:
    """The relay leads to a false host, or the host has a different identity than at pairing."""
    with pytest.raises((PeerFault, HostGone)):
        to_box(here, static=os.urandom(31) + b"\x01").connect()
    with pytest.raises(PeerFault, match="not box that you paired with"):
        to_box(here, key=signing.public(os.urandom(32))).connect()


def test_t2_versions_cannot_be_talked_down(here: Installation, relay: Crooked) -> None:
    """The clear offer is bound into the handshake: a relay that changes it gets no channel."""

    def lower(direction: str, stream: int, frame: outer.Frame) -> list[outer.Frame | float]:
        if direction == UP and isinstance(frame, outer.Data) and frame.payload[:2] == b"HF":
            return [frame._replace(payload=frame.payload[:4] + b"\x07" + frame.payload[5:])]
        return [frame]

    relay.meddle = lower
    with pytest.raises(HoldfastError):
        to_box(here).connect()


def test_t2_a_replayed_first_message_has_no_effect(
    here: Installation, there: Installation, relay: Crooked
) -> None:
    ann = to_box(here)
    ann.connect()
    before = there.ok("host", "ls", "--json").json["relays"][0]["streams"]
    first = next(
        f
        for d, s, f in reversed(relay.seen)
        if d == UP and isinstance(f, outer.Data) and f.payload[:2] == b"HF"
    )
    events = len(there.ok("events", "--json").records)
    for _ in range(5):
        stream = relay.open(ann.away.ways[0].route)  # type: ignore[union-attr]
        relay.to_host(stream, first)
        relay.wait_for(DOWN, stream, outer.Data)
        relay.to_host(stream, first)
        relay.wait_for(DOWN, stream, outer.Close)
    assert there.ok("host", "ls", "--json").json["relays"][0]["streams"] == before
    assert len(there.ok("events", "--json").records) == events, "nobody came"
    assert ann.request("ping")["pid"] == there.host_pid
    ann.close()


def test_t2_a_proof_is_worth_nothing_on_another_channel(
    here: Installation, there: Installation
) -> None:
    """Bob's machine in between could only pass the proof on, which names another channel."""
    ann = to_box(here)
    ann._channel = "00" * 32

    def with_another_hash(sock: Any, identity: Any, about: Any) -> None:
        ann._channel = "11" * 32
        Link._begin(ann, sock, identity, about)

    ann._begin = with_another_hash  # type: ignore[method-assign]
    with pytest.raises(HoldfastError, match="not the key"):
        ann.connect()
