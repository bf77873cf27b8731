"""Files that were open for writing get their saved content again, all of them or none (R2)."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.checkpointer import memory


def saved(files: dict[Path, bytes]) -> io.BytesIO:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, content in files.items():
            entry = tarfile.TarInfo(str(path).lstrip("/"))
            entry.size, entry.mode = len(content), 0o600
            entry.uid, entry.gid = os.getuid(), os.getgid()
            archive.addfile(entry, io.BytesIO(content))
    made.seek(0)
    return made


def test_r2_replaced_content_is_on_the_disk_before_a_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed, same, missing = (tmp_path / name for name in ("changed", "same", "missing"))
    changed.write_text("newer")
    same.write_text("saved")
    seen, real = list[str](), os.fsync
    with open(tmp_path / "replaced.tar", "w+b") as replaced:

        def sync(fd: int) -> None:
            if fd == replaced.fileno():
                seen.append(changed.read_text())
            real(fd)

        monkeypatch.setattr(os, "fsync", sync)
        made = memory.put_back(saved(dict.fromkeys((changed, same, missing), b"saved")), replaced)
        assert seen == ["newer"] and made == [str(missing)]
        assert {one.read_text() for one in (changed, same, missing)} == {"saved"}
        with tarfile.open(tmp_path / "replaced.tar") as archive:
            assert archive.getnames() == [str(changed).lstrip("/")]
        memory.take_back(replaced, made)
    assert changed.read_text() == "newer" and not missing.exists()
    assert (tmp_path / "replaced.tar").stat().st_size == 0


def test_r2_one_file_that_cannot_be_replaced_leaves_all_as_they_were(tmp_path: Path) -> None:
    first, link, missing = tmp_path / "first", tmp_path / "link", tmp_path / "missing"
    first.write_text("newer")
    link.symlink_to(tmp_path / "elsewhere")
    files = {first: b"saved", missing: b"saved", link: b"saved"}
    with open(tmp_path / "replaced.tar", "w+b") as replaced:
        with pytest.raises(OSError, match="symbolic links"):
            memory.put_back(saved(files), replaced)
        assert os.fstat(replaced.fileno()).st_size == 0
    assert first.read_text() == "newer" and not missing.exists() and link.is_symlink()


def link_of_a_directory(file: Path) -> None:
    file.parent.rename(file.parent.with_name("moved"))
    file.parent.symlink_to(file.parent.with_name("moved"))


def link_to_nothing(file: Path) -> None:
    file.unlink()
    file.symlink_to(file.with_name("made"))


def fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def another_owner(file: Path) -> None:
    os.chown(file, os.getuid() + 1, -1)


@pytest.mark.parametrize("change", [link_of_a_directory, link_to_nothing, fifo, another_owner])
def test_r2_a_place_that_another_account_has_changed_gets_no_content(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    if change is another_owner and os.getuid():
        pytest.skip("only root can give a file away")
    (tmp_path / "theirs").mkdir()
    file = tmp_path / "theirs" / "file"
    file.write_text("newer")
    change(file)
    with open(tmp_path / "replaced.tar", "w+b") as replaced:
        with pytest.raises(OSError, match=r"link|Not a directory|regular|owner") as refused:
            memory.put_back(saved({file: b"saved"}), replaced)
        assert refused.value.filename == str(file) and not os.fstat(replaced.fileno()).st_size
    for one in tmp_path.rglob("*"):
        assert not one.is_file() or one.read_text() == "newer" or one.name == "replaced.tar"


def test_r2_a_link_that_came_meanwhile_keeps_what_it_leads_to(tmp_path: Path) -> None:
    """A restore fails after the files were put back, and takes them back."""
    (tmp_path / "theirs").mkdir()
    changed, missing = tmp_path / "theirs" / "changed", tmp_path / "theirs" / "missing"
    changed.write_text("newer")
    with open(tmp_path / "replaced.tar", "w+b") as replaced:
        made = memory.put_back(saved({changed: b"saved", missing: b"saved"}), replaced)
        assert made == [str(missing)]
        link_of_a_directory(changed)
        with pytest.raises(OSError, match="Not a directory"):
            memory.take_back(replaced, made)
        assert os.fstat(replaced.fileno()).st_size, "the newer content is kept"
    assert (tmp_path / "moved" / "missing").read_text() == "saved"
