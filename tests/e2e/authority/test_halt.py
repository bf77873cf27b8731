"""Stop any program of a session now; look at it; let it continue; or end it where it stands."""

from __future__ import annotations

import os
import signal

import pytest

from tests.support.commands.results import the_error
from tests.support.installation import Installation, alive, eventually, state_of

LAYOUTS = [(), ("--contained",)]


@pytest.mark.parametrize("how", LAYOUTS, ids=["plain", "contained"])
def test_a4_halt_stops_daemons_too_and_resume_is_not_noticed(
    hf: Installation, how: tuple[str, ...]
) -> None:
    name = f"halted{len(how)}"
    hf.ready(name, *how)
    hf.ok("run", name, "--", "sleep 1000 & (setsid sh -c 'while :; do :; done' &); echo started")
    got = hf.ok("halt", name, "--json").json
    assert got["complete"] and got["missed"] == [] and len(got["processes"]) >= 3
    assert hf.get(name)["state"] == "halted" and got["ref"].startswith(f"hf:{got['id']}@")
    spent = [cpu(pid) for pid in got["processes"]]
    assert "started" in hf.ok("view", name).out, "a halted session still shows its screen"
    assert "halted" in the_error(hf.attempt("send", name, "x", "--json"), 4)["message"]
    assert [cpu(pid) for pid in got["processes"]] == spent, "a process ran on"
    hf.ok("resume", name)
    assert hf.get(name)["state"] == "detached"
    assert "Running" in hf.ok("run", name, "--", "jobs").out
    hf.end(name)


def cpu(pid: int) -> int:
    with open(f"/proc/{pid}/schedstat") as f:
        return int(f.read().split()[0])


def test_a4_halt_needs_no_turn_and_a_new_host_finds_it_halted(fresh: Installation) -> None:
    fresh.configure("[turn]\nidle_s = 600\n")
    fresh.people("ann")
    made = fresh.new("stopped", "--", "sh", "-c", "while :; do :; done")
    fresh.ok("send", "stopped", "mine", "--enter")
    fresh.ok("--as", "ann", "halt", "stopped")
    os.kill(fresh.host_pid, signal.SIGKILL)
    assert fresh.get("stopped")["state"] == "halted"
    fresh.ok("--as", "ann", "resume", "stopped")
    eventually(lambda: state_of(made["pid"]) == "R", "it to run again")


@pytest.mark.parametrize("how", LAYOUTS, ids=["plain", "contained"])
def test_a4_a_session_is_halted_also_when_the_host_is_stopped(
    fresh: Installation, how: tuple[str, ...]
) -> None:
    made = fresh.new("loose", *how, "--", "sh", "-c", "while :; do :; done")
    host = fresh.host_pid
    os.kill(host, signal.SIGSTOP)
    try:
        got = fresh.ok("halt", "loose", "--json").json
        assert got["complete"] and got["processes"] == [made["pid"]] and "ref" not in got
        assert "no running session" in the_error(fresh.attempt("halt", "x", "--json"), 3)["message"]
        spent = cpu(made["pid"])
        assert "the record does not name you" in fresh.ok("halt", "loose").out
    finally:
        os.kill(host, signal.SIGCONT)
    eventually(lambda: fresh.get("loose")["state"] == "halted", "the host to find it halted")
    assert cpu(made["pid"]) == spent
    fresh.ok("resume", "loose")
    fresh.ok("down")
    assert fresh.ok("halt", made["id"], "--json").json["complete"], "nor is a host needed"


def test_a4_a_halted_session_can_be_ended(hf: Installation) -> None:
    made = hf.new("over", "--", "sh", "-c", "trap '' HUP TERM; while :; do :; done")
    hf.ok("halt", "over")
    hf.ok("end", "over")
    eventually(lambda: not alive(made["pid"]), "it to be gone")


def test_a3_seize_discards_unread_input(fresh: Installation) -> None:
    fresh.configure("[turn]\nidle_s = 600\n")
    fresh.people("ann", "bob")
    os.mkfifo(fresh.user / "gate")
    fresh.new(
        "queue",
        "--",
        "sh",
        "-c",
        f"stty raw -echo; echo READY; read -r go < {fresh.user}/gate; exec cat -v",
    )
    fresh.wait("queue", "text:READY")
    fresh.ok("--as", "ann", "send", "queue", "EVIL" * 200)
    got = fresh.ok("--as", "bob", "seize", "queue", "--json").json
    assert got["previous"] == "ann" and got["flushed"] is True
    (fresh.user / "gate").write_text("go\n")
    fresh.ok("--as", "bob", "send", "queue", "mine")
    fresh.wait("queue", "text:mine")
    assert "EVIL" not in fresh.ok("view", "queue").out


@pytest.mark.smoke
def test_t4_a_contained_session_reaches_neither_keys_nor_host(hf: Installation) -> None:
    hf.ready("inside", "--contained")
    out = hf.ok(
        "run",
        "inside",
        "--",
        f"ls {hf.home}/keys {hf.home}/state.db {hf.home}/run/host.sock 2>&1; ps ax | "
        "grep -c '[h]ost.main' || true",
    ).out
    assert out.count("No such file") == 3 and out.splitlines()[-1] == "0", out
    assert hf.get("inside")["layout"] == "contained"
    hf.end("inside")
