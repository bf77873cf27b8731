"""The fencing token of an incarnation, in a file that the programs of the session can read.

    {"format": 1, "session": ID, "epoch": N, "since": SECONDS, "parent": ID or null, "base": ID}

The file is in the session's readable directory, which a contained session has as a read-only mount.
The host replaces the file before the programs of an incarnation begin or go on, in one step. So a
program that reads the path finds the epoch of its own incarnation, also if a restore put its memory
back to an earlier one. `parent` and `base` are those of the label: the session from which a branch
was made, and the session at the beginning of that history. Keys are added, never renamed.

Every token has the same size: CRIU gives a program no open file of another size.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, Final

from holdfast.home import Home
from holdfast.host.lifecycle.prepare import session_readable_directory
from holdfast.host.shell.directories import TOKEN
from holdfast.host.shell.files import write_private
from holdfast.model.errors import Unavailable

FORMAT: Final = 1
BYTES: Final = 256
PARENT, BASE = "parent", "base"  # in the label of a branch


def content(session: str, epoch: int, since: float, label: Mapping[str, Any]) -> bytes:
    facts = {
        "format": FORMAT,
        "session": session,
        "epoch": epoch,
        "since": round(since, 3),
        "parent": label.get(PARENT),
        "base": label.get(BASE, session),
    }
    return json.dumps(facts).encode().ljust(BYTES - 1) + b"\n"


def write(home: Home, session: str, epoch: int, label: Mapping[str, Any]) -> None:
    """Write the token of an incarnation that is about to begin."""
    try:
        path = session_readable_directory(home, session) / TOKEN
        write_private(path, content(session, epoch, time.time(), label))
    except OSError as e:
        raise Unavailable(
            f"cannot write {home.run}: {e.strerror}",
            "free disk space or make the directory writable",
        ) from e
