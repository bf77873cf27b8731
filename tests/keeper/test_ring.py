"""The ring's writer and reader against a plain string of bytes (S5)."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.keeper import ring
from holdfast.wire import ring as layout
from tests.support.examples import examples

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("output"), st.binary(min_size=1, max_size=3000)),
        st.tuples(st.just("consumed"), st.integers(-50, 4000)),
        st.tuples(st.just("give up"), st.just(0)),
        st.tuples(st.just("nothing there"), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=examples(150), deadline=None)
@given(st.integers(1, 2500), st.integers(0, 2**48), st.binary(max_size=3000), STEPS)
def test_s5_the_last_bytes_are_always_at_their_offsets(
    size: int, base: int, tail: bytes, steps: list[tuple[str, int | bytes]]
) -> None:
    tail = tail[:base]
    fd = ring.create(size, base, tail, 0, False, 80, 24)
    written = ring.Ring(fd, 10.0)
    reader = layout.RingReader(fd)
    source, sink = os.pipe2(os.O_NONBLOCK)
    history, first, consumed, rolling = tail, base - len(tail), base, False
    try:
        for step, value in steps:
            if step == "output":
                assert isinstance(value, bytes)
                os.write(sink, value)
                pending = value
                while pending and written.room() > 0:
                    count = written.read_from(source, written.room())
                    history, pending = history + pending[:count], pending[count:]
                os.set_blocking(source, False)
                while pending:  # bytes that found no room do not matter here
                    pending = pending[len(os.read(source, len(pending))) :]
            elif step == "consumed":
                assert isinstance(value, int)
                offset = consumed + value
                written.host_consumed(max(offset, 0), 1.0)
                if consumed < offset <= first + len(history):
                    consumed = offset
                    rolling = rolling and offset < reader.start
            elif step == "give up":
                written.give_up_host()
                rolling = True
            else:
                with pytest.raises(BlockingIOError):
                    written.read_from(
                        source, max(1, written.room()) if rolling or written.room() > 0 else 1
                    )
            head = first + len(history)
            start = max(first, head - size)
            assert (reader.start, reader.head) == (start, head)
            assert written.consumed == consumed and written.rolling == rolling == bool(
                reader.flags & layout.FLAG_ROLLING
            )
            assert rolling or consumed >= start, (
                "output that the host needs is not overwritten while it makes progress"
            )
            assert reader.copy(start, head) == history[start - first :]
            assert reader.copy(start - 1, head) is None and reader.copy(start, head + 1) is None
            middle = (start + head) // 2
            span = bytes(reader.span(middle, 100))
            assert history[middle - first :].startswith(span) and (span or middle == head)
            assert reader.intact(start) and not reader.intact(start - 1)
    finally:
        for end in (source, sink, fd):
            os.close(end)


def test_a_reader_never_gets_bytes_outside_of_the_ring() -> None:
    fd = ring.create(1000, 50, b"x" * 50, 7, True, 80, 24)
    reader = layout.RingReader(fd)
    assert len(reader.span(50, 10)) == len(reader.span(51, 10)) == len(reader.span(10**9, 10)) == 0
    assert len(reader.span(10, -5)) == 0 and reader.copy(20, 10) is None
    assert (reader.accepted, reader.written, reader.resized) == (7, 7, (50, 80, 24))
    assert reader.flags == layout.FLAG_EXITED
    os.close(fd)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"short",
        bytes(4096),
        bytes(5000),
        (0).to_bytes(8, "little") * 1024,
        layout.MAGIC.to_bytes(8, "little") + bytes(4088),
        layout.MAGIC.to_bytes(8, "little") + (5).to_bytes(8, "little") + bytes(4086),
    ],
)
def test_memory_that_is_no_ring_is_refused(content: bytes) -> None:
    fd = os.memfd_create("no-ring")
    os.write(fd, content)
    with pytest.raises(layout.RingUnreadable):
        layout.RingReader(fd)
    os.close(fd)
    with pytest.raises(layout.RingUnreadable):
        layout.RingReader(fd)
