"""Reading the program of a waiting exec (P4): the loop reads only pages present in memory."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import struct
from pathlib import Path

import pytest

from holdfast.host.exec_gate import exec_request
from holdfast.host.exec_gate.exec_request import UNFINISHED, Notification, ProgramReader

pytestmark = pytest.mark.skipif(
    os.uname().machine != "x86_64", reason="system call numbers of x86_64"
)
PAGE = mmap.PAGESIZE


@pytest.mark.parametrize("touched", [(), (0,), (0, 1)])
def test_p4_pages_that_are_not_in_memory_are_left_for_a_thread(
    tmp_path: Path, touched: tuple[int, ...]
) -> None:
    """The path starts at the end of the first page and ends in the second; argv is in the first."""
    file = tmp_path / "memory"
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    ]
    path = b"/usr/bin/tac"
    file.write_bytes(bytes(2 * PAGE))
    fd = os.open(file, os.O_RDWR)
    at = libc.mmap(None, 2 * PAGE, mmap.PROT_READ, mmap.MAP_PRIVATE, fd, 0)
    os.pwrite(fd, struct.pack("<2Q", at + 64, 0), 0)
    os.pwrite(fd, b"tac\0", 64)
    os.pwrite(fd, path + b"\0", PAGE - 6)
    os.close(fd)
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        # MADV_RANDOM: no read-ahead; MADV_DONTNEED: drop the pages.
        for advice in (1, 4):
            libc.madvise(ctypes.c_void_p(at), ctypes.c_size_t(2 * PAGE), advice)
        for page in touched:
            ctypes.string_at(at + page * PAGE, 1)
        os.write(tell, b"x")
        signal.pause()
        os._exit(0)
    try:
        assert os.read(ready, 1) == b"x"
        one = Notification(1, child, 59, 0xC000_003E, (at + PAGE - 6, at, 0, 0, 0, 0))
        entries = struct.unpack(
            "=2Q",
            os.pread(
                os.open(f"/proc/{child}/pagemap", os.O_RDONLY | os.O_CLOEXEC), 16, at // PAGE * 8
            ),
        )
        there = [n for n, entry in enumerate(entries) if entry >> 63]
        with ProgramReader(one, only_present=True) as reader:
            program = reader.program(brief=True)
        assert (program.unread is UNFINISHED) == (there != [0, 1]), (there, program)
        assert there == list(touched) or len(touched) == 1, (
            "the kernel may map more than was asked for"
        )
        assert exec_request.read_program(one)[:3] == ("/usr/bin/tac", ("tac",), "")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ready)
        os.close(tell)
