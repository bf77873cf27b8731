"""Two parties with a short code meet; an attacker gets a single guess and no information (T2)."""

from __future__ import annotations

import os
import random

import pytest

from holdfast.core.people import join_code
from holdfast.core.sealed import channel
from holdfast.core.sealed.meeting import Meeting, pass_, password, route_key
from holdfast.model import agreement

ROUTE = bytes(16)
CODE = join_code.Code("AAAA", "1234567")


def talk(one: channel.Channel, other: channel.Channel) -> None:
    """Carry messages until none is left."""
    way = list(one.start().send)
    to, back = other, one
    while way:
        answers = [answer for message in way for answer in to.receive(message, 0.0).send]
        way, to, back = answers, back, to


def test_t2_the_same_code_makes_a_channel_and_each_learns_the_others_key() -> None:
    mine, yours = os.urandom(32), os.urandom(32)
    joiner, host = (
        Meeting(True, ROUTE, mine, b"p" * 32, 0.0),
        Meeting(False, ROUTE, yours, b"p" * 32, 0.0),
    )
    talk(joiner, host)
    assert joiner.handshake_hash == host.handshake_hash != b""
    [message] = joiner.send(b"hello", 0.0)
    assert (
        host.receive(message, 0.0).data == b"hello"
        and host.established
        and host.remote_static == agreement.public(mine)
    )
    [message] = host.send(b"welcome", 0.0)
    assert (
        joiner.receive(message, 0.0).data == b"welcome"
        and joiner.established
        and joiner.remote_static == agreement.public(yours)
    )


def test_t2_another_code_is_noticed_before_any_data_is_sent() -> None:
    joiner, host = (
        Meeting(True, ROUTE, os.urandom(32), b"p" * 32, 0.0),
        Meeting(False, ROUTE, os.urandom(32), b"q" * 32, 0.0),
    )
    talk(joiner, host)
    assert not host.established and not joiner.established
    assert "handshake" in (host.reason, joiner.reason)


RANDOM = random.Random(1)  # every worker of a parallel run must collect the same tests


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"HFM\x01",
        b"HFM\x01" + bytes(32),
        b"HFM\x02" + RANDOM.randbytes(32),
        b"HFM\x01" + b"\xff" * 32,
        RANDOM.randbytes(36),
        b"HFM\x01" + RANDOM.randbytes(33),
    ],
)
def test_t2_nonsense_makes_no_channel(message: bytes) -> None:
    host = Meeting(False, ROUTE, os.urandom(32), b"p" * 32, 0.0)
    host.receive(message, 0.0)
    assert not host.established and (host.closed or not host.handshake_hash)


def test_t2_a_reflected_message_is_no_answer() -> None:
    joiner = Meeting(True, ROUTE, os.urandom(32), b"p" * 32, 0.0)
    [first] = joiner.start().send
    assert joiner.receive(first, 0.0) == channel.Step() and joiner.reason == channel.HANDSHAKE


def test_the_values_derived_from_a_code_differ() -> None:
    other = join_code.Code("AAAB", "1234567")
    assert (
        len(
            {
                password(CODE),
                password(other),
                password(join_code.Code("AAAA", "1234568")),
                route_key("AAAA"),
                route_key("AAAB"),
                pass_("AAAA"),
                pass_("AAAB"),
            }
        )
        == 7
    )
    assert CODE.secret.encode() not in password(CODE)
