"""A9, S4: many commands of one program, with cancelled calls and killed hosts and relays.

Half of the sessions are reached on their own machine, the other half through a relay. Each finished
call may cancel another call, and every few finished calls a host or a relay dies. The history is
judged by `tests.support.checkers.runs`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import holdfast
from holdfast.sdk.session import Session
from tests.support.checkers.runs import End, Ran, check_runs
from tests.support.commands.afar import afar
from tests.support.installation import Installation
from tests.support.relays import RelayProcess

CONFIG = "[host]\naway_s = 120.0\n"
CANCELLED = 0.15  # of the finished calls cancel another call
BETWEEN = 12  # finished calls between two deaths


def test_a9_the_checker_finds_what_is_wrong() -> None:
    codes = {1: 0, 2: 3}
    right = [Ran(1, End.DONE, exit_code=0, output="1\n"), Ran(2, End.CANCELLED)]
    assert check_runs(right, [1], codes) == check_runs(right, [2, 1], codes) == []
    assert len(check_runs(right, [], codes)) == 1
    assert len(check_runs(right, [1, 1], codes)) == 1
    assert len(check_runs(right, [1, 2, 2], codes)) == 1
    assert len(check_runs(right, [1, 4], codes)) == 1
    assert len(check_runs(right[:1], [1], codes)) == 1
    wrong = Ran(2, End.DONE, exit_code=0, output="1\n")
    assert len(check_runs([right[0], wrong], [1, 2], codes)) == 2
    assert len(check_runs([right[0], Ran(2, End.REFUSED)], [1, 2], codes)) == 1


class World:
    """A machine with many sessions, a relay, and one program that uses both ways."""

    def __init__(
        self, there: Installation, here: Installation, relay: RelayProcess, seed: int
    ) -> None:
        self.there, self.relay = there, relay
        self.rng = random.Random(seed)
        self.effects = there.user / "effects"
        self.local = holdfast.connect(operator="tester", home=str(there.home))
        self.remote = holdfast.connect(home=str(here.home))
        self.sessions: list[Session] = []
        self.history: list[Ran] = []
        self.codes: dict[int, int] = {}
        self.calls: dict[int, asyncio.Task[None]] = {}
        self.deaths: Counter[str] = Counter()
        self._dying: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def open(self, sessions: int) -> AsyncIterator[None]:
        self.effects.touch()
        async with self.local, self.remote:
            made = await asyncio.gather(
                *(self.local.sessions.new(f"s{n}", env=self.there.env) for n in range(sessions))
            )
            await asyncio.gather(*(one.wait("idle") for one in made))
            self.sessions = [
                one if n % 2 else await self.remote.sessions.get(f"box/{one.name}")
                for n, one in enumerate(made)
            ]
            yield

    async def call(self, number: int) -> None:
        """One run and its outcome."""
        session = self.sessions[number % len(self.sessions)]
        code = self.codes[number]
        text = f"echo {number} >>{self.effects}; echo {number}; (exit {code})"
        try:
            done = await session.run(text)
        except asyncio.CancelledError:
            ran = Ran(number, End.CANCELLED)
        except holdfast.OutcomeUnknown as e:
            ran = Ran(number, End.UNKNOWN, str(e))
        except holdfast.HoldfastError as e:
            ran = Ran(number, End.REFUSED, f"{e.name}: {e}")
        else:
            ran = Ran(number, End.DONE, done.state, done.exit_code, done.output)
        self.history.append(ran)
        del self.calls[number]
        self._afterwards()

    def _afterwards(self) -> None:
        if self.calls and self.rng.random() < CANCELLED:
            # Among the first that are left: most of them are under way, not in a queue here.
            self.calls[self.rng.choice(list(self.calls)[: len(self.sessions)])].cancel()
        if len(self.history) % BETWEEN == 0 and (self._dying is None or self._dying.done()):
            which = ("host", "relay")[self.deaths.total() % 2]
            self._dying = asyncio.create_task(self._kill(which))

    async def _kill(self, which: str) -> None:
        self.deaths[which] += 1
        if which == "host":
            os.kill(await asyncio.to_thread(lambda: self.there.host_pid), signal.SIGKILL)
            await asyncio.to_thread(self.there.attempt, "up", "--detach")
        else:
            await asyncio.to_thread(self.relay.stop, signal.SIGKILL)
            await asyncio.to_thread(self.relay.restart)

    async def work(self, runs: int) -> list[str]:
        """All calls at once; the faults of their history."""
        self.codes = {n: self.rng.choice((0, 0, 1, 3, 127)) for n in range(runs)}
        self.calls = {n: asyncio.create_task(self.call(n)) for n in range(runs)}
        await asyncio.gather(*self.calls.values())
        if self._dying is not None:
            await self._dying
        # A later act on each session: no earlier act of this program can follow it.
        await asyncio.gather(*(one.run("true") for one in self.sessions))
        effects = [int(line) for line in self.effects.read_text().splitlines()]
        return check_runs(self.history, effects, self.codes)


def judge(directory: Path, runs: int, sessions: int, seed: int) -> World:
    with afar(directory, CONFIG) as (there, here, relay):
        world = World(there, here, relay, seed)

        async def all_of_it() -> list[str]:
            async with world.open(sessions):
                return await world.work(runs)

        faults = asyncio.run(all_of_it())
        ends = Counter(ran.end for ran in world.history)
        told = "\n".join([*faults[:40], f"seed {seed}: {dict(ends)}, deaths {dict(world.deaths)}"])
        told += "\n" + "\n".join(
            str(ran) for ran in world.history if ran.end in (End.REFUSED, End.UNKNOWN)
        )
        print(told)
        assert not faults, told
        return world


def test_a9_every_outcome_is_true_and_every_effect_single(short_path: Path) -> None:
    world = judge(short_path, 100, 8, seed=5)
    ends = Counter(ran.end for ran in world.history)
    assert ends[End.DONE] > 50 and ends[End.CANCELLED] > 5, ends
    assert world.deaths["host"] and world.deaths["relay"], world.deaths


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(3))
def test_a9_the_same_with_a_thousand_runs(short_path: Path, seed: int) -> None:
    world = judge(short_path, 1000, 50, seed)
    assert Counter(ran.end for ran in world.history)[End.DONE] > 500
