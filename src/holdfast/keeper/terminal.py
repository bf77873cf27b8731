"""The keeper's hold on the kernel: the PTY, the root process and its descendants.

Either starts a program on a fresh terminal, or takes over a terminal and a tree that something else launched.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import resource
import signal
import struct
import termios
import time

from holdfast.wire.keeper import Spawn

_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 15, 36
_TIOCGPTN = 0x80045430
_TFD_TIMER_ABSTIME, _TFD_CLOEXEC_NONBLOCK = 1, 0o2000000 | 0o4000


class CannotStart(Exception):
    """The program could not be started; `errno` and a plain reason."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(reason)
        self.errno = number
        self.reason = reason


def become_subreaper() -> None:
    """Orphans of the session become our children, so their exit codes are collected and nothing escapes the tree."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def set_title(name: str) -> None:
    _libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def start_time(pid: int) -> int:
    """Start time of a process in clock ticks since boot: with the boot id, its identity. 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            return int(f.read().rsplit(b")", 1)[1].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def set_size(fd: int, cols: int, rows: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))


def open_slave(master: int) -> int:
    number = struct.unpack("I", fcntl.ioctl(master, _TIOCGPTN, bytes(4)))[0]
    return os.open(f"/dev/pts/{number}", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)


def flush_input(master: int) -> None:
    """Discards what was typed but no program has read: on its way (master side) and in the line discipline (slave side)."""
    termios.tcflush(master, termios.TCOFLUSH)
    try:
        slave = open_slave(master)
    except OSError:
        return
    try:
        termios.tcflush(slave, termios.TCIFLUSH)
    finally:
        os.close(slave)


def start(request: Spawn) -> tuple[int, int]:
    """Runs the program on a new terminal; gives (master, pid) once it has been executed."""
    master, slave = os.openpty()
    set_size(slave, request.cols, request.rows)
    attrs = termios.tcgetattr(slave)
    attrs[0] |= termios.IUTF8 if hasattr(termios, "IUTF8") else 0o40000
    termios.tcsetattr(slave, termios.TCSANOW, attrs)
    report_r, report_w = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        _child(request, master, slave, report_w)
    os.close(slave)
    os.close(report_w)
    report = b""
    while piece := os.read(report_r, 512):
        report += piece
    os.close(report_r)
    if report:
        os.waitpid(pid, 0)
        os.close(master)
        number, _, what = report.partition(b":")
        raise CannotStart(int(number), what.decode("utf-8", "replace"))
    os.set_blocking(master, False)
    return master, pid


def _child(request: Spawn, master: int, slave: int, report: int) -> None:
    what = "terminal"
    try:
        for number in range(1, signal.NSIG):
            if number not in (signal.SIGKILL, signal.SIGSTOP, 32, 33):
                try:
                    signal.signal(number, signal.SIG_DFL)
                except (OSError, ValueError):
                    pass
        signal.set_wakeup_fd(-1)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.login_tty(slave)
        what = f"directory {os.fsdecode(request.cwd)}"
        os.chdir(request.cwd)
        os.umask(request.umask)
        what = os.fsdecode(request.argv[0])
        env = dict(e.split(b"=", 1) for e in request.env)
        os.closerange(3, report)
        os.closerange(report + 1, min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 65536))
        os.execvpe(request.argv[0], request.argv, env)
    except OSError as e:
        os.write(report, f"{e.errno or errno.EIO}:{what}: {e.strerror}".encode()[:500])
    except Exception as e:
        os.write(report, f"{errno.EIO}:{what}: {e}".encode()[:500])
    finally:
        os._exit(127)


def descendants(root: int) -> list[int]:
    """All living processes below `root`, children before their own children, from the kernel's child lists."""
    found: list[int] = []
    todo = [root]
    while todo:
        pid = todo.pop()
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue
        for thread in threads:
            try:
                with open(f"/proc/{pid}/task/{thread}/children") as f:
                    children = [int(p) for p in f.read().split()]
            except OSError:
                continue
            found += children
            todo += children
    return found


def send_signal(pid: int, start_ticks: int, number: int) -> bool:
    """Signals exactly this process: a pid that was reused is not touched. `start_ticks` 0 means: whatever has the pid now."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if start_ticks and start_time(pid) != start_ticks:
            return False
        signal.pidfd_send_signal(handle, number)
        return True
    except OSError:
        return False
    finally:
        os.close(handle)


def boottime_timer() -> int:
    """A timer on CLOCK_BOOTTIME, which goes on while the machine sleeps (the stdlib has it only from 3.13)."""
    fd: int = _libc.timerfd_create(time.CLOCK_BOOTTIME, _TFD_CLOEXEC_NONBLOCK)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "timerfd_create")
    return fd


def arm_timer(fd: int, deadline_ns: int) -> None:
    """Fires at the absolute CLOCK_BOOTTIME `deadline_ns`; 0 disarms."""
    spec = struct.pack("qqqq", 0, 0, deadline_ns // 10**9, deadline_ns % 10**9)
    if _libc.timerfd_settime(fd, _TFD_TIMER_ABSTIME, spec, None) != 0:
        raise OSError(ctypes.get_errno(), "timerfd_settime")
