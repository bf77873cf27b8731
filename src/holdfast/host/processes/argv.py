"""The command lines of processes, for people, as far as the kernel gives them in time.

Reading a command line waits for the lock of the process's memory. A program that hangs in a file
system may hold that lock. So a thread of the session reads the command lines, for WORDS_S. A
process that is not read by then is shown by name.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from holdfast.host.processes.process import read_argv
from holdfast.model.errors import Unavailable

if TYPE_CHECKING:
    from holdfast.host.processes.interfaces import SessionProcesses

WORDS_S: Final = 0.5  # for all processes together


async def words(session: SessionProcesses, pids: Sequence[int]) -> dict[int, str]:
    """The command lines that could be read, by pid."""
    found: dict[int, str] = {}
    with contextlib.suppress(TimeoutError, Unavailable):
        await asyncio.wait_for(session.looked(_read, pids, found), WORDS_S)
    return {pid: said for pid, said in [*found.items()] if said}


def _read(pids: Sequence[int], found: dict[int, str]) -> None:
    for pid in pids:
        found[pid] = " ".join(read_argv(pid))
