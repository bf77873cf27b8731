"""Installs the filter that shows every exec of a session to the gate (wire/sieve.py). Loaded by launchers only: it needs ctypes, and a keeper does not.

It is installed by the process that becomes the program, just before it does, so it is on the program and on all that ever comes of it, whatever they do: a filter cannot be taken
off. The program itself is executed by a call that carries the filter's cookie, 64 random bits. Once it runs, the cookie is in the filter and in no memory, and a process with a
filter on it is not told what its filter is (PTRACE_SECCOMP_GET_FILTER is refused to it).

SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV is not used: with it a task that waits for an answer of a host that died could not be made to ask again.

Without the right to do so (CAP_SYS_ADMIN in its user namespace) the kernel wants no_new_privs first, and with that sudo is dead. That is done only for whoever insists.
"""

from __future__ import annotations

import ctypes
import errno
import os

from holdfast.wire import sieve

_SET_MODE_FILTER, _NEW_LISTENER = 1, 1 << 3
_PR_SET_NO_NEW_PRIVS = 38
_libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def install(insist: bool) -> tuple[int, int]:
    """The listener and the cookie; OSError if the kernel refuses. `insist`: also at the price of no_new_privs."""
    machine = os.uname().machine
    if machine not in sieve.PERSONALITIES:
        raise OSError(errno.ENOSYS, f"no filter for {machine}")
    cookie = int.from_bytes(os.urandom(8), "little")
    try:
        return _install(machine, cookie), cookie
    except PermissionError:
        if not insist:
            raise
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), 0, 0, 0):
        raise _error()
    return _install(machine, cookie), cookie


def _install(machine: str, cookie: int) -> int:
    code = sieve.program(machine, cookie)
    listener: int = _libc.syscall(
        ctypes.c_long(sieve.SYSCALLS[machine][1]),
        _SET_MODE_FILTER,
        _NEW_LISTENER,
        ctypes.byref(_Program(len(code) // sieve.INSTRUCTION.size, code)),
    )
    if listener < 0:
        raise _error()
    return listener


def execute(
    path: bytes, argv: tuple[bytes, ...], environment: dict[bytes, bytes], cookie: int
) -> None:
    """execve(2) that the filter knows as its maker's. Returns only by OSError."""
    words = (ctypes.c_char_p * (len(argv) + 1))(*argv, None)
    entries = (ctypes.c_char_p * (len(environment) + 1))(
        *(k + b"=" + v for k, v in environment.items()), None
    )
    _libc.syscall(
        ctypes.c_long(sieve.SYSCALLS[os.uname().machine][0]),
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
