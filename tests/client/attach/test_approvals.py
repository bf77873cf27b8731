"""Held acts in attach: the notices, their repetition, and a question on the terminal."""

from __future__ import annotations

import unicodedata
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.client import questions
from holdfast.client.attach import overlay
from holdfast.client.attach.approvals import REMIND_S, Approvals
from holdfast.client.attach.events import DiscardTyped, Draw, Effect, SendAnswer
from holdfast.client.question_pages import COLS_MIN, wrapped
from holdfast.client.questions import lines as question
from holdfast.model.errors import PeerFault
from tests.support.commands.questions import question as honest

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
    "counts": True,
    "why_not": None,
    "recover": None,
}


class Desk:
    """The approvals of ann on a terminal: the shown text, and the sent answers."""

    def __init__(self) -> None:
        self.answers: list[tuple[str, str, str]] = []  # answer, id, binding
        self.size, self.blocked, self.shown, self.discarded = (80, 24), False, "", 0
        self.approvals = Approvals("ann", "C-\\", self.emit)
        self.numbers = 0

    def emit(self, effect: Effect) -> None:
        if isinstance(effect, Draw):
            self.shown = overlay.page(effect.lines, *self.size).decode()
        elif isinstance(effect, DiscardTyped):
            self.discarded += 1
        elif isinstance(effect, SendAnswer):
            asked = effect.question
            self.answers.append((effect.answer, asked["id"], asked["binding"]))

    def event(self, what: str, id: str = "q1", now: float = 100.0, **more: Any) -> str | None:
        return self.approvals.words(
            {
                "event": "approval",
                "what": what,
                "id": id,
                "operator": "bot",
                "because": "it deletes",
                "needed": 1,
                "given": [],
                **more,
            },
            now,
        )

    def request(self) -> str | None:
        """The user asks for a question; the id that is requested of the host."""
        id = self.approvals.choose()
        if id is not None:
            self.numbers += 8
            self.approvals.requested(self.numbers)
        return id

    def came(self, *found: dict[str, Any], ok: bool = True, message: str = "") -> str | None:
        body = {"approvals": list(found), "message": message}
        return self.approvals.came(self.numbers, ok, body, self.size, self.blocked)

    def key(self, key: bytes) -> bool:
        return self.approvals.key(key, b"\x1c", self.blocked, lambda: 5)

    def resized(self) -> str | None:
        return self.approvals.resized(self.size, self.blocked)


@pytest.fixture
def desk() -> Desk:
    return Desk()


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
    line = (
        "because it deletes outside of the directory it works in, "
        "or that directory itself (rule 'deletes stay inside')"
    )
    assert wrapped(line, 40) == [
        "because it deletes outside of the",
        "directory it works in, or that directory",
        "itself (rule 'deletes stay inside')",
    ]
    assert wrapped("x" * 50, 20) == ["x" * 20, "x" * 20, "x" * 10] and wrapped("", 20) == [""]


def test_p4_no_row_needs_two_rows_of_any_terminal() -> None:
    """Terminals differ in the width of letters: a page that scrolls would hide its beginning."""
    for letter in "\u044f\u03b1\u00b7\u6f22\u2460":
        assert all(2 * len(row[2:]) <= 38 for row in wrapped(f"  {letter * 500}", 40))


def test_p4_words_of_an_act_keep_their_order_on_every_terminal() -> None:
    """Terminals with support for Hebrew and Arabic swap the two names of such a `mv`."""
    for text in ("mv \u05d0 \u05d1", "mv \u0627 \u0628", "mv \u0661 \u0662"):
        lines = question({**PENDING, "text": text, "cwd": f"/srv/{text[3]}"})
        shown = "\n".join(lines)
        assert f"\\u{{{ord(text[3]):x}}} \\u{{{ord(text[5]):x}}}" in shown, shown
        assert not any(unicodedata.bidirectional(c) in ("R", "AL", "AN") for c in shown)


def test_p4_the_name_of_a_directory_does_not_read_as_prose() -> None:
    [line, *_] = question({**PENDING, "cwd": "/srv/x, which ann has allowed"})
    assert line.endswith(", in '/srv/x, which ann has allowed'")
    [line, *_] = question({**PENDING, "cwd": "/srv/x"})
    assert line.endswith(", in /srv/x")


def test_a_shown_question_cannot_act_on_a_terminal() -> None:
    lines = question(
        {**PENDING, "text": "a\x1b[2J\u202eb", "because": "x\ny", "cwd": None, "operator": "b\x07t"}
    )
    assert (
        all(line.isprintable() for line in lines)
        and lines[0]
        == "b\\x07t asks to run on session work (plain), in a directory that is not known"
    )


def test_p4_blanks_before_an_act_do_not_push_it_off_the_screen(desk: Desk) -> None:
    desk.event("asked", decides=True)
    desk.request()
    desk.came(honest({**PENDING, "text": " " * 3000 + "rm -rf /"}))
    assert "\\u{20*3000}rm -rf /" in desk.shown


def test_an_operator_who_may_decide_is_reminded_and_no_other(desk: Desk) -> None:
    approvals = desk.approvals
    assert desk.event("asked", decides=False, why_not="no") == "bot waits for approval: it deletes"
    assert approvals.at is None and approvals.reminder(100.0) is None
    waits = "bot waits for approval (C-\\ y to see and decide): it deletes"
    assert desk.event("asked", "q2", decides=True) == waits
    assert approvals.at == 100.0 + REMIND_S
    assert approvals.reminder(100.0 + REMIND_S) == waits
    assert approvals.at == 100.0 + 2 * REMIND_S
    desk.event("asked", "q3", decides=True)
    both = "2 acts wait for approval (C-\\ y to see and decide)"
    assert approvals.reminder(300.0) == both
    for id, how in (("q2", "denied"), ("q3", "withdrawn")):
        assert desk.event(how, id, why="by ann") is not None
    assert approvals.at is None and approvals.reminder(300.0) is None


def test_the_answer_is_for_the_shown_question(desk: Desk) -> None:
    assert desk.request() is None and not desk.approvals.busy
    desk.event("asked", "q0", decides=False)
    desk.event("asked", decides=True)
    for keys, answers in ((b"q", []), (b"\x1b", []), (b"y", ["approve"]), (b"n", ["deny"])):
        del desk.answers[:]
        assert desk.request() == "q1" and desk.approvals.busy
        assert not desk.key(b"y"), "before it is there"
        assert desk.came(honest(PENDING)) is None and "rm -rf /" in desk.shown
        assert desk.key(keys) and not desk.approvals.busy
        assert desk.answers == [(answer, "q1", honest(PENDING)["binding"]) for answer in answers]


def test_an_answer_counts_only_once_the_terminal_has_shown_all_of_it(desk: Desk) -> None:
    desk.event("asked", decides=True)
    desk.request()
    desk.came(honest({**PENDING, "text": "x" * 4000}))
    desk.blocked = True
    assert not desk.key(b"y") and not desk.answers, "the terminal has not taken it yet"
    desk.blocked = False
    pages = 1
    while "y approves exactly this" not in desk.shown:
        assert not desk.key(b" ")
        pages += 1
    assert pages == 3 and desk.key(b"y") and len(desk.answers) == 1
    desk.request()
    desk.came(honest({**PENDING, "text": "x" * 4000}))
    assert desk.key(b"y") and len(desk.answers) == 1, "too early: the act still waits"


def test_a_size_that_is_reported_twice_loses_no_answer(desk: Desk) -> None:
    assert desk.resized() is None and not desk.shown, "nothing is asked"
    desk.event("asked", decides=True)
    desk.request()
    desk.came(honest({**PENDING, "text": "x" * 4000}))
    desk.key(b" ")
    second, desk.shown, desk.discarded = desk.shown, "", 0
    assert desk.resized() is None and desk.shown == second and not desk.discarded, (
        "the same page, and the keys typed to it"
    )
    desk.size = (100, 60)
    assert desk.resized() is None and "bot asks to run" in desk.shown and desk.discarded, (
        "another size: from its beginning"
    )


def test_a_question_that_cannot_be_decided_here_says_why(desk: Desk) -> None:
    desk.event("asked", decides=False, why_not="you have no right")
    desk.request()
    assert desk.came() == "you cannot decide it: you have no right" and not desk.approvals.busy
    desk.request()
    assert desk.came(ok=False, message="gone") == "gone" and not desk.approvals.busy
    desk.request()
    desk.size = (10, 24)
    assert desk.came(honest(PENDING)) == "this terminal is too small: `holdfast approve q1`"
    assert not desk.approvals.busy
    desk.size = (80, 24)
    desk.request()
    desk.came(
        honest({**PENDING, "counts": False, "why_not": "it is readable", "recover": "lock it"})
    )
    assert "your approval would not count: it is readable" in desk.shown
    assert "y approves" not in desk.shown
    assert desk.key(b"y") and not desk.answers
    desk.request()
    assert desk.key(b"\x1c") and not desk.approvals.busy, (
        "a host that does not answer does not trap the user"
    )


def test_keys_of_before_are_discarded(desk: Desk) -> None:
    """Keys that the terminal held when the question came were typed for another purpose."""
    desk.event("asked", decides=True)
    desk.request()
    desk.came(honest(PENDING))
    assert desk.discarded == 1


def test_p3_an_approver_is_shown_the_foreign_state_of_the_act() -> None:
    lines = question({**PENDING, "shaped": ["eve's alias ls", "perhaps eve's variable X"]})
    assert "it runs on eve's alias ls, perhaps eve's variable X" in lines
    assert not any(line.startswith("it runs on") for line in question(PENDING))


def test_p4_a_question_that_is_not_what_its_digest_covers_is_not_shown(desk: Desk) -> None:
    desk.event("asked", decides=True)
    desk.request()
    said = desk.came({**honest(PENDING), "text": "rm -r scratch"})
    assert said is not None and "another act than the one to be signed" in said
    assert not desk.shown and not desk.approvals.busy
    desk.request()
    assert desk.came({**honest(PENDING), "bound": None}) is None
    assert "the host does not send the facts" in desk.shown
    assert desk.key(b"y") and not desk.answers, "it cannot be approved"
    desk.request()
    desk.came({**honest(PENDING), "bound": None})
    assert desk.key(b"n") and [answer for answer, _, _ in desk.answers] == ["deny"]


def test_p4_a_denial_needs_no_facts_and_an_approval_does() -> None:
    """The host's facts do not fit the binding: such a question can be denied, never approved."""
    seen = {**honest(PENDING), "text": "another act"}
    link: Any = SimpleNamespace(sign=lambda domain, message: message("key").hex())
    assert questions.answer(link, seen, "deny")["binding"] == seen["binding"]
    with pytest.raises(PeerFault):
        questions.answer(link, seen, "approve")
