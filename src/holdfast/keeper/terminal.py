"""The keeper's system calls: the terminal's master side, processes, and calls that Python lacks.

`_signal` and `_ctypes` are the C modules without their Python wrappers (enumerations, classes):
each call of `signal.signal` would cost a keeper more memory than the rest of this module.
"""

from __future__ import annotations

import _ctypes
import fcntl
import os
import struct
import termios
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal

_PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 15, 36
_F_ADD_SEALS = 1033
_TIOCGPTPEER = 0x5441
_TFD_TIMER_ABSTIME, _TFD_CLOEXEC_NONBLOCK = 1, 0o2000000 | 0o4000
_RTLD_NOW = 2
_SHUTDOWN = b"systemd-shutdow\n"  # the kernel keeps 15 bytes of a name

_libc = _ctypes.dlopen(None, _RTLD_NOW)  # type: ignore[arg-type]  # None: this process, libc included
_prctl = _ctypes.dlsym(_libc, "prctl")
_fcntl = _ctypes.dlsym(_libc, "fcntl")
_timerfd_create = _ctypes.dlsym(_libc, "timerfd_create")
_timerfd_settime = _ctypes.dlsym(_libc, "timerfd_settime")


def set_title(name: bytes) -> None:
    """Set the name that `ps -o comm` and `top` show: at most 15 bytes."""
    _ctypes.call_function(_prctl, (_PR_SET_NAME, name, 0, 0, 0))


def be_subreaper(on: int) -> None:
    """Adopt orphans of the session, so that their exit codes are collected and none escapes."""
    _ctypes.call_function(_prctl, (_PR_SET_CHILD_SUBREAPER, on, 0, 0, 0))


def seal(fd: int, seals: int) -> None:
    """Forbid changes to a memfd. fcntl.fcntl raises an exception inside: 60 KB per keeper."""
    _ctypes.call_function(_fcntl, (fd, _F_ADD_SEALS, seals))


def machine_ends() -> bool:
    """Tell whether a shutdown of the machine is at the step that ends all processes.

    Process 1 is systemd-shutdown then, which waits up to 90 s for processes that survive SIGTERM.
    Other init systems wait 10 s at most, and their SIGTERM looks like that of any process.
    """
    try:
        return read_whole("/proc/1/comm") == _SHUTDOWN
    except OSError:
        return False  # /proc hides process 1


# ---------------------------------------------------------------- the terminal


def open_slave(master: int) -> int:
    """Open the slave side without its path, which another mount namespace may not have."""
    return fcntl.ioctl(master, _TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)


def flush_input(master: int) -> None:
    """Discard typed but unread input: first on the master side, then in the line discipline.

    The order matters, because the kernel moves bytes from the first to the second by itself. A
    program can lock the slave side (TIOCEXCL); then the master sets the present modes again with a
    flush. That is only the second choice: it would undo a mode change made at the same moment.
    """
    termios.tcflush(master, termios.TCOFLUSH)
    try:
        slave = open_slave(master)
    except OSError:
        termios.tcsetattr(master, termios.TCSAFLUSH, termios.tcgetattr(master))
        return
    try:
        termios.tcflush(slave, termios.TCIFLUSH)
    finally:
        os.close(slave)


def foreground(master: int) -> int:
    """Return the process group in the foreground, or 0 if there is none."""
    try:
        return os.tcgetpgrp(master)
    except OSError:
        return 0


# ---------------------------------------------------------------- processes


def start_time(pid: int, proc: int | None = None) -> int:
    """Return a process's start time in clock ticks since boot, or 0 if the process is gone.

    Together with boot id and pid, the start time identifies the process.
    """
    try:
        return int(
            read_whole(f"{pid}/stat" if proc is not None else f"/proc/{pid}/stat", proc)
            .rsplit(b")", 1)[1]
            .split()[19]
        )
    except (OSError, IndexError, ValueError):
        return 0


def descendants(root: int) -> list[int]:
    """List all processes below `root`, parents before children, from the kernel's child lists."""
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
                children = [
                    int(p) for p in read_whole(f"/proc/{pid}/task/{thread}/children").split()
                ]
            except OSError:
                continue
            found += children
            todo += children
    return found


def send_signal(pid: int, start_ticks: int, number: int) -> None:
    """Signal exactly this process, not a reused pid. `start_ticks` 0: any process with this pid."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if not start_ticks or start_time(pid) == start_ticks:
            signal.pidfd_send_signal(handle, number)
    except OSError:
        pass
    finally:
        os.close(handle)


def read_whole(path: str, directory: int | None = None) -> bytes:
    """Read a file of /proc completely."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    try:
        data = piece = os.read(fd, 4096)
        while piece:
            piece = os.read(fd, 4096)
            data += piece
        return data
    finally:
        os.close(fd)


# ---------------------------------------------------------------- the fence's timer


def boottime_timer() -> int:
    """Make a timer on CLOCK_BOOTTIME, which advances during sleep (in the stdlib from 3.13)."""
    fd: int = _ctypes.call_function(_timerfd_create, (time.CLOCK_BOOTTIME, _TFD_CLOEXEC_NONBLOCK))
    if fd < 0:
        raise OSError("timerfd_create failed")
    return fd


def arm_timer(fd: int, deadline_ns: int) -> None:
    """Make the timer fire at the absolute CLOCK_BOOTTIME `deadline_ns`; 0 disarms."""
    spec = struct.pack("qqqq", 0, 0, deadline_ns // 10**9, deadline_ns % 10**9)
    if _ctypes.call_function(_timerfd_settime, (fd, _TFD_TIMER_ABSTIME, spec, None)) != 0:
        raise OSError("timerfd_settime failed")
