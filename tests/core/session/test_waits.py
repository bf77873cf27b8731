"""Each question of a session is told once (S2)."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.session.notices import Notice
from holdfast.core.session.waits import ASKED_MAX, KINDS, Waits


def notice(kind: str, pid: int | None = 7, **more: Any) -> Notice:
    made = Notice("s1", "work", kind, "reads", pid, 5.0, "sudo true", None)
    return made._replace(**more)


@pytest.mark.parametrize(
    ("states", "told"),
    [
        (["idle", "working", "input"], ["input"]),
        (["input", "input"], ["input"]),
        (["input", "working", "input"], ["input", "input"]),
        (["input", "secret"], ["input", "secret"]),
        (["secret", "unknown", "secret"], ["secret"]),  # the host was away
        (["secret", "halted", "secret"], ["secret"]),
        (["secret", "unknown", "idle", "secret"], ["secret", "secret"]),
        (["approval", "idle"], []),  # the list of questions tells it, with the act
        (["input", "exited"], ["input", "exit"]),
        (["lost"], ["exit"]),
    ],
)
def test_s2_a_question_is_told_once(states: list[str], told: list[str]) -> None:
    waits = Waits(frozenset(KINDS))
    found = [waits.noticed(notice(kind)) for kind in states]
    assert [one.kind for one in found if one is not None] == told


def test_s2_another_process_asks_another_question() -> None:
    waits = Waits(frozenset(KINDS))
    pids = [None, 7, 7, 8, None, 8]
    assert [waits.noticed(notice("input", pid)) is not None for pid in pids] == [
        *(True, False, False, True, False, False)
    ]


def test_s2_an_end_is_told_only_of_a_session_that_was_seen_running() -> None:
    waits = Waits(frozenset(KINDS))
    assert waits.noticed(notice("exited"), before=True) is None
    waits.noticed(notice("idle"))
    found = waits.noticed(notice("exited", why="exited", exit_code=3), before=True)
    assert found is not None and found.title == "work: exited with 3"
    assert waits.noticed(notice("exited"), before=True) is None, "the host reports it again"


def test_s2_only_the_chosen_kinds_are_told() -> None:
    waits = Waits(frozenset(("secret",)))
    assert waits.noticed(notice("input")) is None and waits.noticed(notice("exited")) is None
    assert waits.asked([question("q1")]) == []
    assert waits.noticed(notice("secret")) is not None


def question(id: str, session: str = "s1") -> dict[str, Any]:
    facts = {"text": "rm x", "operator": "bot", "because": "it deletes", "asked": 5.0}
    return {"id": id, "session": session, "name": "work" if session else "", **facts}


def test_p4_a_question_for_approval_is_told_once_by_its_id() -> None:
    waits = Waits(frozenset(KINDS))
    assert [one.id for one in waits.asked([question("q1"), question("q2")])] == ["q1", "q2"]
    assert [one.id for one in waits.asked([question("q2"), question("q3")])] == ["q3"]
    (found,) = waits.asked([question("q4", session="")])
    assert found.title == "this machine: bot waits for approval"
    for number in range(ASKED_MAX):
        waits.asked([question(f"n{number}")])
    assert len(waits._asked) == ASKED_MAX


def test_p4_only_questions_of_the_named_sessions_are_told() -> None:
    waits = Waits(frozenset(KINDS), frozenset(("s2",)))
    found = waits.asked([question("q1"), question("q2", "s2"), question("q3", "")])
    assert [one.id for one in found] == ["q2"]
