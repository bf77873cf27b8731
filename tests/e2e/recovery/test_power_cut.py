"""R1, R6: keepers and host killed at once; each session comes back as a new incarnation."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.session.incarnation import OFFSET_STEP
from holdfast.home import keys
from holdfast.host.storage.spool import Spool
from holdfast.model.errors import Lost
from tests.support.kernel import words_of
from tests.support.stage import Stage, members


def run(stage: Stage, name: str, command: str, *options: str) -> tuple[int, str]:
    code, out, err = stage.finish(stage.cli("run", *options, name, "--", command))
    return code, out.decode() + err


def log(stage: Stage, name: str) -> list[dict[str, Any]]:
    code, out, err = stage.finish(stage.cli("log", name, "--json"))
    assert code == 0, err
    return [json.loads(line) for line in out.splitlines()]


def spooled(stage: Stage, name: str) -> bytes:
    key = keys.spool_key(keys.machine(stage.home, time.time()))
    pieces = Spool(stage.home.spool, stage.session(name)["id"], 0, key).load().pieces
    return pieces[-1][1] if pieces else b""


def stored(stage: Stage, name: str, what: str) -> None:
    """Wait until the stored description of the session has `what`."""
    stage.pump.until(
        lambda: what in json.dumps(stage.description(name)), f"{what} is stored for {name}"
    )


def facts_of(event: dict[str, Any]) -> dict[str, Any]:
    """The facts of an event as the record has them, which knows no fractions."""
    names = ("from", "reason", "running", "in_flight", "halted", "notes")
    return {name: event[name] for name in names} | {"seen": int(event["seen"])}


def again(stage: Stage, name: str) -> dict[str, Any]:
    """The facts about the lost incarnation, after the power came back."""
    stage.start_host()
    session = stage.session(name)
    assert session["state"] == "detached", session
    assert session["liveness"]["process"] == "alive"
    [facts] = [one for one in stage.events(name) if one["event"] == "session.re_established"]
    return facts


def test_r1_a_session_comes_back_with_directory_variables_size_and_record(stage: Stage) -> None:
    stage.start_host()
    made = stage.new("work", ["/bin/bash"], size=(101, 37))
    os.mkdir(f"{stage.directory}/deep")
    assert run(stage, "work", "cd deep; export COLOUR=$'b l\\'ue'; unset LANG") == (0, "")
    assert run(stage, "work", "sleep 4321 & echo $! > pid")[0] == 0
    stored(stage, "work", "sleep 4321")
    before = log(stage, "work")
    stage.cut_power()
    facts = again(stage, "work")
    session = stage.session("work")
    assert session["id"] == made["id"] and session["epoch"] == 2 and facts["from"] == 1
    assert session["size"] == {"cols": 101, "rows": 37}
    assert [one["argv"] for one in facts["running"]] == ["sleep 4321"]
    [program] = facts["running"]
    assert program["operator"] == "tester" and program["act"].startswith(f"hf:{made['id']}@1#")
    assert run(stage, "work", "pwd; echo $COLOUR-${LANG-unset}") == (
        0,
        f"{stage.directory}/deep\nb l'ue-unset\n",
    )
    again_running = [pid for pid in members(stage.path) if words_of(pid)[:2] == ["sleep", "4321"]]
    assert not again_running, "R6: not again"
    screen = "".join(stage.view("work")["lines"])
    assert "new incarnation (2)" in screen and "sleep 4321 (by tester)" in screen
    after = log(stage, "work")
    assert after[: len(before)] == before, "the record goes on"
    [recorded] = [one["facts"] for one in after if one["kind"] == "re_established"]
    assert recorded == facts_of(facts)
    assert stage.finish(stage.cli("log", "verify", "work"))[0] == 0


def test_r1_a_background_subshell_is_named_by_the_text_that_started_it(stage: Stage) -> None:
    stage.start_host()
    stage.new("work", ["/bin/bash"])
    text = "(while :; do sleep 4323; done) &"
    assert run(stage, "work", text)[0] == 0
    stored(stage, "work", "sleep 4323")
    stage.cut_power()
    facts = again(stage, "work")
    assert {one["argv"] for one in facts["running"]} == {text, "sleep 4323"}
    screen = " ".join(line.strip() for line in stage.view("work")["lines"])
    assert f"{text} (by tester)" in screen and "bash.rc" not in screen


def test_r1_offsets_go_on_above_all_output_of_the_lost_incarnation(stage: Stage) -> None:
    stage.start_host()
    stage.new("work", ["/bin/bash"])
    run(stage, "work", "seq 1000")
    old = stage.session("work")["output"]["end"]
    stage.cut_power()
    again(stage, "work")
    assert stage.session("work")["output"]["start"] >= OFFSET_STEP > old
    with pytest.raises(Lost, match="rolled off"):
        stage.ask("read", session="work", **{"from": old}, strict=True)


def test_r1_s5_scrollback_comes_back_below_a_line_that_says_so(stage: Stage) -> None:
    """Output is on disk a second after it was printed; a second power cut keeps it too."""
    stage.start_host()
    stage.new("work", ["/bin/bash"])
    run(stage, "work", "seq 90001 90200; printf '\\033[?1049h\\033[?1000h'; printf half")
    for epoch in (2, 3):
        stage.pump.until(lambda: b"half" in spooled(stage, "work"), "it is on disk")
        stage.cut_power()
        stage.start_host()
        assert stage.session("work")["epoch"] == epoch
        view = stage.ask("view", session="work", history=2000)
        lines = [*view["history"], *view["lines"]]
        assert [line for line in lines if line.startswith("90")] == [
            str(n) for n in range(90001, 90201)
        ], "all of it, once"
        assert not view["alternate"], "the screen of the lost program is left"
        text = "\n".join(lines)
        assert text.index("90200") < text.index(f"new incarnation ({epoch})")
        run(stage, "work", "printf half")


def test_r1_an_act_in_flight_is_named_and_not_repeated(stage: Stage) -> None:
    stage.start_host()
    stage.new("work", ["/bin/bash"])
    mark = Path(stage.directory, "ran")
    waiting = stage.cli("run", "--once", "k1", "work", "--", f"echo once >> {mark}; sleep 4322")
    stage.pump.until(mark.exists, "the command runs")
    stored(stage, "work", "sleep 4322")
    stage.cut_power()
    waiting.kill()
    waiting.communicate()
    facts = again(stage, "work")
    assert len(facts["in_flight"]) == 1
    code, out = run(stage, "work", f"echo once >> {mark}; sleep 4322", "--once", "k1", "--json")
    assert code == 255 and '"outcome_unknown"' in out, (code, out)
    assert mark.read_text() == "once\n", "R6: recovery and the retry repeat nothing"
    entries = log(stage, "work")
    [act] = [e for e in entries if e["phase"] == "intent" and e["epoch"] == 1]
    [outcome] = [e for e in entries if e["phase"] == "outcome" and e["intent"] == act["seq"]]
    assert outcome["outcome"] == "unknown"


def test_r1_an_act_whose_outcome_is_recorded_is_not_called_unknown(stage: Stage) -> None:
    """It was in flight when the last host died, and the next host learned the outcome."""
    stage.start_host()
    keeper = stage.new("work", ["/bin/bash"])["keeper"]
    mark = Path(stage.directory, "ran")
    waiting = stage.cli("run", "work", "--", f"echo > {mark}; sleep 4325")
    stage.pump.until(mark.exists, "the command runs")
    waiting.kill()
    waiting.communicate()
    stage.kill_host()
    stage.start_host()
    [outcome] = [e["outcome"] for e in log(stage, "work") if e["phase"] == "outcome"]
    assert outcome == "applied"
    os.kill(keeper, signal.SIGKILL)
    stage.pump.until(lambda: stage.session("work")["epoch"] == 2, "the second incarnation")
    [facts] = [one for one in stage.events("work") if one["event"] == "session.re_established"]
    assert facts["in_flight"] == []


def test_r1_a_run_in_flight_is_told_at_once_that_its_outcome_is_unknown(stage: Stage) -> None:
    stage.start_host()
    keeper = stage.new("work", ["/bin/bash"])["keeper"]
    mark = Path(stage.directory, "ran")
    waiting = stage.cli("run", "work", "--json", "--", f"echo once >> {mark}; sleep 4324")
    stage.pump.until(mark.exists, "the command runs")
    os.kill(stage.host, signal.SIGSTOP)  # it sees nothing of this
    os.kill(keeper, signal.SIGKILL)
    stage.kill_host()
    code, out, err = stage.finish(waiting)  # the command starts the next host
    assert code == 255 and "earlier incarnation of work, which is lost" in err + out.decode()
    assert mark.read_text() == "once\n", "R6: it is not done again"
    stage.find_host()


def test_r1_an_end_that_was_answered_is_an_end(stage: Stage) -> None:
    stage.start_host()
    for name in ("work", "halted"):
        stage.new(name, ["/bin/bash"])
    assert stage.finish(stage.cli("halt", "halted"))[0] == 0
    for name in ("work", "halted"):
        stage.ask("end", session=name)
    stage.cut_power()
    stage.start_host()
    assert [stage.session(name)["state"] for name in ("work", "halted")] == ["ended"] * 2


def test_r1_too_many_variables_cost_only_the_variables(stage: Stage) -> None:
    stage.start_host()
    usual = stage.env
    stage.env = usual | {f"BIG{number}": "x" * 100_000 for number in range(11)}
    stage.new("work", ["/bin/bash"])
    stage.env = usual
    os.mkdir(f"{stage.directory}/deep")
    assert run(stage, "work", "cd deep; export NOTE=1")[0] == 0
    stored(stage, "work", "/deep")
    stage.cut_power()
    facts = again(stage, "work")
    assert any("variables" in note for note in facts["notes"]), facts
    assert run(stage, "work", "pwd; echo ${#BIG1}") == (0, f"{stage.directory}/deep\n0\n")


def test_r1_a_program_that_is_no_shell_is_offered_and_not_started(stage: Stage) -> None:
    stage.start_host()
    mark = Path(stage.directory, "started")
    stage.new("server", ["/bin/sh", "-c", f"echo up >> {mark}; exec sleep 4323"])
    stage.pump.until(mark.exists, "the program runs")
    stage.cut_power()
    facts = again(stage, "server")
    assert "sleep 4323" in facts["running"][0]["argv"] and mark.read_text() == "up\n"
    assert run(stage, "server", "echo $0")[1].strip().endswith("bash")


def test_r1_what_cannot_come_back_is_said(stage: Stage) -> None:
    stage.start_host()
    stage.new("work", ["/bin/bash"])
    os.mkdir(f"{stage.directory}/gone")
    run(stage, "work", "cd gone")
    stored(stage, "work", "/gone")
    stage.cut_power()
    os.rmdir(f"{stage.directory}/gone")
    facts = again(stage, "work")
    assert any("/gone" in note for note in facts["notes"])
    assert run(stage, "work", "pwd") == (0, f"{stage.directory}\n")


def test_r1_a_halted_session_says_that_the_next_incarnation_is_not(stage: Stage) -> None:
    stage.start_host()
    stage.new("work", ["/bin/bash"])
    assert stage.finish(stage.cli("halt", "work"))[0] == 0
    stage.cut_power()
    assert again(stage, "work")["halted"]


def test_p3_variables_of_a_lost_incarnation_have_an_unknown_author(stage: Stage) -> None:
    """An agent's PATH must not become the machine's own by a power cut."""
    stage.start_host()
    stage.new("work", ["/bin/bash"])
    run(stage, "work", "mkdir -p bin; printf '#!/bin/sh\\necho mine' > bin/ls; chmod +x bin/ls")
    run(stage, "work", f"export PATH={stage.directory}/bin:$PATH")
    stored(stage, "work", f"{stage.directory}/bin:")
    stage.cut_power()
    again(stage, "work")
    assert run(stage, "work", "ls") == (0, "mine\n")
    [ran] = [e for e in log(stage, "work") if e["kind"] == "command" and e["epoch"] == 2][:1]
    shaped = {(one["kind"], one["name"]): one for one in ran["facts"]["shaped"]}
    assert shaped["path", f"{stage.directory}/bin"]["actor"] == "unknown"
    script = shaped["file", f"{stage.directory}/bin/ls"]
    assert (script["actor"], script["act"]) == ("tester", None), "not an act of this incarnation"


def test_a8_an_operator_that_was_stopped_stays_stopped(stage: Stage) -> None:
    stage.start_host()
    stage.new("work", ["/bin/bash"])
    for command in (
        ("operator", "add", "bot"),
        ("grant", "bot", "--rights", "execute", "--session", "work"),
        ("--as", "bot", "run", "work", "--", "true"),
        ("halt", "work", "--operator", "bot"),
    ):
        assert stage.finish(stage.cli(*command))[0] == 0, command
    stage.cut_power()
    again(stage, "work")
    code, _, err = stage.finish(stage.cli("--as", "bot", "run", "work", "--", "true"))
    assert code == 255 and "stopped bot" in err
    assert stage.finish(stage.cli("resume", "work", "--operator", "bot"))[0] == 0
    assert stage.finish(stage.cli("--as", "bot", "run", "work", "--", "true"))[0] == 0


@pytest.mark.parametrize("step", ["host.create.recorded", "host.spawn.sent", "host.create.spawned"])
def test_r1_a_host_killed_while_it_brings_a_session_back(stage: Stage, step: str) -> None:
    """At most one incarnation, no epoch twice, and the session is not lost."""
    stage.start_host()
    stage.new("work", ["/bin/bash"])
    stage.cut_power()
    stage.start_host(probe=f"kill@{step}", wait=False)
    stage.host_ended()
    stage.start_host()
    session = stage.session("work")
    assert session["state"] == "detached", session
    assert session["epoch"] >= 2
    assert run(stage, "work", "echo here") == (0, "here\n")
    started = [one for one in stage.events("work") if one["event"] == "session.re_established"]
    assert len({one["from"] for one in started}) == len(started)
    shells = stage.shells()
    assert len(shells) == 1, shells


def test_r3_a_session_that_still_runs_gets_no_second_incarnation(stage: Stage) -> None:
    """Its keeper lives, and only the socket was removed."""
    stage.start_host()
    stage.new("work", ["/bin/bash"])
    session = stage.session("work")
    stage.kill_host()
    os.unlink(f"{stage.home.run}/{session['id']}.keeper")
    stage.start_host()
    after = stage.session("work")
    assert after["epoch"] == 1 and "still runs" in after["reason"], after
    assert stage.running(session["pid"]) and stage.shells() == [session["pid"]]


def test_r1_two_power_cuts(stage: Stage) -> None:
    stage.start_host()
    stage.new("work", ["/bin/bash"])
    for epoch in (2, 3):
        run(stage, "work", f"export LIFE={epoch}")
        stored(stage, "work", f'"LIFE": "{epoch}"')
        stage.cut_power()
        stage.start_host()
        assert stage.session("work")["epoch"] == epoch
        assert run(stage, "work", "echo $LIFE") == (0, f"{epoch}\n")


def test_r1_a_description_that_does_not_open_is_a_loss_with_a_reason(stage: Stage) -> None:
    stage.start_host()
    stage.new("work", ["/bin/bash"])
    stage.cut_power()
    with sqlite3.connect(stage.home.database) as db:
        db.execute("UPDATE remembered SET body = zeroblob(100)")
    stage.start_host()
    assert "cannot be read" in stage.session("work")["reason"]


def test_r1_a_contained_session_comes_back_behind_the_same_wall(stage: Stage) -> None:
    stage.start_host()
    os.mkdir(project := f"{stage.directory}/project")
    secret = Path(stage.directory, "secret")
    secret.write_text("mine")
    made = stage.cli("new", "box", "--contained", "--no-attach", "--cwd", project, "--json")
    code, _, err = stage.finish(made)
    assert code == 0, err
    before = stage.session("box")
    command = "echo kept > ~/kept; echo work > work; mkdir sub; cd sub; export NOTE=inside"
    assert run(stage, "box", command) == (0, "")
    stored(stage, "box", '"NOTE": "inside"')
    stage.cut_power()
    again(stage, "box")
    after = stage.session("box")
    for name in ("id", "layout", "sees", "gate", "limits"):
        assert after[name] == before[name], name
    assert run(stage, "box", "cat ~/kept ../work; pwd; echo $NOTE") == (
        0,
        f"kept\nwork\n{project}/sub\ninside\n",
    )
    assert run(stage, "box", f"cat {secret}")[0] == 1, "T4: not shown inside"
    assert stage.finish(stage.cli("end", "box"))[0] == 0
    left = Path(stage.path, "contained", after["id"])
    stage.pump.until(lambda: not left.exists(), "its own directories are removed")
