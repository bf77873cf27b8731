"""System calls that Python 3.11 does not wrap. Errors raise OSError, as in `os`."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID = 0x0002_0000, 0x1000_0000, 0x2000_0000
MS_REC, MS_PRIVATE = 0x4000, 1 << 18
PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 4, 36, 38
PTRACE_SEIZE = 0x4206
NOBODY = 65_534

# name -> number by machine. All other calls go through functions of the C library.
SYSCALLS = {
    "x86_64": {"seccomp": 317, "bpf": 321},
    "aarch64": {"seccomp": 277, "bpf": 280},
}

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.ptrace.restype = ctypes.c_long

Argument = int | bytes | None | ctypes.Structure | ctypes.Array[ctypes.c_char]


def call(name: str, *args: Argument) -> int:
    """Call a function of the C library that returns -1 and sets errno on failure."""
    ctypes.set_errno(0)
    result = int(getattr(_libc, name)(*map(_passed, args)))
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
    return result


def syscall(name: str, *args: Argument) -> int:
    number = SYSCALLS.get(os.uname().machine, {}).get(name)
    if number is None:
        raise NotImplementedError(f"unknown: the number of {name} on {os.uname().machine}")
    try:
        return call("syscall", number, *args)
    except OSError as error:
        raise OSError(error.errno, error.strerror, name) from error


def _passed(value: Argument) -> object:
    if isinstance(value, int):
        return ctypes.c_long(value)
    if isinstance(value, ctypes.Structure | ctypes.Array):
        return ctypes.byref(value)
    return value


def become_ordinary() -> None:
    """Become an ordinary user, but stay visible (dumpable) to processes of that user."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        call("prctl", PR_SET_DUMPABLE, 1, 0, 0, 0)


def forked(body: Callable[[], None]) -> int:
    """Fork a child that runs `body` and exits with 0, or with 1 if `body` raised."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            body()
            status = 0
        finally:
            os._exit(status)
    return pid


def wait_forever() -> None:
    while True:
        signal.pause()


def in_child(body: Callable[[], str]) -> str:
    """Run `body` in a child and return the result. An exception of `body` is raised here."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            try:
                said = "=" + body()
            except OSError as error:
                said = f"{error.errno or 0} {error.filename or ''}"
            except Exception as error:  # the parent raises the error
                said = f"!{type(error).__name__}: {error}"
            os.write(writer, said.encode())
        finally:
            os._exit(0)
    os.close(writer)
    said = b"".join(iter(lambda: os.read(reader, 4096), b"")).decode()
    os.close(reader)
    os.waitpid(pid, 0)
    if said.startswith("="):
        return said[1:]
    if not said or said.startswith("!"):
        raise RuntimeError(said[1:] or "the child died")
    number, _, name = said.partition(" ")
    raise OSError(int(number), os.strerror(int(number)), name or None)
