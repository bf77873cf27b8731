"""Emptying a terminal's screen so that nothing of it goes into the terminal's own history."""

from __future__ import annotations


def blank(rows: int) -> bytes:
    """Line by line, the cursor home: what is cleared as a whole goes into the history of some terminals (tmux), once more with each repaint."""
    return b"\x1b[H" + b"\x1b[2K\x1b[B" * (rows - 1) + b"\x1b[2K\x1b[H"
