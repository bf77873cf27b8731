"""Many operators on one session with killed hosts: one order explains all answers.

A1: never two holders. A2: an operator that was given the turn has it. P1: one order of inputs. The
program read each accepted input once, no refused input, and all in that order. The histories are
judged by `tests.support.checkers.linear`, not by the eye.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.support.checkers.history import Outcome, check_processes
from tests.support.checkers.linear import Act, Operation, check_linear
from tests.support.clients import Attached
from tests.support.operators import Operator, Typist, history_of
from tests.support.stage import DEADLINE_S, Stage

# The turn moves only when an operator moves it
CONFIG = "[turn]\nidle_s = 600\n[host]\naway_s = 120.0\n"
PEOPLE = (
    ("ann", "human"),
    ("bob", "human"),
    ("cyd", "agent"),
    ("dev", "agent"),
    ("eve", "service"),
)
PERSON = "fred"  # has the real `holdfast attach`; only the program knows the outcome of a line
WEIGHTS = {
    Act.WRITE: 24,
    Act.REQUEST: 2,
    Act.HAND: 2,
    Act.GRANT: 2,
    Act.REFUSE: 1,
    Act.RELEASE: 16,
    Act.SEIZE: 4,
    Act.SHOW: 3,
}
PROBES = (
    "host.act.sending",
    "host.act.sent",
    "host.act.sent",
)  # where a host dies by itself: before and after it has told the keeper
BETWEEN = 180  # acts of all, between two deaths of the host


class Room:
    """A session and its operators."""

    def __init__(self, stage: Stage, program: str, seed: int) -> None:
        self.stage, self.path, self.rng = stage, f"{stage.directory}/lines", random.Random(seed)
        stage.start_host()
        for name, kind in (*PEOPLE, (PERSON, "human")):
            for argv in (
                ("operator", "add", name, "--kind", kind),
                ("grant", name, "--rights", "admin"),
            ):
                code, _, err = stage.finish(stage.cli(*argv))
                assert code == 0, err
        shell = program == "sh"
        if shell:
            stage.new("room", ["sh"])
            stage.ask("wait", session="room", timeout=DEADLINE_S, **{"for": "idle"})
        else:
            stage.work("room", "lines", self.path)
        self.identity = stage.identities("room")
        line = f"echo {{}} >>{self.path}".format if shell else str
        names = [name for name, _ in PEOPLE]
        self.operators: list[Operator] = [
            Typist(
                stage,
                "room",
                name,
                names,
                self.rng.getrandbits(32),
                line,
                {**WEIGHTS, Act.LEAVE: 1},
            )
            if name in ("ann", "cyd")
            else Operator(
                stage, "room", name, names, self.rng.getrandbits(32), line, WEIGHTS, runs=shell
            )
            for name in names
        ]
        self.crashes: list[tuple[float, float]] = []
        self.line = line
        self.person = Attached(stage, "room", "--as", PERSON, eye=False).attached()
        self.typed: list[Operation] = []
        self._seen = 0.0  # when the host was last seen running
        stage.autostart(False)

    def type(self) -> None:
        text = f"{PERSON}-{len(self.typed)}"
        self.typed.append(
            Operation(PERSON, Act.WRITE, time.monotonic(), outcome=Outcome.UNKNOWN, text=text)
        )
        self.person.type(self.line(text).encode() + b"\r")

    def acts(self) -> int:
        return sum(len(one.history) for one in self.operators)

    def work(self, crashes: int) -> None:
        stage = self.stage
        for one in self.operators:
            one.start()
        self._until(BETWEEN)
        for left in reversed(range(crashes)):
            stage.pump.during(self.rng.uniform(0, 0.05))
            if stage.running(stage.host):
                self._seen = time.monotonic()
                os.kill(stage.host, signal.SIGKILL)
            stage.host_ended()
            self.crashes.append((self._seen, time.monotonic()))
            name = self.rng.choice(("", *PROBES)) if left else ""
            stage.start_host(f"kill@{name}#{self.rng.randint(2, 30)}" if name else "", wait=False)
            self._until(BETWEEN)
        for one in self.operators:
            one.halt.set()
        for one in self.operators:
            stage.pump.until(lambda one=one: not one.is_alive(), f"{one.name} to finish")  # type: ignore[misc]
            assert one.broken is None, one.broken

    def _until(self, acts: int) -> None:
        """So many more acts, of which some are the person's; or the host dies before."""

        def enough() -> bool:
            if not self.stage.running(self.stage.host):
                return True
            self._seen = time.monotonic()
            return self.acts() >= goal or any(one.broken for one in self.operators)

        goal = self.acts()
        for _ in range(3):
            goal += acts // 3
            self.type()
            self.stage.pump.until(
                enough,
                lambda: (
                    f"acts: {[(o.name, len(o.history), o.history[-1:]) for o in self.operators]}"
                ),
            )

    def finish(self) -> list[str]:
        """All operators give the turn back; the input up to the last line is complete."""
        by_name = {one.name: one for one in self.operators}
        begun = time.monotonic()
        self.person.kill()
        self.stage.pump.until(
            lambda: (
                PERSON not in [one["operator"] for one in self.stage.session("room")["operators"]]
            ),
            f"{PERSON} is gone",
        )
        self.typed.append(Operation(PERSON, Act.LEAVE, begun, time.monotonic(), Outcome.UNKNOWN))
        while (turn := self.stage.session("room")["turn"]) is not None:
            by_name[turn["holder"]].release()
        last = self.operators[1]
        last.runs = False
        last.write()
        text = last.history[-1].text
        assert last.history[-1].outcome is Outcome.ACKED, last.history[-1]
        self.stage.pump.until(lambda: text in self.read(), f"{text} is read")
        return self.read()

    def read(self) -> list[str]:
        return Path(self.path).read_text().splitlines()

    def history(self) -> list[Operation]:
        return [*history_of(self.operators, self.crashes), *self.typed]


def judge(stage: Stage, program: str, crashes: int, seed: int) -> list[Operation]:
    room = Room(stage, program, seed)
    room.work(crashes)
    lines = room.finish()
    for one in room.operators:
        one.close()
    history = room.history()
    assert check_processes(room.identity, {"room": stage.identity("room")}) == []
    faults = check_linear(history, lines)
    assert faults == [], (seed, "\n".join(map(str, faults)))
    return history


@pytest.mark.parametrize("stage", [CONFIG], indirect=True)
@pytest.mark.parametrize("program", ["lines", "sh"])
def test_p1_many_operators_and_dying_hosts_have_one_order(stage: Stage, program: str) -> None:
    history = judge(stage, program, 5, seed=7)
    writes = [op for op in history if op.act is Act.WRITE and op.text]
    assert sum(op.outcome is Outcome.ACKED for op in writes) > 15, "hardly anything was written"
    assert sum(op.outcome is Outcome.REFUSED for op in writes) > 10, (
        "no operator ever met a conflict"
    )
    assert {op.act for op in history if op.outcome is Outcome.ACKED} >= {
        Act.WRITE,
        Act.HAND,
        Act.RELEASE,
        Act.SEIZE,
        Act.REQUEST,
        Act.SHOW,
    }


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("stage", [CONFIG], indirect=True)
@pytest.mark.parametrize("program", ["lines", "sh"])
@pytest.mark.parametrize("seed", range(5))
def test_p1_the_same_for_long(stage: Stage, program: str, seed: int) -> None:
    judge(stage, program, 8, seed)
