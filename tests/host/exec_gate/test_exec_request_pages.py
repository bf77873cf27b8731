"""What an exec would run, read from memory that may be a file's (P4): on the loop nothing is read that would have to be waited for."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import struct
from pathlib import Path

import pytest

from holdfast.host import notified
from holdfast.host.notified import LATER, Notified, Reading

pytestmark = pytest.mark.skipif(
    os.uname().machine != "x86_64", reason="numbers of another processor"
)
PAGE = mmap.PAGESIZE


@pytest.mark.parametrize("touched", [(), (0,), (0, 1)])
def test_p4_pages_that_are_not_in_memory_are_left_for_a_thread(
    tmp_path: Path, touched: tuple[int, ...]
) -> None:
    """The path is at the end of the first page, and its last letters in the second; the words are in the first."""
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
        libc.madvise(
            ctypes.c_void_p(at), ctypes.c_size_t(2 * PAGE), 1
        )  # no pages beside those that are asked for
        libc.madvise(ctypes.c_void_p(at), ctypes.c_size_t(2 * PAGE), 4)
        for page in touched:
            ctypes.string_at(at + page * PAGE, 1)
        os.write(tell, b"x")
        signal.pause()
        os._exit(0)
    try:
        assert os.read(ready, 1) == b"x"
        one = Notified(1, child, 59, 0xC000_003E, (at + PAGE - 6, at, 0, 0, 0, 0))
        entries = struct.unpack(
            "=2Q",
            os.pread(
                os.open(f"/proc/{child}/pagemap", os.O_RDONLY | os.O_CLOEXEC), 16, at // PAGE * 8
            ),
        )
        there = [n for n, entry in enumerate(entries) if entry >> 63]
        with Reading(one, soon=True) as reading:
            program = reading.program(soon=True)
        assert (program.unread is LATER) == (there != [0, 1]), (there, program)
        assert there == list(touched) or len(touched) == 1, (
            "the kernel may map more than was asked for"
        )
        assert notified.read(one)[:3] == ("/usr/bin/tac", ("tac",), "")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ready)
        os.close(tell)
