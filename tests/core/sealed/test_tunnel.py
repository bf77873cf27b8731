"""A stream through a relay: in order, within the credit, less on a queueing link."""

from __future__ import annotations

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.sealed import channel
from holdfast.core.sealed.tunnel import FLOW, LIMIT_LEAST_BYTES, Tunnel
from holdfast.model.agreement import public
from holdfast.model.limits import BODY_BYTES, SEALED_BYTES, STREAM_WINDOW_BYTES, KiB
from tests.support.examples import examples

ROUTE, HOST, CLIENT = bytes(16), bytes(range(32)), bytes(range(1, 33))


def pair(window: int = STREAM_WINDOW_BYTES) -> tuple[Tunnel, Tunnel]:
    client, host = (
        Tunnel(channel.initiator(ROUTE, CLIENT, public(HOST), 0.0), window),
        Tunnel(channel.responder(ROUTE, HOST, 0.0), window),
    )
    for payload in client.start(0.0):
        for answer in host.data(payload, 0.0).send:
            client.data(answer, 0.0)
    assert client.channel.established and client.room() and not host.room()
    for payload in client.put(b"hello", 0.0):
        assert host.data(payload, 0.0).data == b"hello"
    host.took(5)
    return client, host


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "carry", "take", "credit"]), st.integers(1, 70_000)),
        max_size=120,
    )
)
def test_t3_received_bytes_equal_sent_bytes_and_never_exceed_the_credit(
    steps: list[tuple[str, int]],
) -> None:
    client, host = pair()
    way: deque[bytes] = deque()
    back: deque[int] = deque()
    sent, got, taken, now = bytearray(), bytearray(), 0, 1.0
    for what, amount in steps:
        now += 0.001
        if what == "put":
            data = bytes((len(sent) + i) & 0xFF for i in range(min(amount, client.room())))
            way.extend(client.put(data, now) if data else ())
            sent += data
        elif what == "carry" and way:
            got += host.data(way.popleft(), now).data
        elif what == "take" and len(got) > taken:
            count = min(amount, len(got) - taken)
            taken += count
            if given := host.took(count):
                back.append(given)
        elif what == "credit" and back:
            client.credit(back.popleft(), now)
        assert client.on_the_way <= STREAM_WINDOW_BYTES and sum(map(len, way)) <= client.on_the_way
        assert all(len(payload) <= SEALED_BYTES for payload in way)
    while way:
        got += host.data(way.popleft(), now).data
    assert got == sent and not client.reason and not host.reason


def test_t3_a_peer_that_exceeds_its_credit_is_cut_off() -> None:
    client, host = pair(32 * KiB)
    client._window = client._limit = client._credit = 1 << 20
    for payload in client.put(bytes(60_000), 1.0):
        assert host.data(payload, 1.0).data == b""
    assert host.reason == FLOW and host.data(b"x", 2.0) == channel.Step()


def test_t3_credit_for_unsent_bytes_is_a_fault() -> None:
    client, _ = pair()
    client.credit(1 << 18, 1.0)
    assert client.reason == FLOW and client.room() == 0


def flood(rate: float, seconds: float, base_s: float = 0.02) -> tuple[float, float]:
    """Return the bytes per second through a link of this rate, and the final age of the data."""
    client, host = pair()
    now, free, delivered = 0.0, 0.0, 0
    link: deque[tuple[float, bytes, float]] = deque()  # arrival time, data, send time
    credits: deque[tuple[float, int]] = deque()
    age = 0.0
    while now < seconds:
        while credits and credits[0][0] <= now:
            client.credit(credits.popleft()[1], now)
        while link and link[0][0] <= now:
            arrived, payload, begun = link.popleft()
            count = len(host.data(payload, arrived).data)
            delivered, age = delivered + count, arrived - begun
            if given := host.took(count):
                credits.append((arrived + base_s / 2, given))
        while (room := client.room()) >= 4 * KiB:
            for payload in client.put(bytes(min(room, 16 * KiB)), now):
                free = max(free, now + base_s / 2) + len(payload) / rate
                link.append((free, payload, now))
        now += 0.001
    return delivered / seconds, age


def test_t3_on_a_slow_link_the_backlog_is_short_and_a_quick_one_is_used() -> None:
    slow, old = flood(100 * KiB, 20.0)
    assert slow > 80 * KiB and old < 3.0 * LIMIT_LEAST_BYTES / (100 * KiB)
    quick, age = flood(50e6, 3.0)
    assert quick > 0.5 * STREAM_WINDOW_BYTES / 0.025 and age < 0.1


def test_t3_credit_is_given_before_the_sender_has_none() -> None:
    client, host = pair()
    for payload in client.put(b"x" * client.room(), 1.0):
        host.data(payload, 1.0)
    assert host.took(1) == 0 and host.took(20_000) > 0


@settings(max_examples=examples(80), deadline=None)
@given(
    st.lists(st.integers(1, 70_000), min_size=1, max_size=60),
    st.integers(LIMIT_LEAST_BYTES, STREAM_WINDOW_BYTES),
)
def test_t3_a_sender_that_waits_for_useful_credit_does_not_wait_for_ever(
    pieces: list[int], limit: int
) -> None:
    """Taken data makes room, although some credit is kept back, and pieces have a useful size."""
    client, host = pair()
    client._limit = limit
    for piece in pieces:
        assert client.worth()
        size = min(piece, client.room(), BODY_BYTES)
        for payload in client.put(bytes(size), 1.0):
            if given := host.took(len(host.data(payload, 1.0).data)):
                client.credit(given, 1.0)
        client._limit = limit
    full, _ = pair()
    while full.worth():
        full.put(bytes(min(full.room(), BODY_BYTES)), 1.0)
    assert full.room() < full._limit // 4
