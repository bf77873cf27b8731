"""The selector of the host's loop: asyncio's contract, and callbacks that run inside `select`."""

from __future__ import annotations

import os
import selectors
import socket

import pytest

from holdfast.host.runtime.hot_loop import HotLoop, HotSelector
from tests.support.installation import DEADLINE_S


def test_a_registered_socket_is_found_by_object_and_by_descriptor() -> None:
    """asyncio asks by file object since Python 3.13, and by descriptor before."""
    selector = HotSelector(lambda e: None)
    left, right = socket.socketpair()
    with left, right:
        key = selector.register(left, selectors.EVENT_READ, "data")
        known = selector.get_map()
        assert known[left] is known[left.fileno()] is selector.get_key(left) is key
        assert known.get(right) is None and right not in known
        assert len(known) == 1 and list(known) == [left.fileno()]
        selector.unregister(left)
        assert not known
        with pytest.raises(KeyError):
            selector.get_key(left)
    selector.close()


def test_a_reader_of_a_socket_is_replaced_and_removed() -> None:
    loop = HotLoop()
    left, right = socket.socketpair()
    calls = list[str]()
    try:
        loop.add_reader(left, calls.append, "old")
        loop.add_reader(left, calls.append, "new")
        loop.add_writer(left, lambda: None)
        right.send(b"x")
        loop.call_later(0.05, loop.stop)
        loop.run_forever()
        assert set(calls) == {"new"}
        assert loop.remove_reader(left) and loop.remove_writer(left)
        assert not loop.remove_reader(left)
    finally:
        loop.close()
        left.close()
        right.close()


def test_a_hot_callback_runs_in_select_and_beside_an_ordinary_writer() -> None:
    failures = list[BaseException]()
    selector = HotSelector(failures.append)
    left, right = socket.socketpair()
    read = list[bytes]()

    def readable() -> None:
        read.append(os.read(left.fileno(), 10))
        raise ValueError("reported, not raised")

    with left, right:
        selector.add_hot(left.fileno(), readable)
        key = selector.register(left, selectors.EVENT_WRITE)
        right.send(b"hello")
        assert selector.select(0) == [(key, selectors.EVENT_WRITE)]
        assert read == [b"hello"] and isinstance(failures[0], ValueError)
        selector.unregister(left)
        right.send(b"again")
        assert selector.select(0) == [] and len(read) == 2
        selector.remove_hot(left.fileno())
        right.send(b"unseen")
        assert selector.select(0) == [] and len(read) == 2
    selector.close()


def test_t8_a_writer_that_a_hot_callback_replaced_is_called() -> None:
    """The writer is ready in the same `select`: an upload through a relay waited for ever."""
    loop = HotLoop()
    (full, reader), (hot, far) = socket.socketpair(), socket.socketpair()

    def replace() -> None:
        loop.hot.remove_hot(hot.fileno())
        loop.remove_writer(full)
        loop.add_writer(full, loop.stop)

    try:
        loop.add_writer(full, lambda: None)
        loop.hot.add_hot(hot.fileno(), replace)
        far.send(b"x")
        late = loop.call_later(DEADLINE_S, pytest.fail, "the writer is not called")
        loop.run_forever()
        late.cancel()
        loop.remove_writer(full)
    finally:
        loop.close()
        for one in (full, reader, hot, far):
            one.close()
