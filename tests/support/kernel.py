"""Features of this kernel, found by trying: a test that needs a missing one skips with a reason."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import tempfile
from pathlib import Path

from holdfast.host.originators import file_events
from holdfast.host.processes import process_events

TRIAL_S = 3.0


@functools.cache
def silent_about_processes() -> str:
    """Why the kernel reports no forks here; empty if forks are reported.

    An accepted subscription proves nothing: in a container no report follows.
    """

    async def trial() -> bool:
        told = asyncio.Event()
        events = process_events.Events(
            lambda parent, child: told.set() if parent == os.getpid() else None,
            lambda pid, status: None,
            lambda: None,
        )
        events.watch((os.getpid(),))
        try:
            child = await asyncio.create_subprocess_exec("true")
            await child.wait()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(told.wait(), TRIAL_S)
            return told.is_set()
        finally:
            events.close()

    try:
        return "" if asyncio.run(trial()) else "the kernel does not answer (a container?)"
    except OSError as e:
        return f"the kernel refuses: {e.strerror}"


@functools.cache
def silent_about_files() -> str:
    """Why the kernel does not report the writer of a file here; empty if writers are reported."""

    async def trial() -> None:
        events = file_events.Events(lambda found: None, lambda: None, lambda: None)
        try:
            events.mark(tempfile.gettempdir())
        finally:
            events.close()

    try:
        asyncio.run(trial())
    except (OSError, AttributeError) as e:
        return f"the kernel refuses: {e}"
    return ""


def switches(pid: int) -> int:
    with open(f"/proc/{pid}/status") as f:
        return sum(int(line.split()[1]) for line in f if line.startswith("voluntary_ctxt_switches"))


_words: dict[tuple[str, ...], list[str]] = {}  # by process and where its environment lies
WORDS_MAX = 10_000


def words_of(pid: int) -> list[str]:
    """Environment and arguments of a process; empty while one of its threads is uninterruptible.

    Other tests silence their file systems, and lock the memory of processes that way: a reader of
    such a process would wait for the file system too. The words of each program are read once.
    """
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    key = str(pid), stat[19], *stat[47:49]  # with its start time
    if key not in _words:
        for task in Path(f"/proc/{pid}/task").iterdir():
            if (task / "stat").read_text().rpartition(")")[2].split()[0] == "D":
                return []
        if len(_words) > WORDS_MAX:
            _words.clear()
        data = b"".join(Path(f"/proc/{pid}/{part}").read_bytes() for part in ("environ", "cmdline"))
        _words[key] = data.decode("utf-8", "replace").split("\0")
    return _words[key]
