"""The expected size of a checkpoint counts shared memory and deleted files once (R2)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core.checkpoint.preflight import Process
from holdfast.host.checkpoints import sizes

MB = 1 << 20
# Three processes that share memory, a memfd that is not mapped, and files.
PROGRAM = f"""
import mmap, os, sys
shared = mmap.mmap(-1, 8 * {MB})
shared.write(b"x" * (8 * {MB}))
memfd = os.memfd_create("one")
os.write(memfd, b"x" * (4 * {MB}))
deleted = open("deleted", "w+b")
deleted.write(b"x" * (2 * {MB})); deleted.flush(); os.unlink("deleted")
sparse = open("sparse", "w+b"); sparse.truncate(1 << 33); os.unlink("sparse")
log = open("log", "wb"); log.write(b"x" * {MB}); log.flush()
read = open("log", "rb")
for _ in range(2):
    if os.fork() == 0:
        shared[0:4096] = b"y" * 4096
        os.write(1, b"%d\\n" % os.getpid())
        os.read(0, 1)
        os._exit(0)
os.write(1, b"%d\\n" % os.getpid())
os.read(0, 1)
"""


@pytest.fixture
def pids(tmp_path: Path) -> Iterator[list[int]]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin is not None and process.stdout is not None
    with process:
        yield [int(process.stdout.readline()) for _ in range(3)]
        process.stdin.write(b"xxx")


def test_r2_shared_memory_and_files_count_once(pids: list[int], tmp_path: Path) -> None:
    found = sizes.held(os.getpid(), [Process(pid, "python3") for pid in pids], ())
    by_name = {one.name: one for one in found if one.holder}
    assert by_name.keys() == {
        "/memfd:one",
        *(f"{tmp_path}/{name}" for name in ("deleted", "sparse", "log")),
    }
    assert by_name["/memfd:one"].size == 4 * MB and not by_name["/memfd:one"].deleted
    deleted = by_name[f"{tmp_path}/deleted"]
    assert 2 * MB <= deleted.size == deleted.deleted < 3 * MB
    assert by_name[f"{tmp_path}/sparse"].size < MB
    assert by_name[f"{tmp_path}/log"].written and by_name[f"{tmp_path}/log"].size == MB
    shared = sum(one.size for one in found if one.name == "shared memory")
    assert 8 * MB - 3 * 4096 <= shared <= 8 * MB


def test_r2_files_of_a_memory_file_system_count_with_it(pids: list[int], tmp_path: Path) -> None:
    place = str(tmp_path)
    found = sizes.held(os.getpid(), [Process(pid, "python3") for pid in pids], (place,))
    sized = {one.name: one for one in found}
    assert sized[place].size > 0 and sized[f"{place}/deleted"].size == 0
    assert sized[f"{place}/deleted"].deleted >= 2 * MB
