"""The latest screen in the keeper's second memfd (S6).

A host killed at any byte leaves the older screen, or the new one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from holdfast.model.limits import SNAPSHOT_BYTES
from holdfast.wire import snapshot


@pytest.fixture
def fd() -> Iterator[int]:
    made = os.memfd_create("screen")
    yield made
    os.close(made)


class Killed(BaseException):
    pass


def test_s6_there_is_none_at_first(fd: int) -> None:
    assert snapshot.load(fd) is None


def test_s6_the_latest_is_loaded(fd: int) -> None:
    for n in range(6):
        data = os.urandom(n * 700_000)
        snapshot.store(fd, 10**12 + n, data)
        assert snapshot.load(fd) == (10**12 + n, data)


@pytest.mark.parametrize("before", [0, 1, 2])
def test_s6_a_kill_at_any_write_leaves_the_older_or_the_new_screen(
    fd: int, before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.pwrite
    older = None
    for n in range(before):
        older = (n, bytes([n]) * 300_000)
        snapshot.store(fd, *older)
    newer = (99, b"n" * 2_500_000)
    at = finished = 0
    while not finished:
        at += 1
        left = at

        def dying(to: int, data: bytes, position: int) -> int:
            nonlocal left
            left -= 1
            if not left:
                write(to, data[: len(data) // 2], position)  # killed in the middle
                raise Killed
            return write(to, data, position)

        copy = os.memfd_create("screen")
        os.sendfile(copy, fd, 0, os.fstat(fd).st_size)
        monkeypatch.setattr(os, "pwrite", dying)
        try:
            snapshot.store(copy, *newer)
            finished = 1
        except Killed:
            pass
        monkeypatch.setattr(os, "pwrite", write)
        assert snapshot.load(copy) in ((newer,) if finished else (older, newer))
        os.close(copy)
    assert at > 4


def test_s6_damage_is_none_never_a_wrong_screen(fd: int) -> None:
    snapshot.store(fd, 5, b"screen" * 100)
    size = os.fstat(fd).st_size
    sound = os.pread(fd, size, 0)
    for position in [*range(48), *range(4096, size, 97)]:
        os.pwrite(fd, bytes([sound[position] ^ 0x55]), position)
        assert (
            snapshot.load(fd) in (None, (5 ^ (0x55 << 8 * (position - 16)), b"screen" * 100))
            if 16 <= position < 24
            else snapshot.load(fd) is None
        ), position
        os.pwrite(fd, sound[position : position + 1], position)
    assert snapshot.load(fd) == (5, b"screen" * 100)
    os.ftruncate(fd, size - 1)
    assert snapshot.load(fd) is None


def test_a_screen_that_is_too_large_is_refused_and_harms_no_other(fd: int) -> None:
    snapshot.store(fd, 1, b"small")
    with pytest.raises(ValueError, match="at most"):
        snapshot.store(fd, 2, bytes(SNAPSHOT_BYTES + 1))
    assert snapshot.load(fd) == (1, b"small")


def test_the_memory_of_a_large_older_screen_is_released(fd: int) -> None:
    for n in range(8):
        snapshot.store(fd, n, bytes(8 << 20) if n < 2 else b"small")
    assert os.fstat(fd).st_blocks * 512 < 1 << 20
