"""Whole binary WebSocket messages, parsed and packed here; the library handles all other frames.

The library's reader is a generator over a generator with an object per frame: 20 to 40 us for a
message that has just woken a process. A frame that is binary, final, from the right side and of a
permitted size does not need it. Any other frame (control frames, fragments, text, reserved bits, a
wrong mask, an oversize frame) is given to the library unchanged and in order, and the library
decides. So only the library decides what is valid.

Reading starts after the head of the HTTP message, which the library parses too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Final

from websockets import frames
from websockets.protocol import Event, Protocol, Side, State

WHOLE: Final = 0x82  # binary, final, nothing reserved
FINAL: Final = 0x80
CONTROL: Final = 0x08
MASKED: Final = 0x80
OPCODES: Final = frozenset((0x0, 0x1, 0x2, 0x8, 0x9, 0xA))
HEAD_END: Final = b"\r\n\r\n"
apply_mask: Callable[[bytes | memoryview, bytes], bytes] = frames.apply_mask  # type: ignore[attr-defined]  # the quicker of its two, where that was built


class Cutter:
    """Cuts the incoming bytes of one connection into messages."""

    __slots__ = (
        "_buffer",
        "_fragmented",
        "_largest",
        "_library",
        "_mask",
        "_need",
        "_protocol",
        "_tail",
    )

    def __init__(self, protocol: Protocol, largest: int) -> None:
        self._protocol, self._largest = protocol, largest
        self._mask = MASKED if protocol.side is Side.SERVER else 0
        self._buffer = bytearray()  # the beginning of a frame
        self._need = 0  # bytes needed before another look is useful
        self._tail: bytes | None = b""  # end of the HTTP head so far; None: the head is complete
        self._fragmented = self._library = False

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[bytes | Event]:
        """Yield messages, and the library's events for other frames.

        Exhaust the iterator before the next call, and before changing the buffer of `data`.
        """
        if self._tail is not None:
            size = self._of_head(bytes(data))
            yield from self._by_library(bytes(data[:size]))
            if size == len(data):
                return
            data = data[size:]
            if self._protocol.state is not State.OPEN:
                self._library = True  # the body of a refusal
        if self._library:
            yield from self._by_library(bytes(data))
            return
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._need:
                return
            data, self._buffer = self._buffer, bytearray()
        source = memoryview(data)
        at = 0
        while at < len(source):
            left = len(source) - at
            begin, length = self._frame(source, at)
            if begin < 0 or self._protocol.state is not State.OPEN:
                self._library = True  # from here on
                yield from self._by_library(bytes(source[at:]))
                return
            if not begin or left < begin + length:
                self._need = begin + length or left + 1
                self._buffer += source[at:]
                return
            first = source[at]
            if first == WHOLE and not self._fragmented:
                start = at + begin
                payload = source[start : start + length]
                yield (
                    apply_mask(payload, bytes(source[start - 4 : start]))
                    if self._mask
                    else bytes(payload)
                )
            else:
                if not first & CONTROL:
                    self._fragmented = not first & FINAL
                yield from self._by_library(bytes(source[at : at + begin + length]))
            at += begin + length

    def _frame(self, source: memoryview, at: int) -> tuple[int, int]:
        """Return the payload's start, relative to the frame, and its length.

        (0, 0): the frame's head is incomplete. (-1, 0): the library must handle the frame.
        """
        left = len(source) - at
        if left < 2:
            return 0, 0
        second = source[at + 1]
        if second & MASKED != self._mask or source[at] & ~FINAL not in OPCODES:
            return -1, 0
        length, begin = second & 0x7F, 2
        if length == 126:
            begin = 4
            length = int.from_bytes(source[at + 2 : at + 4], "big")
        elif length == 127:
            begin = 10
            length = int.from_bytes(source[at + 2 : at + 10], "big")
        if left < begin:
            return 0, 0
        if length > self._largest:
            return -1, 0
        return begin + 4 if self._mask else begin, length

    def _of_head(self, data: bytes) -> int:
        """Return how many of these bytes belong to the head of the HTTP message."""
        assert self._tail is not None
        seen = self._tail + data
        found = seen.find(HEAD_END)
        if found < 0:
            self._tail = seen[-len(HEAD_END) + 1 :]
            return len(data)
        size, self._tail = found + len(HEAD_END) - len(self._tail), None
        return size

    def _by_library(self, data: bytes) -> list[Event]:
        self._protocol.receive_data(data)
        return self._protocol.events_received()


def masked(message: bytes) -> bytes:
    """Pack a whole binary message as a client sends it."""
    size, mask = len(message), os.urandom(4)
    if size < 126:
        return b"".join((bytes((WHOLE, MASKED | size)), mask, apply_mask(message, mask)))
    head = (
        b"\x82\xfe" + size.to_bytes(2, "big")
        if size < 65536
        else b"\x82\xff" + size.to_bytes(8, "big")
    )
    return b"".join((head, mask, apply_mask(message, mask)))
