"""The cost of processes, from /proc: memory by PSS, CPU by schedstat, wake-ups by context switches.

All threads count. PSS divides each page among the processes that map it, so the sum over a tool's
processes is the cost of the tool. Memory that only a descriptor holds (a memfd that no process
maps) appears in no PSS; it is counted apart, or a tool could hide its screens there.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Sequence

# The programs of measured sessions ...
SESSION_PROGRAMS = frozenset(("sh", "cat", "sleep", "stty"))
PROGRAMS_FILE = "programs.py"  # ... and the interpreter that runs this file


def tagged(wanted: Sequence[str]) -> list[int]:
    """Living processes (except this one) whose environment has all these NAME=VALUE entries."""
    entries = [w.encode() for w in wanted]
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as f:
                environ = f.read().split(b"\0")
                if all(e in environ for e in entries):
                    found.append(int(name))
    return found


def argv(pid: int) -> list[str]:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as f:
            return f.read().decode("utf-8", "replace").rstrip("\0").split("\0")
    except OSError:
        return []


def runs_in_session(pid: int) -> bool:
    """Whether this process is a program of a measured session, and not of the tool itself."""
    words = argv(pid)
    name = os.path.basename(words[0]) if words else ""
    return name in SESSION_PROGRAMS or any(os.path.basename(w) == PROGRAMS_FILE for w in words[1:2])


def pss_kb(pids: Iterable[int]) -> int:
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup") as f:
            total += sum(int(line.split()[1]) for line in f if line.startswith("Pss:"))
    return total


def available_kb() -> int:
    """Memory of the machine that programs can still get. Other work of the machine counts too."""
    with open("/proc/meminfo") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("MemAvailable:"))


def own_kb(pid: int) -> int:
    """Memory that no file backs.

    Unlike PSS, this figure does not shrink when more processes run the same program.
    """
    with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup") as f:
        return sum(int(line.split()[1]) for line in f if line.startswith("Anonymous:"))
    return 0


def memfd_kb(pids: Iterable[int]) -> int:
    """Memory behind memfd descriptors, each counted once."""
    blocks: dict[tuple[int, int], int] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{pid}/fd/{fd}").startswith("/memfd:"):
                        info = os.stat(f"/proc/{pid}/fd/{fd}")
                        blocks[info.st_dev, info.st_ino] = info.st_blocks
    return sum(blocks.values()) // 2


def cpu_ns(pids: Iterable[int]) -> int:
    """Time on a processor so far, of all threads."""
    total = 0
    for pid in pids:
        for task in _tasks(pid):
            with contextlib.suppress(OSError, ValueError), open(f"{task}/schedstat") as f:
                total += int(f.read().split()[0])
    return total


def main_thread(pid: int) -> tuple[int, int]:
    """(processor time so far in ns, wake-ups so far) of a process's first thread alone."""
    try:
        with (
            open(f"/proc/{pid}/task/{pid}/schedstat") as f,
            open(f"/proc/{pid}/task/{pid}/status") as g,
        ):
            cpu = int(f.read().split()[0])
            return cpu, sum(
                int(line.split()[1]) for line in g if line.startswith("voluntary_ctxt_switches")
            )
    except OSError:
        return 0, 0


def wakeups(pids: Iterable[int]) -> int:
    """How often a thread gave up the processor to wait, and so was woken again;

    being preempted does not count.
    """
    total = 0
    for pid in pids:
        for task in _tasks(pid):
            with contextlib.suppress(OSError), open(f"{task}/status") as f:
                total += sum(
                    int(line.split()[1]) for line in f if line.startswith("voluntary_ctxt_switches")
                )
    return total


def _tasks(pid: int) -> list[str]:
    try:
        return [f"/proc/{pid}/task/{t}" for t in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def kill_all(wanted: Sequence[str], seconds: float = 5.0) -> None:
    """Ends every process with these environment entries; returns when they are gone."""
    end = time.monotonic() + seconds
    while pids := tagged(wanted):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        reap()
        if time.monotonic() > end:
            raise TimeoutError(f"these do not die: {pids}")
        time.sleep(0.01)
    reap()


def reap() -> None:
    """Collect the daemons that tools left to us (we are their subreaper) and our own dead."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
