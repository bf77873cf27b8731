"""Differences of files with odd names, and of files that cannot be read (R5)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.host.branches import apply as applying
from holdfast.host.branches import difference, walk
from holdfast.model.errors import Impossible
from tests.support.recovery.kept_branch import INSIDE, Stage


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def shown(stage: Stage) -> dict[str, difference.Changed]:
    found = difference.difference(stage.fork, str(stage.layers), "", False, True).files
    return {one.path.removeprefix(f"{INSIDE}/"): one for one in found}


def test_r5_a_name_with_a_newline_adds_no_line_to_the_text(stage: Stage) -> None:
    name = "x\n+++ b/etc/passwd"
    (stage.upper / "x\n+++ b").mkdir()
    (stage.upper / "x\n+++ b/etc").mkdir()
    (stage.upper / name).write_text("branch\n")
    assert shown(stage)[name].text.splitlines()[:3] == [
        "--- /dev/null",
        f"+++ b{INSIDE}/x\\n+++ b/etc/passwd",
        "@@ -0,0 +1 @@",
    ]


def test_r5_bytes_that_are_no_text_in_names_are_kept(stage: Stage) -> None:
    top = os.fsencode(stage.upper)
    with open(top + b"/bad\xff", "w") as f:
        f.write("branch")
    os.symlink(b"/outside\xfe", top + b"/link\xfd")
    assert {*shown(stage)} == {os.fsdecode(b"bad\xff"), os.fsdecode(b"link\xfd")}
    stage.stage(take=(os.fsdecode(b"bad\xff"),))
    assert stage.apply() == set()
    now = os.fsencode(stage.now)
    assert os.readlink(now + b"/link\xfd") == b"/outside\xfe"
    assert os.path.exists(now + b"/bad\xff")


def test_r5_a_file_that_cannot_be_read_is_named_and_not_kept(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    (stage.upper / "file").write_text("FILE\n")
    (stage.upper / "new").write_text("gone\n")
    stage.removed("gone")
    real = walk.open_file

    def closed(top: str, path: str) -> int:
        if top == str(stage.upper):
            raise PermissionError
        return real(top, path)

    monkeypatch.setattr("holdfast.host.branches.difference.open_file", closed)
    found = shown(stage)
    assert {path: one.change.what for path, one in found.items()} == {
        "file": "changed",
        "new": "added",
        "gone": "removed",
    }
    assert found["file"].why == "it cannot be read" and not found["file"].text
    with pytest.raises(Impossible, match=f"{INSIDE}/file of the branch cannot be read"):
        stage.stage()
    assert not applying.pending(stage.forks, stage.fork)
    stage.stage(leave=("file", "new"))
    assert stage.apply() == set() and not (stage.now / "gone").exists()


def test_r5_a_directory_that_cannot_be_read_is_named_and_not_kept(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The changes below it are not known."""
    (stage.upper / "deep").mkdir(mode=0o700)
    inode, real = (stage.upper / "deep").stat().st_ino, walk._listed

    def closed(at: int) -> Iterator[tuple[str, os.stat_result]]:
        if os.fstat(at).st_ino == inode:
            raise PermissionError
        yield from real(at)

    monkeypatch.setattr(walk, "_listed", closed)
    assert shown(stage)["deep"].why == "its entries cannot be read"
    with pytest.raises(Impossible, match=f"{INSIDE}/deep of the branch cannot be read"):
        stage.stage()
    stage.stage(leave=("deep",))
    assert stage.apply() == set()
