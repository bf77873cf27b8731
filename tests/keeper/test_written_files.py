"""Files that were open for writing get their saved content again, all of them or none (R2)."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from holdfast.checkpointer import memory


def saved(files: dict[Path, bytes]) -> io.BytesIO:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, content in files.items():
            entry = tarfile.TarInfo(str(path).lstrip("/"))
            entry.size, entry.mode, entry.uid, entry.gid = len(content), 0o600, 0, 0
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
