"""The note of a restore that is under way, for the next host if this one dies.

The keeper has the processes as soon as the nursery has made it. It lacks the screen, the halts and
the events of the restore, which the host adds afterwards. A host that adopts such a keeper finds
the note and adds them (`finishing.go_on` and `finish`).
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Final, Literal, NamedTuple

from holdfast.host.runtime import handover_file

FILE: Final = "restore"  # in the session's directory of files for the next host
FILE_BYTES: Final = 4096
How = Literal["restore", "move"]


class Unfinished(NamedTuple):
    """`base`: the first offset of the incarnation's output."""

    checkpoint: str
    epoch: int
    base: int
    operator: str
    how: How


def write(directory: str, note: Unfinished) -> None:
    handover_file.write(f"{directory}/{FILE}", (json.dumps(note),))


def read(directory: str, epoch: int) -> Unfinished | None:
    """The note of the incarnation with this epoch."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        note = Unfinished(*json.loads(handover_file.read(f"{directory}/{FILE}", FILE_BYTES)))
        return note if note.epoch == epoch else None
    return None


def remove(directory: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(f"{directory}/{FILE}")
