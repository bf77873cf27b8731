"""Find the part of a flood that the emulator can skip, because no trace would remain.

The newest (history + rows) lines determine a screen with its history. This holds as long as the
bytes before them only print text, move to new lines, move and erase within a line, and change
colours: all that has scrolled out. So only the end of a large backlog is emulated. That is exact
and several times quicker, and the emulator does not slow down a flooding program. To keep the
colours in force, the SGR sequences since the last reset are passed on.

The caller must check the modes of the terminal first: primary screen, no margins or scroll region,
autowrap on, reverse wrap and insert off, default charset, parser in its ground state. Then two
functions check the bytes: `ViewerFilter.in_line` escape sequences and C1 controls, `flows` the
other bytes. If there is any other sequence (a title, a mark, movement between lines), nothing may
be skipped.
"""

from __future__ import annotations

import re

_TEXT = bytes(b for b in range(256) if b in b"\x07\x08\t\n\r" or (0x20 <= b != 0x7F))
_TEXT_OR_ESC = _TEXT + b"\x1b"
_SGR = re.compile(rb"\x1b\[[0-;]*+m")
_RESETS = (b"\x1b[m", b"\x1b[0m")
_BLOCK = 1024  # bytes per step while line ends are counted from the end
_NEAR = 1 << 16  # bytes at the end of the skipped part that are searched for a reset first


def flows(data: bytes) -> bool:
    """Say whether there are no controls with a lasting effect, besides escape sequences."""
    return not data.translate(None, _TEXT_OR_ESC)


def skim(data: bytes, lines: int) -> tuple[int, bytes]:
    """Return (n, pen): `pen` may replace the first n bytes of `data`, which flows.

    n is 0 if nothing may be skipped. `lines` is history plus rows.
    """
    at, found = len(data), 0
    while found <= lines:
        if at == 0:
            return 0, b""
        block = max(0, at - _BLOCK)
        found += data.count(b"\n", block, at)
        at = block
    end = data.rfind(b"\r\n", 0, at) + 2
    if end < 2:
        return 0, b""
    if data.find(b"\x1b", 0, end) < 0:
        return end, b""  # searching for colours that are absent would cost more than the rest
    near = max(0, end - _NEAR)
    reset = max(data.rfind(r, near, end) for r in _RESETS)
    if reset < 0:
        reset = max(0, *(data.rfind(r, 0, end) for r in _RESETS))
    return end, b"".join(_SGR.findall(data, reset, end))
