"""Huge pages are given to files in memory, or the file stays as it was."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from unittest import mock

import pytest

from holdfast.wire import huge_pages
from holdfast.wire.huge_pages import HUGE_BYTES


@pytest.fixture
def fd() -> int:
    return os.memfd_create("huge")


def test_the_reserved_bytes_are_in_the_file_and_empty(fd: int) -> None:
    size = 5 * HUGE_BYTES - 1
    done = huge_pages.reserve(fd, size, time.monotonic)
    if not done:
        pytest.skip("this kernel makes no huge pages")
    assert done <= size + 1 and os.fstat(fd).st_size == done
    assert os.fstat(fd).st_blocks * 512 == done
    assert not any(os.pread(fd, done, 0))


def test_a_kernel_that_refuses_or_is_slow_stops_it(fd: int, tmp_path: Path) -> None:
    on_disk = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    with mock.patch.object(huge_pages, "_COLLAPSE", 12345):
        assert huge_pages.reserve(on_disk, 3 * HUGE_BYTES, time.monotonic) == 0
        assert huge_pages.reserve(fd, 3 * HUGE_BYTES, time.monotonic) == 0
    assert os.fstat(fd).st_size == os.fstat(fd).st_blocks == os.fstat(on_disk).st_size == 0
    with mock.patch.object(huge_pages, "_SPARED_S", -1.0):
        assert huge_pages.reserve(fd, 3 * HUGE_BYTES, time.monotonic) in (0, HUGE_BYTES)
    os.close(on_disk)


def test_without_address_space_nothing_is_reserved(fd: int) -> None:
    failed = ctypes.c_void_p(-1).value
    with mock.patch.object(huge_pages, "_libc") as libc:
        libc.mmap.return_value = failed
        assert huge_pages.reserve(fd, HUGE_BYTES, time.monotonic) == 0
