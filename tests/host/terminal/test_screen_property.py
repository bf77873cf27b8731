"""Any stream, cut anywhere: restored screens and painted terminals stay like the original.

Left out of the streams: wide characters in a line-drawing charset, which the emulator keeps as
spaces of two columns; tabbing back from a pending wrap, after which the emulator still wraps,
wherever the cursor is. After painting there is no resize: terminals reflow each in their own way,
so a viewer is painted anew after a resize.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from holdfast.host.terminal.screen import Screen
from tests.support.checkers.screen_oracle import differences, emulator, second_opinion, state
from tests.support.examples import examples

COLS, ROWS = 20, 6
Resize = tuple[int, int]
Op = bytes | Resize

small = st.integers(0, 9)
TEXT = st.one_of(
    st.text("abc xyz", min_size=1, max_size=30).map(str.encode),
    st.text("é日本😀e\u0301ß─", min_size=1, max_size=12).map(str.encode),
    st.sampled_from([b"\r\n", b"\r\n", b"\n", b"\r", b"\b", b"\t", b"\x0b", b"lqqqk" * 3]),
)
MOVES = st.builds(
    lambda n, m, final: (
        b"\x1b[%d;%d%c" % (n, m, final) if final in b"Hf" else b"\x1b[%d%c" % (n, final)
    ),
    st.integers(0, 25),
    st.integers(0, 25),
    st.sampled_from(b"ABCDEFGHdfae`"),
)
EDITS = st.builds(
    lambda n, final: b"\x1b[%d%c" % (n, final), st.integers(0, 4), st.sampled_from(b"JKXP@LMST")
)
COLOURS = st.builds(
    lambda kind, n: b"\x1b[%bm" % (kind.replace(b"N", b"%d" % n)),
    st.sampled_from(
        [
            b"0",
            b"0",
            b"1",
            b"7",
            b"4",
            b"4:3",
            b"9",
            b"3",
            b"31;44",
            b"48;5;N",
            b"38;2;N;20;30",
            b"48;2;1;N;3",
            b"58;2;9;N;9",
            b"27",
            b"49",
            b"53",
        ]
    ),
    st.integers(0, 255),
)
MODES = st.builds(
    lambda mode, on: b"\x1b[%b%b" % (mode, b"h" if on else b"l"),
    st.sampled_from(
        [
            b"?1",
            b"?5",
            b"?6",
            b"?7",
            b"?25",
            b"?45",
            b"?66",
            b"?69",
            b"?1000",
            b"?1002",
            b"?1006",
            b"?1004",
            b"?2004",
            b"?2026",
            b"?12",
            b"4",
            b"20",
            b"?2027",
        ]
    ),
    st.booleans(),
)
REGIONS = st.builds(
    lambda n, m, final: b"\x1b[%d;%d%c" % (n, m, final),
    small,
    st.integers(0, 20),
    st.sampled_from(b"rs"),
)
DRAWING = (
    b"\x1b(0lqqk\x1b(B",
    b"\x1b)0\x0elqk\x1b[6G\x0f",
    b"\x1b(0\x1b7\x1b(B",
    b"\x1b8xx\x1b(B\x0f",
    b"\x1bnab\x0f",
)
STATE = st.sampled_from(
    [b"\x1b7", b"\x1b8", b"\x1bH", b"\x1b[g", b"\x1b[3g", b"\x1b[I", b"\b\x1b[Z", *DRAWING,
     b"\x1bM", b"\x1bD", b"\x1bE", b"\x1b#8", b"\x1b=", b"\x1b>", b"\x1b[>1u", b"\x1b[>5u",
     b"\x1b[<u", b"\x1b[=3;1u",
     b"\x1b]8;;http://example/x\x1b\\", b"\x1b]8;;\x1b\\", b"\x1b[2 q", b"\x1b[5 q", b"\x1b[0 q",
     b"\x1b[>4;2m", b"\x1b[>4m", b"x\x1b[4b", "日\x1b[3b".encode(),
     b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?1047h\x1b[2J",
     b"\x1b[?1047l", b"\x1bc"]
)  # fmt: skip
USERS = st.sampled_from(  # the user's own settings unless a program sets them
    [b"\x1b]2;a t\xc3\xaftle\x07", b"\x1b]4;3;rgb:10/20/30\x1b\\", b"\x1b]104\x1b\\",
     b"\x1b]11;#102030\x07", b"\x1b]111\x07", b"\x1b[?1007l"]
)  # fmt: skip
TERMINALS = st.one_of(TEXT, TEXT, MOVES, EDITS, COLOURS, COLOURS, MODES, REGIONS, STATE, STATE)
BYTES = st.one_of(TERMINALS, TERMINALS, TERMINALS, TERMINALS, TERMINALS, USERS)
RESIZES = st.tuples(st.integers(2, 40), st.integers(2, 12))

SETTINGS = settings(
    max_examples=examples(150),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)


def feed(screen: Screen, ops: Sequence[Op]) -> list[Any]:
    replies = []
    for op in ops:
        replies.append(screen.feed(op) if isinstance(op, bytes) else screen.resize(*op))
    return replies


def cut_at(ops: list[Op], where: int, inside: int) -> tuple[list[Op], list[Op]]:
    """The stream in two parts, cut in any place, also inside a sequence or a character."""
    if not ops:
        return [], []
    where = min(where, len(ops) - 1)
    op = ops[where]
    if not isinstance(op, bytes):
        return ops[:where], ops[where:]
    inside = min(inside, len(op))
    return [*ops[:where], op[:inside]], [op[inside:], *ops[where + 1 :]]


def at_ground(ops: list[Op], pending: int) -> list[bytes]:
    """The last `pending` bytes of the input: raw output that follows a snapshot."""
    tail = b"".join(op for op in ops if isinstance(op, bytes))
    return [tail[len(tail) - pending :]]


@SETTINGS
@given(st.lists(st.one_of(BYTES, BYTES, BYTES, RESIZES), min_size=1, max_size=40), small, small)
def test_s4_a_restored_screen_goes_on_like_the_original(
    ops: list[Op], where: int, inside: int
) -> None:
    before, after = cut_at(ops, where * len(ops) // 9, inside)
    screen = Screen(COLS, ROWS)
    feed(screen, before)
    restored = Screen.restore(screen.save())
    feed(restored, at_ground(before, screen.pending))
    assert differences(state(screen, 50), state(restored, 50)) == {}
    query: list[Op] = [b"\x18\x1b[6n\x1b[?1$p\x1bP$qm\x1b\\\x1bP$qr\x1b\\"]
    assert feed(screen, after + query) == feed(restored, after + query)
    assert differences(state(screen, 50), state(restored, 50)) == {}


PAINT_LOSES = ("flows",)  # whether a row flowed on into a row that was erased since
JUNK = st.lists(TERMINALS, max_size=20).map(b"".join)


@SETTINGS
@given(
    st.lists(st.one_of(BYTES, BYTES, BYTES, RESIZES), min_size=1, max_size=40), small, small, JUNK
)
def test_s6_a_painted_terminal_goes_on_like_the_original(
    ops: list[Op], where: int, inside: int, junk: bytes
) -> None:
    before, after = cut_at(ops, where * len(ops) // 9, inside)
    screen = Screen(COLS, ROWS)
    feed(screen, before)
    painted = screen.paint(30)
    note(repr(painted))
    viewer = Screen(*screen.size)
    viewer.feed(junk)
    viewer.feed(painted)
    ground = Screen.restore(screen.save())
    kept = len(state(ground, 30)["history"])
    assert differences(state(ground, kept), state(viewer, kept), PAINT_LOSES) == {}
    rest = [*at_ground(before, screen.pending), *(op for op in after if isinstance(op, bytes))]
    feed(ground, rest)
    feed(viewer, rest)
    assert differences(state(ground), state(viewer), PAINT_LOSES) == {}


COMBINING, MARGINS = "\u0301".encode(), b"\x1b[?69h"  # unknown to avt


@SETTINGS
@given(st.lists(st.one_of(BYTES, BYTES, BYTES, RESIZES), min_size=1, max_size=40), small, small)
def test_s6_another_emulator_reads_the_painted_bytes_alike(
    ops: list[Op], where: int, inside: int
) -> None:
    known = [
        op.replace(COMBINING, b"") if isinstance(op, bytes) else op for op in ops if op != MARGINS
    ]
    before, _ = cut_at(known, where * len(ops) // 9, inside)
    screen = Screen(COLS, ROWS)
    feed(screen, before)
    painted = screen.paint(30)
    note(repr(painted))
    rows, cursor = second_opinion(*screen.size, painted)
    assert rows == screen.text()
    here = emulator(screen).cursor
    assert cursor == (here.x + here.pending_wrap, here.y)
