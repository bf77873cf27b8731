"""Undoes what the terminal does to output, so that `run` hands on the bytes a program wrote.

With OPOST and ONLCR, the usual state, the kernel puts a CR in front of every LF and changes nothing else.
The inverse is exact: drop the CR directly before an LF. (A program's own CR LF became CR CR LF, and comes
out as CR LF.) It holds for output written while that setting was in force: a command that changes it
(`stty raw`, a full-screen program) gets its bytes as the terminal had them, less the CRs that happened to
precede LFs.
"""

from __future__ import annotations

import termios


def in_force(before: int | None, now: int | None) -> bool:
    """By the terminal's output flags at the prompt, and just after the command began; None: not known. A program that has it raw by then (sudo, for a moment) did not change what the rest
    is written with; an editor of the shell may have changed it for its own line."""
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
        """Bytes held back."""
        return int(self._held)

    def close(self) -> bytes:
        """What was held back; the stream is over."""
        held, self._held = self._held, False
        return b"\r" if held else b""
