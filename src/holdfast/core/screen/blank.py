"""Clear the screen of a terminal so that nothing enters the terminal's own history."""

from __future__ import annotations


def blank(rows: int) -> bytes:
    """Clear line by line, cursor home.

    Some terminals (tmux) move a screen that is cleared as a whole to the history, at each repaint.
    """
    return b"\x1b[H" + b"\x1b[2K\x1b[B" * (rows - 1) + b"\x1b[2K\x1b[H"
