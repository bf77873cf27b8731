"""The note about an unfinished line: an object planted in its place is not used (T4)."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.host.session.unfinished_line_file import (
    FILE,
    Note,
    UnfinishedLineFile,
    remove_leftover,
)

NOTE = Note(1, 0, True, False)


def test_t4_the_host_does_not_write_through_a_planted_link(tmp_path: Path) -> None:
    """A program replaces the note by a link; the file behind the link stays as it is."""
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    note = UnfinishedLineFile(str(tmp_path))
    (tmp_path / FILE).symlink_to(target)
    note.write(NOTE)
    note.close()
    assert target.read_bytes() == b"precious"


def test_t4_the_host_does_not_read_through_a_planted_link(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    note = UnfinishedLineFile(str(tmp_path / "other"))
    note.write(NOTE)
    note.close()
    assert UnfinishedLineFile(str(tmp_path / "other")).last(1) == NOTE
    (tmp_path / FILE).symlink_to(tmp_path / "other" / FILE)
    assert UnfinishedLineFile(str(tmp_path)).last(1) is None


def test_t4_the_host_waits_for_no_planted_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / FILE)
    note = UnfinishedLineFile(str(tmp_path))
    assert note.last(1) is None
    note.write(NOTE)
    note.close()


def test_t4_removing_a_leftover_leaves_the_target_of_a_link(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    (tmp_path / FILE).symlink_to(target)
    remove_leftover(str(tmp_path))
    remove_leftover(str(tmp_path))  # nothing is left to remove
    assert not os.path.lexists(tmp_path / FILE) and target.read_bytes() == b"precious"
