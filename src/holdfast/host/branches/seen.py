"""The connections that the host saw a branch have, also those that are closed by now (R5).

A file in the fork's directory has a line of JSON for each. Beyond its bound a connection is an
empty line, which counts it.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any, Final, NamedTuple

from holdfast.core.session.connections import KEPT_MAX, Connection

FILE_BYTES: Final = 256 << 10  # of lines with facts
COUNTED_BYTES: Final = 1 << 20
_APPEND: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class Earlier(NamedTuple):
    """Rows of closed connections, the newest first; `more`: how many further ones are known."""

    rows: tuple[dict[str, Any], ...]
    more: int


def note(path: Path, one: Connection) -> None:
    """Append a connection; a single write, because threads append at the same time."""
    with contextlib.suppress(OSError):
        fd = os.open(path, _APPEND, 0o600)
        try:
            size = os.fstat(fd).st_size
            if size < COUNTED_BYTES:
                line = json.dumps(one._asdict()) if size < FILE_BYTES else ""
                os.write(fd, f"{line}\n".encode())
        finally:
            os.close(fd)


def earlier(path: Path, still: tuple[dict[str, Any], ...]) -> Earlier:
    """The connections of the file without those that are `still` open."""
    found, more = dict[tuple[str, str, int], dict[str, Any]](), 0
    over = {_key(one) for one in still}
    with contextlib.suppress(OSError):
        for line in path.read_text().split("\n")[:-1]:
            try:
                row = json.loads(line) if line else None
                if row is None:
                    more += 1
                elif _key(row) not in over:
                    found[_key(row)] = row  # a host that starts sees an open one again
            except (ValueError, KeyError, TypeError):
                continue  # the disk was full
    rows = [*reversed(found.values())]
    return Earlier(tuple(rows[:KEPT_MAX]), more + max(0, len(rows) - KEPT_MAX))


def _key(row: dict[str, Any]) -> tuple[str, str, int]:
    return row["local"], row["remote"], row["pid"]
