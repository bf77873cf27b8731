"""Plain images lie in memory if they fit, in a directory of this account, and are removed."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from holdfast.host.checkpoints.scratch import Scratch


def test_r2_plain_images_are_in_memory_and_leave_nothing(tmp_path: Path) -> None:
    memory, state = tmp_path / "shm", tmp_path / "state"
    memory.mkdir()
    scratch = Scratch(str(state), str(memory))
    one, two = scratch.make("one", 1), scratch.make("two", 1)
    assert one.parent == two.parent and one.parent.parent == memory
    assert one.stat().st_mode & 0o077 == one.parent.stat().st_mode & 0o077 == 0
    (one / "pages").write_bytes(b"secret")
    removal = scratch.clear(one)
    assert two.is_dir() and not one.exists()
    assert scratch.make("one", 1) == one and scratch.clear(one) is not removal
    scratch.clear(two)
    for thread in threading.enumerate():
        if thread.name == "scratch":
            thread.join()
    assert not [*memory.iterdir()]


def test_r2_images_that_do_not_fit_are_on_the_disk(tmp_path: Path) -> None:
    memory = tmp_path / "shm"
    memory.mkdir()
    scratch = Scratch(str(tmp_path / "state"), str(memory))
    place = scratch.make("one", 1 << 60)
    assert place.is_relative_to(tmp_path / "state") and not [*memory.iterdir()]


def test_r2_a_directory_that_others_can_reach_is_not_used(tmp_path: Path) -> None:
    """Another user may have made the directory with the known name first."""
    memory, state = tmp_path / "shm", tmp_path / "state"
    memory.mkdir()
    scratch = Scratch(str(state), str(memory))
    theirs = scratch.make("one", 1).parent
    theirs.chmod(0o777)
    assert scratch.make("two", 1).is_relative_to(state)
    theirs.rename(tmp_path / "away")
    theirs.symlink_to(tmp_path / "away")
    (tmp_path / "away").chmod(0o700)
    assert scratch.make("three", 1).is_relative_to(state)
    (state / "checkpoints" / ".plain").chmod(0o777)
    with pytest.raises(OSError, match="not private"):
        scratch.make("four", 1)


def test_r2_the_next_host_removes_what_was_left(tmp_path: Path) -> None:
    memory = tmp_path / "shm"
    memory.mkdir()
    left = Scratch(str(tmp_path / "state"), str(memory)).make("one", 1)
    Scratch(str(tmp_path / "state"), str(memory)).sweep()
    assert not left.exists() and not [*memory.iterdir()]
