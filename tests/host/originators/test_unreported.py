"""Without reports of forks, the marks of a shell tell which order ran, or the answer is unknown."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.core.originators.activity import Activity
from holdfast.core.originators.lineage import Cause, Lineage
from holdfast.host.originators.unreported import Unreported
from holdfast.host.processes import proc_scan

ROOT = 100


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The processes of the session."""
    found: list[Any] = [SimpleNamespace(pid=ROOT)]
    monkeypatch.setattr(proc_scan, "of_session", lambda keeper: found)
    return found


def made(kind: str | None) -> tuple[Any, Activity, Unreported]:
    lineage = Lineage(ROOT, Cause("ann", None), kind is not None)
    session: Any = SimpleNamespace(
        id="s",
        keeper_pid=99,
        record=SimpleNamespace(root_pid=ROOT),
        commands=SimpleNamespace(kind=kind, lineage=lineage),
    )
    activity = Activity(0.0)
    doubts = Unreported(activity)
    doubts.begin(session, 10.0)
    return session, activity, doubts


def unknown_at(activity: Activity, moment: float) -> bool:
    return any(one.cause.actor == "unknown" for one in activity.at(moment) or ())


def test_p3_an_order_that_leaves_a_process_makes_changes_unknown(left: list[Any]) -> None:
    session, activity, doubts = made("bash")
    assert unknown_at(activity, 11.0), "the start files may do anything"
    doubts.prompt(session, 20.0, told=False)
    assert not unknown_at(activity, 30.0)
    left.append(SimpleNamespace(pid=101))
    doubts.prompt(session, 40.0, told=False)
    assert unknown_at(activity, 50.0)
    left.pop()
    doubts.prompt(session, 60.0, told=False)
    assert unknown_at(activity, 59.0) and not unknown_at(activity, 70.0)


def test_p3_an_order_into_which_two_operators_typed_is_unknown(left: list[Any]) -> None:
    session, activity, doubts = made("bash")
    doubts.prompt(session, 20.0, told=False)
    session.commands.lineage.typed("ann", 1, b"vim\r")
    doubts.started(session, 30.0)
    session.commands.lineage.typed("bob", 2, b":w\r")
    doubts.prompt(session, 40.0, told=False)
    assert unknown_at(activity, 35.0) and not unknown_at(activity, 50.0)


@pytest.mark.parametrize("kind", [None, "posix"])
def test_p3_a_program_without_marks_is_always_in_doubt(left: list[Any], kind: str | None) -> None:
    session, activity, doubts = made(kind)
    doubts.prompt(session, 20.0, told=False)
    assert unknown_at(activity, 30.0)
    doubts.prompt(session, 40.0, told=True)
    assert not unknown_at(activity, 50.0), "the kernel reports forks"
    doubts.end(session, 60.0)
