"""Printing for people and for programs. Session names and programs' words are shown escaped: a listing must not act on the terminal."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def put_json(value: Any) -> None:
    """One line. Readable where the output can carry it; escaped where it cannot (file names that are not text, ASCII locales)."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        text = json.dumps(value)
    print(text)


def timed(value: dict[str, Any], seconds: float | None) -> dict[str, Any]:
    """With `when`: the moment that it is about, the same in all listings, whatever its other fields count in."""
    import time

    if not seconds:
        return {**value, "when": None}
    whole, part = divmod(int(seconds * 1000), 1000)
    return {**value, "when": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{part:03}Z"}


def clean(text: str) -> str:
    return _CONTROL.sub(lambda m: f"\\x{ord(m[0]):02x}", text)


def color(stream: Any = sys.stdout) -> bool:
    return (
        bool(stream.isatty())
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") != "dumb"
    )


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return (
                f"{seconds / size:.0f}{unit}"
                if seconds >= 10 * size
                else f"{seconds / size:.1f}{unit}"
            )
    return f"{seconds:.0f}s"


def amount(count: int) -> str:
    for size, unit in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return str(count)


def columns() -> float:
    """Of the terminal that is written to; a file or a pipe is as wide as it must be."""
    try:
        return (
            os.get_terminal_size(sys.stdout.fileno()).columns or float("inf")
            if sys.stdout.isatty()
            else float("inf")
        )
    except (OSError, ValueError):
        return float("inf")


def wrap(line: str, room: int) -> list[str]:
    """At blanks, if there are any."""
    lines = [""]
    for word in line.split(" "):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > room:
            lines.append(word)
        else:
            lines[-1] += (" " if lines[-1] else "") + word
    return lines


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]], least: Sequence[str] = ()) -> str:
    """`least`: columns that are left out on a terminal that is too narrow, in this order."""
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
