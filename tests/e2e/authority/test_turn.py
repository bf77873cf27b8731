"""The turn as people move it: requested, granted, refused, handed over, seized.

No operator types inside another operator's line.
"""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

from tests.support.commands.results import the_error
from tests.support.installation import DEADLINE_S, Installation, eventually

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
        and turn(fresh, "asked")["waiting"] == []  # type: ignore[index]
    )


def test_a2_a_free_turn_goes_to_the_waiting_operator_and_to_no_other(fresh: Installation) -> None:
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


def test_a3_seize_takes_the_turn_at_once_and_shows_the_inherited_state(fresh: Installation) -> None:
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


def test_a7_an_unfinished_line_is_closed_to_others_though_the_turn_is_free(
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


def test_a7_a_program_in_raw_mode_leaves_no_unfinished_line(fresh: Installation) -> None:
    """Keys typed into a pager or an editor are no unfinished line."""
    fresh.configure(BRIEF)
    fresh.people("ann", "bob", "eve")
    fresh.new("raw", "--", "sh", "-c", "stty raw -echo; echo READY; exec cat -v")
    fresh.wait("raw", "text:READY")
    fresh.ok("--as", "ann", "send", "raw", "jjj")
    eventually(lambda: turn(fresh, "raw") is None, "the turn to lapse")
    fresh.ok("--as", "bob", "send", "raw", "k")
    fresh.wait("raw", "text:jjjk")


def test_a7_an_unfinished_paste_blocks_all_others_until_its_end(fresh: Installation) -> None:
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


DOCUMENTED = (Path(__file__).parents[3] / "docs/reference/turn.md").read_text()
FAILING = """
def failing(question):
    import os, signal
    mode = open(os.path.dirname(__file__) + "/mode").read()
    if mode == "hang":
        signal.pause()
    return {"stranger": ["nobody"], "none": None}[mode]
"""


def plugins(fresh: Installation, where: Path) -> None:
    """Installs the example of the documentation and a plug-in that fails."""
    example = re.findall(r"```python\n(.*?)```", DOCUMENTED, re.S)
    packed = where / "turns-1.0.dist-info"
    packed.mkdir()
    (where / "turns.py").write_text("".join(example) + FAILING)
    (packed / "METADATA").write_text("Metadata-Version: 2.1\nName: turns\nVersion: 1.0\n")
    (packed / "entry_points.txt").write_text(
        "[holdfast.turn]\nexample = turns:decide\nfailing = turns:failing\n"
    )
    fresh.env["PYTHONPATH"] += f":{where}"


def failures(hf: Installation, session: str) -> list[dict[str, object]]:
    found = hf.ok("events", session, "--json").records
    return [one for one in found if one["event"] == "turn.policy_failed"]


def test_a2_a_plugin_replaces_the_turn_policy(fresh: Installation, tmp_path: Path) -> None:
    plugins(fresh, tmp_path)
    fresh.configure('[turn]\nidle_s = 600\npolicy = "plugin:example"\n')
    fresh.people("ann", "bob")
    fresh.people("bot", "elf", kind="agent")
    fresh.new("example", "--", "cat")
    fresh.ok("--as", "ann", "send", "example", "x", "--enter")
    for name in ("bot", "bob"):
        fresh.ok("--as", name, "turn", "example", "request")
    assert fresh.get("example")["turn"]["waiting"] == ["bob", "bot"]
    error = the_error(fresh.attempt("--as", "elf", "turn", "example", "request", "--json"), 4)
    assert "dropped" in error["message"]
    fresh.ok("--as", "ann", "turn", "example", "release")
    assert turn(fresh, "example")["holder"] == "bob"  # type: ignore[index]
    assert not failures(fresh, "example")


def test_a2_a_plugin_that_fails_leaves_the_order_first_come_and_never_delays_a_seizure(
    fresh: Installation, tmp_path: Path
) -> None:
    plugins(fresh, tmp_path)
    (tmp_path / "mode").write_text("stranger")
    fresh.configure('[turn]\nidle_s = 600\npolicy = "plugin:failing"\n')
    fresh.people("ann", "bob", "eve", "zoe")
    fresh.new("failing", "--", "cat")
    fresh.ok("--as", "ann", "send", "failing", "x", "--enter")

    fresh.ok("--as", "bob", "turn", "failing", "request")
    assert fresh.get("failing")["turn"]["waiting"] == ["bob"]
    [failed] = eventually(lambda: failures(fresh, "failing"), "the event")
    assert failed["plugin"] == "failing" and "does not wait" in str(failed["why"])
    (tmp_path / "mode").write_text("hang")
    asking = fresh.start("--as", "eve", "turn", "failing", "request")
    fresh.under_way("turn", 1)
    fresh.ok("--as", "zoe", "seize", "failing")
    fresh.ok("--as", "zoe", "halt", "failing")
    assert asking.wait(timeout=DEADLINE_S) == 0
    assert fresh.get("failing")["turn"]["waiting"] == ["bob", "eve"]
    assert "in time" in str(
        eventually(lambda: failures(fresh, "failing")[1:], "the event")[0]["why"]
    )
    (tmp_path / "mode").write_text("none")
    fresh.ok("resume", "failing")
    fresh.ok("--as", "ann", "turn", "failing", "request")
    assert fresh.get("failing")["turn"]["waiting"] == ["bob", "eve", "ann"]
    assert len(failures(fresh, "failing")) == 2


def test_a8_a_seized_turn_is_held_until_released_though_its_holder_only_reads(
    fresh: Installation,
) -> None:
    """It outlives the ordinary time, a restart of the host, and a client that comes and goes."""
    fresh.configure("[turn]\nidle_s = 0.2\n")
    fresh.people("ann", "bob", "eve")
    fresh.new("kept", "--", "cat")
    fresh.ok("--as", "ann", "send", "kept", "x", "--enter")
    fresh.ok("--as", "bob", "seize", "kept")
    os.kill(fresh.host_pid, signal.SIGKILL)
    eventually(lambda: fresh.get("kept")["turn"]["idle_s"] > 0.2, "longer than a turn lasts")
    error = the_error(fresh.attempt("--as", "ann", "send", "kept", "y", "--json"), 4)
    assert (error["name"], error["message"]) == ("turn_held", "held by bob until released")
    assert "turn: held by bob until released" in fresh.ok("--as", "ann", "who", "kept").out
    assert "bob (seized)" in fresh.ok("ls").out
    assert fresh.ok("--as", "eve", "seize", "kept", "--json").json["previous"] == "bob"
    fresh.ok("--as", "eve", "turn", "kept", "release")
    fresh.ok("--as", "ann", "send", "kept", "y", "--enter")


def test_a8_a_seized_turn_is_free_when_its_holder_has_been_gone_for_the_stated_time(
    fresh: Installation,
) -> None:
    fresh.configure("[turn]\ngone_s = 0.2\n")
    fresh.people("ann", "bob")
    fresh.new("left", "--", "cat")
    fresh.ok("--as", "bob", "seize", "left")  # its only client is this command
    eventually(lambda: turn(fresh, "left") is None, "the turn of an operator that is gone")
    fresh.ok("--as", "ann", "send", "left", "y", "--enter")
