"""Which part of a flood need not be shown to the emulator, because nothing of it would be left.

A screen with its history is decided by the newest (history + rows) lines as long as the bytes before them only print text, move to
new lines, move and erase within a line and change colours: all that has scrolled out. So of a large backlog only its end is emulated,
which is exact and several times quicker, and a program that floods is not held back by the emulator. The colours in force where the
end begins are kept by handing on the SGR sequences since the last reset.

The caller must know that the terminal flows plainly: primary screen, no margins or region, autowrap on, reverse wrap and insert off,
default charset, parser at ground. Whether the bytes do is known from two looks at each of them, taken once: `ViewerFilter.in_line` for
escape sequences and C1, `flows` for the rest. Anything else (titles, marks, movement between lines) means: do not skip.
"""

from __future__ import annotations

import re

_TEXT = bytes(b for b in range(256) if b in b"\x07\x08\t\n\r" or (0x20 <= b != 0x7F))
_TEXT_OR_ESC = _TEXT + b"\x1b"
_SGR = re.compile(rb"\x1b\[[0-;]*+m")
_RESETS = (b"\x1b[m", b"\x1b[0m")
_BLOCK = 1024  # the newest lines are counted backwards in steps of this
_NEAR = 1 << 16  # a reset is looked for here first


def flows(data: bytes) -> bool:
    """Whether there are no controls that leave a trace, in bytes whose escape sequences stay in their lines."""
    return not data.translate(None, _TEXT_OR_ESC)


def skim(data: bytes, lines: int) -> tuple[int, bytes]:
    """(n, pen): the first n bytes of `data`, which flows, may be replaced by `pen`. n is 0 when nothing may be skipped. `lines`: history
    and rows."""
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
        return end, b""  # looking for colours that are not there would cost more than all the rest
    near = max(0, end - _NEAR)
    reset = max(data.rfind(r, near, end) for r in _RESETS)
    if reset < 0:
        reset = max(0, *(data.rfind(r, 0, end) for r in _RESETS))
    return end, b"".join(_SGR.findall(data, reset, end))
