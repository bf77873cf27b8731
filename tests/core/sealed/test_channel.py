"""The sealed channel by example: opening, refusals, rekeying and the end.

Attacks by a carrier are in tests/hostile/relay/test_carrier.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.sealed import channel
from holdfast.core.sealed.channel import Bounds, Channel
from holdfast.model import agreement, limits
from holdfast.model.errors import PeerFault
from holdfast.wire import body, noise

VECTORS = Path(__file__).parents[2] / "vectors" / "channel.json"
ROUTE = b"\x11" * 16
CLIENT, HOST, PSK = b"\x01" * 32, b"\x02" * 32, b"\x03" * 32
PATTERNS = (noise.IK, noise.XXPSK3)


def sides(
    pattern: str = noise.IK, bounds: Bounds = Bounds(), now: float = 0.0, **other: Any
) -> tuple[Channel, Channel]:
    """`other`: the differences at the responder."""
    psk = PSK if pattern == noise.XXPSK3 else None
    remote = agreement.public(HOST) if pattern == noise.IK else None
    return (
        Channel(pattern, True, ROUTE, CLIENT, now, remote_static=remote, psk=psk, bounds=bounds),
        Channel(
            pattern,
            False,
            **{"route": ROUTE, "static": HOST, "now": now, "psk": psk, "bounds": bounds, **other},
        ),
    )


def shake(client: Channel, host: Channel, now: float = 0.0) -> None:
    """Exchange messages until none is left."""
    turn, messages = host, client.start().send
    while messages:
        (message,) = messages
        messages = turn.receive(message, now).send
        turn = client if turn is host else host


def opened(
    pattern: str = noise.IK, bounds: Bounds = Bounds(), now: float = 0.0
) -> tuple[Channel, Channel]:
    client, host = sides(pattern, bounds, now)
    shake(client, host, now)
    (first,) = client.send(b"first", now)
    assert host.receive(first, now).data == b"first"
    return client, host


@pytest.mark.parametrize("pattern", PATTERNS)
def test_both_know_each_other_and_the_channel(pattern: str) -> None:
    client, host = opened(pattern)
    assert client.established == (pattern == noise.IK), (
        "in XXpsk3 nothing that came back was sealed with the secret yet"
    )
    assert host.established and client.version == host.version == channel.VERSION
    assert client.handshake_hash == host.handshake_hash and len(client.handshake_hash) == 32
    assert host.remote_static == agreement.public(
        CLIENT
    ) and client.remote_static == agreement.public(HOST)
    (back,) = host.send(b"back", 0)
    assert client.receive(back, 0).data == b"back" and client.established
    assert opened(pattern)[0].handshake_hash != client.handshake_hash, (
        "every channel has a name of its own"
    )


@pytest.mark.parametrize("pattern", PATTERNS)
def test_t2_a_host_acts_on_nothing_before_the_first_sealed_message(pattern: str) -> None:
    client, host = sides(pattern)
    shake(client, host)
    assert not host.established and not host.closed and host.handshake_hash
    with pytest.raises(ValueError):
        host.send(b"early", 0)
    with pytest.raises(ValueError):
        host.end(0)
    assert host.receive(client.send(b"x", 0)[0], 0) == channel.Step((), b"x")
    assert host.established


def test_t2_a_first_message_that_is_sent_again_leads_nowhere() -> None:
    """Only the author of a first message can continue, so no memory of seen messages is needed."""
    client, host = sides()
    (first,) = client.start().send
    shake_back = host.receive(first, 0).send
    client.receive(shake_back[0], 0)
    sealed = client.send(b"do it", 0)[0]
    assert host.receive(sealed, 0).data == b"do it"

    again = sides()[1]
    (answer,) = again.receive(first, 0).send
    assert answer != shake_back[0]
    assert again.receive(sealed, 0) == channel.Step()
    assert again.reason == channel.TAMPERED and not again.established


@pytest.mark.parametrize("pattern", PATTERNS)
def test_t2_versions_cannot_be_changed_on_the_way(pattern: str) -> None:
    """The offer travels in the clear and is bound by the prologue: a changed offer fails."""
    for lowest, highest in ((1, 1), (1, 3), (2, 2)):
        psk, remote = (PSK, None) if pattern == noise.XXPSK3 else (None, agreement.public(HOST))
        client = Channel(
            pattern, True, ROUTE, CLIENT, 0, remote_static=remote, psk=psk, versions=(1, 2)
        )
        host = sides(pattern, versions=(1, 3))[1]
        (first,) = client.start().send
        step = host.receive(first[:3] + bytes((lowest, highest)) + first[5:], 0)
        if step.send:  # a first message without a secret
            client.receive(step.send[0], 0)
        assert (client.reason or host.reason) == channel.HANDSHAKE
        assert not client.established and not host.established


@pytest.mark.parametrize(
    ("mine", "yours", "version"), [((1, 3), (2, 5), 3), ((1, 1), (1, 9), 1), ((2, 4), (1, 3), 3)]
)
def test_the_highest_common_version_is_spoken(
    mine: tuple[int, int], yours: tuple[int, int], version: int
) -> None:
    client = Channel(
        noise.IK, True, ROUTE, CLIENT, 0, remote_static=agreement.public(HOST), versions=mine
    )
    host = sides(versions=yours)[1]
    shake(client, host)
    assert client.version == host.version == version


@pytest.mark.parametrize(("mine", "yours"), [((1, 1), (2, 3)), ((4, 9), (1, 3))])
def test_no_common_version_is_said(mine: tuple[int, int], yours: tuple[int, int]) -> None:
    client = Channel(
        noise.IK, True, ROUTE, CLIENT, 0, remote_static=agreement.public(HOST), versions=mine
    )
    host = sides(versions=yours)[1]
    assert host.receive(client.start().send[0], 0) == channel.Step()
    assert host.reason == channel.UNSPOKEN


@pytest.mark.parametrize("said", [b"", b"\x00", b"\x02", b"\x01\x01"])
def test_a_version_that_was_not_offered_is_refused(said: bytes) -> None:
    client = sides()[0]
    (first,) = client.start().send
    host = noise.Handshake(noise.IK, False, channel.prologue(ROUTE, 1, 1), HOST)
    host.read(first[5:])
    assert client.receive(host.write(said), 0) == channel.Step()
    assert client.reason == channel.UNSPOKEN and not client.established


@pytest.mark.parametrize(
    ("pattern", "other"),
    [
        (noise.IK, {"route": b"\x12" * 16}),
        (noise.IK, {"static": b"\x09" * 32}),
        (noise.XXPSK3, {"route": b"\x12" * 16}),
        (noise.XXPSK3, {"psk": b"\x09" * 32}),
    ],
    ids=str,
)
def test_another_route_host_or_secret_is_another_channel(
    pattern: str, other: dict[str, Any]
) -> None:
    client, host = sides(pattern, **other)
    shake(client, host)
    assert channel.HANDSHAKE in (client.reason, host.reason)
    assert not host.established


def test_t2_a_stranger_without_the_secret_is_never_established() -> None:
    """An impostor gets the client's last message, but can neither read nor answer the next."""
    client = sides(noise.XXPSK3)[0]
    stranger = noise.Handshake(
        noise.XXPSK3, False, channel.prologue(ROUTE, 1, 1), b"\x09" * 32, None, b"\x08" * 32
    )
    stranger.read(client.start().send[0][5:])
    (third,) = client.receive(stranger.write(b"\x01"), 0).send
    assert not client.established
    with pytest.raises(PeerFault):
        stranger.read(third)
    client.send(b"sealed with what the stranger does not have", 0)
    assert client.receive(noise.Cipher(b"k" * 32).seal(body.data(b"hi")), 0) == channel.Step()
    assert client.reason == channel.TAMPERED and not client.established


def test_another_handshake_than_expected_is_refused() -> None:
    (first,) = sides(noise.IK)[0].start().send
    for host, message in (
        (sides(noise.XXPSK3)[1], first),
        (sides(noise.IK)[1], first[:2] + b"\x02" + first[3:]),
    ):
        assert host.receive(message, 0) == channel.Step()
        assert host.reason == channel.HANDSHAKE


def test_the_offer_can_be_read_before_there_is_a_channel() -> None:
    for pattern in PATTERNS:
        assert channel.offered(sides(pattern)[0].start().send[0]) == channel.Offer(pattern, 1, 1)
    for bad in (
        b"",
        b"HF",
        b"HF\x01\x01",
        b"XF\x01\x01\x01",
        b"HF\x00\x01\x01",
        b"HF\x03\x01\x01",
        b"HF\x01\x00\x01",
        b"HF\x01\x02\x01",
    ):
        with pytest.raises(PeerFault):
            channel.offered(bad)


@pytest.mark.parametrize(
    ("pattern", "message"), [(noise.IK, 1), (noise.XXPSK3, 1), (noise.XXPSK3, 3)]
)
def test_handshakes_carry_no_payload(pattern: str, message: int) -> None:
    """A payload of the first message would be read before the peer is known."""
    prologue = channel.prologue(ROUTE, 1, 1)
    raw = noise.Handshake(
        pattern,
        True,
        prologue,
        CLIENT,
        agreement.public(HOST) if pattern == noise.IK else None,
        PSK if pattern == noise.XXPSK3 else None,
    )
    host = sides(pattern)[1]
    head = b"HF" + bytes((channel.PATTERNS[pattern], 1, 1))
    step = host.receive(head + raw.write(b"do it" if message == 1 else b""), 0)
    if message == 3:
        raw.read(step.send[0])
        step = host.receive(raw.write(b"do it"), 0)
    assert step == channel.Step() and host.reason == channel.HANDSHAKE


def test_long_data_goes_in_pieces() -> None:
    client, host = opened()
    data = bytes(range(256)) * 1000
    messages = client.send(data, 0)
    assert len(messages) == 4 and max(map(len, messages)) == limits.SEALED_BYTES
    assert b"".join(host.receive(m, 0).data for m in messages) == data
    assert client.send(b"", 0) == ()


# ------------------------------------------------------------ ends


@pytest.mark.parametrize("pattern", PATTERNS)
def test_t2_an_end_is_told_apart_from_a_cut(pattern: str) -> None:
    client, host = opened(pattern)
    (last,) = client.send(b"last", 0)
    (end,) = client.end(0)
    host.receive(last, 0)
    assert not host.whole
    cut = Channel.__new__(Channel)
    cut.__dict__ = dict(host.__dict__)  # the same host, to which the end never comes
    cut.cut()
    assert cut.reason == channel.CUT and not cut.whole
    host.receive(end, 0)
    assert host.whole and not host.closed, "this side may go on"
    with pytest.raises(ValueError):
        client.send(b"more", 0)
    assert client.receive(host.send(b"still here", 0)[0], 0).data == b"still here"
    client.receive(host.end(0)[0], 0)
    assert client.whole and client.reason == host.reason == channel.ENDED


def test_a_cut_after_the_end_lost_nothing_of_the_other_side() -> None:
    client, host = opened()
    host.receive(client.end(0)[0], 0)
    host.cut()
    assert host.reason == channel.CUT and host.whole


def test_nothing_comes_after_an_end() -> None:
    client, host = opened()
    (end,) = client.end(0)
    assert client._sender is not None
    more = client._sender.seal(body.data(b"more"))  # no honest side does this
    host.receive(end, 0)
    assert host.receive(more, 0) == channel.Step()
    assert host.reason == channel.PROTOCOL


@pytest.mark.parametrize("reason", [channel.CUT, channel.LEFT, channel.TAMPERED])
def test_closed_is_closed(reason: str) -> None:
    client, host = opened()
    (good,) = client.send(b"good", 0)
    if reason == channel.TAMPERED:
        host.receive(b"nonsense", 0)
    else:
        {channel.CUT: host.cut, channel.LEFT: host.leave}[reason]()
    assert host.reason == reason
    assert host.receive(good, 0) == channel.Step()
    host.cut()
    host.leave()
    assert host.reason == reason, "the first reason stays"
    with pytest.raises(ValueError):
        host.send(b"x", 0)
    with pytest.raises(ValueError):
        host.end(0)
    assert not (host._sender or host._receiver or host._handshake), "keys are forgotten"


@pytest.mark.parametrize("plain", [b"", b"\x0a\x00", b"\x32\x00", b"\x0a\x05x", body.REKEY + b"x"])
def test_an_authentic_but_invalid_message_ends_the_channel(plain: bytes) -> None:
    client, host = opened()
    assert client._sender is not None
    assert host.receive(client._sender.seal(plain), 0) == channel.Step()
    assert host.reason == channel.PROTOCOL


def test_a_pinned_key_that_is_none_is_no_channel() -> None:
    client = channel.initiator(ROUTE, CLIENT, bytes(32), 0)
    assert client.start() == channel.Step() and client.reason == channel.HANDSHAKE


def test_sides_begin_as_they_must() -> None:
    client, host = sides()
    with pytest.raises(ValueError):
        host.start()
    with pytest.raises(ValueError):
        client.send(b"early", 0)
    assert sides()[0].receive(b"early", 0) == channel.Step()
    client.start()
    with pytest.raises(ValueError):
        client.start()
    with pytest.raises(ValueError):
        channel.prologue(b"short", 1, 1)


# ------------------------------------------------------------ keys do not last


def key(side: Channel) -> tuple[bytes, bytes]:
    assert side._sender is not None and side._receiver is not None
    return side._sender._key, side._receiver._key


@pytest.mark.parametrize(
    "bounds, messages",
    [(Bounds(messages=4), 4), (Bounds(bytes=40), 4), (Bounds(seconds=4), 4)],
    ids=["messages", "bytes", "seconds"],
)
def test_the_sender_changes_its_key_in_time(bounds: Bounds, messages: int) -> None:
    client, host = opened(bounds=bounds._replace(seconds=min(bounds.seconds, 1000)))
    seen = {key(client)[0]}
    told = 0
    for number in range(1, 41):
        out = client.send(b"8 bytes!", float(number))
        told += len(out) - 1
        assert b"".join(host.receive(m, float(number)).data for m in out) == b"8 bytes!"
        assert key(client)[0] == key(host)[1]
        seen.add(key(client)[0])
    assert told == len(seen) - 1 and 8 <= told <= 10, "about every fourth message"
    assert key(host)[0] == key(client)[1], "the other direction has its own count"
    assert client.receive(host.send(b"x", 0)[0], 0).data == b"x"


def test_the_bounds_equal_those_of_the_documents() -> None:
    assert Bounds() == (1 << 20, 1 << 30, 3600.0)


@pytest.mark.parametrize("bounds", [Bounds(messages=4), Bounds(bytes=4 * 70_000)])
def test_the_receiver_insists(bounds: Bounds) -> None:
    """A sender that never changes keys is cut off."""
    client, host = sides(bounds=Bounds())
    host = sides(bounds=bounds)[1]
    shake(client, host)
    taken = 0
    for _ in range(40):
        (message,) = client.send(bytes(limits.BODY_BYTES), 0)
        taken += bool(host.receive(message, 0).data)
    assert host.reason == channel.PROTOCOL and 8 <= taken <= 10


def test_a_channel_without_numbers_left_ends() -> None:
    client, host = opened()
    assert client._sender is not None and host._receiver is not None
    client._sender.nonce = host._receiver.nonce = 2**64 - 2
    assert host.receive(client.send(b"last", 0)[0], 0).data == b"last"
    assert client.send(b"more", 0) == () and client.reason == channel.EXHAUSTED
    assert host.receive(bytes(30), 0) == channel.Step() and host.reason == channel.EXHAUSTED


# ------------------------------------------------------------ golden bytes


def transcript(pattern: str) -> dict[str, Any]:
    """A whole channel with fixed keys, as a carrier sees the messages."""
    psk, remote = (PSK, None) if pattern == noise.XXPSK3 else (None, agreement.public(HOST))
    client = Channel(
        pattern,
        True,
        ROUTE,
        CLIENT,
        0,
        remote_static=remote,
        psk=psk,
        bounds=Bounds(messages=2),
        ephemeral=b"\x04" * 32,
    )
    host = Channel(pattern, False, ROUTE, HOST, 0, psk=psk, ephemeral=b"\x05" * 32)
    out: list[str] = []
    turn, messages = host, client.start().send
    while messages:
        out.append(messages[0].hex())
        messages = turn.receive(messages[0], 0).send
        turn = client if turn is host else host
    for data in (b"one", b"two", b"three"):
        for message in client.send(data, 0):
            host.receive(message, 0)
            out.append(message.hex())
    for side, message in (
        (client, host.send(b"back", 0)[0]),
        (host, client.end(0)[0]),
        (client, host.end(0)[0]),
    ):
        side.receive(message, 0)
        out.append(message.hex())
    assert client.reason == host.reason == channel.ENDED
    return {
        "pattern": pattern,
        "route": ROUTE.hex(),
        "client_static": CLIENT.hex(),
        "host_static": HOST.hex(),
        "psk": (psk or b"").hex(),
        "client_ephemeral": "04" * 32,
        "host_ephemeral": "05" * 32,
        "prologue": channel.prologue(ROUTE, 1, 1).decode(),
        "handshake_hash": client.handshake_hash.hex(),
        "messages": out,
    }


@pytest.mark.parametrize("number", [0, 1])
def test_t6_golden_bytes_do_not_change(number: int) -> None:
    """A channel with three messages, a REKEY, an answer, and END from both sides."""
    assert transcript(PATTERNS[number]) == json.loads(VECTORS.read_text())["channels"][number]


def test_t3_only_the_peer_itself_can_answer_a_keepalive() -> None:
    client, host = opened()
    asked = client.ask(0)
    answer = host.receive(asked[0], 0)
    assert answer.data == b"" and len(answer.send) == 1
    assert client.receive(answer.send[0], 0) == channel.Step() and not client.closed
    client.receive(answer.send[0], 0)
    assert client.reason == channel.TAMPERED, "an old answer is none"
