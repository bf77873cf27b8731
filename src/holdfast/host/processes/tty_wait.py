"""Does this process wait on the session's terminal? Reads /proc; does not stop or trace.

This module decodes the present system call of a process. `core/session/attention.py` decides what
the call means for the session.

`/proc/PID/syscall` gives the call of a sleeping thread, with its arguments. For `read`, that is the
descriptor. For poll and select, the argument is the address of the set, which `/proc/PID/mem` then
shows. For epoll, the set is in `fdinfo`. So "polls the terminal" is exact: a process that watches
the terminal only for errors, or holds it open and polls a different file, is no reader. The first
measured rule used the number of the call alone (any poll in raw mode counts); that rule is now only
the fallback.

Both files need the right to ptrace. A sudo'd program denies that right, and so does Yama's
ptrace_scope >= 1, where only an ancestor has it. Then `wchan` and the descriptor links remain. A
terminal read sleeps in `wait_woken`, but so does a socket read; `wait_woken` counts only for a
process without sockets. If `wchan` and the links are closed too, the answer is UNKNOWN.

A 32-bit program on a 64-bit kernel numbers its calls differently. A stack below 4 GiB reveals such
a program, and `wchan` decides for it too.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field

from holdfast.core.session.attention import TtyWait
from holdfast.host.processes.process import half, parse_stat, read_proc
from holdfast.host.processes.stat_nowait import known

THREADS_MAX = 256  # read per process; a terminal is read by one of the first threads
POLL_FDS_MAX = 4096  # descriptors that are read of a poll set
SELECT_FDS_MAX = 65_536  # bits of a select set
EPOLL_DEPTH_MAX = 3  # epoll inside epoll; the kernel itself allows 5

_READABLE = 0x001 | 0x040  # POLLIN, POLLRDNORM; the same bits in epoll
_DEV_TTY = os.makedev(5, 0)
_COMPAT_STACK = 1 << 32
_PTY_READ_WCHANS = ("wait_woken", "n_tty_read")
_POLL_WCHANS = (
    "poll_schedule_timeout",
    "do_epoll_wait",
    "ep_poll",
    "do_sys_poll",
    "do_poll",
    "do_select",
)
_URING_WCHANS = ("io_cqring_wait",)


@dataclass(frozen=True, slots=True)
class _Calls:
    """System call numbers of an architecture. `reads`: number -> index of the descriptor."""

    reads: dict[int, int]
    polls: frozenset[int]
    selects: frozenset[int]
    epolls: frozenset[int]
    restart: int
    uring_enter: int = 426


_CALLS = {
    "x86_64": _Calls(
        reads={0: 0, 19: 0, 40: 1, 275: 0},
        polls=frozenset({7, 271}),
        selects=frozenset({23, 270}),
        epolls=frozenset({232, 281, 441}),
        restart=219,
    ),
    "aarch64": _Calls(
        reads={63: 0, 65: 0, 71: 1, 76: 0},
        polls=frozenset({73}),
        selects=frozenset({72}),
        epolls=frozenset({22, 441}),
        restart=128,
    ),
}
_MACHINE = _CALLS.get(os.uname().machine)
_ORDER = (
    TtyWait.READ,
    TtyWait.POLL,
    TtyWait.POLL_ANY,
    TtyWait.UNKNOWN,
    TtyWait.NONE,
    TtyWait.STOPPED,
    TtyWait.GONE,
)


def blocked_on_tty(pid: int, tty_rdev: int) -> TtyWait:
    """How `pid`, over all its threads, waits on the terminal with the slave device `tty_rdev`."""
    try:
        tids = os.listdir(f"/proc/{pid}/task")[:THREADS_MAX]
    except OSError:
        return TtyWait.GONE
    if half(pid):
        return TtyWait.NONE
    best = TtyWait.GONE
    for tid in tids:
        wait = _Thread(f"/proc/{pid}/task/{tid}", tty_rdev).wait()
        if _ORDER.index(wait) < _ORDER.index(best):
            best = wait
        if best is TtyWait.READ:
            break
    return best


def tty_rdev_of(tty_nr: int) -> int:
    """The device number of a `tty_nr` from /proc/PID/stat (the kernel's packed form)."""
    return os.makedev((tty_nr >> 8) & 0xFFF, (tty_nr & 0xFF) | ((tty_nr >> 12) & 0xFFF00))


def read_syscall(task: str) -> bytes:
    """The `syscall` file of a task; a separate function so that a test can deny the read."""
    return read_proc(f"{task}/syscall")


@dataclass(slots=True)
class _Thread:
    task: str
    tty_rdev: int
    own_tty: int = field(default=0, init=False)

    def wait(self) -> TtyWait:
        try:
            found = parse_stat(read_proc(f"{self.task}/stat"))
            self.own_tty = tty_rdev_of(found.tty_nr)
            if found.state in ("Z", "X", "x"):
                return TtyWait.GONE
            if found.state in ("T", "t"):
                return TtyWait.STOPPED
            if found.state == "R":
                return TtyWait.NONE
            try:
                line = read_syscall(self.task)
            except PermissionError:
                return self._by_wchan()
            except FileNotFoundError:  # kernel without this file, or the thread is gone
                return self._by_wchan() if os.path.exists(self.task) else TtyWait.GONE
            return self._by_syscall(line)
        except (FileNotFoundError, ProcessLookupError):
            return TtyWait.GONE
        except (OSError, ValueError, IndexError):
            return TtyWait.UNKNOWN

    def _by_syscall(self, line: bytes) -> TtyWait:
        words = line.split()
        if len(words) < 9:
            # "running", or "-1 sp pc": blocked outside of any call, like a page fault.
            return TtyWait.NONE
        number, args, sp = int(words[0]), [int(word, 16) for word in words[1:7]], int(words[7], 16)
        if _MACHINE is None or sp < _COMPAT_STACK:
            return self._by_wchan()
        if number in _MACHINE.reads:
            if self._is_terminal(_fd(args[_MACHINE.reads[number]])):
                return TtyWait.READ
            return TtyWait.NONE
        if number == _MACHINE.uring_enter:
            return self._by_wchan()
        restarted_poll = number == _MACHINE.restart and self._wchan().startswith(_POLL_WCHANS)
        try:
            if number in _MACHINE.polls or restarted_poll:
                fds = self._poll_fds(args[0], args[1])
            elif number in _MACHINE.selects:
                fds = self._select_fds(args[0], args[1])
            elif number in _MACHINE.epolls:
                fds = self._epoll_fds(_fd(args[0]), EPOLL_DEPTH_MAX)
            else:
                return TtyWait.NONE
        except (FileNotFoundError, ProcessLookupError):
            raise
        except OSError:
            return self._by_wchan()
        return TtyWait.POLL if any(self._is_terminal(fd) for fd in fds) else TtyWait.NONE

    def _by_wchan(self) -> TtyWait:
        wchan = self._wchan()
        if wchan in ("", "0") or wchan.startswith(_URING_WCHANS):
            return TtyWait.UNKNOWN
        reads, polls = wchan.startswith(_PTY_READ_WCHANS), wchan.startswith(_POLL_WCHANS)
        if not reads and not polls:
            return TtyWait.NONE
        has_terminal = has_socket = False
        try:
            for name in os.listdir(f"{self.task}/fd"):
                link = os.readlink(f"{self.task}/fd/{name}")
                has_socket = has_socket or link.startswith("socket:")
                has_terminal = has_terminal or (
                    link.startswith("/") and self._is_terminal(int(name))
                )
        except FileNotFoundError:
            return TtyWait.UNKNOWN  # a descriptor closed while we looked; the next look will see
        except PermissionError:
            return TtyWait.UNKNOWN
        if not has_terminal:
            return TtyWait.NONE
        if polls:
            return TtyWait.POLL_ANY
        return TtyWait.UNKNOWN if has_socket else TtyWait.READ

    def _is_terminal(self, fd: int) -> bool:
        if fd < 0:
            return False
        try:
            found = known(f"{self.task}/fd/{fd}")
        except OSError:
            return False
        if not stat.S_ISCHR(found.mode):
            return False
        return found.rdev == self.tty_rdev or (
            found.rdev == _DEV_TTY and self.own_tty == self.tty_rdev
        )

    def _wchan(self) -> str:
        return read_proc(f"{self.task}/wchan").decode("ascii", "replace")

    def _memory(self, address: int, size: int) -> bytes:
        fd = os.open(f"{self.task}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(fd, size, address)
        finally:
            os.close(fd)

    def _poll_fds(self, address: int, count: int) -> list[int]:
        data = (
            self._memory(address, min(count & 0xFFFFFFFF, POLL_FDS_MAX) * 8)
            if count and address
            else b""
        )
        found = []
        for at in range(0, len(data) - 7, 8):
            fd = int.from_bytes(data[at : at + 4], "little", signed=True)
            if int.from_bytes(data[at + 4 : at + 6], "little") & _READABLE:
                found.append(fd)
        return found

    def _select_fds(self, count: int, address: int) -> list[int]:
        bits = min(_fd(count), SELECT_FDS_MAX)
        if bits <= 0 or not address:
            return []
        data = self._memory(address, (bits + 63) // 64 * 8)
        mask = int.from_bytes(data, "little") & ((1 << bits) - 1)
        return [fd for fd in range(bits) if mask >> fd & 1]

    def _epoll_fds(self, epfd: int, depth: int) -> list[int]:
        found: list[int] = []
        for line in read_proc(f"{self.task}/fdinfo/{epfd}").splitlines():
            words = line.split()
            if len(words) < 4 or words[0] != b"tfd:" or not int(words[3], 16) & _READABLE:
                continue
            fd = int(words[1])
            found.append(fd)
            if depth > 1 and os.readlink(f"{self.task}/fd/{fd}") == "anon_inode:[eventpoll]":
                found += self._epoll_fds(fd, depth - 1)
        return found


def _fd(register: int) -> int:
    """A descriptor is an int: the low half of the register, signed."""
    low = register & 0xFFFFFFFF
    return low - (1 << 32) if low >> 31 else low
