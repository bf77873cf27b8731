"""Marks are found at any cut, forged marks have no effect, and the marks drive the shell state."""

from __future__ import annotations

import itertools
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.session.mark_tags import MarkKey
from holdfast.core.session.shell_marks import (
    MARK_BYTES_MAX,
    CommandFinished,
    CommandStarted,
    Effect,
    Mark,
    MarkKind,
    MarkScanner,
    Phase,
    PromptShown,
    RunDone,
    RunStarted,
    Shell,
    UntaggedMarkScanner,
    scanner_of,
)

NONCE = "0123456789abcdef"


KEY = MarkKey(NONCE)


def tag(seq: int, body: str, key: MarkKey = KEY) -> int:
    kind, *rest = body.split(";")
    return key.tag(seq, ord(kind), int(rest[-1]) if kind in "PD" else 0)


def mark(seq: int, body: str, tagged: int | str | None = None) -> bytes:
    tagged = tag(seq, body) if tagged is None else tagged
    return f"\x1b]7717;{tagged};{seq};{body}\x07".encode()


def scanned(data: bytes, cuts: list[int], base: int = 0) -> list[Mark]:
    scanner = MarkScanner(NONCE)
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    found: list[Mark] = []
    for a, b in itertools.pairwise(edges):
        found += scanner.feed(base + a, memoryview(data)[a:b])
        assert len(scanner._held) < MARK_BYTES_MAX
    return found


bodies = st.sampled_from(["P;0", "P;130", "C", "R;r1", "D;r1;0", "D;r1;37", "R;other", "D;other;1"])
good = st.tuples(st.integers(1, 60), bodies).map(lambda pair: mark(*pair))
forged = st.one_of(
    st.tuples(
        st.integers(1, 9999),
        bodies,
        st.sampled_from(
            ["", "0", "f" * 16, NONCE, "-1", str(tag(1, "P;0") ^ 1), str(tag(3, "P;1"))]
        ),
    ).map(lambda triple: mark(*triple)),
    st.sampled_from(
        [
            mark(0, "P;0"),
            mark(50, "P", tag(50, "P;0")),
            mark(50, "X", KEY.tag(50, ord("X"), 0)),
            mark(50, "P;x", tag(50, "P;0")),
            mark(50, "D;r1", tag(50, "D;r1;0")),
            mark(50, "D;;0"),
            mark(50, "C;1"),
            mark(50, "P;0;1", tag(50, "P;0")),
            mark(50, "R;" + "r" * 65),
            mark(50, "P;" + "0" * 300),
            mark(50, "R;a b"),
            mark(50, "R;\x1b"),
            mark(-3, "P;0", 1),
            mark(1 << 32, "P;0", 1),
            b"\x1b]7717;%d;;P;0\x07" % tag(5, "P;0"),
            b"\x1b]7717;%d;5;P;0\x1b\\" % tag(5, "P;0"),
            b"\x9d7717;%d;5;P;0\x07" % tag(5, "P;0"),
        ]
    ),
)
# Bytes that cannot be part of a mark separate pieces that could join into a mark.
noise = st.binary(max_size=20).map(lambda data: data.replace(b"\x07", b"_") + b"\n")
partial = st.tuples(good, st.integers(1, 30)).map(lambda pair: pair[0][: -pair[1]])
pieces = good | forged | noise | partial | st.just(b"\x1b") | st.just(b"\x1b]7717;")
streams = st.lists(pieces, max_size=20).map(b"".join)
cuttings = st.lists(st.integers(0, 1 << 20), max_size=30)


@given(streams, cuttings, st.integers(0, 1 << 40))
def test_any_split_gives_the_same_marks(data: bytes, cuts: list[int], base: int) -> None:
    whole = scanned(data, [], base)
    assert scanned(data, cuts, base) == whole
    assert scanned(data, list(range(len(data))), base) == whole


@given(streams)
def test_marks_are_where_they_say_and_rise(data: bytes) -> None:
    last = 0
    for found in scanned(data, []):
        text = data[found.start : found.end]
        assert re.match(rf"\x1b\]7717;-?[0-9]+;{found.seq};{found.kind}".encode(), text)
        assert text.endswith(b"\x07")
        assert found.seq > last
        last = found.seq


@given(st.lists(forged | noise, max_size=12).map(b"".join), cuttings)
def test_forged_marks_are_never_found(data: bytes, cuts: list[int]) -> None:
    assert scanned(data, cuts) == []


@given(st.lists(bodies, min_size=1, max_size=8), st.lists(forged | noise, max_size=8), cuttings)
def test_forged_and_replayed_marks_never_change_state(
    real: list[str], junk: list[bytes], cuts: list[int]
) -> None:
    genuine = [mark(seq, body) for seq, body in enumerate(real, 1)]
    clean, dirty = Shell(), Shell()
    for found in scanned(b"".join(genuine), []):
        clean.handle(found, 1.0)
    mixed = b"".join(
        piece + b"".join(genuine[: number + 1]) + b"".join(junk)
        for number, piece in enumerate(genuine)
    )
    for found in scanned(mixed, cuts):
        dirty.handle(found, 1.0)
    left, right = clean.save(), dirty.save()
    left.pop("run_output_start"), right.pop("run_output_start")
    assert left == right


@given(streams, st.integers(0, 1 << 20))
def test_scanner_restored_in_the_middle(data: bytes, cut: int) -> None:
    cut %= len(data) + 1
    first = MarkScanner(NONCE)
    found = first.feed(7, data[:cut])
    second = MarkScanner.restore(NONCE, json.loads(json.dumps(first.save())))
    assert found + second.feed(7 + cut, data[cut:]) == scanned(data, [], 7)


def test_each_kind() -> None:
    run = "a.b-c_1"
    data = (
        b"x"
        + mark(1, "P;3")
        + mark(2, "C")
        + mark(4, f"R;{run}")
        + b"out"
        + mark(5, f"D;{run};255")
    )
    assert [(m.seq, m.kind, m.run, m.exit) for m in scanned(data, [])] == [
        (1, MarkKind.PROMPT, "", 3),
        (2, MarkKind.COMMAND, "", 0),
        (4, MarkKind.RUN, run, 0),
        (5, MarkKind.DONE, run, 255),
    ]


@pytest.mark.parametrize(("status", "code"), [("255", 255), ("256", 255), ("300", 44), ("-1", 255)])
def test_odd_statuses_are_never_success(status: str, code: int) -> None:
    assert scanned(mark(1, f"P;{status}"), [])[0].exit == code


def test_a_gap_forgets_the_half_mark_before_it() -> None:
    scanner = MarkScanner(NONCE)
    whole = mark(1, "P;0")
    assert scanner.feed(0, whole[:-3]) == []
    assert scanner.feed(100, whole[-3:]) == []
    assert [m.start for m in scanner.feed(200, whole)] == [200]


def test_longest_mark_fits() -> None:
    key = MarkKey("n" * 64)
    body = f"{(1 << 32) - 1};D;{'r' * 64};-2147483648"
    tagged = key.tag((1 << 32) - 1, ord("D"), -2147483648)
    scanner = MarkScanner("n" * 64)
    assert len(scanner.feed(0, f"\x1b]7717;{tagged};{body}\x07".encode())) == 1
    old = UntaggedMarkScanner("n" * 64)
    assert len(old.feed(0, f"\x1b]7717;{'n' * 64};{body}\x07".encode())) == 1


def test_a_tag_is_siphash_1_3_of_seven_bytes() -> None:
    """The published vector for the key 00 01 ... 0f and a message of seven bytes."""
    key = MarkKey.__new__(MarkKey)
    key._start = (
        *(0x0706050403020100 ^ 0x736F6D6570736575, 0x0F0E0D0C0B0A0908 ^ 0x646F72616E646F6D),
        *(0x0706050403020100 ^ 0x6C7967656E657261, 0x0F0E0D0C0B0A0908 ^ 0x7465646279746573),
    )
    # The message is the bytes 00 01 ... 06: status 0x0100, kind 2, number 0x06050403.
    assert key.tag(0x06050403, 2, 0x0100) & ((1 << 64) - 1) == 0xD3927D989BB11140


def test_a9_forged_marks_are_counted_and_old_ones_are_not() -> None:
    scanner = MarkScanner(NONCE)
    scanner.feed(0, mark(1, "P;0") + mark(2, "R;r1"))
    for copied in (tag(1, "P;0"), tag(2, "R;r1"), tag(3, "D;r1;1"), tag(4, "P;0")):
        assert scanner.feed(1000, mark(3, "D;r1;0", copied)) == []
    assert scanner.forged == 4
    assert scanner.feed(2000, mark(1, "P;0") + mark(2, "R;r1")) == []
    assert scanner.forged == 4
    assert [m.exit for m in scanner.feed(3000, mark(3, "D;r1;1"))] == [1]


def test_a9_a_mark_inside_an_unfinished_one_is_found() -> None:
    scanner = MarkScanner(NONCE)
    data = b"\x1b]7717;12;3;D;r1" + mark(1, "P;4") + b"\x1b]7717;\x1b]" + mark(2, "P;5")
    assert [m.exit for m in scanner.feed(0, data)] == [4, 5]


def test_a_number_far_ahead_is_accepted_after_lost_output() -> None:
    scanner = MarkScanner(NONCE)
    assert len(scanner.feed(0, mark(1, "P;0"))) == 1
    assert len(scanner.feed(1 << 30, mark(70_000, "P;0"))) == 1


def test_a9_a_flood_of_forged_marks_does_not_hide_the_next_mark() -> None:
    scanner = MarkScanner(NONCE)
    forged = [mark(n % 20 + 1, f"P;{n % 300}", n) for n in range(5000)]
    flood = b"".join(forged[:2500]) + mark(1, "P;4") + b"".join(forged[2500:]) + mark(2, "P;5")
    found = scanner.feed(0, flood + mark(3, "P;6")[:-3])
    assert [m.exit for m in found] == [4, 5]
    assert [flood[m.start : m.end] for m in found] == [mark(1, "P;4"), mark(2, "P;5")]
    assert 4000 < scanner.forged <= 5000
    assert [m.exit for m in scanner.feed(scanner._end, mark(3, "P;6")[-3:])] == [6]


def test_a_recording_of_many_marks_raises_no_alarm() -> None:
    scanner = MarkScanner(NONCE)
    recording = b"".join(mark(n, "P;0") for n in range(1, 200))
    assert len(scanner.feed(0, recording)) == 199
    assert scanner.feed(len(recording), recording) == []
    assert scanner.forged == 0


def test_marks_of_a_session_that_began_before_tags() -> None:
    scanner = scanner_of(0)(NONCE)
    assert isinstance(scanner, UntaggedMarkScanner)
    data = b"".join(mark(n, body, NONCE) for n, body in enumerate(("P;0", "R;r1", "D;r1;3"), 1))
    assert [m.exit for m in scanner.feed(0, data)] == [0, 0, 3]
    assert scanner.feed(500, mark(4, "P;0")) == []


# --- the state machine ----------------------------------------------------------------------------


class Feeder:
    """Feeds bodies of marks, numbering and placing them."""

    def __init__(self, *, marks_start: bool = True) -> None:
        self.shell = Shell(marks_start=marks_start)
        self.seq = self.at = 0

    def __call__(self, body: str, now: float = 0.0) -> list[Effect]:
        self.seq += 1
        data = mark(self.seq, body)
        self.at += 100
        [found] = MarkScanner(NONCE, self.seq - 1).feed(self.at, data)
        return self.shell.handle(found, now)


def test_typed_command() -> None:
    feed = Feeder()
    assert feed.shell.phase is Phase.UNKNOWN
    assert not feed.shell.ready
    assert [type(e) for e in feed("P;0")] == [PromptShown]
    assert feed.shell.ready
    feed.shell.typed(b"make\r", 1.0)
    assert feed("C", 2.0) == [CommandStarted(1, 2.0)]
    assert feed.shell.phase is Phase.RUNNING
    finished, shown = feed("P;2", 5.0)
    assert finished == CommandFinished(1, 2, 2.0, 5.0)
    assert isinstance(shown, PromptShown)
    assert feed.shell.last_exit == 2
    assert feed.shell.commands == 1
    assert feed.shell.ready


def test_run() -> None:
    feed = Feeder()
    feed("P;0")
    feed.shell.typed(b" trigger\r", 1.0)
    assert not feed.shell.ready
    feed("C", 1.0)
    [started] = feed("R;r1", 2.0)
    assert isinstance(started, RunStarted)
    assert feed.shell.open_run == "r1"
    assert feed.shell.run_output_start == started.output_start
    [done] = feed("D;r1;37", 3.0)
    assert done == RunDone("r1", 37, started.output_start, 400, 2.0, 3.0, cut_short=False)
    assert feed.shell.open_run is None
    assert feed.shell.last_exit == 37
    assert not feed.shell.ready
    feed("P;37", 4.0)
    assert feed.shell.ready


def test_prompt_closes_a_run_that_was_cut_short() -> None:
    feed = Feeder()
    feed("P;0")
    feed("C")
    feed("R;r1", 2.0)
    done, finished, shown = feed("P;130", 9.0)
    assert isinstance(done, RunDone)
    assert (done.exit, done.cut_short, done.output_end, done.ended) == (130, True, 400, 9.0)
    assert isinstance(finished, CommandFinished)
    assert isinstance(shown, PromptShown)


def test_done_of_another_run_is_ignored() -> None:
    feed = Feeder()
    feed("P;0")
    assert feed("D;r1;0") == []
    feed("R;r2")
    assert feed("D;r1;0") == []
    assert feed.shell.open_run == "r2"
    abandoned, _ = feed("R;r3")
    assert isinstance(abandoned, RunDone)
    assert (abandoned.run, abandoned.cut_short) == ("r2", True)


def test_posix_shell_counts_submitted_lines() -> None:
    feed = Feeder(marks_start=False)
    feed("P;0")
    feed.shell.typed(b"sleep 1", 1.0)
    feed.shell.typed(b"\r", 2.0)
    started, finished, _ = feed("P;0", 3.0)
    assert started == CommandStarted(1, 2.0)
    assert finished == CommandFinished(1, 0, 2.0, 3.0)
    feed.shell.typed(b" trigger\r", 4.0)
    assert [type(e) for e in feed("R;r1", 5.0)] == [CommandStarted, RunStarted]
    feed("D;r1;0", 6.0)
    assert [type(e) for e in feed("P;0", 7.0)] == [CommandFinished, PromptShown]
    assert feed.shell.commands == 2


@pytest.mark.parametrize("data", [b"l", b"ls\r", b"\x15", b"\x03", b"\x1b[A", b"\x7f"])
def test_anything_typed_makes_the_line_dirty_until_the_next_prompt(data: bytes) -> None:
    feed = Feeder()
    feed("P;0")
    feed.shell.typed(data, 1.0)
    assert feed.shell.line_dirty
    assert not feed.shell.ready
    feed("P;0")
    assert not feed.shell.line_dirty
    assert feed.shell.ready


@pytest.mark.parametrize(
    ("data", "ahead"),
    [
        (b"rm -rf", True),
        (b"q", True),
        (b"exit()\r", False),
        (b"ls\r", False),
        (b"ls\rrm -rf", True),
        (b"\x04", False),
        (b"abc\x04", True),
        (b"abc\x03", False),
        (b"abc\x03d", True),
        (b"", False),
        (b":q!\n", False),
    ],
)
@pytest.mark.parametrize("running", [True, False])
def test_part_of_a_line_typed_ahead_outlives_the_prompt(
    data: bytes, ahead: bool, running: bool
) -> None:
    feed = Feeder()
    feed("P;0")
    feed.shell.typed(b"sleep 9\r" if running else b"sleep 9\r" + data, 1.0)
    feed("C")
    if running:
        feed.shell.typed(data, 2.0)
    feed("P;0")
    assert not feed.shell.line_dirty
    assert feed.shell.typeahead is ahead
    assert feed.shell.ready is not ahead


def test_typeahead_ends_with_the_next_line_or_when_the_caller_has_looked() -> None:
    feed = Feeder()
    feed("P;0")
    feed.shell.typed(b"less file\r", 1.0)
    feed("C")
    feed.shell.typed(b"q", 2.0)
    feed("P;0")
    assert not feed.shell.ready
    looked = Shell.restore(feed.shell.save())
    looked.settled()
    assert looked.ready
    feed.shell.typed(b"\r", 3.0)
    feed("P;0")
    assert feed.shell.ready


def test_a_shell_is_not_settled_while_a_command_runs() -> None:
    feed = Feeder()
    feed("P;0")
    feed.shell.typed(b"cat\r", 1.0)
    feed("C")
    feed.shell.typed(b"half", 2.0)
    feed.shell.settled()
    feed("P;0")
    assert feed.shell.typeahead


steps = st.lists(bodies | st.binary(min_size=1, max_size=4), max_size=25)


@given(steps, st.integers(0, 25))
def test_saved_and_restored_anywhere(script: list[str | bytes], cut: int) -> None:
    straight, broken = Feeder(), Feeder()
    for number, step in enumerate(script):
        if number == cut:
            broken.shell = Shell.restore(json.loads(json.dumps(broken.shell.save())))
        for feed in (straight, broken):
            if isinstance(step, bytes):
                feed.shell.typed(step, float(number))
        if isinstance(step, str):
            assert straight(step, float(number)) == broken(step, float(number))
    assert straight.shell.save() == broken.shell.save()


@given(steps)
def test_starts_and_ends_pair_up(script: list[str | bytes]) -> None:
    feed = Feeder()
    commands: list[int] = []
    runs: list[str] = []
    for number, step in enumerate(script):
        if isinstance(step, bytes):
            feed.shell.typed(step, float(number))
            continue
        for effect in feed(step, float(number)):
            if isinstance(effect, CommandStarted):
                assert not commands
                commands.append(effect.number)
            elif isinstance(effect, CommandFinished):
                assert commands.pop() == effect.number
                assert effect.started <= effect.ended
            elif isinstance(effect, RunStarted):
                assert not runs
                runs.append(effect.run)
            elif isinstance(effect, RunDone):
                assert runs.pop() == effect.run
                assert effect.output_start <= effect.output_end
        assert feed.shell.open_run == (runs[-1] if runs else None)
        if feed.shell.ready:
            assert not commands
            assert not runs
