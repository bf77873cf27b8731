"""One operator is stopped; all other operators of the session work on (A8)."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

from holdfast.host.processes.cgroups import Groups
from tests.support.commands.results import the_error
from tests.support.installation import Installation, alive, eventually
from tests.support.ordinary_user import passes_as_ordinary_user

# Counts in a child and in a detached grandchild, each in a file of its own.
TICKS = "sh -c 'while :; do echo x >> {0}; sleep 0.05; done'"


@pytest.fixture(scope="module")
def house(hf: Installation) -> Installation:
    hf.people("ann", "bob")
    hf.people("bot", rights="execute", kind="agent")
    return hf


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def stands_still(*paths: Path) -> bool:
    """Whether no file grows while another operator's command in between takes some time."""
    before = [size(path) for path in paths]
    os.sched_yield()
    return before == [size(path) for path in paths]


def grows(path: Path) -> None:
    start = size(path)
    eventually(lambda: size(path) > start, f"{path.name} to grow")


def has_groups(hf: Installation, name: str) -> bool:
    made = hf.get(name)
    return bool(Groups(str(hf.home)).find(made["id"], made["pid"]))


def test_a8_one_operator_is_stopped_and_the_others_work_on(
    house: Installation, tmp_path: Path
) -> None:
    hers, deep, his = tmp_path / "hers", tmp_path / "deep", tmp_path / "his"
    made = house.new("shared")
    house.ok("--as", "ann", "run", "shared", "--", f"setsid {TICKS.format(deep)} & ")
    house.ok("--as", "ann", "run", "shared", "--", f"{TICKS.format(hers)} &")
    house.ok("--as", "ann", "turn", "shared", "release")
    house.ok("--as", "bob", "run", "shared", "--", f"{TICKS.format(his)} &")
    for path in (hers, deep, his):
        grows(path)
    got = house.ok("--as", "bob", "halt", "shared", "--operator", "ann", "--json").json
    assert got["complete"] and got["operator"] == "ann" and len(got["processes"]) >= 2
    assert made["pid"] not in got["processes"], "the shared shell works for everybody"
    assert {"pid": made["pid"], "why": "the shared shell"} in got["left_out"]
    assert (got["how"] == "cgroup freeze") is has_groups(house, "shared")
    before = size(hers), size(deep)
    grows(his)
    assert house.ok("--as", "bob", "run", "shared", "--", "echo still here").out == "still here\n"
    assert (size(hers), size(deep)) == before
    for command in (["run", "shared", "--json", "--", "true"], ["send", "shared", "x", "--json"]):
        error = the_error(
            house.attempt("--as", "ann", *command), 4, 255 if command[0] == "run" else 4
        )
        assert error["name"] == "operator_stopped" and "bob stopped ann" in error["message"]
    error = the_error(house.attempt("--as", "ann", "resume", "shared", "--json"), 4)
    assert error["name"] == "operator_stopped", "the preempted operator cannot undo it"
    assert "stopped: ann, by bob" in house.ok("who", "shared").out
    assert "stopped: ann, by bob" in house.ok("graph", "shared").out
    assert "(stopped: ann)" in house.ok("ls").out

    os.kill(house.host_pid, signal.SIGKILL)
    assert [one["operator"] for one in house.get("shared")["stopped"]] == ["ann"]
    assert (size(hers), size(deep)) == before, "a restart of the host resumes no process"
    assert (
        the_error(house.attempt("--as", "ann", "send", "shared", "x", "--json"), 4)["name"]
        == "operator_stopped"
    )
    assert "ann continues" in house.ok("--as", "bob", "resume", "shared", "--operator", "ann").out
    grows(hers)
    grows(deep)
    house.ok("--as", "bob", "turn", "shared", "release")
    house.ok("--as", "ann", "run", "shared", "--", "true")
    events = house.ok("events", "shared", "--json").records
    told = [(e["event"], e["operator"], e["by"]) for e in events if e["event"][:9] == "operator."]
    assert told == [("operator.stopped", "ann", "bob"), ("operator.resumed", "ann", "bob")]
    log = [e for e in house.ok("log", "shared", "--json").records if e["kind"] == "halt"]
    assert [(e["actor"], e["verdict"]) for e in log] == [("bob", "allow")]
    house.ok("end", "shared")


def test_a4_a_stopped_person_can_seize_and_halt_and_a_stopped_agent_cannot(
    house: Installation,
) -> None:
    house.people("robot", kind="agent")
    house.ready("safety", "--", "bash")
    for name in ("ann", "robot"):
        house.quick("--as", "bob", "halt", "safety", "--operator", name)
    for act in ("seize", "halt"):
        error = the_error(house.attempt("--as", "robot", act, "safety", "--json"), 4)
        assert error["name"] == "operator_stopped"
    got = house.attempt("--as", "ann", "seize", "safety", "--json").json
    assert got["turn"]["holder"] == "ann" and got["turn"]["seized"] is True
    error = the_error(house.attempt("--as", "ann", "send", "safety", "x", "--json"), 4)
    assert error["name"] == "operator_stopped", "the turn does not end the stop"
    assert house.attempt("--as", "ann", "halt", "safety", "--json").json["complete"] is not None
    assert house.get("safety")["state"] == "halted"
    house.quick("resume", "safety")
    house.end("safety")


def test_a8_seize_with_stop_freezes_the_foreground_job_and_gives_the_taker_a_prompt(
    house: Installation, tmp_path: Path
) -> None:
    made = house.new("busy")
    beats = tmp_path / "beats"
    house.wait("busy", "idle")
    house.ok("--as", "bot", "send", "busy", f"{TICKS.format(beats)}; echo AFTER", "--enter")
    grows(beats)
    got = house.ok("--as", "bob", "seize", "busy", "--stop", "--json").json
    assert got["previous"] == "bot" and got["stopped"]["operator"] == "bot"
    assert got["stopped"]["complete"] and got["turn"]["seized"] is True
    before = size(beats)
    house.wait("busy", "idle")
    assert house.ok("--as", "bob", "run", "busy", "--", "echo $((40 + 2))").out == "42\n"
    assert size(beats) == before
    assert "\nAFTER" not in house.screen("busy"), "the rest of the line is not executed"
    assert "bot may act again" in house.ok("--as", "bob", "resume", "busy").out
    assert "stopped" not in house.get("busy")
    grows(beats)
    house.ok("end", "busy")
    assert not alive(made["pid"])


def test_a8_without_a_group_the_stop_is_best_effort_and_catches_forks(
    tmp_path: Path,
) -> None:
    """As for an ordinary user: a program that forks all the time stands still in the end."""
    import subprocess

    from holdfast.host.processes import stop_some
    from holdfast.host.processes.halt import Halter
    from holdfast.host.processes.process import read_stat

    beats = tmp_path / "beats"
    storm = subprocess.Popen(
        ["sh", "-c", f"while :; do (echo x >> {beats}; sleep 0.01) & sleep 0.005; done"],
        start_new_session=True,
    )
    beside = subprocess.Popen(["sleep", "1000"])
    try:
        grows(beats)
        halter = Halter(str(tmp_path))
        mine = read_stat(storm.pid)
        assert mine is not None
        some = stop_some.Some({storm.pid: mine.start, beside.pid: 1}, frozenset())
        got = stop_some.stop(halter, "", some)
        assert got.how == "best effort" and got.missed == ()
        assert beside.pid not in dict(got.processes), "the pid of an earlier process"
        before = size(beats)
        eventually(lambda: stands_still(beats), "all of them to stand still")
        assert size(beats) == before
        assert storm.pid in dict(got.processes)
        stop_some.resume(halter, "", got.processes)
        grows(beats)
    finally:
        beside.kill()
        beside.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(storm.pid, signal.SIGKILL)
        storm.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="this is the run as an ordinary user")
def test_a8_the_same_as_an_ordinary_user() -> None:
    passes_as_ordinary_user(__file__)
