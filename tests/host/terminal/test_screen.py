"""The terminal model: replies and their places, safe cuts, snapshots, painting, views, bounds."""

from __future__ import annotations

import mmap
import os
import random
import re
import threading
import zlib
from hashlib import blake2b
from pathlib import Path

import pytest

from holdfast.client.attach.terminal import SAVE, farewell
from holdfast.host.terminal import ghostty, screen
from holdfast.host.terminal.emulator import Emulator
from holdfast.host.terminal.screen import PENDING_MAX, Screen, SnapshotUnreadable
from tests.support.checkers.screen_oracle import differences, emulator, grid, second_opinion, state

ANSWERED = {
    b"\x1b[c": b"\x1b[?62;22c",
    b"\x1b[0c": b"\x1b[?62;22c",
    b"\x1bZ": b"\x1b[?62;22c",
    b"\x1b[>c": b"\x1b[>1;277;0c",
    b"\x1b[=c": b"\x1bP!|00000000\x1b\\",
    b"\x1b[5n": b"\x1b[0n",
    b"\x1b[6n": b"\x1b[1;1R",
    b"\x1b[>q": b"\x1bP>|holdfast\x1b\\",
    b"\x1b[18t": b"\x1b[8;6;20t",
    b"\x1b[?u": b"\x1b[?0u",
    b"\x1b[?2004$p": b"\x1b[?2004;2$y",
    b"\x1b[?31337$p": b"\x1b[?31337;0$y",
    b"\x1b[4$p": b"\x1b[4;2$y",
    b"\x1b[?2048h": b"\x1b[48;6;20;0;0t",
    b"\x1bP$qm\x1b\\": b"\x1bP1$r0m\x1b\\",
    b"\x1bP$qr\x1b\\": b"\x1bP1$r1;6r\x1b\\",
    b"\x1bP$q q\x1b\\": b"\x1bP1$r2 q\x1b\\",
    b"\x1b]10;#123456\x07\x1b]10;?\x07": b"\x1b]10;rgb:1212/3434/5656\x07",
    b"\x1b]11;#123456\x1b\\\x1b]11;?\x1b\\": b"\x1b]11;rgb:1212/3434/5656\x1b\\",
}
NOT_ANSWERED = (
    b"\x05",
    b"\x1b]2;evil\nrm -rf\x07\x1b[21t",
    b"\x1b]2;evil\x07\x1b[20t",
    b"\x1b]11;?\x07",
    b"\x1b]10;?\x1b\\",
    b"\x1b]4;1;?\x07",
    b"\x1b]21;foreground=?\x07",
    b"\x1b]52;c;aGVsbG8=\x07\x1b]52;c;?\x07",
    b"\x1b]5522;type=read;Lg==\x07",
    b"\x1b]50;?\x07",
    b"\x1b[14t",
    b"\x1b[16t",
    b"\x1b[?996n",
    b"\x1bP+q544e;436f;636f6c73\x1b\\",
    b"\x1b_Gi=31,s=1,v=1,a=q,t=d,f=24;AAAA\x1b\\",
    b"\x1b_25a1;q=1\x1b\\",
)


@pytest.mark.parametrize("query", ANSWERED)
@pytest.mark.smoke
def test_queries_are_answered(query: bytes) -> None:
    assert Screen(20, 6).feed(query) == ANSWERED[query]


@pytest.mark.parametrize("query", NOT_ANSWERED)
def test_nothing_a_program_chose_is_typed_back(query: bytes) -> None:
    assert Screen(20, 6).feed(query) == b""


def test_a_refused_status_request_does_not_echo() -> None:
    assert Screen(20, 6).feed(b"\x1bP$qz\x1b\\") == b"\x1bP0$r\x1b\\"
    assert Screen(20, 6).feed(b"\x1bP$q;id;\n\x1b\\") == b""


def test_s4_a_reply_belongs_to_the_end_of_its_query_however_the_stream_is_chunked() -> None:
    texts = [
        b"hello ",
        b"\x1b[31m",
        b"\r\n",
        "日本é".encode(),
        b"\x1b]2;title\x07",
        b"\x1b[?25l",
        b"\x1b(0",
        b"q\x1b(B",
    ]
    pieces = [
        *ANSWERED,
        *NOT_ANSWERED,
        *texts,
        *texts,
        b"\x1b[6\x076n",
        b"\x1bP$qm\x1b[0m",
        b"\x1bP$qr\x18",
        b"\x1b[6\x18n",
    ]
    for seed in range(150):
        choice = random.Random(seed)
        stream = b"".join(choice.choices(pieces, k=12))
        whole = Screen(20, 6).feed_replies(stream)
        for step in (1, 2, 7):
            piecewise, target = [], Screen(20, 6)
            for start in range(0, len(stream), step):
                found = target.feed_replies(memoryview(stream)[start : start + step])
                piecewise += [(start + index, reply) for index, reply in found]
            assert piecewise == whole, stream
        assert sorted(index for index, _ in whole) == [index for index, _ in whole]


def test_a_reply_comes_with_the_place_just_after_its_query() -> None:
    stream = b"ab\x1b[6ncd\x1b]2;x\x07\x1b[c\r\n\x1b[6n"
    assert Screen(20, 6).feed_replies(stream) == [
        (6, b"\x1b[1;3R"),
        (17, b"\x1b[?62;22c"),
        (23, b"\x1b[2;1R"),
    ]


def test_s6_a_finished_query_is_answered_before_the_next_output() -> None:
    """The colour was set in earlier output; the program prints nothing before it has the answer."""
    screen = Screen(20, 6)
    screen.feed(b"\x1b]10;#123456\x07\x1b]11;#654321\x07")
    for query in (b"\x1b]10;?\x07", b"\x1b]11;?\x1b\\", b"\x1b]10;?\x1b\\\x1b]11;?\x07"):
        expected = query.count(b"?")
        assert len(screen.feed_replies(b"text" + query)) == expected, query
        assert screen.feed_replies(b"later") == []
        whole = [reply for byte in query for _, reply in screen.feed_replies(bytes((byte,)))]
        assert len(whole) == expected, query


# -- safe cuts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "pending"),
    [
        (b"text", 0),
        (b"text\x1b", 1),
        (b"text\x1b[38;5", 6),
        (b"text\x1b[31m", 0),
        (b"text\x1b(", 2),
        (b"\x1b]2;title", 9),
        (b"\x1b]2;t\xc3", 6),
        (b"\x1b]2;title\x1b", 1),
        (b"\x1bPq#1", 5),
        ("日".encode()[:2], 2),
        (b"\xf0\x9f", 2),
        (b"\xff", 0),
    ],
)
def test_pending_counts_unfinished_bytes(data: bytes, pending: int) -> None:
    whole, bytewise = Screen(20, 6), Screen(20, 6)
    whole.feed(data)
    for i in range(len(data)):
        bytewise.feed(data[i : i + 1])
    assert (whole.pending, bytewise.pending) == (pending, pending)


STRINGS = [
    (b"\x1b]52;c;", b"\x07"),
    (b"\x1b]2;", b"\x1b\\"),
    (b"\x1bPq", b"\x1b\\"),
    (b"\x1b_G", b"\x1b\\"),
    (b"\x1b[", b"m"),
]


@pytest.mark.parametrize(("opening", "end"), STRINGS)
@pytest.mark.parametrize("size", [100, PENDING_MAX - 100, PENDING_MAX + 100, 300_000])
def test_s6_a_cut_inside_a_long_string(opening: bytes, end: bytes, size: int) -> None:
    original = Screen(40, 8)
    data = opening + b"0;1;" * (size // 4)
    original.feed(b"hello\r\n\x1b[32mgreen")
    for start in range(0, len(data), 4000):
        original.feed(data[start : start + 4000])
    assert original.pending <= PENDING_MAX
    assert bool(original.pending) == (len(data) <= PENDING_MAX)
    held = data[len(data) - original.pending :]
    restored, viewer = Screen.restore(original.save()), Screen(40, 8)
    viewer.feed(original.paint(10))
    restored.feed(held)
    viewer.feed(held)
    for target in (original, restored, viewer):
        target.feed(b"0" + end + b" after")
    assert original.text()[:2] == ["hello", "green after"]
    assert differences(state(original), state(restored)) == {}
    assert differences(state(original), state(viewer)) == {}


def _resident() -> int:
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(("opening", "end"), STRINGS)
def test_an_endless_string_is_bounded(opening: bytes, end: bytes) -> None:
    target = Screen(80, 24)
    target.feed(opening)
    chunk = b"41;" * 20_000
    before = _resident()
    for _ in range(500):
        target.feed(chunk)
    assert (
        _resident() - before < 16 << 20
    )  # 30 MB were fed; the library itself keeps up to 8 MB of an OSC 52
    target.feed(end + b"ok")
    assert target.text()[0] == "ok"


# -- sizes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(1, 24), (80, 1), (0, 0), (1001, 24), (80, 1001), (-1, 5)])
def test_degenerate_sizes_are_refused(size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="terminal of"):
        Screen(*size)
    target = Screen(80, 24)
    with pytest.raises(ValueError, match="terminal of"):
        target.resize(*size)
    assert target.size == (80, 24)


def test_resize_reflows_and_reports_to_programs_that_asked() -> None:
    target = Screen(20, 4)
    target.feed(b"0123456789abcdefghij")
    assert target.resize(10, 4) == b""
    assert target.text()[:2] == ["0123456789", "abcdefghij"]
    target.feed(b"\x1b[?2048h")
    assert target.resize(30, 5) == b"\x1b[48;5;30;0;0t"


@pytest.mark.parametrize("leave", [b"", b"\x1b[?1049l"])
@pytest.mark.parametrize("modes", [b"", b"\x1b[?7l", b"\x1b[?6h\x1b[41m"])
def test_s4_a_resize_that_cuts_characters_in_two_can_still_be_saved(
    leave: bytes, modes: bytes
) -> None:
    target = Screen(20, 6)
    target.feed(
        modes
        + b"below\r\n"
        + "日".encode() * 30
        + b"\x1b[?1049h"
        + "日".encode() * 30
        + b"\x1b[3;3H"
        + leave
    )
    target.resize(19, 6)
    assert emulator(target).encode() != b""
    assert differences(state(target, 5), state(Screen.restore(target.save()), 5)) == {}
    assert target.cursor[:2] == (2, 2) or leave
    target.resize(20, 7)
    target.resize(7, 3)
    assert emulator(target).encode() != b""


def test_a_program_cannot_change_the_size() -> None:
    target = Screen(20, 4)
    target.feed(b"\x1b[?40h\x1b[?3h")
    assert (target.size, emulator(target).size) == ((20, 4), (20, 4))


# -- snapshots -------------------------------------------------------------------------------------

RICH = (
    b"".join(b"line %d\r\n" % i for i in range(40))
    + b"\x1b]2;a title\x07\x1b[3;5r\x1b[?2004h\x1b[?1h\x1b=\x1b[1;38;2;1;2;3mpen\x1b7\x1b[2;2H"
    + b"\x1b[>5u\x1b[3g\x1b[4G\x1bH"
    + "日本e\u0301".encode()
    + b"\x1b[?1049h\x1b[2J\x1b[44malternate\x1b[0m"
)


def test_s4_both_screens_and_all_state_are_restored() -> None:
    original = Screen(20, 6)
    original.feed(RICH)
    restored = Screen.restore(original.save())
    assert differences(state(original, 50), state(restored, 50)) == {}
    for target in (original, restored):
        target.feed(b"\x1b[?1049l\x1b8!")
    assert original.title == "a title"
    assert differences(state(original, 50), state(restored, 50)) == {}


def test_a_snapshot_of_another_library_build_is_restored_from_its_portable_half(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = Screen(20, 6)
    original.feed(RICH)
    blob = original.save()
    monkeypatch.setattr(screen, "version", lambda: "another build")
    restored = Screen.restore(blob)
    kept = len(state(original, 20)["history"])
    assert differences(state(original, kept), state(restored, kept), ("flows",)) == {}
    for target in (original, restored):
        target.feed(b"\x1b[?1049l\x1b8!")
    assert differences(state(original), state(restored), ("flows",)) == {}


def test_a_snapshot_that_is_not_complete_is_for_the_same_build_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = Screen(20, 6)
    original.feed(RICH)
    blob = original.save(complete=False)
    assert differences(state(original, 50), state(Screen.restore(blob), 50)) == {}
    monkeypatch.setattr(screen, "version", lambda: "another build")
    with pytest.raises(SnapshotUnreadable, match="another build"):
        Screen.restore(blob)


def test_a_screen_that_the_library_refuses_to_write_is_saved_painted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = Screen(20, 6)
    original.feed(b"\x1b[31mred\r\n\x1b[?2004hpaste")
    monkeypatch.setattr(Emulator, "_try_encode", lambda self, budget: (b"", True))
    for complete in (True, False):
        restored = Screen.restore(original.save(complete))
        assert (restored.text(), restored.cursor) == (original.text(), original.cursor)
        assert restored.modes() == original.modes()


@pytest.mark.parametrize("where", [0, 9, 12, 30, 60, -40, -1])
def test_a_damaged_snapshot_is_a_typed_error(where: int) -> None:
    original = Screen(20, 6)
    original.feed(RICH)
    blob = bytearray(original.save())
    blob[where] ^= 0x40
    with pytest.raises(SnapshotUnreadable):
        Screen.restore(bytes(blob))


@pytest.mark.parametrize("length", [0, 5, 26, 40, 200])
def test_a_truncated_snapshot_is_a_typed_error(length: int) -> None:
    with pytest.raises(SnapshotUnreadable):
        Screen.restore(Screen(20, 6).save()[:length])


def test_a_snapshot_with_a_right_checksum_and_nonsense_inside_is_a_typed_error() -> None:
    blob = Screen(20, 6).save()
    for parts in (b"", b"x" * 50, zlib.compress(b"GHOSTSNP")):
        body = blob[screen._HEAD.size : screen._HEAD.size + screen._BODY.size] + parts
        head = screen._HEAD.pack(
            screen._MAGIC, screen.FORMAT, blake2b(body, digest_size=16).digest()
        )
        with pytest.raises(SnapshotUnreadable):
            Screen.restore(head + body)


# -- painting --------------------------------------------------------------------------------------


def test_s6_history_lands_in_the_native_scrollback_and_nothing_is_cleared() -> None:
    original, viewer = Screen(20, 6), Screen(20, 6)
    original.feed(b"".join(b"line %d\r\n" % i for i in range(100)))
    viewer.feed(b"what the user had\r\n$ ")
    painted = original.paint(20)
    viewer.feed(painted)
    assert viewer.text() == original.text()
    assert viewer.history_text(20) == original.history_text(20)
    assert "what the user had" in viewer.history_text(100)
    assert b"\x1b[3J" not in painted + farewell(20, 6)


def test_s6_old_content_up_to_the_cursor_line_scrolls_up() -> None:
    original, viewer = Screen(20, 6), Screen(20, 6)
    viewer.feed(b"one\r\ntwo\r\n$ attach")
    viewer.feed(original.paint(0))
    assert viewer.history_text(100) == ["one", "two", "$ attach"]


def test_s6_long_lines_stay_one_line_for_copying() -> None:
    original, viewer = Screen(20, 6), Screen(20, 6)
    long = b"x".join(b"%d" % i for i in range(40))
    original.feed(b"\x1b[41mred" + long + b"\x1b[0m\r\n" + b"short\r\n" * 3)
    viewer.feed(original.paint(100))
    kept = len(original.history_text(100))
    assert differences(state(original, kept), state(viewer, kept)) == {}
    for target in (original, viewer):
        target.resize(120, 6)
    assert b"red" + long in [row.encode() for row in (*viewer.history_text(9), *viewer.text())]


def test_s6_backgrounds_without_text_are_painted() -> None:
    original, viewer = Screen(20, 6), Screen(20, 6)
    original.feed(
        b"\x1b[44m\x1b[2J\x1b[0m\x1b[2;3Htext\x1b[41m\x1b[4;5H\x1b[3X\x1b[0m\x1b[5;1H\x1b[42ma\x1b[0m\x1b[5Cb"
    )
    viewer.feed(original.paint(0))
    assert grid(emulator(viewer), emulator(viewer).history_rows, 6) == grid(
        emulator(original), 0, 6
    )
    assert dict(grid(emulator(original), 0, 6)[0][0][1])["bg"] == 5


def test_s6_gaps_between_coloured_texts_are_not_coloured() -> None:
    original, viewer = Screen(20, 6), Screen(20, 6)
    for end in (b"\x1b[0mb", b"b", "日b".encode(), b" b ", b"\x1b[1Xb"):
        original.feed(b"\x1b[42ma \x1b[5C" + end + b"\x1b[0m\r\n")
    viewer.feed(original.paint(0))
    rows = grid(emulator(original), 0, 6)
    assert grid(emulator(viewer), emulator(viewer).history_rows, 6) == rows
    assert [dict(style).get("bg") for _, style in rows[0][:4]] == [3, 3, None, None]


def test_s6_the_keyboard_stack_of_each_screen_is_painted() -> None:
    original, viewer = Screen(20, 6), Screen(20, 6)
    original.feed(b"\x1b[>1u\x1b[>9u\x1b[?1049h\x1b[>5u")
    viewer.feed(b"\x1b[>31u" * 3 + b"\x1b[?1049h" + b"\x1b[>31u" * 3)
    viewer.feed(original.paint(0))
    steps = (b"", b"\x1b[<u", b"\x1b[?1049l", b"\x1b[<u", b"\x1b[<u", b"\x1b[<u")
    assert [viewer.feed(step + b"\x1b[?u") for step in steps] == [
        b"\x1b[?%du" % flags for flags in (5, 0, 9, 1, 0, 0)
    ]


def test_s6_a_repeat_sequence_repeats_the_last_written_character() -> None:
    original, viewer = Screen(20, 6), Screen(20, 6)
    original.feed(b"\x1b(0\x1b[34mq")
    viewer.feed(original.paint(0))
    for target in (original, viewer):
        target.feed(b"\x1b[5b")
    assert viewer.text()[0] == "──────"
    assert differences(state(original), state(viewer)) == {}
    assert second_opinion(20, 6, original.paint(0))[0][0] == "──────"


def test_s6_a_pending_wrap_that_was_left_by_tabbing_back_is_not_painted() -> None:
    original, viewer = Screen(11, 3), Screen(11, 3)
    original.feed(b"a" * 11 + b"\x1b[Z")
    viewer.feed(original.paint(0))
    assert (viewer.cursor, viewer.text()) == ((8, 0, True), original.text())


def test_s6_links_are_painted_unless_their_scheme_is_odd() -> None:
    original, viewer = Screen(40, 4), Screen(40, 4)
    original.feed(
        b"see \x1b]8;;https://example/a\x1b\\here\x1b]8;;\x1b\\ and "
        b"\x1b]8;;x-run:evil\x1b\\there\x1b]8;;\x1b\\."
    )
    painted = original.paint(0)
    viewer.feed(painted)
    assert viewer.text() == original.text()
    assert emulator(viewer).link(5, emulator(viewer).history_rows) == b"https://example/a"
    assert b"evil" not in painted


def test_the_title_cannot_smuggle_controls() -> None:
    original = Screen(20, 4)
    original.feed("\x1b]2;a\u009c\u009b31mb\x07".encode())
    written = re.findall(rb"\x1b\]2;([^\x1b]*)\x1b\\", original.paint(0))
    assert written == [b"a31mb"] or written == []


MESS = (
    b"\x1b[?1049h\x1b[3;10r\x1b[?6h\x1b[31;44mxx\x1b[?69h\x1b[5;9s\x1b(0\x0e\x1b[>5u\x1b[?1003h\x1b[?1006h\x1b[?2004h\x1b[4h"
    b"\x1b[?7l\x1b[?25l\x1b[3g\x1b[5 "
    b"q\x1b[?1h\x1b=\x1b7\x1b[20h\x1b[?2026h\x1b[?1004h\x1b[>4;2m\x1b[?5h\x1b]8;;http://x\x07"
    b"\x1b[?1007l\x1b]4;1;#112233\x07\x1b]11;#445566\x07"
)


@pytest.mark.parametrize("inside", [b"", b"\x1b[?1049l", b"\x1b]52;c;abc", b"\x1b[12"])
def test_the_farewell_of_a_client_puts_a_terminal_back_in_order(inside: bytes) -> None:
    terminal, fresh = Screen(20, 6), Screen(20, 6)
    terminal.feed(b"$ attach\r\n" + SAVE + MESS + inside + farewell(20, 6))
    left, wanted = state(terminal, 9), state(fresh)
    but = ("rows", "flows", "place", "history", "saved", "mode 2027")
    assert differences(wanted, left, but) == {}
    assert emulator(terminal).mode(1007)
    assert left["place"][:2] == (0, 5)
    assert left["place"][4] == b"\x1b[0m"
    assert "$ attach" in [*terminal.history_text(9), *terminal.text()]


# -- views -----------------------------------------------------------------------------------------


def test_views() -> None:
    target = Screen(20, 4)
    target.feed(
        "one\r\n\x1b[1;31mré日\x1b[0m   \r\n\x1b[?25l\x1b[?2004h\x1b[?1000h"
        "\x1b]2;title\x07".encode()
    )
    assert target.text() == ["one", "ré日", "", ""]
    assert target.cursor == (0, 2, False)
    assert (target.title, target.alternate) == ("title", False)
    modes = target.modes()
    assert modes["bracketed_paste"] and modes["mouse"] and not modes["cursor_visible"]
    assert not (modes["application_cursor"] or modes["application_keypad"] or modes["focus_events"])
    lines = target.ansi().decode().split("\n")
    assert lines[0] == "one\x1b[0m" and len(lines) == 5
    assert "\x1b[1m" in lines[1]
    target.feed(b"\x1b[?1049h\x1b[?1h\x1b=")
    modes = target.modes()
    assert (
        target.alternate
        and modes["alternate_screen"]
        and modes["application_cursor"]
        and modes["application_keypad"]
    )


def test_a_row_is_padded_to_its_width() -> None:
    target = Screen(10, 3)
    target.feed("a日本\x1b[42mb\x1b[0m".encode())

    def columns(row: bytes) -> str:
        return re.sub(rb"\x1b\[[0-9;:]*m", b"", row).decode()

    assert columns(target.row_vt(0)) == "a日本b    "
    assert columns(target.row_vt(1)) == " " * 10
    assert target.row_vt(0).startswith(b"\x1b[0m")
    with pytest.raises(ValueError, match="row"):
        target.row_vt(3)


def test_history_is_kept_and_bounded() -> None:
    target = Screen(80, 24, 3000)
    for start in range(0, 20_000, 1000):
        target.feed(b"".join(b"line %d\r\n" % i for i in range(start, start + 1000)))
    kept = target.history_text(100_000)
    assert 2500 <= len(kept) <= 4000
    assert kept[-1] == "line 19976"


def test_control_characters_do_not_reach_the_text() -> None:
    target = Screen(20, 3)
    target.feed(bytes(range(1, 0x1B)) + b"\x7fo\x7f\x7fk\x7f" + "\u009b31m\u0085".encode())
    assert target.text()[-1] == "ok31m"
    assert target.feed_replies(b"\x7fa\x7f\x1b[6\x7fn\x7f") == [(8, b"\x1b[3;7R")]


# -- feeding ---------------------------------------------------------------------------------------


def test_a_mapped_file_is_fed_in_place(tmp_path: Path) -> None:
    path = tmp_path / "ring"
    path.write_bytes(b"hello\r\n" * 1000 + b"end")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        target = Screen(80, 24)
        with memoryview(mapped) as view:
            target.feed(view)
        assert target.text()[-1] == "end"  # and closing the map finds no reference left


def test_screens_are_fed_in_parallel_threads() -> None:
    data = b"".join(b"\x1b[3%dmline %d\x1b[0m\r\n\x1b[6n" % (i % 8, i) for i in range(3000))
    screens = [Screen(80, 24) for _ in range(4)]
    replies: list[bytes] = [b""] * len(screens)

    def work(n: int) -> None:
        replies[n] = b"".join(
            screens[n].feed(data[start : start + 5000]) for start in range(0, len(data), 5000)
        )

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(screens))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({*replies}) == 1 and replies[0].count(b"R") == 3000
    assert len({tuple(each.text()) for each in screens}) == 1


def test_any_bytes_are_survived() -> None:
    choice = random.Random(7)
    target = Screen(33, 9)
    for _ in range(60):
        target.feed(choice.randbytes(3000))
        target.feed(bytes(choice.choices(b"\x1b[]P;:?0123456789mhlrqHJK\x07\\\x9b\xc3 a", k=3000)))
        target.paint(5)
        assert Screen.restore(target.save()).text() == target.text()
        assert len(target.text()) == 9


def test_a_library_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        ghostty, "_CDEF", ghostty._CDEF.replace("bool rectangle;", "bool rectangle; size_t more;")
    )
    with pytest.raises(ghostty.EmulatorUnusable, match="GhosttySelection"):
        ghostty.Native()
    with pytest.raises(ghostty.EmulatorUnusable, match="cannot load"):
        ghostty.Native("/nonexistent/libghostty-vt.so")


def test_a_fresh_screen_is_small() -> None:
    warm = [Screen(80, 24) for _ in range(20)]
    before = _resident()
    more = [Screen(80, 24) for _ in range(200)]
    assert (_resident() - before) / len(more) < 150_000
    assert len(warm) + len(more) == 220
