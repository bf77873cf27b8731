"""Ctrl-C in long work: it is given up while that is harmless, and goes on after that (R2, R3).

Moves need root; all tests need CRIU (scripts/criu).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.installation import Installation, Terminal, eventually, installation, state_of
from tests.support.recovery.checkpoint import criu
from tests.support.recovery.two_machines import Machine, Two, two_machines

WIDE = (160, 24)
GIVES_UP, LEAVES = "Ctrl-C gives up", "Ctrl-C leaves it going on"
CTRL_C = b"\x03"


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    criu()
    with installation(tmp_path_factory.mktemp("hf")) as made:
        yield made


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    criu()
    with two_machines(tmp_path_factory.mktemp("two")) as made:
        yield made


def large(hf: Installation, name: str, megabytes: int) -> None:
    """A session with a variable, and a program with that much memory that does not compress."""
    hf.ready(name, "--contained")
    program = f"import os; kept = os.urandom({megabytes} << 20); print('re'+'ady'); input()"
    hf.quick("run", name, "--", "X=kept")
    hf.quick("send", name, f'python3 -c "{program}"', "--enter")
    hf.wait(name, "text:ready")


def at_terminal(hf: Installation, *args: str) -> Terminal:
    return hf.spawn([*hf.argv(args)], WIDE)  # type: ignore[list-item]


def stopped(machine: Machine) -> list[int] | None:
    hosts = machine.here("holdfast.host.main")
    return hosts if all(state_of(pid) == "T" for pid in hosts) else None


def test_r2_a_checkpoint_is_given_up(hf: Installation) -> None:
    large(hf, "saved", 300)
    terminal = at_terminal(hf, "checkpoint", "saved", "--stop")
    terminal.see(GIVES_UP)
    terminal.send(CTRL_C)
    terminal.see("given up: nothing is saved, and saved goes on as it was")
    assert terminal.wait() == 130
    assert hf.ok("checkpoint", "saved", "--list", "--json").json == []
    assert hf.get("saved")["state"] == "detached"
    entries = [one for one in hf.ok("log", "saved", "--json").records if one["kind"] == "save"]
    assert "given up: nothing is saved" in str(entries), entries


def test_r2_a_restore_and_a_fork_are_given_up(hf: Installation) -> None:
    large(hf, "large", 300)
    forking = at_terminal(hf, "fork", "large", "-n", "2")
    forking.see(GIVES_UP)
    forking.send(CTRL_C)
    forking.see("given up: no branch is made, and large goes on as it was")
    assert forking.wait() == 130
    assert hf.ok("branches", "--json").json == []
    hf.ok("checkpoint", "large", "--stop")
    restoring = at_terminal(hf, "restore", "large")
    restoring.see(GIVES_UP)
    restoring.send(CTRL_C)
    restoring.see("given up: large stays on the disk as it was")
    assert restoring.wait() == 130
    assert hf.get("large")["state"] == "checkpointed"
    assert "is back as incarnation" in hf.ok("restore", "large").out


def interrupt(machine: Machine, command: str) -> None:
    """As Ctrl-C, which would also end the program that enters the machine's namespaces."""
    for pid in machine.here(command):
        if b"nsenter" not in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGINT)


def test_r3_a_move_is_given_up_while_it_harms_nothing(two: Two) -> None:
    here = two.here
    large(here, "given", 20)
    here.slow("16mbit")
    terminal = at_terminal(here, "move", "given", "vault")
    terminal.see("MB, ")
    terminal.see(GIVES_UP)
    interrupt(here, "move given")
    terminal.see("given up: given goes on here as it was")
    here.slow("1gbit")
    assert here.get("given")["liveness"]["process"] == "alive"
    assert "goes on at vault" in here.ok("move", "given", "vault").out
    here.slow("1gbit")


def test_r3_a_move_goes_on_after_that(two: Two) -> None:
    """The old incarnation has ended: the work goes on without the command, which says so."""
    here, there = two.here, two.there
    here.ready("late", "--contained")
    here.quick("run", "late", "--", "X=kept")
    there.ok("down")
    there.ok("up", "--detach", env={"HOLDFAST_PROBE": "stop@copies.taken"})
    terminal = at_terminal(here, "move", "late", "vault")
    terminal.see(LEAVES)
    interrupt(here, "move late")
    terminal.see("it goes on without this command")
    terminal.see("`holdfast ls --all` shows where it runs")
    [host] = eventually(lambda: stopped(there), "the target at its probe")
    os.kill(host, signal.SIGCONT)
    eventually(lambda: "kept" in there.cli("run", "late", "--", "echo $X").out or None, "the move")


def test_r3_a_machine_that_vanishes_is_waited_for_and_given_up(two: Two) -> None:
    here = two.here
    large(here, "alone", 20)
    here.slow("16mbit")
    terminal = at_terminal(here, "move", "alone", "vault")
    terminal.see("MB, ")
    here.cut()
    try:
        terminal.see("vault does not answer; waits until")
        interrupt(here, "move alone")
        terminal.see("given up: alone goes on here as it was")
    finally:
        here.join()
        here.slow("1gbit")
    assert here.get("alone")["liveness"]["process"] == "alive"
