"""The table of events lists exactly the events that the code emits."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from holdfast.core.policy import approvals
from holdfast.core.session import events

ROOT = Path(__file__).parents[3]
HOST = ROOT / "src" / "holdfast" / "host"
NOTES = (
    "event",
    "note",
    "_note",
    "_told",
    "_write",
    "_enter",
    "_change",
    "_save",
    "tell",
    "report",
)  # functions that are given the name of an event
NAME = re.compile(r"[a-z]+\.[a-z_]+|revoked")


def words(node: ast.expr) -> Iterator[str]:
    """The constants that an argument can be."""
    match node:
        case ast.Constant(value=str(word)):
            yield word
        case ast.IfExp(body=one, orelse=other):
            yield from (*words(one), *words(other))


def noted() -> dict[str, set[str]]:
    """Every event that some call in the host names, and where."""
    found: dict[str, set[str]] = {}
    for path in sorted(HOST.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            said = [word for argument in node.args for word in words(argument)]
            if node.func.attr == "change":
                names = [f"session.{word}" for word in said]
            elif node.func.attr == "_tell" and path.name == "approvals.py":
                names = [f"approval.{word}" for word in said]
            elif node.func.attr in NOTES:
                names = [word for word in said if NAME.fullmatch(word)]
            else:
                continue
            for name in names:
                found.setdefault(name, set()).add(path.name)
    for how in get_args(get_type_hints(approvals.Closed)["how"]):
        found.setdefault(f"approval.{how}", set()).add("approvals.py")
    return found


def test_o_every_event_that_is_noted_is_in_the_table() -> None:
    missing = {name: where for name, where in noted().items() if name not in events.EVENTS}
    assert not missing, (
        f"give it a line in core/session/events.py, then run scripts/render_events.py: {missing}"
    )


def test_o_every_event_of_the_table_is_noted_or_said_to_be_planned() -> None:
    found = noted()
    assert not [
        name for name, event in events.EVENTS.items() if not event.planned and name not in found
    ], "no call in the host notes it"
    assert not [name for name, event in events.EVENTS.items() if event.planned and name in found], (
        "it is noted by now: no longer planned"
    )


def test_o_the_page_of_events_is_rendered_from_the_table() -> None:
    assert events.page() in (ROOT / "docs" / "reference" / "events.md").read_text(), (
        "run: python scripts/render_events.py"
    )


@pytest.mark.parametrize("name", events.EVENTS)
def test_o_a_line_of_the_table_is_whole(name: str) -> None:
    event = events.EVENTS[name]
    assert (
        NAME.fullmatch(name) and event.means and event.of in (events.OF_SESSION, events.OF_MACHINE)
    )
    for fact, (kind, says) in event.facts.items():
        assert kind.rstrip("?*") in events.TYPES and says, fact
        assert fact not in events.KEYS, f"{fact} would hide what every event has"
        assert fact not in ("text", "command", "argv", "content", "env", "secret"), (
            f"{fact}: no event has the text of a command"
        )


def test_o_deviations_from_the_table_are_found() -> None:
    left = {
        "operator": "ann",
        "kind": "human",
        "modality": "cli",
        "how": "lost",
        "root_pid": 7,
        "output": 0,
    }
    assert events.faults("client.left", left) == []
    assert events.faults("client.vanished", left) == ["client.vanished is not in the table"]
    assert events.faults("client.left", {**left, "text": "rm -rf /"}) == [
        "client.left has 'text', which the table does not know"
    ]
    assert events.faults(
        "client.left", {name: value for name, value in left.items() if name != "how"}
    ) == ["client.left lacks how"]
    assert events.faults("client.left", {**left, "root_pid": None}) == [
        "client.left: root_pid is null"
    ]
    assert events.faults("client.left", {**left, "output": True}) == [
        "client.left: output is a bool, not a number"
    ]
    assert events.faults("turn.taken", {"holder": "ann", "previous": None, "how": "write"}) == []
    assert events.faults("session.lost", {"reason": "lost: its keeper died"}) == []
