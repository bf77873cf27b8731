"""Edits of CRIU's images before a restore."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.checkpointer import images
from holdfast.wire import checkpointing as wire
from holdfast.wire import protobuf_fields as pb

MAGIC = bytes(8)


def write(path: Path, *entries: tuple[tuple[int, int | bytes], ...]) -> None:
    messages = [pb.encode(pb.field(*one) for one in entry) for entry in entries]
    path.write_bytes(MAGIC + b"".join(len(m).to_bytes(4, "little") + m for m in messages))


@pytest.mark.parametrize(
    ("front", "then"),
    [
        pytest.param(7, 7, id="a living group"),
        pytest.param(8, 3, id="an ended group"),
        pytest.param(9, 3, id="a number that a group of another kernel session has now"),
    ],
)
def test_only_a_living_group_of_the_session_is_in_the_foreground(
    tmp_path: Path, front: int, then: int
) -> None:
    """An entry of pstree.img: 1 process, 3 group, 4 kernel session."""
    processes = [(3, 3, 3), (7, 7, 3), (9, 9, 9)]
    write(tmp_path / "pstree.img", *(((1, p), (3, g), (4, s)) for p, g, s in processes))
    terminal = ((6, 3), (7, front), (12, pb.encode([pb.field(1, 5)])))
    write(tmp_path / "tty-info.img", terminal)
    write(tmp_path / "files.img")
    (tmp_path / wire.PROGRAM_FILE).write_bytes(wire.pack_program(wire.Program(3, front, 5)))
    for _ in range(2):
        images.prepare(tmp_path)
        [entry] = images._entries(tmp_path / "tty-info.img")
        assert (pb.number_of(entry, 6), pb.number_of(entry, 7)) == (3, then)
        assert images.terminal(tmp_path).foreground == then
