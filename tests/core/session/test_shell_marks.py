"""Marks are found whatever the cuts, forged ones change nothing, and the shell's state follows from them."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.commands import (
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
)

NONCE = "0123456789abcdef"


def mark(seq: int, body: str, nonce: str = NONCE) -> bytes:
    return f"\x1b]7717;{nonce};{seq};{body}\x07".encode()


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
        st.sampled_from(["", "f" * 16, NONCE[:-1], NONCE + "0", NONCE.upper()]),
    ).map(lambda triple: mark(*triple)),
    st.sampled_from(
        [
            mark(0, "P;0"),
            mark(50, "P"),
            mark(50, "X"),
            mark(50, "P;x"),
            mark(50, "D;r1"),
            mark(50, "D;;0"),
            mark(50, "C;1"),
            mark(50, "P;0;1"),
            mark(50, "R;" + "r" * 65),
            mark(50, "P;" + "0" * 300),
            mark(50, "R;a b"),
            mark(50, "R;\x1b"),
            b"\x1b]7717;" + NONCE.encode() + b";-3;P;0\x07",
            b"\x1b]7717;" + NONCE.encode() + b";;P;0\x07",
            b"\x1b]7717;" + NONCE.encode() + b";5;P;0\x1b\\",
            b"\x9d7717;" + NONCE.encode() + b";5;P;0\x07",
        ]
    ),
)
# Pieces that could join into a mark are kept apart by bytes that cannot be part of one.
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
        assert text.startswith(f"\x1b]7717;{NONCE};{found.seq};{found.kind}".encode())
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
    scanner = MarkScanner("n" * 64)
    data = f"\x1b]7717;{'n' * 64};{'9' * 18};D;{'r' * 64};-2147483648\x07".encode()
    assert len(scanner.feed(0, data)) == 1


# --- the state machine ------------------------------------------------------------------------------------


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


def test_settled_means_nothing_while_something_runs() -> None:
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
