"""What processes were started as, for people: their words, as far as those who can read them say so in time.

Whoever reads them waits for the lock of a process's memory, and a program that hangs at a file system may have it. So it is done in a thread of the session's, for WORDS_S; who has not been read by then goes by its
name.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from holdfast.host.process import read_argv
from holdfast.model.errors import Unavailable

if TYPE_CHECKING:
    from holdfast.host.session import Session

WORDS_S: Final = 0.5  # for all of them


async def words(session: Session, pids: Sequence[int]) -> dict[int, str]:
    """Of those that said them."""
    found: dict[int, str] = {}
    with contextlib.suppress(TimeoutError, Unavailable):
        await asyncio.wait_for(session.looked(_read, pids, found), WORDS_S)
    return {pid: said for pid, said in [*found.items()] if said}


def _read(pids: Sequence[int], found: dict[int, str]) -> None:
    for pid in pids:
        found[pid] = " ".join(read_argv(pid))
