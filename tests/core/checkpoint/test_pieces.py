"""Files are cut so that each byte is in one piece, and changes stay local (R2)."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.checkpoint.pieces import (
    CONTENT_MAX,
    PAGE_BYTES,
    REGION_BYTES,
    STEP_BYTES,
    File,
    cut,
)

RUNS = st.lists(st.tuples(st.integers(0, 1 << 36), st.integers(1, 400)), max_size=12).map(
    lambda runs: tuple((address * PAGE_BYTES, count) for address, count in runs)
)
FILES = st.builds(
    lambda number, size, runs, phase: File(
        f"images/{number}", sum(n for _, n in runs) * PAGE_BYTES if runs else size, runs, phase
    ),
    st.integers(0, 9),
    st.integers(0, 3 << 20),
    RUNS,
    st.integers(0, 1 << 40),
)


@given(st.lists(FILES, max_size=10, unique_by=lambda one: one.name))
def test_r2_the_tree_leads_to_every_byte_once(files: list[File]) -> None:
    pieces, tree = cut(files)
    for piece in pieces:
        assert 0 < sum(part.length for part in piece) <= CONTENT_MAX
    for file in files:
        at = 0
        for number, offset, length in tree[file.name]:
            before = 0
            for part in pieces[number]:  # the slice of the piece that has these bytes
                if before == offset:
                    assert part == (file.name, at, length)
                before += part.length
            at += length
        assert at == file.size


def test_r2_pages_are_cut_at_addresses() -> None:
    """A page more before does not shift the pieces behind."""
    region = REGION_BYTES // PAGE_BYTES
    base = 0x7F0000000000
    runs = ((base, region), (base + REGION_BYTES, region), (base + 2 * REGION_BYTES, 3))
    more = ((base - PAGE_BYTES, 1), *runs)
    lengths = [
        [part.length for part in piece]
        for piece in cut([File("p", (2 * region + 3) * PAGE_BYTES, runs)])[0]
    ]
    shifted = [
        [part.length for part in piece]
        for piece in cut([File("p", (2 * region + 4) * PAGE_BYTES, more)])[0]
    ]
    assert lengths == [[REGION_BYTES], [REGION_BYTES], [3 * PAGE_BYTES]]
    assert shifted == [[PAGE_BYTES], *lengths]


def test_r2_output_is_cut_at_its_offsets() -> None:
    """Output that has moved on in the ring shares pieces with the earlier checkpoint."""
    stream = random.Random(1).randbytes(4 * STEP_BYTES)

    def contents(start: int, end: int) -> set[bytes]:
        [*pieces] = cut([File("output", end - start, (), start)])[0]
        return {stream[start + p.offset :][: p.length] for (p,) in pieces}

    assert len(contents(100, 3 * STEP_BYTES) & contents(STEP_BYTES - 5, 4 * STEP_BYTES)) == 2
