"""Every way to the turn shows the new holder the inherited state (A6)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.installation import Installation

WIDE = (160, 24)  # columns and rows: a notice has one line


@pytest.fixture(scope="module")
def shared(hf: Installation) -> Iterator[Installation]:
    hf.configure("[turn]\nidle_s = 600\n")
    hf.people("ann", "bob")
    yield hf


def left_by_ann(hf: Installation, session: str, text: str) -> None:
    """Ann runs a command, and the turn is free then."""
    hf.quick("--as", "ann", "run", session, "--", text)
    hf.quick("--as", "ann", "turn", session, "release")


def of_ann(note: dict[str, Any], kind: str) -> list[str]:
    return [one["name"] for one in note[kind] if one["actor"] == "ann"]


def test_a6_the_first_act_on_a_free_turn_brings_a_note_once(shared: Installation) -> None:
    shared.new("free")
    log = shared.user / "work.log"
    left_by_ann(shared, "free", f"export DEPLOY_TOKEN=hunter2; exec 9>>{log}")
    first = shared.attempt("--as", "bob", "run", "free", "--json", "--", "true").json
    assert of_ann(first["inherits"], "credentials") == ["DEPLOY_TOKEN"]
    assert "DEPLOY_TOKEN" in of_ann(first["inherits"], "changed")
    assert [one["path"] for one in first["inherits"]["files"] if one["write"]] == [str(log)]
    assert "hunter2" not in repr(first)
    again = shared.attempt("--as", "bob", "run", "free", "--json", "--", "true").json
    assert "inherits" not in again, "the same operator continues"
    shared.quick("--as", "bob", "turn", "free", "release")
    left_by_ann(shared, "free", "alias deploy=true")
    sent = shared.attempt("--as", "bob", "send", "free", "", "--enter")
    assert sent.err.startswith("holdfast: you inherit ") and "ann's alias deploy" in sent.err
    shared.end("free")


def test_a6_an_operator_alone_is_shown_nothing(shared: Installation) -> None:
    shared.new("alone")
    shared.quick("run", "alone", "--", "export DEPLOY_TOKEN=x; alias deploy=true")
    shared.quick("turn", "alone", "release")
    alone = shared.attempt("run", "alone", "--json", "--", "true")
    assert "inherits" not in alone.json and not alone.err
    shared.end("alone")


def test_a6_the_walls_of_a_session_are_no_inherited_job(shared: Installation) -> None:
    """Init and hf-root of a contained session belong to no operator's work."""
    work = shared.user / "work"
    work.mkdir()
    shared.new("walled", "--contained", "--cwd", str(work))
    shared.quick("--as", "ann", "run", "walled", "--", "export DEPLOY_TOKEN=x; sleep 3001 &")
    shared.quick("--as", "ann", "turn", "walled", "release")
    note = shared.attempt("--as", "bob", "run", "walled", "--json", "--", "true").json["inherits"]
    assert {one["command"] for one in note["jobs"]} <= {"sleep 3001"}
    shared.end("walled")


def test_a6_a_key_on_a_free_turn_shows_the_inherited_state(shared: Installation) -> None:
    shared.new("typed")
    person = shared.attach("--as", "bob", "attach", "typed", size=WIDE)
    person.expect(r"[$#] ")
    left_by_ann(shared, "typed", "export DEPLOY_TOKEN=hunter2")
    person.send("#")
    person.expect("ann's variable DEPLOY_TOKEN")
    shared.end("typed")


def test_a6_an_operator_that_was_away_is_shown_the_state_on_its_return(
    shared: Installation,
) -> None:
    shared.new("away")
    shared.quick("--as", "ann", "run", "away", "--", "export DEPLOY_TOKEN=hunter2")
    shared.quick("--as", "ann", "turn", "away", "hand", "bob")
    acted = shared.attempt("--as", "bob", "send", "away", "", "--enter", "--json").json
    assert of_ann(acted["inherits"], "credentials") == ["DEPLOY_TOKEN"]
    shared.quick("--as", "bob", "turn", "away", "hand", "ann")
    shared.quick("--as", "ann", "run", "away", "--", "alias deploy=true")
    shared.quick("--as", "ann", "turn", "away", "hand", "bob")
    person = shared.attach("--as", "bob", "attach", "away", size=WIDE)
    person.expect("ann's alias deploy")
    shared.end("away")
