"""A process in /proc: its identity, its state, and its command line.

This module reads /proc/PID/stat and cmdline. It never raises because a process vanished during the
read: processes do that, and the answer is then None.

Identity is (boot id, pid, start time in ticks since boot). The kernel reuses a pid; pid and start
time repeat after a reboot. A zombie still has an identity but runs nothing.
"""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass

CMDLINE_BYTES_MAX = 65_536  # kept of a process's argv
ANCESTORS_MAX = 512
PROC_BYTES_MAX = 1 << 20  # of an ordinary file in /proc
# A process hangs in an exec after HALF_S, or after HALF_RUNNING_S if the process could run.
HALF_S, HALF_RUNNING_S = 0.05, 1.0
HALF_LOOK_S = 0.0005
SHORT_BYTES = 2048  # half of the smallest page: a shorter read of small records is the last
FORKED_WITHOUT_EXEC = 0x40  # PF_FORKNOEXEC in the flags of a task


_hung: set[int] = set()  # processes that were `half` for that time


@dataclass(frozen=True, slots=True)
class Stat:
    """A process: the fields of /proc/PID/stat that are used here."""

    pid: int
    comm: str
    state: str
    ppid: int
    pgrp: int
    session: int
    tty_nr: int
    tpgid: int
    start: int  # ticks since boot
    flags: int = 0  # of the kernel's task (PF_*)


@functools.cache
def boot_id() -> str:
    return read_proc("/proc/sys/kernel/random/boot_id").decode().strip()


def parse_stat(data: bytes) -> Stat:
    """The name is in parentheses and may hold spaces, `)` and newlines; the last `)` ends it."""
    head, closing, rest = data.rpartition(b")")
    pid, opening, comm = head.partition(b"(")
    if not opening or not closing:
        raise ValueError(f"not a stat line: {data[:80]!r}")
    field = rest.split()
    return Stat(
        pid=int(pid),
        comm=comm.decode("utf-8", "replace"),
        state=field[0].decode(),
        ppid=int(field[1]),
        pgrp=int(field[2]),
        session=int(field[3]),
        tty_nr=int(field[4]),
        tpgid=int(field[5]),
        start=int(field[19]),
        flags=int(field[6]),
    )


def half(pid: int) -> bool:
    """Whether a process hangs in the middle of an exec.

    The process then has a new memory, which holds only the arguments, and closes its files. A file
    system that does not answer may hang the process there. Every reader of files that only a tracer
    may see hangs too: stat, links, wait channel. The other files are still readable: status, comm,
    cmdline, children, cgroup, the list of descriptors. Every exec is in this state for some
    microseconds, so this function waits for a process that only lacks a processor.
    """
    if not _emptied(pid):
        _hung.discard(pid)
        return False
    if pid in _hung:
        return True
    now = time.monotonic()
    soon, late = now + HALF_S, now + HALF_RUNNING_S
    while now < (late if _runs(pid) else soon):
        time.sleep(HALF_LOOK_S)
        if not _emptied(pid):
            return False
        now = time.monotonic()
    _hung.add(pid)
    return True


def _emptied(pid: int) -> bool:
    """Whether the memory holds only a stack. A process without memory has ended."""
    try:
        size, _, _, text, _, data, *_ = read_short(f"/proc/{pid}/statm").split()
        return text == b"0" and size == data != b"0"
    except (OSError, ValueError):
        return False


def _runs(pid: int) -> bool:
    try:
        return b"\nState:\tR" in read_short(f"/proc/{pid}/status")
    except OSError:
        return False


def stat_line(pid: int) -> bytes:
    """The stat line of a process.

    For a process that is `half`, the line is made from its status: state D, start time unknown.
    """
    if not half(pid):
        return read_short(f"/proc/{pid}/stat")
    found = {
        name: value.split()
        for name, _, value in (
            line.partition(b":") for line in read_short(f"/proc/{pid}/status").splitlines()
        )
    }
    numbers = [b"0"] * 49
    for at, name in ((0, b"PPid"), (1, b"NSpgid"), (2, b"NSsid"), (16, b"Threads")):
        numbers[at] = found[name][0]
    return b"%d (%s) D %s" % (pid, b" ".join(found[b"Name"]), b" ".join(numbers))


def read_stat(pid: int) -> Stat | None:
    try:
        return parse_stat(stat_line(pid))
    except (OSError, ValueError, IndexError, KeyError):
        return None


def ancestors(pid: int) -> Iterator[int]:
    """A process and the processes above it, without process 1."""
    for _ in range(ANCESTORS_MAX):
        if pid <= 1 or (found := read_stat(pid)) is None:
            return
        yield pid
        pid = found.ppid


def state_of(pid: int) -> str:
    """The state of a process that never does an exec (`half`); empty: the process is gone."""
    try:
        return read_short(f"/proc/{pid}/stat").rpartition(b") ")[2][:1].decode()
    except OSError:
        return ""


def cwd_of(pid: int) -> str | None:
    """The working directory of a process or thread, if that path means the same here.

    None if the directory is deleted or the process has another root, or hangs in an exec (`half`).
    """
    if half(pid):
        return None
    try:
        path = os.readlink(f"/proc/{pid}/cwd")
        same = os.readlink(f"/proc/{pid}/root") == "/"
    except OSError:
        return None
    return path if same and path.startswith("/") and not path.endswith(" (deleted)") else None


def lives_on(pid: int) -> bool:
    """Whether a process goes on after the exit of its first thread.

    The process may live in a different thread, or as the program that such a thread executed.
    """
    try:
        field = stat_line(pid).rpartition(b")")[2].split()
        return field[0] not in (b"Z", b"X") or int(field[17]) > 1
    except (OSError, ValueError, IndexError, KeyError):
        return False


def read_argv(pid: int) -> tuple[str, ...]:
    """Empty for a kernel thread, a zombie, or a process with memory closed to us."""
    try:
        data = read_short(f"/proc/{pid}/cmdline", CMDLINE_BYTES_MAX)
    except OSError:
        return ()
    if not data:
        return ()
    words = data.decode("utf-8", "surrogateescape").split("\0")
    return tuple(words[:-1] if words[-1] == "" else words)


def read_short(path: str, limit: int = PROC_BYTES_MAX) -> bytes:
    """Like `read_proc`, with a single read where that is enough.

    For files with short records (stat, children, fdinfo) or in one piece (cmdline). A read well
    below a page has returned the whole file, so a second read for the end is not needed.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(fd, min(limit, 65_536))
        while SHORT_BYTES <= len(data) < limit and (more := os.read(fd, limit - len(data))):
            data += more
        return data
    finally:
        os.close(fd)


def read_proc(path: str, limit: int = PROC_BYTES_MAX) -> bytes:
    """A whole file of /proc, up to `limit`. A single read gives only a page of a table."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts, size = [], 0
        while size < limit and (data := os.read(fd, min(65_536, limit - size))):
            parts.append(data)
            size += len(data)
        return b"".join(parts)
    finally:
        os.close(fd)


def ended(status: int) -> dict[str, object]:
    """The exit code or the signal of a wait status."""
    code = os.waitstatus_to_exitcode(status & 0xFFFF)
    if code >= 0:
        return {"exit_code": code, "signal": None}
    try:
        return {"exit_code": None, "signal": signal.Signals(-code).name}
    except ValueError:
        return {"exit_code": None, "signal": f"signal {-code}"}
