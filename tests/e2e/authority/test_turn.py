"""The turn as people move it: asked for, granted, refused, handed over, taken; and nobody inside another's line."""

from __future__ import annotations

import json
from pathlib import Path

from tests.e2e.harness import DEADLINE_S, Installation, eventually
from tests.e2e.test_commands import the_error

LONG = "[turn]\nidle_s = 600\n"
BRIEF = "[turn]\nidle_s = 0.3\n"


def turn(hf: Installation, session: str) -> dict[str, object] | None:
    found: dict[str, object] | None = hf.get(session)["turn"]
    return found


def test_a2_a_request_waits_until_the_holder_answers(fresh: Installation) -> None:
    fresh.configure(LONG)
    fresh.people("ann", "bob", "eve")
    fresh.new("asked", "--", "cat")
    fresh.ok("--as", "ann", "send", "asked", "mine", "--enter")
    waiting = fresh.start("--as", "bob", "turn", "asked", "request", "--wait", "60", "--json")
    eventually(lambda: (t := turn(fresh, "asked")) and t["waiting"] == ["bob"], "the request")
    assert fresh.ok("--as", "ann", "turn", "asked", "grant", "bob").out == "the turn is bob's\n"
    assert json.loads(waiting.communicate(timeout=DEADLINE_S)[0])["turn"]["holder"] == "bob"
    refused = fresh.start("--as", "ann", "turn", "asked", "request", "--wait", "60", "--json")
    eventually(lambda: (t := turn(fresh, "asked")) and t["waiting"] == ["ann"], "the request")
    fresh.ok("--as", "bob", "turn", "asked", "refuse", "ann")
    out, _ = refused.communicate(timeout=DEADLINE_S)
    assert refused.returncode == 4 and "refused" in json.loads(out)["error"]["message"]
    late = fresh.attempt("--as", "ann", "turn", "asked", "request", "--wait", "0.2", "--json")
    assert (
        late.rc == 124
        and turn(fresh, "asked") is not None
        and turn(fresh, "asked")["waiting"] == []
    )  # type: ignore[index]


def test_a2_who_waits_gets_a_turn_that_becomes_free_and_others_do_not(fresh: Installation) -> None:
    fresh.configure(LONG)
    fresh.people("ann", "bob", "eve")
    fresh.new("line", "--", "cat")
    fresh.ok("--as", "ann", "send", "line", "x", "--enter")
    assert fresh.ok("--as", "bob", "turn", "line", "request").out.startswith(
        "asked; ann has the turn"
    )
    fresh.ok("--as", "ann", "turn", "line", "release")
    assert turn(fresh, "line")["holder"] == "bob"  # type: ignore[index]
    assert (
        the_error(fresh.attempt("--as", "eve", "send", "line", "y", "--json"), 4)["name"]
        == "turn_held"
    )
    assert fresh.ok("--as", "bob", "turn", "line", "hand", "eve").out == "the turn is eve's\n"
    fresh.ok("--as", "eve", "send", "line", "y", "--enter")
    assert (
        the_error(fresh.attempt("--as", "bob", "turn", "line", "hand", "bob", "--json"), 4)["name"]
        == "turn_held"
    )
    assert the_error(fresh.attempt("--as", "eve", "turn", "line", "grant", "nobody", "--json"), 4)


def test_a3_seize_takes_it_at_once_and_shows_what_is_inherited(fresh: Installation) -> None:
    fresh.configure(LONG)
    fresh.people("ann", "bob", "eve")
    fresh.new("seized", "--", "cat")
    fresh.ok("--as", "ann", "send", "seized", "rm -rf ")
    got = fresh.ok("--as", "bob", "seize", "seized", "--json").json
    assert got["previous"] == "ann" and got["turn"]["holder"] == "bob"
    assert got["inherits"]["staged"] == [{"operator": "ann", "text": "rm -rf "}]
    assert (
        the_error(fresh.attempt("--as", "ann", "send", "seized", "x", "--json"), 4)["name"]
        == "turn_held"
    )
    events = [e["event"] for e in fresh.ok("events", "seized", "--json").records]
    assert "turn.taken" in events


def test_a7_nobody_types_into_anothers_line_though_the_turn_is_free(
    fresh: Installation, tmp_path: Path
) -> None:
    fresh.configure(BRIEF)
    fresh.people("ann", "bob", "eve")
    fresh.new("half", "--", "cat")
    fresh.ok("--as", "ann", "send", "half", "rm -rf pre")
    eventually(lambda: turn(fresh, "half") is None, "the turn to lapse")
    error = the_error(fresh.attempt("--as", "bob", "send", "half", "x\n", "--json"), 4)
    assert (
        error["name"] == "unfinished" and "ann" in error["message"] and "seize" in error["recover"]
    )
    fresh.ok("--as", "ann", "send", "half", "cious", "--enter")
    eventually(lambda: turn(fresh, "half") is None, "the turn to lapse")
    fresh.ok("--as", "bob", "send", "half", "mine", "--enter")
    fresh.wait("half", "text:mine[\\s\\S]*mine")
    assert "rm -rf precious" in fresh.ok("view", "half").out


def test_a7_a_program_without_lines_is_in_nobodys_way(fresh: Installation) -> None:
    """What was typed into a pager or an editor is no line that anybody could finish."""
    fresh.configure(BRIEF)
    fresh.people("ann", "bob", "eve")
    fresh.new("raw", "--", "sh", "-c", "stty raw -echo; echo READY; exec cat -v")
    fresh.wait("raw", "text:READY")
    fresh.ok("--as", "ann", "send", "raw", "jjj")
    eventually(lambda: turn(fresh, "raw") is None, "the turn to lapse")
    fresh.ok("--as", "bob", "send", "raw", "k")
    fresh.wait("raw", "text:jjjk")


def test_a7_half_a_paste_is_in_everybodys_way_until_its_end(fresh: Installation) -> None:
    fresh.configure(BRIEF)
    fresh.people("ann", "bob", "eve")
    fresh.new("paste", "--", "sh", "-c", "stty raw -echo; echo READY; exec cat -v")
    fresh.wait("paste", "text:READY")
    fresh.ok("--as", "ann", "send", "paste", "\x1b[200~first\nsecond")
    eventually(lambda: turn(fresh, "paste") is None, "the turn to lapse")
    assert (
        "paste"
        in the_error(fresh.attempt("--as", "bob", "send", "paste", "x", "--json"), 4)["message"]
    )
    fresh.ok("--as", "ann", "send", "paste", "\x1b[201~")
    eventually(lambda: fresh.cli("--as", "bob", "send", "paste", "x").rc == 0, "bob to be let in")


def test_a2_the_order_of_waiting_is_a_policy(fresh: Installation) -> None:
    fresh.configure('[turn]\nidle_s = 600\npolicy = "drop"\n')
    fresh.people("ann", "bob", "eve")
    fresh.new("dropped", "--", "cat")
    fresh.ok("--as", "ann", "send", "dropped", "x", "--enter")
    error = the_error(fresh.attempt("--as", "bob", "turn", "dropped", "request", "--json"), 4)
    assert "dropped" in error["message"]
