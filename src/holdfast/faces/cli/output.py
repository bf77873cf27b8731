"""Printing for people and programs. Foreign text is escaped and cannot control the terminal."""

from __future__ import annotations

import os
import sys

from holdfast.model import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence
    from typing import TextIO

    from holdfast.model.jsontext import Json

_ESCAPED = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}
_readable = jsontext.encoder(ensure_ascii=False)


def put_json(value: object) -> None:
    """Print a value as a line of JSON.

    Characters outside of ASCII stay as they are, unless the encoding of stdout lacks one of them.
    """
    text = _readable(value)
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        text = jsontext.dumps(value)
    print(text)


def put(args: Namespace, value: object, words: str) -> int:
    """Print the value if JSON was asked for, else these words. Returns the exit code."""
    if args.json:
        put_json(value)
    else:
        print(words)
    return 0


def write(data: bytes) -> None:
    """Write all bytes to stdout."""
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def timed(value: Json, seconds: float | None) -> Json:
    """The value with `when`: the time in the format that all listings share."""
    import time

    if not seconds:
        return {**value, "when": None}
    whole, part = divmod(int(seconds * 1000), 1000)
    return {**value, "when": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{part:03}Z"}


def clean(text: str) -> str:
    """Foreign text on one line, in which no character hides, reorders or acts."""
    text = text.translate(_ESCAPED)
    if text.isascii():
        return text
    from holdfast.core.policy.shown import shown

    return shown(text, escaped=True)


def color(stream: TextIO = sys.stdout) -> bool:
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return wanted and stream.isatty()


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.{0 if seconds >= 10 * size else 1}f}{unit}"
    return f"{seconds:.0f}s"


def amount(count: int) -> str:
    for size, unit in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return str(count)


def size(count: int) -> str:
    """A number of bytes for people."""
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} B"


def columns() -> float:
    """The width of the terminal on stdout; infinite for a file or a pipe."""
    try:
        if sys.stdout.isatty():
            return os.get_terminal_size(sys.stdout.fileno()).columns or float("inf")
    except (OSError, ValueError):
        pass
    return float("inf")


def wrap(line: str, room: int) -> list[str]:
    """Break at blanks, if there are any."""
    lines = [""]
    for word in line.split(" "):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > room:
            lines.append(word)
        else:
            lines[-1] += (" " if lines[-1] else "") + word
    return lines


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]], least: Sequence[str] = ()) -> str:
    """`least`: the columns to drop on a narrow terminal, in this order."""
    cells = [head, *[tuple(clean(c) for c in row) for row in rows]]
    room = columns()
    for name in least:
        if sum(max(len(row[i]) for row in cells) + 2 for i in range(len(cells[0]))) - 2 <= room:
            break
        at = cells[0].index(name)
        cells = [row[:at] + row[at + 1 :] for row in cells]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    lines = [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells
    ]
    return "\n".join(lines)


def drop_typed(stream: TextIO) -> None:
    """Drop what was typed before the terminal showed the output of this stream.

    An answer counts only if the operator could read the question first.
    """
    import termios
    from contextlib import suppress

    stream.flush()
    with suppress(termios.error, OSError, ValueError):  # no terminal
        termios.tcdrain(stream.fileno())
    with suppress(termios.error, OSError, ValueError):
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
