"""Runs a program under the refusals that the host's unit gets from systemd, without systemd.

    python -m tests.support.commands.hardened_unit MODULE

Like RestrictNamespaces= and SystemCallFilter=, a seccomp filter of this process and its children
refuses with EPERM to enter or make namespaces, to trace, to mount and to change capabilities.
"""

from __future__ import annotations

import ctypes
import os
import platform
import runpy
import struct
import sys

_NUMBERS = {  # setns, ptrace, mount, capset, and process_vm_readv
    "x86_64": (308, 101, 165, 126, 310),
    "aarch64": (268, 117, 40, 91, 270),
}
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_RET|K
_ALLOW, _EPERM = 0x7FFF0000, 0x00050001
_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER = 38, 22, 2


def harden() -> None:
    refused = _NUMBERS[platform.machine()]
    code = [(_LOAD, 0, 0, 0)]
    code += [(_EQUAL, len(refused) - at, 0, number) for at, number in enumerate(refused)]
    code += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _EPERM)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *one) for one in code))
    header = struct.pack("<HxxxxxxQ", len(code), ctypes.addressof(program))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((_NO_NEW_PRIVS, 1, 0, 0, 0), (_SET_SECCOMP, _FILTER, header, 0, 0)):
        if libc.prctl(*arguments):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    harden()
    runpy.run_module(sys.argv[1], run_name="__main__")
