"""Files below a directory that a program may include, where the kernel reports no opens (P3).

The host cannot know which files a program opened. It looks at the change time of each file below
the program's directory instead. If the actor alone made all changes since the first session, no
included file there is another operator's. The look is bounded; a look that does not reach the end
leaves the answer unknown. Files elsewhere are not looked at.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import TimeoutError as TooLate
from typing import TYPE_CHECKING, Final

from holdfast.core.originators.writers import TICK_NS

if TYPE_CHECKING:
    from holdfast.host.originators.writers import Writers
    from holdfast.host.session.session import Session

ENTRIES_MAX: Final = 4096  # looked at, in all directories
LOOK_S: Final = 0.25
MOMENTS_MAX: Final = 256
MOMENT_S: Final = 0.1  # changes so close together count as one
SKIPPED: Final = frozenset((".git",))  # its hooks and configuration are named files


def moments(root: str, directories: Iterable[str], ends: tuple[str, ...], since: float) -> set[int]:
    """The moments of changes since then, in units of MOMENT_S. Blocks: for a thread.

    Raises OSError if there is too much to look at, or no answer.
    """
    found, looked, deadline = set[int](), 0, time.monotonic() + LOOK_S
    todo = [root + one for one in dict.fromkeys(directories)]
    for directory in todo:  # grows
        try:
            entries = os.scandir(directory)
        except (FileNotFoundError, NotADirectoryError):
            continue
        with entries:
            for entry in entries:
                looked += 1
                if looked > ENTRIES_MAX or len(found) > MOMENTS_MAX or time.monotonic() > deadline:
                    raise OSError("too many files")
                info = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(info.st_mode):
                    if entry.name not in SKIPPED:
                        todo.append(entry.path)
                elif info.st_ctime >= since and entry.name.endswith(ends):
                    found.add(int(info.st_ctime / MOMENT_S))
    return found


class FurtherFiles:
    """One per host."""

    def __init__(self, writers: Writers) -> None:
        self._writers = writers

    def includes(
        self, session: Session, actor: str, directories: Sequence[str], ends: tuple[str, ...]
    ) -> bool:
        """Whether a program there may include a file of another operator than the actor.

        Always false if the kernel reports opens: then the outcome names the author. Blocks: for a
        thread.
        """
        writers = self._writers
        if writers.silent and directories:
            contained = session.layout["layout"] == "contained"
            root = f"/proc/{session.record.root_pid}/root" if contained else ""
            try:
                if writers.on_loop(writers.alone) == {actor}:
                    return False
                since = writers.table.horizon - TICK_NS / 1e9
                found = moments(root, directories, ends, since)
                return writers.on_loop(lambda: self._others(session, actor, found))
            except (OSError, TooLate):
                return True
        return False

    def _others(self, session: Session, actor: str, found: Iterable[int]) -> bool:
        return any(
            one.actor != actor
            for moment in found
            for one in self._writers.guess(session, "", moment * MOMENT_S)
        )
