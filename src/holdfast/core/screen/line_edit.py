"""Decide whether typed keys left text on their line.

Keys that only move or redraw, and text that was deleted, leave an empty line. Keys that cannot be
followed here (history, completion, words, vi's command mode) count as having left text; then the
caller looks at the screen or asks.

A shell's editor moves a cursor. A terminal in line mode does not: there arrows and most control
characters are text.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[@-~]|.)?|[\xc0-\xff][\x80-\xbf]*|.", re.DOTALL)
_LEFT, _RIGHT = (b"\x02", b"\x1b[D", b"\x1bOD"), (b"\x06", b"\x1b[C", b"\x1bOC")
_HOME = (b"\x01", b"\x1b[H", b"\x1bOH", b"\x1b[1~")
_END = (b"\x05", b"\x1b[F", b"\x1bOF", b"\x1b[4~")
_ERASE, _KILL, _REDRAW = (b"\x7f", b"\x08"), b"\x15", b"\x0c"


def left_nothing(typed: bytes, editor: bool) -> bool:
    """Say whether the line is empty after all that was typed since it began."""
    return _edited(typed) if editor else _cooked(typed)


def _edited(typed: bytes) -> bool:
    length = cursor = 0
    for token in _TOKEN.findall(typed):
        if token in _ERASE:
            if cursor:
                length, cursor = length - 1, cursor - 1
        elif token == _KILL:
            length, cursor = length - cursor, 0
        elif token == b"\x0b":
            length = cursor
        elif token == b"\x1b[3~":
            length -= cursor < length
        elif token in _LEFT:
            cursor = max(0, cursor - 1)
        elif token in _RIGHT:
            cursor = min(length, cursor + 1)
        elif token in _HOME:
            cursor = 0
        elif token in _END:
            cursor = length
        elif token[0] >= 0x20 and token[0] != 0x7F:
            length, cursor = length + 1, cursor + 1
        elif token not in (_REDRAW, b"\x1b"):
            return False
    return not length


def _cooked(typed: bytes) -> bool:
    length = 0
    for token in _TOKEN.findall(typed):
        length = (
            0 if token == _KILL else max(0, length - 1) if token in _ERASE else length + len(token)
        )
    return not length
