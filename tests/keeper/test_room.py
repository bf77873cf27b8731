"""Room for the images of memory is reserved before the freeze, and leaves no false bytes (R2)."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from holdfast.checkpointer import room
from holdfast.wire import pagemap
from holdfast.wire import protobuf_fields as pb

PAGE = pagemap.PAGE_BYTES


def written(number: int, *runs: tuple[int, int, int]) -> bytes:
    """A list of pages, as CRIU writes it: (address, pages, flags)."""
    entries = [
        [pb.field(1, number)],
        *([pb.field(n, v) for n, v in zip((1, 2, 4), r, strict=True)] for r in runs),
    ]
    encoded = map(pb.encode, entries)
    return bytes(8) + b"".join(struct.pack("<I", len(one)) + one for one in encoded)


def test_r2_files_are_cut_to_what_was_written(tmp_path: Path) -> None:
    in_file, elsewhere = 4, 1
    runs = (0x1000, 2, in_file), (0x5000, 1, elsewhere), (0x9000, 1, in_file)
    (tmp_path / "pagemap-7.img").write_bytes(written(1, *runs))
    (tmp_path / "pagemap-shmem-9.img").write_bytes(written(3, (0, 1, in_file)))
    sizes = {"pages-1.img": 9 * PAGE, "pages-2.img": PAGE, "pages-3.img": PAGE, "pages-4.img": 0}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(b"x" * size)
    images = os.open(tmp_path, os.O_RDONLY)
    room.settle(images)
    os.close(images)
    left = {one.name: one.stat().st_size for one in tmp_path.glob("pages-*")}
    assert left == {"pages-1.img": 3 * PAGE, "pages-3.img": PAGE}


def test_r2_room_for_a_process_is_in_its_file(tmp_path: Path) -> None:
    images = os.open(tmp_path, os.O_RDONLY)
    size = room.LEAST_BYTES + 1
    room._reserve(images, "pages-1.img", size)
    os.close(images)
    assert (tmp_path / "pages-1.img").stat().st_blocks * 512 >= size
