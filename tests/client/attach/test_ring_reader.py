"""Reading the ring ahead of the terminal: no byte lost, doubled, or from before a screen."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.client.attach.ring_reader import Direct
from holdfast.keeper.ring import Ring, create
from holdfast.model.limits import OUTPUT_CHUNK_BYTES, RING_BYTES_MIN


class Output:
    """A keeper's ring and a reader."""

    def __init__(self, size: int = 1 << 20) -> None:
        self.fd = create(size, 0, b"", 0, False, 80, 24)
        self.ring = Ring(self.fd, 10.0)
        self.source, self.sink = os.pipe2(os.O_NONBLOCK)
        bell = os.eventfd(0, os.EFD_NONBLOCK)
        self.direct = Direct(os.dup(self.fd), bell)

    def print(self, data: bytes) -> None:
        while data:
            data = data[os.write(self.sink, data[:4096]) :]
            self.ring.read_from(self.source, 4096)
            self.ring.consumed = self.ring.head

    def close(self) -> None:
        self.direct.close()
        for fd in (self.fd, self.source, self.sink):
            os.close(fd)


@pytest.fixture
def output() -> Iterator[Output]:
    made = Output()
    yield made
    made.close()


@given(
    st.lists(
        st.tuples(
            st.binary(min_size=1, max_size=3000).map(lambda b: b.hex().encode()),
            st.booleans(),
            st.booleans(),
        ),
        max_size=20,
    )
)
def test_s6_looking_ahead_changes_nothing(steps: list[tuple[bytes, bool, bool]]) -> None:
    output = Output()
    try:
        output.direct.begin(0)
        got = b""
        for data, ahead, take in steps:
            output.print(data)
            if ahead:
                output.direct.look_ahead()
            if take:
                got += bytes(output.direct.take() or b"")
        while piece := output.direct.take():
            got += bytes(piece)
        assert got == b"".join(data for data, _, _ in steps)
    finally:
        output.close()


def test_s6_a_screen_drops_output_that_was_read_ahead(output: Output) -> None:
    output.direct.begin(0)
    output.print(b"old " * 10)
    output.direct.look_ahead()
    output.direct.begin(40)
    output.print(b"new")
    assert bytes(output.direct.take() or b"") == b"new"
    output.print(b"more")
    output.direct.look_ahead()
    output.direct.stop()
    assert output.direct.take() == b""


def test_s5_a_gap_is_reported_also_when_it_was_found_ahead() -> None:
    output = Output(RING_BYTES_MIN)
    try:
        output.direct.begin(0)
        output.print(b"x" * (2 * RING_BYTES_MIN))
        output.direct.look_ahead()
        assert output.direct.take() is None
    finally:
        output.close()


def test_at_most_one_piece_is_read_ahead(output: Output) -> None:
    output.direct.begin(0)
    output.print(b"x" * (3 * OUTPUT_CHUNK_BYTES))
    for _ in range(5):
        output.direct.look_ahead()
    assert output.direct.offset == OUTPUT_CHUNK_BYTES


def test_s4_output_that_was_read_ahead_does_not_count_as_delivered(output: Output) -> None:
    """A client that loses its host continues where its terminal is, not where it has looked."""
    output.direct.begin(0)
    output.print(b"shown")
    assert bytes(output.direct.take() or b"") == b"shown" and output.direct.delivered == 5
    output.print(b" and not")
    output.direct.look_ahead()
    assert output.direct.delivered == 5
    output.direct.begin(output.direct.delivered, resumed=True)
    assert bytes(output.direct.take() or b"") == b" and not" and output.direct.delivered == 13
