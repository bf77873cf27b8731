"""The note of a restore that is under way, for the next host if this one dies.

The keeper has the processes as soon as the nursery has made it. It lacks the screen, the halts and
the events of the restore, which the host adds afterwards; the store may still have the row of the
last incarnation. A host that adopts such a keeper finds the note, and adds what is missing
(`finishing.go_on` and `finish`).
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any, Final, Literal, NamedTuple

from holdfast.host.runtime import handover_file
from holdfast.host.storage.store import SessionRow

FILE: Final = "restore"  # in the session's directory of files for the next host
FILE_BYTES: Final = 1 << 20  # the row has the session's arguments
How = Literal["restore", "move"]


class Unfinished(NamedTuple):
    """`base`: the first offset of the incarnation's output. `last`: the epoch before.

    `id`, `at`, `halted` and `stops` are those of the checkpoint. `row`: of the incarnation.
    `taken_over`: facts for the record, if the session was another machine's.
    """

    id: str
    at: float
    halted: str
    stops: tuple[dict[str, Any], ...]
    base: int
    last: int
    operator: str
    how: How
    row: dict[str, Any]
    taken_over: dict[str, Any]

    @property
    def epoch(self) -> int:
        return int(self.row["epoch"])


def write(directory: str, note: Unfinished) -> None:
    remove(directory)  # an old one is not left if the disk refuses the new one
    handover_file.write(f"{directory}/{FILE}", (json.dumps(note),))


def read(directory: str, epoch: int) -> Unfinished | None:
    """The note of the incarnation with this epoch."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        note = Unfinished(*json.loads(handover_file.read(f"{directory}/{FILE}", FILE_BYTES)))
        SessionRow(**note.row)
        return note if note.epoch == epoch else None
    return None


def remove(directory: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(f"{directory}/{FILE}")
