"""A9, S4: the host dies at every probe around an act; retries under its key have one effect.

The client does as it is told: the answer to the first attempt is `outcome_unknown`, and the act is
asked for again with the same key, by the same client and by a new one. A host that dies between the
record of an act and its effect leaves some acts unknown (a signal, a grant): then every retry says
so, and the effect happened at most once.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast.client.link import Link
from holdfast.model.errors import HoldfastError, OutcomeUnknown, Unavailable
from tests.support.stage import DEADLINE_S, Stage

TARGET = """
import os, signal, sys
def count(*_):
    with open(sys.argv[1], "a") as f: f.write("once\\n")
signal.signal(signal.SIGUSR1, count)
print("ready", flush=True)
while True: signal.pause()
"""


class World:
    """An installation with a shell, and a host that dies at the next act."""

    def __init__(self) -> None:
        self.stage = stage = Stage("[host]\naway_s = 120.0\n")
        self.count, self.armed = 0, ""
        self.arm("")
        stage.autostart(False)
        stage.new("shell", ["bash"])
        stage.ask("wait", session="shell", timeout=DEADLINE_S, **{"for": "idle"})
        self.signals = f"{stage.directory}/signals"
        self.target = stage.new("target", [sys.executable, "-c", TARGET, self.signals])
        stage.pump.until(lambda: "ready" in stage.view("target")["lines"][0], "the target listens")
        code, _, err = stage.finish(stage.cli("operator", "add", "bob", "--kind", "agent"))
        assert code == 0, err
        stage.kill_host()

    def fresh(self, stem: str) -> str:
        self.count += 1
        return f"{stem}-{self.count}"

    def arm(self, probe: str) -> None:
        """Start a host that dies there, as soon as the file `armed` exists."""
        self.armed = f"{self.stage.directory}/{self.fresh('armed')}"
        self.stage.start_host(f"when:{self.armed},kill@{probe}" if probe else "")

    def link(self, key: str) -> Link:
        made = Link(self.stage.home, "tester", "cli", autostart=False)
        made.once = key
        return made

    def lines(self, name: str) -> int:
        path = Path(self.stage.directory, name)
        return len(path.read_text().split()) if path.exists() else 0


class Case(NamedTuple):
    """An act; how often it took effect; and whether each retry finds out."""

    op: str
    fields: dict[str, Any]
    effects: Callable[[], int]
    certain: bool = True


def typed(world: World, name: str) -> int:
    world.stage.ask("wait", session="shell", timeout=DEADLINE_S, **{"for": "idle"})
    return world.lines(name)


def run(world: World) -> Case:
    name = world.fresh("run")
    text = f"echo once >> {world.stage.directory}/{name}; echo {name}; (exit 17)"
    return Case("run", {"session": "shell", "text": text}, lambda: typed(world, name))


def send(world: World) -> Case:
    name = world.fresh("send")
    text = f"echo once >> {world.stage.directory}/{name}"
    fields = {"session": "shell", "text": text, "keys": ["Enter"]}
    return Case("send", fields, lambda: typed(world, name))


def new(world: World) -> Case:
    def made() -> int:
        return len(world.stage.ask("ls")["sessions"]) - before

    before = len(world.stage.ask("ls")["sessions"])
    env = {"PATH": os.environ["PATH"], "HOME": world.stage.directory}
    fields = {"argv": ["sleep", "1000"], "cwd": "/", "env": env, "size": [80, 24]}
    return Case("new", fields, made)


def signalled(world: World) -> Case:
    before = world.lines("signals")
    fields = {"session": "target", "pid": world.target["pid"], "signal": "USR1"}
    return Case("signal", fields, lambda: world.lines("signals") - before, certain=False)


def grant(world: World) -> Case:
    """Each grant is for a session of its own, so that it cannot be taken for an earlier one."""

    def given() -> int:
        found = world.stage.ask("operator.show", name="bob")["envelopes"]
        return sum(made["id"] in str(one["scope"]) for one in found)

    made = world.stage.new(world.fresh("granted"), ["sleep", "1000"])
    fields = {"name": "bob", "rights": ["observe"], "session": made["id"]}
    return Case("grant", fields, given, certain=False)


def end(world: World) -> Case:
    name = world.fresh("end")
    world.stage.new(name, ["sleep", "1000"])
    return Case("end", {"session": name}, lambda: world.stage.ended(name) is not None)


def halt(world: World) -> Case:
    name = world.fresh("halt")
    world.stage.new(name, ["sleep", "1000"])
    return Case("halt", {"session": name}, lambda: world.stage.session(name)["state"] == "halted")


RECORDED = ("host.journal.appending", "host.journal.appended", "host.journal.durable")
OVER = tuple(f"{name}#2" for name in RECORDED)  # the second group is that of the outcome
KEEPER = ("host.act.sending", "host.act.sent")
POINTS: dict[Callable[[World], Case], tuple[str, ...]] = {
    run: (*RECORDED, "host.run.written", *KEEPER, "host.run.typed", *OVER),
    send: (*RECORDED, *KEEPER, *OVER),
    new: (*RECORDED, "host.create.recorded", "host.spawn.sent", "host.create.spawned", *OVER[1:]),
    signalled: (*RECORDED[1:], *OVER[1:]),
    grant: (*RECORDED[1:], *OVER[1:]),
    end: (RECORDED[2], OVER[1]),
    halt: RECORDED[1:],
}


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    made = World()
    try:
        yield made
    finally:
        made.stage.close()


def asked(link: Link, case: Case) -> dict[str, Any] | HoldfastError:
    try:
        return link.request(case.op, wait_s=DEADLINE_S, **case.fields)
    except HoldfastError as e:
        return e


@pytest.mark.parametrize(
    ("make", "probe"),
    [(make, probe) for make, points in POINTS.items() for probe in points],
    ids=lambda one: one if isinstance(one, str) else one.__name__,
)
def test_a9_killed_at(world: World, make: Callable[[World], Case], probe: str) -> None:
    stage = world.stage
    stage.no_hosts()  # a failed test may have left one
    world.arm(probe)
    case, key = make(world), world.fresh("key")
    pid, same = stage.host, world.link(key)
    same.connect()
    Path(world.armed).touch()
    first = asked(same, case)
    stage.pump.until(lambda: not stage.running(pid), lambda: f"the host dies at {probe}: {first!r}")
    assert stage.host_ended() == -signal.SIGKILL
    # A host may die after its answer: the outcome is durable before the answer, and signed later.
    assert isinstance(first, dict | OutcomeUnknown | Unavailable), first
    world.arm("")
    same._keyed.clear()  # the same command again
    retries = [asked(same, case), asked(world.link(key), case), asked(world.link(key), case)]
    effects = case.effects()
    if isinstance(first, dict) or case.certain or isinstance(retries[0], dict):
        assert effects == 1, (first, retries)
        assert all(isinstance(one, dict) for one in retries), retries
    else:
        assert effects <= 1 and all(isinstance(one, OutcomeUnknown) for one in retries), retries
    if make is run:
        assert [one["exit_code"] for one in retries] == [17, 17, 17]  # type: ignore[index]
    stage.kill_host()
