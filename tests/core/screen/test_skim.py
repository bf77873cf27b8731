"""Skipping a flood must not be visible: screen and history are the same as without."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.core.screen.filter import ViewerFilter
from holdfast.core.screen.skim import flows, skim
from holdfast.host.terminal.screen import Screen
from tests.support.examples import examples

COLS, ROWS, HISTORY = 20, 5, 30

words = st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=30)
colours = st.sampled_from(
    ["\x1b[m", "\x1b[0m", "\x1b[1;31m", "\x1b[38;2;1;2;3m", "\x1b[48:5:17m", "\x1b[7m", ""]
)
moves = st.sampled_from(
    [
        "",
        "\x1b(B",
        "\x1b[K",
        "\x1b[3D",
        "\x1b[1K",
        "\x1b[5G",
        "\x1b[2P",
        "\x1b[3@",
        "\x1b[99C",
        "\x1b[4X",
    ]
)
lines = st.tuples(
    colours, words, moves, words, colours, st.sampled_from(["\r\n", "\n", "\r", "\t\r\n", "\b\r\n"])
).map("".join)
floods = st.lists(lines, min_size=1, max_size=300).map(lambda ls: "".join(ls).encode())


def shown(screen: Screen) -> tuple[object, ...]:
    return screen.text(), screen.ansi(), screen.cursor, screen.paint(0)


def passed_over(flood: bytes, lines: int) -> tuple[int, bytes]:
    """Like the host: only bytes that pass both checks are skimmed."""
    look = ViewerFilter()
    look.feed(flood)
    decided = flood[: len(flood) - look.pending]
    return skim(decided, lines) if look.in_line and flows(decided) else (0, b"")


def same_history(a: Screen, b: Screen) -> bool:
    """The emulator frees history by pages: the amount may differ, but not the common part."""
    one, two = a.history_text(10_000), b.history_text(10_000)
    common = min(len(one), len(two))
    return common == 0 or one[-common:] == two[-common:]


@settings(deadline=None, max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow])
@given(floods, floods)
def test_s6_skimming_is_invisible(before: bytes, flood: bytes) -> None:
    whole, quick = Screen(COLS, ROWS, HISTORY), Screen(COLS, ROWS, HISTORY)
    for screen in (whole, quick):
        screen.feed(before + b"\r\n")
    count, pen = passed_over(flood, HISTORY * 2 + ROWS)
    whole.feed(flood)
    quick.feed(pen)
    quick.feed(flood[count:])
    assert shown(whole) == shown(quick)
    assert same_history(whole, quick)


def test_a_long_plain_flood_is_mostly_skipped() -> None:
    flood = b"".join(b"line %06d\r\n" % i for i in range(100_000))
    count, pen = passed_over(flood, 1000)
    assert count > len(flood) * 0.9
    assert pen == b""
    assert flood[count - 2 : count] == b"\r\n"


def test_the_property_does_skip() -> None:
    """The property above is not vacuous: floods of this size are skipped in part."""
    flood = b"".join(b"\x1b[3%dmline %d\r\n" % (i % 8, i) for i in range(300))
    assert passed_over(flood, HISTORY * 2 + ROWS)[0] > 1000


def test_output_that_leaves_a_trace_is_not_skipped() -> None:
    plain = b"text\r\n" * 5000
    for trace in (
        b"\x1b]0;title\x07",
        b"\x1b[5;5H",
        b"\x1b[?1049h",
        b"\x1b]7717;x;1;P;0\x07",
        b"\x0e",
        b"\xc2\x9b5n",
        b"\x1b[2J",
        b"\x05",
        b"\x1b(0",
        b"\x7f",
    ):
        assert passed_over(trace + plain, 100) == (0, b"")


def test_colours_at_the_cut_are_kept() -> None:
    flood = b"\x1b[31mred\r\n" + b"still red\r\n" * 500
    count, pen = passed_over(flood, 100)
    assert count and pen == b"\x1b[31m"


def test_short_output_is_not_skipped() -> None:
    assert passed_over(b"a\r\nb\r\n", 10) == (0, b"")


@settings(deadline=None, max_examples=examples(200))
@given(floods, st.lists(st.integers(0, 4000), max_size=12))
def test_pieces_are_found_plain_as_the_whole_is(flood: bytes, cuts: list[int]) -> None:
    """A sequence cut in two by the end of a chunk does not change how a flood is judged."""
    whole, pieces = ViewerFilter(), ViewerFilter()
    whole.feed(flood)
    places = sorted({0, len(flood), *(c for c in cuts if c < len(flood))})
    plain = True
    for start, end in zip(places, places[1:], strict=False):
        pieces.feed(flood[start:end])
        plain = plain and pieces.in_line
    assert plain == whole.in_line
