"""One process as the kernel shows it: who it is, whether it is still that one, what it was started as.

Owns the reading of /proc/PID/stat and cmdline, and with it identity. It never raises because a process
vanished while it was being looked at: processes do that, and the answer is then None or GONE.

Identity is (boot id, pid, start time in ticks since boot). A pid alone is reused; pid and start time alone
repeat after a reboot. A zombie has its identity still but runs nothing: it is told apart, so that "alive"
means "can act".
"""

from __future__ import annotations

import enum
import functools
import os
import time
from dataclasses import dataclass

CMDLINE_BYTES_MAX = 65_536  # of one process's argv that are kept
PROC_BYTES_MAX = 1 << 20  # of one ordinary file in /proc
HALF_S, HALF_RUNNING_S = (
    0.05,
    1.0,
)  # in the middle of an exec: until it hangs; until it does though it would run
HALF_LOOK_S = 0.0005
SHORT_BYTES = 2048  # half of the smallest page: a file of small records that gave less has no more


_hung: set[int] = set()  # that were `half` for so long


@dataclass(frozen=True, slots=True)
class ProcessId:
    pid: int
    start: int  # ticks since boot
    boot: str


class Liveness(enum.StrEnum):
    RUNNING = "running"  # also when stopped or frozen
    ZOMBIE = "zombie"  # exited, not yet collected
    REUSED = "reused"  # the pid is another process now
    GONE = "gone"
    REBOOTED = "rebooted"  # the identity is from before the last boot


@dataclass(frozen=True, slots=True)
class Stat:
    """The fields of /proc/PID/stat that are used here."""

    pid: int
    comm: str
    state: str
    ppid: int
    pgrp: int
    session: int
    tty_nr: int
    tpgid: int
    start: int


@functools.cache
def boot_id() -> str:
    return read_proc("/proc/sys/kernel/random/boot_id").decode().strip()


def parse_stat(data: bytes) -> Stat:
    """The name is in parentheses and may hold spaces, parentheses and newlines: the last `)` ends it."""
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
    )


def half(pid: int) -> bool:
    """Whether it hangs in the middle of becoming another program. It has a new memory then, with nothing in it but its words, and closes its files. A file system that does not answer holds it up there, and with
    it everybody who asks for what only its tracer may see: its stat, its links, what it waits for. What has no such secret (status, comm, cmdline, children, cgroup, the list of its descriptors) is told even so.
    Everybody who executes something is like that for some microseconds: who only lacks a processor is waited for."""
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
    """Whether there is nothing in its memory but its stack. A process without memory has ended."""
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
    """Its stat. Of one that is `half` another program it is made of its status: hangs, and began nobody knows when."""
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


def lives_on(pid: int) -> bool:
    """Whether a process whose first thread has exited goes on: in another, or as the program that another has become."""
    try:
        field = stat_line(pid).rpartition(b")")[2].split()
        return field[0] not in (b"Z", b"X") or int(field[17]) > 1
    except (OSError, ValueError, IndexError, KeyError):
        return False


def identify(pid: int) -> ProcessId | None:
    found = read_stat(pid)
    return ProcessId(pid, found.start, boot_id()) if found else None


def liveness(who: ProcessId) -> Liveness:
    if who.boot != boot_id():
        return Liveness.REBOOTED
    found = read_stat(who.pid)
    if found is None:
        return Liveness.GONE
    if found.start != who.start:
        return Liveness.REUSED
    return Liveness.ZOMBIE if found.state in ("Z", "X", "x") else Liveness.RUNNING


def alive(who: ProcessId) -> bool:
    """The very process is there and can still act; `liveness` says why not."""
    return liveness(who) is Liveness.RUNNING


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    start: int
    ppid: int
    pgrp: int
    session: int
    tty_nr: int
    tpgid: int
    state: str
    comm: str
    argv: tuple[str, ...]

    @property
    def id(self) -> ProcessId:
        return ProcessId(self.pid, self.start, boot_id())


def process(pid: int, with_argv: bool = True) -> Process | None:
    found = read_stat(pid)
    if found is None:
        return None
    return Process(
        pid=pid,
        start=found.start,
        ppid=found.ppid,
        pgrp=found.pgrp,
        session=found.session,
        tty_nr=found.tty_nr,
        tpgid=found.tpgid,
        state=found.state,
        comm=found.comm,
        argv=read_argv(pid) if with_argv else (),
    )


def read_argv(pid: int) -> tuple[str, ...]:
    """Empty for a kernel thread, a zombie, or a process whose memory is closed to us."""
    try:
        data = read_short(f"/proc/{pid}/cmdline", CMDLINE_BYTES_MAX)
    except OSError:
        return ()
    if not data:
        return ()
    words = data.decode("utf-8", "surrogateescape").split("\0")
    return tuple(words[:-1] if words[-1] == "" else words)


def read_short(path: str, limit: int = PROC_BYTES_MAX) -> bytes:
    """The same, for files whose records are short (stat, children, fdinfo) or come in one piece (cmdline): what is well below a page was all of it, and need not be asked for its end."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(fd, min(limit, 65_536))
        while SHORT_BYTES <= len(data) < limit and (more := os.read(fd, limit - len(data))):
            data += more
        return data
    finally:
        os.close(fd)


def read_proc(path: str, limit: int = PROC_BYTES_MAX) -> bytes:
    """A whole file of /proc, up to `limit`. One read is not enough: tables come a page at a time."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts, size = [], 0
        while size < limit and (data := os.read(fd, min(65_536, limit - size))):
            parts.append(data)
            size += len(data)
        return b"".join(parts)
    finally:
        os.close(fd)
