"""The carrier of a sealed channel's messages may do anything with them.

The output is a prefix of the input, and then nothing; an end counts only if the peer declared the
end.

Two channels between the same two parties are open at once, and an earlier channel is over and was
recorded. The carrier has every message of all three, in both directions. It may hand any message,
whole or changed, to any of the four ends, in any order and number, or none at all.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.core.sealed import channel
from holdfast.core.sealed.channel import Bounds, Channel
from holdfast.model import agreement
from holdfast.wire import noise
from tests.support.examples import examples

ROUTES = (b"\x11" * 16, b"\x12" * 16)
CLIENT, HOST, PSK = b"\x01" * 32, b"\x02" * 32, b"\x03" * 32
BOUNDS = Bounds(messages=3, bytes=200, seconds=50)  # so that keys change all the time


class End:
    """An end of a channel: the requested sends, and the output."""

    def __init__(self, machine: Channel) -> None:
        self.channel = machine
        self.asked = b""
        self.got = b""
        self.sealed: list[bytes] = []  # messages after the handshake
        self.taken = 0  # how many of the other side's arrived
        self.said_end = False
        self.was_closed = False


def make(pattern: str, initiator: bool, route: bytes, now: float) -> Channel:
    remote = agreement.public(HOST) if pattern == noise.IK and initiator else None
    return Channel(
        pattern,
        initiator,
        route,
        CLIENT if initiator else HOST,
        now,
        remote_static=remote,
        psk=PSK if pattern == noise.XXPSK3 else None,
        bounds=BOUNDS,
    )


class Carrier(RuleBasedStateMachine):
    pattern = noise.IK

    @initialize(same_route=st.booleans())
    def connect(self, same_route: bool) -> None:
        self.now = 0.0
        self.messages: list[bytes] = []  # all that ever was on the way
        self.queues: list[list[bytes]] = [
            [],
            [],
            [],
            [],
        ]  # the next message for each end, if the carrier is honest
        routes = (ROUTES[0], ROUTES[0] if same_route else ROUTES[1])
        self._record_an_earlier_one()
        self.ends = [
            End(make(self.pattern, initiator, routes[n], 0))
            for n in (0, 1)
            for initiator in (True, False)
        ]
        for number in (0, 2):
            self._on_the_way(number, self.ends[number].channel.start().send)

    def _record_an_earlier_one(self) -> None:
        a, b = make(self.pattern, True, ROUTES[0], 0), make(self.pattern, False, ROUTES[0], 0)
        messages, turn = a.start().send, b
        recorded: list[bytes] = []
        while messages:
            recorded += messages
            messages = turn.receive(messages[0], 0).send
            turn = a if turn is b else b
        for out, into in ((a, b), (b, a), (a, b)):
            said = out.send(b"earlier", 0)
            recorded += said
            for message in said:
                into.receive(message, 0)
        recorded += a.end(0)
        assert b.established and len(recorded) >= 6
        self.messages += recorded

    def _on_the_way(self, number: int, messages: tuple[bytes, ...]) -> None:
        """End `number` sent this."""
        self.messages += messages
        self.queues[number ^ 1] += messages

    def _peer(self, number: int) -> End | None:
        """The peer of this end's channel.

        A carrier may connect any client's end with any host's: that is routing.
        """
        mine = self.ends[number].channel.handshake_hash
        found = [
            e
            for n, e in enumerate(self.ends)
            if mine and n != number and e.channel.handshake_hash == mine
        ]
        assert len(found) <= 1, "one channel with three ends"
        assert not found or self.ends.index(found[0]) % 2 != number % 2, (
            "an end that talks to its own kind"
        )
        return found[0] if found else None

    def _arrive(self, to: int, data: bytes) -> None:
        end, peer = self.ends[to], self._peer(to)
        closed, complete = end.channel.closed, bool(end.channel.handshake_hash)
        step = end.channel.receive(data, self.now)
        end.got += step.data
        self._on_the_way(to, step.send)
        if closed:
            assert step == channel.Step(), "a closed channel does nothing"
        elif not complete:
            assert not step.data and not (to % 2 and end.channel.established), (
                "something came of a handshake"
            )
        elif peer is not None and end.taken < len(peer.sealed) and data == peer.sealed[end.taken]:
            end.taken += 1
            assert end.channel.established and end.channel.reason in ("", channel.ENDED), (
                "the next message was not taken"
            )
        else:
            assert step == channel.Step() and end.channel.reason == channel.TAMPERED, (
                "a message out of order was taken"
            )

    # ------------------------------------------------------------ the parties

    @rule(
        number=st.integers(0, 3),
        data=st.binary(min_size=1, max_size=80),
        wait=st.sampled_from([0.0, 0.0, 60.0]),
    )
    def send(self, number: int, data: bytes, wait: float) -> None:
        self.now += wait
        end = self.ends[number]
        try:
            out = end.channel.send(data, self.now)
        except ValueError:
            assert (
                end.channel.closed
                or end.said_end
                or not end.channel.handshake_hash
                or (number % 2 and not end.channel.established)
            )
            return
        end.asked += data
        end.sealed += out
        self._on_the_way(number, out)

    @rule(number=st.integers(0, 3))
    def end(self, number: int) -> None:
        end = self.ends[number]
        try:
            out = end.channel.end(self.now)
        except ValueError:
            return
        end.said_end = True
        end.sealed += out
        self._on_the_way(number, out)

    # ------------------------------------------------------------ an honest carrier

    @rule(to=st.integers(0, 3), count=st.integers(1, 6))
    def deliver(self, to: int, count: int) -> None:
        for _ in range(count):
            if self.queues[to]:
                self._arrive(to, self.queues[to].pop(0))

    @rule(count=st.integers(1, 5))
    def deliver_everywhere(self, count: int) -> None:
        for _ in range(count):
            for to in range(4):
                self.deliver(to, 1)

    # ------------------------------------------------------------ and the other kind

    @precondition(lambda self: any(self.queues))
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        to = data.draw(st.sampled_from([n for n in range(4) if self.queues[n]]))
        del self.queues[to][data.draw(st.integers(0, len(self.queues[to]) - 1))]

    @precondition(lambda self: any(len(q) > 1 for q in self.queues))
    @rule(data=st.data())
    def reorder(self, data: st.DataObject) -> None:
        to = data.draw(st.sampled_from([n for n in range(4) if len(self.queues[n]) > 1]))
        self.queues[to] = data.draw(st.permutations(self.queues[to]))

    @precondition(lambda self: any(self.queues))
    @rule(data=st.data())
    def duplicate(self, data: st.DataObject) -> None:
        to = data.draw(st.sampled_from([n for n in range(4) if self.queues[n]]))
        at = data.draw(st.integers(0, len(self.queues[to]) - 1))
        self.queues[to].insert(at, self.queues[to][at])

    @rule(to=st.integers(0, 3), data=st.data())
    def replay_splice_reflect(self, to: int, data: st.DataObject) -> None:
        """Any earlier message, of any channel and direction, to any end."""
        self._arrive(to, data.draw(st.sampled_from(self.messages)))

    @rule(to=st.integers(0, 3), data=st.data())
    def change(self, to: int, data: st.DataObject) -> None:
        """The next message, with a bit flipped, cut short, or made longer."""
        message = bytearray(
            self.queues[to].pop(0) if self.queues[to] else data.draw(st.sampled_from(self.messages))
        )
        how = data.draw(st.sampled_from(["flip", "flip", "cut", "grow", "empty"]))
        if how == "flip":
            bit = data.draw(st.integers(0, 8 * len(message) - 1))
            message[bit // 8] ^= 1 << bit % 8
        elif how == "cut":
            del message[data.draw(st.integers(0, len(message) - 1)) :]
        elif how == "grow":
            message += data.draw(st.binary(min_size=1, max_size=20))
        else:
            message.clear()
        self._arrive(to, bytes(message))

    @rule(to=st.integers(0, 3), noise_=st.binary(max_size=150))
    def invent(self, to: int, noise_: bytes) -> None:
        self._arrive(to, noise_)

    @rule(to=st.integers(0, 3))
    def cut(self, to: int) -> None:
        end = self.ends[to]
        whole = end.channel.whole
        end.channel.cut()
        assert end.channel.closed and end.channel.whole == whole

    # ------------------------------------------------------------ invariants

    @invariant()
    def only_a_beginning_arrives(self) -> None:
        for number, end in enumerate(self.ends):
            peer = self._peer(number)
            if peer is None:
                assert not end.got and not end.channel.whole, "data arrived without a peer"
                assert not end.channel.established, "established without a peer"
                continue
            assert peer.asked.startswith(end.got), "something arrived that was not sent"
            assert not end.channel.whole or (peer.said_end and end.got == peer.asked), (
                "an end that was not the end"
            )
            assert not end.channel.established or end.channel.remote_static == agreement.public(
                CLIENT if number % 2 else HOST
            )
            assert end.channel.established == (end.taken > 0) or (
                self.pattern == noise.IK and number % 2 == 0
            ), "established without a handshake"

    @invariant()
    def closed_stays_closed(self) -> None:
        for end in self.ends:
            assert end.channel.closed or not end.was_closed
            assert end.channel.reason != channel.ENDED or (end.said_end and end.channel.whole)
            assert end.channel.reason in (
                "",
                channel.ENDED,
                channel.CUT,
                channel.TAMPERED,
                channel.HANDSHAKE,
            )
            end.was_closed = end.channel.closed


class PairingCarrier(Carrier):
    pattern = noise.XXPSK3


SETTINGS = settings(
    max_examples=examples(150),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestCarrier = Carrier.TestCase
TestCarrier.settings = SETTINGS
TestPairingCarrier = PairingCarrier.TestCase
TestPairingCarrier.settings = SETTINGS


def conversation(pattern: str, victim: int, byte: int) -> tuple[Channel, Channel, bytes, int]:
    """A client opens a channel and sends one message and END; one bit of `victim` is changed.

    Returns both ends, the bytes that the host got, and the length of that message.
    """
    client, host = make(pattern, True, ROUTES[0], 0), make(pattern, False, ROUTES[0], 0)
    got, length, at = b"", 0, 0
    messages = [(host, message) for message in client.start().send]
    said = False
    while messages:
        to, message = messages.pop(0)
        if at == victim:
            length, changed = len(message), bytearray(message)
            changed[byte] ^= 1 << byte % 8
            message = bytes(changed)
        at += 1
        step = to.receive(message, 0)
        got += step.data
        messages += [(client if to is host else host, m) for m in step.send]
        if client.handshake_hash and not client.closed and not said:
            said = True
            messages += [(host, m) for m in (*client.send(b"do it", 0), *client.end(0))]
    return client, host, got, length


@pytest.mark.parametrize("pattern", [noise.IK, noise.XXPSK3])
def test_t2_every_byte_of_a_channel_matters(pattern: str) -> None:
    client, host, got, _ = conversation(pattern, -1, 0)
    assert got == b"do it" and host.whole
    handshake = 2 if pattern == noise.IK else 3
    for victim in range(handshake + 2):
        byte, length = 0, 1
        while byte < length:
            client, host, got, length = conversation(pattern, victim, byte)
            where = f"byte {byte} of message {victim}"
            assert client.closed or host.closed, where
            assert got == (b"do it" if victim == handshake + 1 else b"") and not host.whole, where
            assert host.established == (victim == handshake + 1), where
            byte += 1
        assert length > 16
