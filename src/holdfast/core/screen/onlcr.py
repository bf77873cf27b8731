"""Undo the terminal's output translation, so that `run` returns the bytes that a program wrote.

With OPOST and ONLCR, the usual state, the kernel puts a CR in front of every LF and changes nothing
else. The inverse is exact: drop the CR directly before an LF. (A program's own CR LF became CR CR
LF, and comes out as CR LF.) This holds for output under that setting. A command that changes the
setting (`stty raw`, a full-screen program) gets its bytes as the terminal had them, without the CRs
that happened to precede LFs.
"""

from __future__ import annotations

import termios


def in_force(before: int | None, now: int | None) -> bool:
    """Say whether ONLCR was in force, from the output flags before and after the command began.

    None is unknown. A program that has set raw mode by then (sudo, for a moment) did not change the
    setting for the rest; the shell's editor may have changed it for its own line.
    """
    flags = (
        now if now is not None and now & termios.OPOST else before if before is not None else now
    )
    return flags is None or bool(flags & termios.OPOST and flags & termios.ONLCR)


class OnlcrInverse:
    """A stream transformer; at most one byte, a CR at the end of a chunk, is held back."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = False

    def feed(self, chunk: bytes | bytearray | memoryview) -> bytes:
        data = bytes(chunk)
        if not data:
            return b""
        if self._held:
            data = b"\r" + data
        self._held = data.endswith(b"\r")
        if self._held:
            data = data[:-1]
        return data.replace(b"\r\n", b"\n")

    @property
    def pending(self) -> int:
        """The number of held bytes."""
        return int(self._held)

    def close(self) -> bytes:
        """End the stream and return the held bytes."""
        held, self._held = self._held, False
        return b"\r" if held else b""
