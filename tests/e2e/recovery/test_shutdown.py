"""R1: an orderly shutdown. Signals reach shells, keepers and the host in any order.

The last test runs this file again as an ordinary user.
"""

from __future__ import annotations

import functools
import os
import signal
from typing import Any

import pytest

from tests.support.ordinary_user import passes_as_ordinary_user
from tests.support.stage import Stage, members

HUP, TERM, KILL = signal.SIGHUP, signal.SIGTERM, signal.SIGKILL
SHELLS = ("/bin/bash", "/bin/dash", "/usr/bin/zsh")
SLEEP = ("/usr/bin/env", "sleep", "4331")


def ends(stage: Stage, name: str) -> None:
    stage.pump.until(lambda: stage.ended(name), f"{name} has ended")


def kill_rest(stage: Stage) -> None:
    """What a shutdown does last."""

    def none_left() -> bool:
        found = [pid for pid in members(stage.path) if pid != stage.forge.pid]
        for pid in found:
            os.kill(pid, KILL)
        return not found

    stage.pump.until(none_left, "no process of this home is left")


def stop_host(stage: Stage) -> None:
    stage.kill_host(TERM)
    stage._link = None


def back(stage: Stage, *names: str) -> dict[str, Any]:
    """Start the next host; returns the facts of the last session."""
    stage.start_host()
    facts: dict[str, Any] = {}
    for name in names:
        session = stage.session(name)
        assert (session["state"], session["epoch"]) == ("detached", 2), session
        assert session["liveness"]["process"] == "alive"
        events = stage.events(name)
        [facts] = [one for one in events if one["event"] == "session.re_established"]
    return facts


def prompted(stage: Stage, name: str) -> bool:
    return int(stage.session(name)["output"]["end"]) > 0


def made(stage: Stage) -> dict[str, int]:
    """A session for each shell and one for another program: the pids by name."""
    stage.start_host()
    for shell in filter(os.path.exists, SHELLS):
        stage.new(os.path.basename(shell), [shell])
    stage.new("program", list(SLEEP))
    pids = {one["name"]: int(one["pid"]) for one in stage.ask("ls")["sessions"]}
    for name in pids:  # the shell has made itself ready for signals
        if name != "program":
            stage.pump.until(functools.partial(prompted, stage, name), f"{name} runs")
    return pids


@pytest.mark.parametrize("number", [HUP, KILL])
def test_r1_shells_get_a_signal_and_then_the_host_is_told_to_stop(
    stage: Stage, number: int
) -> None:
    pids = made(stage)
    for name, pid in pids.items():
        os.kill(pid, number)
        ends(stage, name)
    stop_host(stage)
    facts = back(stage, *pids)
    assert "while the host was stopped" in facts["reason"]


def test_r1_programs_get_term_and_then_hup_and_the_host_is_killed(stage: Stage) -> None:
    """Nothing told the host to stop."""
    pids = made(stage)
    for number in (TERM, HUP):
        for pid in pids.values():
            if stage.running(pid):
                os.kill(pid, number)
    for name in pids:
        ends(stage, name)
    stage.cut_power()
    back(stage, *pids)


def test_r1_the_host_stops_first_and_the_shells_after_it(stage: Stage) -> None:
    pids = made(stage)
    stop_host(stage)
    for number in (TERM, HUP):
        for pid in pids.values():
            if stage.running(pid):
                os.kill(pid, number)
    kill_rest(stage)
    back(stage, *pids)


def test_r1_every_process_gets_term_then_hup_then_kill(stage: Stage) -> None:
    """The host is replaced by its SIGHUP, if it is not gone by then."""
    pids = made(stage)
    for number in (TERM, HUP, KILL):
        for pid in members(stage.path):
            if pid != stage.forge.pid:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass
        if number == TERM:
            stage.host_ended()
    kill_rest(stage)
    back(stage, *pids)


def test_r1_a_hangup_that_replaces_the_host_settles_nothing(stage: Stage) -> None:
    stage.start_host()
    pid = stage.new("work", ["/bin/bash"])["pid"]
    stage.pump.until(lambda: prompted(stage, "work"), "the shell is up")
    os.kill(pid, HUP)
    ends(stage, "work")
    os.kill(stage.host, HUP)
    stage._link = None
    stage.pump.until(lambda: stage.log().count(" serves ") == 2, "the next host serves")
    assert stage.session("work")["reason"] == "killed by SIGHUP", "the machine goes on"
    stop_host(stage)
    back(stage, "work")


@pytest.mark.parametrize("number", [HUP, KILL])
def test_r1_keepers_are_killed_before_the_host(stage: Stage, number: int) -> None:
    pids = made(stage)
    for one in stage.ask("ls")["sessions"]:
        os.kill(one["pid"], number)
        os.kill(one["keeper"], KILL)
    stage.cut_power()
    stage.start_host()
    for name in pids:
        assert stage.session(name)["state"] == "detached", stage.session(name)


# ---------------------------------------------------------------- what stays an end


def test_r1_down_settles_the_ends_before_it(stage: Stage) -> None:
    stage.start_host()
    pid = stage.new("work", ["/bin/bash"])["pid"]
    other = stage.new("other", ["/bin/bash"])["pid"]
    stage.pump.until(lambda: prompted(stage, "work"), "the shell is up")
    os.kill(pid, HUP)
    ends(stage, "work")
    assert stage.finish(stage.cli("down"))[0] == 0
    stage.host_ended()
    stage.start_host()
    assert stage.session("work")["reason"] == "killed by SIGHUP"
    assert stage.session("other")["pid"] == other, "sessions keep running"


@pytest.mark.parametrize("how", ["exit", "end", "signal", "crash"])
def test_r1_an_end_of_another_kind_stays_an_end(stage: Stage, how: str) -> None:
    stage.start_host()
    pid = stage.new("work", ["/bin/bash"])["pid"]
    stage.pump.until(lambda: prompted(stage, "work"), "the shell is up")
    if how == "crash":
        os.kill(pid, signal.SIGSEGV)
    elif how == "exit":
        assert stage.finish(stage.cli("send", "work", "exit 129", "--enter"))[0] == 0
    elif how == "end":
        assert stage.finish(stage.cli("end", "work"))[0] == 0
    else:
        assert stage.finish(stage.cli("signal", "work", str(pid), "KILL"))[0] == 0
    ends(stage, "work")
    before = stage.session("work")
    stop_host(stage)
    kill_rest(stage)
    stage.start_host()
    after = stage.session("work")
    assert (after["state"], after["reason"]) == ("ended", before["reason"])


@pytest.mark.skipif(os.getuid() != 0, reason="it waits for SETTLED_S; once is enough")
def test_r1_a_killed_shell_on_a_machine_that_goes_on_has_ended(stage: Stage) -> None:
    """The end is settled: also for a host that is killed later."""
    stage.start_host()
    pid = stage.new("work", ["/bin/bash"])["pid"]
    stage.pump.until(lambda: prompted(stage, "work"), "the shell is up")
    os.kill(pid, KILL)
    ends(stage, "work")
    stage.pump.until(lambda: stage.description("work") is None, "the end is settled")
    stage.cut_power()
    stage.start_host()
    assert stage.session("work")["reason"] == "killed by SIGKILL"


def test_r1_orderly_shutdowns_as_an_ordinary_user() -> None:
    passes_as_ordinary_user(__file__)
