"""What attach keeps of what waits for approval: what it says, when again, and how a question stands on a terminal."""

from __future__ import annotations

import os
import select
import termios
import unicodedata
from collections.abc import Iterator
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.client.deciding import COLS_MIN, REMIND_S, Deciding, question, wrapped
from holdfast.client.link import Link
from holdfast.client.overlay import Overlay

PENDING: dict[str, Any] = {
    "id": "q1",
    "operator": "bot",
    "session": "s",
    "name": "work",
    "layout": "plain",
    "cwd": "/srv",
    "act": "run",
    "text": "rm -rf /",
    "because": "it deletes",
    "rule": "r",
    "given": [],
    "needed": 1,
    "expires_in": 500.0,
    "expires": 9,
    "binding": "b",
    "counts": True,
    "why_not": None,
    "recover": None,
}


class Me:
    operator = "ann"

    def sign(self, domain: str, message: Any) -> str:
        return f"{domain}:{message('key').decode()}"


class Screen:
    """A terminal that shows what is drawn on it."""

    pending: memoryview | None = None

    def __init__(self) -> None:
        self.cols, self.rows, self.shown = 80, 24, ""

    def size(self) -> tuple[int, int]:
        return self.cols, self.rows

    def write(self, data: bytes) -> None:
        self.shown = data.decode()


class Desk:
    def __init__(self) -> None:
        self.asked: list[tuple[int, dict[str, Any]]] = []
        self.screen = Screen()
        self.overlay = Overlay(cast(Any, self.screen), "C-\\")
        self.deciding = Deciding(cast(Link, Me()), self.overlay, "C-\\", self.ask, 5)

    def ask(self, kind: int, body: dict[str, Any]) -> int:
        self.asked.append((kind, body))
        return 8 * len(self.asked) + kind

    def event(self, what: str, id: str = "q1", **more: Any) -> str | None:
        return self.deciding.words(
            {
                "event": "approval",
                "what": what,
                "id": id,
                "operator": "bot",
                "because": "it deletes",
                "needed": 1,
                "given": [],
                **more,
            }
        )


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.setattr("termios.tcflush", lambda fd, queue: None)
    yield Desk()


@given(
    st.text(
        st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp")), max_size=200
    ),
    st.integers(COLS_MIN, 100),
)
def test_nothing_of_an_act_is_left_out_and_every_line_fits(text: str, cols: int) -> None:
    rows = wrapped(f"  x{text}", cols)
    assert "".join(row[2:] for row in rows) == f"x{text}" and all(
        row.startswith("  ") for row in rows
    )
    for row in rows:
        width = sum(
            0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
            for c in row
        )
        assert width <= cols


def test_prose_breaks_at_blanks_and_loses_only_those() -> None:
    line = "because it deletes outside of the directory it works in, or that directory itself (rule 'deletes stay inside')"
    assert wrapped(line, 40) == [
        "because it deletes outside of the",
        "directory it works in, or that directory",
        "itself (rule 'deletes stay inside')",
    ]
    assert wrapped("x" * 50, 20) == ["x" * 20, "x" * 20, "x" * 10] and wrapped("", 20) == [""]


def test_what_is_shown_cannot_act_on_a_terminal() -> None:
    lines = question(
        {**PENDING, "text": "a\x1b[2J\u202eb", "because": "x\ny", "cwd": None, "operator": "b\x07t"}
    )
    assert (
        all(line.isprintable() for line in lines)
        and lines[0]
        == "b\\x07t asks to run on session work (plain), in a directory that is not known"
    )


def test_who_may_decide_is_reminded_and_nobody_else(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr("holdfast.client.deciding.time.monotonic", lambda: clock[0])
    assert desk.event("asked", decides=False, why_not="no") == "bot waits for approval: it deletes"
    assert desk.deciding.at is None and desk.deciding.reminder() is None
    assert (
        desk.event("asked", "q2", decides=True)
        == "bot waits for approval (C-\\ y to see and decide): it deletes"
    )
    assert desk.deciding.at == 100.0 + REMIND_S
    clock[0] += REMIND_S
    assert (
        desk.deciding.reminder() == "bot waits for approval (C-\\ y to see and decide): it deletes"
        and desk.deciding.at == clock[0] + REMIND_S
    )
    desk.event("asked", "q3", decides=True)
    assert desk.deciding.reminder() == "2 acts wait for approval (C-\\ y to see and decide)"
    for id, how in (("q2", "denied"), ("q3", "withdrawn")):
        assert desk.event(how, id, why="by ann") is not None
    assert desk.deciding.at is None and desk.deciding.reminder() is None


def test_the_answer_is_for_what_was_shown(desk: Desk) -> None:
    assert (
        desk.deciding.show()
        == "nothing waits for approval here; `holdfast approvals` lists what waits elsewhere"
    )
    desk.event("asked", "q0", decides=False)
    desk.event("asked", decides=True)
    for keys, answers in ((b"q", []), (b"\x1b", []), (b"y", ["approve"]), (b"n", ["deny"])):
        del desk.asked[:]
        assert (
            desk.deciding.show() is None
            and desk.asked == [(0, {"op": "approvals", "id": "q1"})]
            and desk.overlay.covering
        )
        assert not desk.deciding.key(b"y", b"\x1c"), "before it is there"
        assert (
            desk.deciding.came(8, True, {"approvals": [PENDING]}) is None
            and "rm -rf /" in desk.screen.shown
        )
        assert (
            desk.deciding.key(keys, b"\x1c")
            and not desk.overlay.covering
            and not desk.deciding.busy
        )
        assert [
            (kind, body["op"], body["id"], body["binding"]) for kind, body in desk.asked[1:]
        ] == [(5, answer, "q1", "b") for answer in answers]
    assert '"answer":"deny"' in desk.asked[1][1]["signature"]


def test_an_answer_counts_only_once_the_terminal_has_shown_all_of_it(desk: Desk) -> None:
    desk.event("asked", decides=True)
    desk.deciding.show()
    desk.deciding.came(8, True, {"approvals": [{**PENDING, "text": "x" * 4000}]})
    desk.screen.pending = memoryview(b"")
    assert not desk.deciding.key(b"y", b"\x1c") and len(desk.asked) == 1, (
        "the terminal has not taken it yet"
    )
    desk.screen.pending = None
    pages = 1
    while "y approves exactly this" not in desk.screen.shown:
        assert not desk.deciding.key(b" ", b"\x1c")
        pages += 1
    assert pages == 3 and desk.deciding.key(b"y", b"\x1c") and len(desk.asked) == 2
    desk.deciding.show()
    desk.deciding.came(8 * 3, True, {"approvals": [{**PENDING, "text": "x" * 4000}]})
    assert desk.deciding.key(b"y", b"\x1c") and len(desk.asked) == 3, "too early: it waits on"


def test_a_size_that_is_told_twice_loses_no_answer(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[int] = []
    monkeypatch.setattr("termios.tcflush", lambda fd, queue: flushed.append(queue))
    assert desk.deciding.resized() is None and not desk.screen.shown, "nothing is asked"
    desk.event("asked", decides=True)
    desk.deciding.show()
    desk.deciding.came(8, True, {"approvals": [{**PENDING, "text": "x" * 4000}]})
    desk.deciding.key(b" ", b"\x1c")
    second, desk.screen.shown = desk.screen.shown, ""
    del flushed[:]
    assert desk.deciding.resized() is None and desk.screen.shown == second and not flushed, (
        "the same page, and what was typed to it"
    )
    desk.screen.cols, desk.screen.rows = 100, 60
    assert desk.deciding.resized() is None and "bot asks to run" in desk.screen.shown and flushed, (
        "another size: from its beginning"
    )


def test_what_cannot_be_decided_here_is_told(desk: Desk) -> None:
    desk.event("asked", decides=False, why_not="you have no right")
    desk.deciding.show()
    assert (
        desk.deciding.came(8, True, {"approvals": []}) == "you cannot decide it: you have no right"
        and not desk.overlay.covering
    )
    desk.deciding.show()
    assert desk.deciding.came(16, False, {"message": "gone"}) == "gone" and not desk.deciding.busy
    desk.deciding.show()
    desk.screen.cols = 10
    assert (
        desk.deciding.came(24, True, {"approvals": [PENDING]})
        == "this terminal is too small: `holdfast approve q1`"
        and not desk.overlay.covering
    )
    desk.screen.cols = 80
    desk.deciding.show()
    desk.deciding.came(
        32,
        True,
        {
            "approvals": [
                {**PENDING, "counts": False, "why_not": "it is readable", "recover": "lock it"}
            ]
        },
    )
    assert (
        "your approval would not count: it is readable" in desk.screen.shown
        and "y approves" not in desk.screen.shown
    )
    assert desk.deciding.key(b"y", b"\x1c") and len(desk.asked) == 4
    desk.deciding.show()
    assert desk.deciding.key(b"\x1c", b"\x1c") and not desk.deciding.busy, (
        "a host that does not answer keeps nobody"
    )


def test_keys_of_before_are_discarded_on_a_real_terminal() -> None:
    """What the terminal had when the question came was typed for something else."""
    master, slave = os.openpty()
    old = os.dup(0)
    try:
        os.dup2(slave, 0)
        attributes = termios.tcgetattr(0)
        attributes[3] &= ~termios.ICANON
        termios.tcsetattr(0, termios.TCSANOW, attributes)
        os.write(master, b"y")
        assert select.select([0], [], [], 10)[0]
        desk = Desk()
        desk.event("asked", decides=True)
        desk.deciding.show()
        desk.deciding.came(8, True, {"approvals": [PENDING]})
        assert not select.select([0], [], [], 0)[0]
    finally:
        os.dup2(old, 0)
        for fd in (old, master, slave):
            os.close(fd)


def test_p3_whoever_decides_is_shown_what_it_would_run_on() -> None:
    lines = question({**PENDING, "shaped": ["eve's alias ls", "perhaps eve's variable X"]})
    assert "it runs on eve's alias ls, perhaps eve's variable X" in lines
    assert not any(line.startswith("it runs on") for line in question(PENDING))
