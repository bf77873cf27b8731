"""A directory is copied while programs change it (R5)."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from holdfast.host.branches import snapshot
from holdfast.host.branches.snapshot import Snapshot, measure
from holdfast.host.branches.walk import scan


def filled(top: Path) -> Path:
    (top / "deep/er").mkdir(parents=True)
    (top / "file").write_text("text")
    (top / "deep/er/program").write_text("#!/bin/sh\n")
    (top / "deep/er/program").chmod(0o755)
    (top / "link").symlink_to("/etc/passwd")
    os.mkfifo(top / "pipe")
    os.link(top / "file", top / "other name")
    with (top / "holes").open("wb") as f:
        f.truncate(50 << 20)
        f.seek(40 << 20)
        f.write(b"end")
    (top / "deep").chmod(0o555)
    return top


def copied(source: Path, target: Path) -> Snapshot:
    made = Snapshot(str(source), str(target))
    made.first()
    return made


def test_r5_a_copy_has_every_kind_of_entry(tmp_path: Path) -> None:
    source, target = filled(tmp_path / "source"), tmp_path / "target"
    made = copied(source, target)
    made.again(())
    made.finish()
    assert scan(str(source)) == scan(str(target))
    assert (target / "file").stat().st_ino == (target / "other name").stat().st_ino
    assert (target / "file").stat().st_mtime_ns == (source / "file").stat().st_mtime_ns
    holes = (target / "holes").stat()
    assert holes.st_size == 50 << 20 and holes.st_blocks * 512 < 2 << 20
    assert (target / "holes").read_bytes() == (source / "holes").read_bytes()
    assert stat.S_ISFIFO((target / "pipe").stat().st_mode)
    assert not made.unreadable


def test_r5_the_second_look_copies_only_what_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "_TICK_NS", 0)
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    for number in range(100):
        (source / f"{number}").write_text(f"{number}")
    made = copied(source, target)
    (source / "7").write_text("changed")
    (source / "8").unlink()
    (source / "9").unlink()
    (source / "9").mkdir()
    (source / "9/inside").write_text("inside")
    (source / "new").write_text("new")
    inode = (source / "10").stat().st_ino
    made.again({inode})
    made.finish()
    assert scan(str(source)) == scan(str(target))
    assert (target / "7").read_text() == "changed" and (target / "9/inside").exists()
    assert made.copied_again == 5, "7, 9, 9/inside, new and the one that is mapped"


def test_t4_a_directory_that_becomes_a_link_leads_nowhere(tmp_path: Path) -> None:
    """Programs could exchange a directory for a link while the host copies."""
    source, target, secret = tmp_path / "source", tmp_path / "target", tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("key")
    (source / "deep").mkdir(parents=True)
    made = copied(source, target)
    (source / "deep").rmdir()
    (source / "deep").symlink_to(secret)
    made.again(())
    made.finish()
    assert (target / "deep").is_symlink()
    assert not [one for one in target.rglob("key") if not one.parent.is_symlink()]


def test_the_size_is_measured_up_to_the_bound(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number}").write_bytes(b"x" * 10)
    assert measure(str(tmp_path), 1000, 1000) == (200, 20)
    assert measure(str(tmp_path), 1000, 5).entries == 6
    assert measure(str(tmp_path), 50, 1000).bytes == 60


def test_t4_a_copied_directory_that_becomes_a_link_harms_no_file_of_the_machine(
    tmp_path: Path,
) -> None:
    """The copy then has a link too; what was below the directory is not looked for behind it."""
    source, target, outside = tmp_path / "source", tmp_path / "target", tmp_path / "outside"
    for top in (source / "a", outside):
        (top / "tree").mkdir(parents=True)
        (top / "tree/file").write_text("text")
        (top / "file").write_text(top.name)
    os.link(source / "a/file", source / "z")
    made = copied(source, target)
    (source / "a").rename(source / "b")
    (source / "a").symlink_to(outside)
    (source / "z").chmod(0o640)
    made.again(())
    made.finish()
    assert (outside / "tree/file").exists() and (outside / "file").read_text() == "outside"
    assert (target / "a").is_symlink() and (target / "b/tree/file").read_text() == "text"
    assert (target / "z").read_text() == "a", "and no file of the machine gets a name in the copy"
