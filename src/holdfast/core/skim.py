"""Which part of a flood need not be shown to the emulator, because nothing of it would be left.

A screen with its history is decided by the newest (history + rows) lines as long as the bytes before them only print text, move to
new lines, move and erase within a line and change colours: all that has scrolled out. So of a large backlog only its end is emulated, which is exact and
several times quicker, and a program that floods is not held back by the emulator. The colours in force where the end begins are
kept by handing on the SGR sequences since the last reset.

The caller must know that the terminal flows plainly: primary screen, no margins or region, autowrap on, reverse wrap and insert off,
default charset, parser at ground. Anything else in the part to skip (titles, marks, movement between lines, C1) means: do not
skip.
"""

from __future__ import annotations

import re

_TEXT = bytes(b for b in range(256) if b in b"\x07\x08\t\n\r" or (0x20 <= b != 0x7F and b != 0xC2))
_NOT_IN_LINE = re.compile(rb"\x1b(?!\[[0-9;:]*[mKCDGXP@])")    # SGR, EL, CUF, CUB, CHA, ECH, DCH, ICH stay in their line
_SGR = re.compile(rb"\x1b\[[0-9;:]*m")
_C1 = re.compile(rb"\xc2[\x80-\x9f]")
_RESETS = (b"\x1b[m", b"\x1b[0m")
_BLOCK = 1024      # the newest lines are counted backwards in steps of this


def skim(data: bytes, lines: int) -> tuple[int, bytes]:
    """(n, pen): the first n bytes may be replaced by `pen`. n is 0 when nothing may be skipped. `lines`: history and rows."""
    at, found = len(data), 0
    while found <= lines:
        if at == 0:
            return 0, b""
        block = max(0, at - _BLOCK)
        found += data.count(b"\n", block, at)
        at = block
    end = data.rfind(b"\r\n", 0, at) + 2
    if end < 2 or not _plain(data[:end]):
        return 0, b""
    reset = max(data.rfind(r, 0, end) for r in _RESETS)
    return end, b"".join(_SGR.findall(data, max(reset, 0), end))


def _plain(data: bytes) -> bool:
    rest = data.translate(None, _TEXT)
    if not rest:
        return True
    escapes, c2 = rest.count(b"\x1b"), rest.count(b"\xc2")
    if escapes + c2 != len(rest):
        return False
    return not (escapes and _NOT_IN_LINE.search(data)) and not (c2 and _C1.search(data))
