"""Install the seccomp filter of wire/exec_filter.py.

It needs ctypes, which only launchers use.

The process that becomes the program installs the filter just before its exec. The filter therefore
covers the program and all its descendants, and cannot be removed. The program's own exec carries
the filter's cookie, 64 random bits. Once the program runs, the cookie exists in the filter only,
and the kernel does not reveal a filter to a filtered process (PTRACE_SECCOMP_GET_FILTER is
refused).

SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV is not used: a task that waits for the answer of a dead host
could then not be made to ask again.

Without CAP_SYS_ADMIN in its user namespace, the kernel demands no_new_privs first, which breaks
sudo. That price is paid only if the caller insists.
"""

from __future__ import annotations

import ctypes
import errno
import os

from holdfast.wire import exec_filter

_SET_MODE_FILTER, _NEW_LISTENER = 1, 1 << 3
_PR_SET_NO_NEW_PRIVS = 38
_libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def install(gated: bool, contained: bool, insist: bool) -> tuple[int, int | None]:
    """Install the filter; return its listener (0: not gated) and its cookie.

    Raises OSError if the kernel refuses. With `insist`, no_new_privs is set if the kernel demands
    it.
    """
    machine = os.uname().machine
    if machine not in exec_filter.PERSONALITIES:
        raise OSError(errno.ENOSYS, f"no filter for {machine}")
    cookie = int.from_bytes(os.urandom(8), "little")
    code = exec_filter.program(machine, cookie, contained)
    if not gated:
        plain = exec_filter.neutral(code)
        assert plain is not None
        return _install(machine, plain, 0), None
    try:
        return _install(machine, code, _NEW_LISTENER), cookie
    except PermissionError:
        if not insist:
            raise
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), 0, 0, 0):
        raise _error()
    return _install(machine, code, _NEW_LISTENER), cookie


def _install(machine: str, code: bytes, flags: int) -> int:
    listener: int = _libc.syscall(
        ctypes.c_long(exec_filter.SYSCALLS[machine][1]),
        _SET_MODE_FILTER,
        flags,
        ctypes.byref(_Program(len(code) // exec_filter.INSTRUCTION.size, code)),
    )
    if listener < 0:
        raise _error()
    return listener


def execute(
    path: bytes, argv: tuple[bytes, ...], environment: dict[bytes, bytes], cookie: int
) -> None:
    """Call execve(2) with the cookie, which the filter lets pass.

    Returns only by raising OSError.
    """
    words = (ctypes.c_char_p * (len(argv) + 1))(*argv, None)
    entries = (ctypes.c_char_p * (len(environment) + 1))(
        *(k + b"=" + v for k, v in environment.items()), None
    )
    _libc.syscall(
        ctypes.c_long(exec_filter.SYSCALLS[os.uname().machine][0]),
        ctypes.c_char_p(path),
        words,
        entries,
        ctypes.c_ulong(0),
        ctypes.c_ulong(0),
        ctypes.c_ulong(cookie),
    )
    raise _error()


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
