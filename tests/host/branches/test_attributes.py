"""Extended attributes and access control lists of a branch get to the parent (R5)."""

from __future__ import annotations

import errno
import json
import os
import struct
from pathlib import Path

import pytest

from holdfast.core.branch.attributes import ACCESS, DEFAULT, LARGE, lines
from holdfast.host.branches import attributes, keep
from holdfast.host.branches.difference import difference
from holdfast.host.branches.fork import lacking
from holdfast.host.branches.snapshot import Snapshot
from holdfast.host.branches.store import decode, encode
from holdfast.host.branches.walk import scan
from tests.support.recovery.kept_branch import INSIDE, Stage

COLOR = "user.color"


def acl(number: int) -> bytes:
    """rw for the owner and the user with that number, r for the group and all others."""
    rules = [(1, 6, -1), (2, 6, number), (4, 4, -1), (16, 6, -1), (32, 4, -1)]
    return struct.pack("<I", 2) + b"".join(
        struct.pack("<HHI", tag, rights, one & 0xFFFF_FFFF) for tag, rights, one in rules
    )


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    try:
        os.setxattr(tmp_path, ACCESS, acl(12345))
        os.setxattr(tmp_path, COLOR, b"red")
    except OSError as e:
        pytest.skip(f"this file system has no attributes: {e.strerror}")
    os.removexattr(tmp_path, ACCESS)
    return Stage(tmp_path)


def names(path: Path) -> set[str]:
    return {*os.listxattr(path)}


def test_r5_attributes_of_a_branch_are_shown_and_kept(stage: Stage) -> None:
    for name in ("file", "new"):
        (stage.upper / name).write_text(f"{name}\n")
    os.setxattr(stage.upper / "file", COLOR, b"blue")
    os.setxattr(stage.upper / "new", ACCESS, acl(12345))
    (stage.upper / "deep").mkdir(mode=0o755)
    os.setxattr(stage.upper / "deep", DEFAULT, acl(54321))
    shown = difference(stage.fork, str(stage.layers), "", False, True).files
    told = {one.path: (one.change.what, one.text) for one in shown}
    assert told.pop(f"{INSIDE}/new")[0] == "added"
    assert told == {
        f"{INSIDE}/file": ("attributes", "+user.color: 'blue'\n"),
        f"{INSIDE}/deep": (
            "attributes",
            f"+{DEFAULT}: user::rw-,user:54321:rw-,group::r--,mask::rw-,other::r--\n",
        ),
    }
    stage.stage()
    assert stage.apply() == set()
    assert os.getxattr(stage.now / "file", COLOR) == b"blue"
    assert os.getxattr(stage.now / "new", ACCESS) == acl(12345)
    assert os.getxattr(stage.now / "deep", DEFAULT) == acl(54321)
    stage.stage()
    assert stage.apply() == set(), "nothing is left to do"


def test_r5_a_kept_file_inherits_no_access_control_list(stage: Stage) -> None:
    (stage.upper / "new").write_text("branch")
    (stage.upper / "made").mkdir(mode=0o755)
    (stage.upper / "made").chmod(0o755)
    stage.stage()
    os.setxattr(stage.now, DEFAULT, acl(54321))
    assert stage.apply() == set()
    assert names(stage.now / "new") == names(stage.now / "made") == set()
    assert (stage.now / "new").stat().st_mode == (stage.upper / "new").stat().st_mode


def test_r5_attributes_that_changed_at_both_places_conflict(stage: Stage) -> None:
    (stage.upper / "file").write_text("file\n")
    os.setxattr(stage.upper / "file", COLOR, b"blue")
    os.setxattr(stage.now / "file", COLOR, b"green")
    found = keep.decide(stage.fork, str(stage.layers), (), ()).conflicts
    assert [(one.path, one.why) for one in found] == [
        (f"{INSIDE}/file", "it was changed in the parent too")
    ]
    stage.stage(take=("file",))
    assert stage.apply() == set()
    assert os.getxattr(stage.now / "file", COLOR) == b"blue"


def test_r5_an_attribute_that_cannot_be_set_is_named(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    (stage.upper / "file").write_text("branch")
    os.setxattr(stage.upper / "file", COLOR, b"blue")
    stage.stage()

    def refused(*arguments: object, **more: object) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(os, "setxattr", refused)
    assert stage.left() == {"file": "it was written without user.color (Operation not supported)"}
    assert (stage.now / "file").read_text() == "branch"


def test_r5_a_snapshot_has_the_attributes_of_the_directory(tmp_path: Path, stage: Stage) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "deep").mkdir(parents=True)
    (source / "deep/plain").write_text("")  # older than the list that it would inherit
    os.setxattr(source / "deep", DEFAULT, acl(54321))
    (source / "deep/file").write_text("")
    os.setxattr(source / "deep/file", COLOR, b"blue")
    made = Snapshot(str(source), str(target))
    made.first()
    os.setxattr(source / "deep/file", COLOR, b"green")
    os.setxattr(source, COLOR, b"red")
    os.setxattr(source / "deep", COLOR, b"red")
    made.again(())
    made.finish()
    assert scan(str(source)) == scan(str(target))
    assert not names(target / "deep/plain") and ACCESS in names(target / "deep/file")
    assert os.getxattr(target / "deep/file", COLOR) == b"green"
    assert os.getxattr(target, COLOR) == os.getxattr(target / "deep", COLOR) == b"red"


def test_long_and_odd_values_are_shown_in_one_line() -> None:
    before, after = (("user.a", b"\n\xff".hex()),), (("user.a", (b"x" * 500).hex()),)
    assert lines(before, after) == (
        f"-user.a: '\\n\\\\xff'\n+user.a: '{'x' * 200}'... (500 bytes)\n"
    )


def test_r5_a_keep_leaves_attributes_alone_that_the_snapshot_could_not_hold(
    tmp_path: Path, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("file", "deep"):
        mode = (stage.now / name).stat().st_mode  # a list for another user changes no bit of it
        os.setxattr(stage.now / name, ACCESS, acl(12345))
        (stage.now / name).chmod(mode)

    def refused(path: object, name: str, *more: object) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    made = Snapshot(str(stage.now), str(tmp_path / "copy"))
    with monkeypatch.context() as without:
        without.setattr(os, "setxattr", refused)
        made.first()
        made.finish()
    why = f"without {ACCESS} (Operation not supported)"
    assert made.lacks == {"file": why, "deep": why}
    [said] = lacking([made])
    assert f"{stage.now}/" in said and why in said and "and 1 more" in said
    stage.fork.attributes = False
    (stage.upper / "file").write_text("branch")
    (stage.upper / "deep").mkdir()
    (stage.upper / "deep").chmod(0o700)
    (stage.upper / "new").write_text("new")
    stage.stage()
    assert stage.apply() == set()
    assert (stage.now / "file").read_text() == "branch"
    assert ACCESS in names(stage.now / "file") and ACCESS in names(stage.now / "deep")
    assert not names(stage.now / "new")


def test_r5_a_fork_and_a_keep_of_an_older_release_know_no_attributes(stage: Stage) -> None:
    saved = json.loads(encode(stage.fork))
    assert saved.pop("attributes") is True
    assert decode(json.dumps(saved).encode()).attributes is False
    (stage.upper / "file").write_text("branch")
    stage.stage()
    steps = stage.forks.place(stage.fork.id) / keep.KEEP / keep.LIST
    listed = json.loads(steps.read_bytes())
    for one in listed["steps"]:
        assert one.pop("attributes") == []
    steps.write_text(json.dumps(listed))
    os.setxattr(stage.now / "file", COLOR, b"red")
    assert stage.apply() == set()
    assert (stage.now / "file").read_text() == "branch"
    assert os.getxattr(stage.now / "file", COLOR) == b"red"


def test_r5_many_attributes_of_a_file_are_compared_and_not_kept(
    tmp_path: Path, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A keep has the attributes of all entries in memory. The copy of a fork has them all."""
    monkeypatch.setattr(attributes, "CARRIED_BYTES", 500)
    for name, value in (("file", b"x" * 600), ("gone", b"x" * 400)):
        (stage.upper / name).write_text("branch")
        os.setxattr(stage.upper / name, COLOR, value)
    found = scan(str(stage.upper))
    assert [name for name, _ in found["file"].attributes] == [LARGE]
    assert [name for name, _ in found["gone"].attributes] == [COLOR]
    made = Snapshot(str(stage.upper), str(tmp_path / "copy"))
    made.first()
    made.finish()
    assert not made.lacks and scan(str(tmp_path / "copy")) == found
    os.setxattr(tmp_path / "copy/file", COLOR, b"y" * 600)
    assert scan(str(tmp_path / "copy")) != found
    assert "+attributes: more than" in lines((), found["file"].attributes)
    stage.stage()
    assert stage.left().keys() == {"file"}
    assert (stage.now / "file").read_text() == "branch" and not names(stage.now / "file")
    assert os.getxattr(stage.now / "gone", COLOR) == b"x" * 400
