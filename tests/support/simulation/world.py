"""A small world with a clock of its own, for unchanged programs in one process.

A day takes a second and happens the same way each time.

    with World(seed=7) as world:
        box = world.actor("box")
        box.run(main)                    # a thread; `box.serve(coroutine)` for asyncio
        world.until(lambda: ..., 60.0)   # of virtual time

The programs are not changed. While the world exists, it replaces their access to the outside, and
only for threads of its actors: the clocks, `time.sleep`, `select.poll`, sockets, the selector below
asyncio, threads and conditions, `os.urandom` and `random`. One thread runs at a time, until it
would wait; then the seed picks the next thread that can run. When no thread can run, the clock
moves to the next moment at which a thread wanted to wake. So the same seed gives the same history
(`world.digest`), and an hour of waiting costs nothing.

Rejected: passing a clock through every constructor (forty places, and the libraries below would
still read the real one); one loop with simulated transports (the client waits in `poll`, not in a
loop, and the waiting is the part under test).

An actor can be killed (none of its threads runs any more, its kernel resets its connections),
paused (its kernel goes on), and put to sleep like a laptop: its monotonic clock stands still,
CLOCK_BOOTTIME does not, and no data reaches it. A spin, which on a real machine is a core at 100 %,
is an error here.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import gc
import hashlib
import heapq
import os
import random
import select
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Final, Self, TypeVar

T = TypeVar("T")
BEGIN_UNIX: Final = 1_700_000_000.0
# The time of one turn of a thread: time passes, no matter what a program does
STEP_S: Final = 0.00001
YIELDS: Final = 0.1  # how often another thread may go first although this one could go on
SPIN: Final = 20_000  # turns of one thread without time to speak of
SPIN_S: Final = 1.0
DYING_TURNS: Final = 2_000  # of a killed program's loop, to cancel its tasks
KEPT: Final = 400  # lines of history for a message; the digest has all of them

_here = threading.local()
_real: dict[str, Any] = {}  # the replaced functions, to put back


class Killed(BaseException):
    """Ends a thread of an actor that was killed."""


def fiber() -> Fiber | None:
    """The running thread of an actor; None outside of an actor."""
    found: Fiber | None = getattr(_here, "fiber", None)
    return found


class Fiber:
    """One thread of an actor."""

    def __init__(self, actor: Actor, name: str) -> None:
        self.actor, self.name = actor, name
        self.gate = _thread.allocate_lock()
        self.gate.acquire()
        self.ready: Callable[[], Any] = lambda: True
        self.deadline: float | None = None  # by the actor's own clock
        self.found: Any = None
        self.finished = False
        self.dying = 0
        self.extra = 0.0  # time that passes for a dying thread
        self.turns, self.spun_at = 0, 0.0
        self.error: BaseException | None = None
        self.thread: threading.Thread | None = None

    def wait(self, ready: Callable[[], T], timeout: float | None) -> T | None:
        """Return the result of `ready` as soon as it is not None; None after the timeout."""
        world = self.actor.world
        if self.actor.dead:
            raise Killed
        found = ready()
        if (found and world.random.random() >= YIELDS) or (
            timeout is not None and timeout <= 0 and self.turns % 64
        ):
            self.turns += 1
            self._spinning(world)
            return found or None
        self.turns += 1
        self._spinning(world)
        self.ready, self.deadline = (
            ready,
            None if timeout is None else self.actor.monotonic() + max(0.0, timeout),
        )
        self.found = None
        world.gate.release()
        self.gate.acquire()
        if self.actor.dead:
            raise Killed
        return self.found  # type: ignore[no-any-return]

    def _spinning(self, world: World) -> None:
        world.now += STEP_S
        if world.now - self.spun_at > SPIN_S + SPIN * STEP_S:
            self.turns, self.spun_at = 0, world.now
        elif self.turns > SPIN:
            raise AssertionError(f"{self.actor.name}: {self.name} spins")

    def main(self, run: Callable[[], Any]) -> None:
        self.gate.acquire()
        _here.fiber = self
        try:
            if not self.actor.dead:
                run()
        except Killed:
            pass
        except BaseException as e:
            if not self.actor.dead:
                self.error = e
        finally:
            self.finished = True
            _here.fiber = None
            self.actor.world.gate.release()


class Actor:
    """A program on a machine of its own."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.dead = False
        self.paused = False
        self.asleep_since: float | None = None
        self.lag = 0.0  # how much of the world's time it has slept
        self.wall = 0.0  # how wrong its calendar is
        self.fibers: list[Fiber] = []

    @property
    def runs(self) -> bool:
        return not (self.dead or self.paused or self.asleep_since is not None)

    def monotonic(self) -> float:
        extra = here.extra if (here := fiber()) is not None else 0.0
        return (
            (self.world.now if self.asleep_since is None else self.asleep_since) - self.lag + extra
        )

    def run(self, target: Callable[[], Any], name: str = "main") -> None:
        """Run a function in a thread of its own."""
        thread = threading.Thread(target=target, name=f"{self.name}: {name}", daemon=True)
        self.world.adopt(self, thread, name)

    def serve(self, main: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """An asyncio program."""

        def run() -> None:
            with asyncio.Runner(loop_factory=lambda: Loop(self)) as runner:
                runner.get_loop().set_exception_handler(self._raised)
                runner.run(main())

        self.run(run, "loop")

    def _raised(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not self.dead:
            self.world.faults.append(
                f"{self.name}: {context.get('message')}: {context.get('exception')!r}"
            )

    # ------------------------------------------------------------ faults

    def kill(self) -> None:
        self.world.note(self.name, "is killed")
        self.dead = True
        for told in self.world.on_kill:
            told(self)
        for one in self.fibers:  # threads that end may not start others
            while not one.finished:
                self.world.give(one)
        self.fibers.clear()

    def pause(self) -> None:
        self.world.note(self.name, "is paused")
        self.paused = True

    def go_on(self) -> None:
        self.world.note(self.name, "goes on")
        self.paused = False

    def sleep(self) -> None:
        self.world.note(self.name, "falls asleep")
        self.asleep_since = self.world.now

    def wake(self) -> None:
        self.world.note(self.name, "wakes up")
        assert self.asleep_since is not None
        self.lag += self.world.now - self.asleep_since
        self.asleep_since = None


class World:
    def __init__(self, seed: int) -> None:
        self.seed, self.random = seed, random.Random(seed)
        self.now = 1000.0
        self.actors: dict[str, Actor] = {}
        self.gate = _thread.allocate_lock()  # held while a thread of an actor runs
        self.gate.acquire()
        self.pumps: list[Callable[[], None]] = []  # called before every turn
        self.on_kill: list[Callable[[Actor], None]] = []
        self.faults: list[str] = []  # errors that a program did not notice
        self.history: deque[str] = deque(maxlen=KEPT)
        self._digest = hashlib.sha256()
        self._timers: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = 0

    def __enter__(self) -> Self:
        _put_between(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.end()
        finally:
            _put_back()

    def end(self) -> None:
        for actor in self.actors.values():
            if not actor.dead:
                actor.kill()

    # ------------------------------------------------------------ history

    def note(self, who: str, what: str) -> None:
        line = f"{self.now - 1000.0:.6f} {who}: {what}"
        self._digest.update(line.encode() + b"\n")
        self.history.append(line)

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    # ------------------------------------------------------------ time

    def actor(self, name: str) -> Actor:
        """A new actor of that name; the previous one is dead."""
        assert name not in self.actors or self.actors[name].dead
        made = Actor(self, name)
        if (before := self.actors.get(name)) is not None:
            made.lag, made.wall = before.lag, before.wall
        self.actors[name] = made
        return made

    def at(self, when: float, act: Callable[[], object]) -> None:
        self._numbers += 1
        heapq.heappush(self._timers, (max(when, self.now), self._numbers, act))

    def after(self, seconds: float, act: Callable[[], object]) -> None:
        self.at(self.now + seconds, act)

    def until(self, condition: Callable[[], object], within_s: float) -> bool:
        """Run the world until the condition holds, or for `within_s`; return whether it holds."""
        end = self.now + within_s
        while not condition():
            if self.faults:
                raise AssertionError("; ".join(self.faults) + "\n" + self.story())
            if self._turn():
                continue
            due = self._due()
            if due is None or due > end:
                self.now = end
                return bool(condition())
            self.now = max(self.now, due)
            while self._timers and self._timers[0][0] <= self.now:
                heapq.heappop(self._timers)[2]()
        return True

    def pass_(self, seconds: float) -> None:
        self.until(lambda: False, seconds)

    def story(self) -> str:
        return "\n".join(list(self.history)[-80:])

    def _due(self) -> float | None:
        due = [self._timers[0][0]] if self._timers else []
        due += [
            one.deadline + actor.lag
            for actor in self.actors.values()
            if actor.runs
            for one in actor.fibers
            if one.deadline is not None
        ]
        return min(due, default=None)

    def _turn(self) -> bool:
        """Run one thread until it waits; False if no thread can run."""
        for pump in self.pumps:
            pump()
        able: list[tuple[Fiber, Any]] = []
        for actor in self.actors.values():
            if actor.runs:
                for one in actor.fibers:
                    found = one.ready()
                    if found or (one.deadline is not None and one.deadline + actor.lag <= self.now):
                        able.append((one, found))
        if not able:
            return False
        one, found = able[0] if len(able) == 1 else self.random.choice(able)
        one.found = found or None
        self.now += STEP_S
        self.give(one)
        if one.finished:
            one.actor.fibers.remove(one)
            if one.error is not None:
                raise AssertionError(
                    f"{one.actor.name}: {one.name} failed\n{self.story()}"
                ) from one.error
        return True

    def give(self, one: Fiber) -> None:
        one.gate.release()
        self.gate.acquire()
        if one.finished and one.thread is not None:
            _real["join"](
                one.thread
            )  # its objects are freed now, not during the turn of another thread
            one.thread = None

    # ------------------------------------------------------------ threads

    def adopt(self, actor: Actor, thread: threading.Thread, name: str) -> None:
        """Start the thread as a thread of that actor."""
        if actor.dead:
            raise Killed
        made, run = Fiber(actor, name), thread.run
        made.thread = thread
        thread.run = lambda: made.main(run)  # type: ignore[method-assign]
        thread._fiber = made  # type: ignore[attr-defined]
        actor.fibers.append(made)
        _here.plain = True
        try:
            _real["start"](thread)
        finally:
            _here.plain = False


class Selector(selectors.EpollSelector):
    """The selector below asyncio: waits in the world's time."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        one = fiber()
        if one is None:
            return super().select(timeout)
        if (
            one.actor.dead and one.dying
        ):  # the tasks are being cancelled: no data reaches them, and their time runs out at once
            one.dying += 1
            if one.dying > DYING_TURNS:
                raise Killed
            one.extra += 0.001 if timeout is None else max(0.0, timeout)
            return []
        try:
            return one.wait(lambda: super(Selector, self).select(0), timeout) or []
        except Killed:
            one.dying = 1
            raise


class Loop(asyncio.SelectorEventLoop):
    """asyncio's own loop, in the world.

    `dial` belongs to the network (tests/support/simulation/virtual_net.py).
    """

    dial: Callable[[Actor, str, int], Coroutine[Any, Any, socket.socket]]

    def __init__(self, actor: Actor) -> None:
        super().__init__(Selector())
        self.actor = actor

    async def create_connection(
        self,
        protocol_factory: Any,
        host: Any = None,
        port: Any = None,
        *,
        sock: socket.socket | None = None,
        **how: Any,
    ) -> Any:
        return await super().create_connection(
            protocol_factory, sock=sock or await Loop.dial(self.actor, host, port)
        )


# ------------------------------------------------------------ replacements of library functions


class _Poll:
    def __init__(self) -> None:
        self._poll = _real["poll"]()
        self.register, self.modify, self.unregister = (
            self._poll.register,
            self._poll.modify,
            self._poll.unregister,
        )

    def poll(self, timeout: float | None = None) -> Any:
        one = fiber()
        if one is None:
            return self._poll.poll(timeout)
        return (
            one.wait(
                lambda: self._poll.poll(0),
                None if timeout is None or timeout < 0 else timeout / 1000,
            )
            or []
        )


def _start(thread: threading.Thread) -> None:
    one = fiber()
    if one is None:
        return _real["start"](thread)  # type: ignore[no-any-return]
    one.actor.world.adopt(one.actor, thread, thread.name)


def _join(thread: threading.Thread, timeout: float | None = None) -> None:
    one, other = fiber(), getattr(thread, "_fiber", None)
    if one is None or other is None:
        return _real["join"](thread, timeout)  # type: ignore[no-any-return]
    one.wait(lambda: other.finished, timeout)


def _wait(condition: Any, timeout: float | None = None) -> bool:
    one = fiber()
    if one is None or getattr(_here, "plain", False):
        return _real["wait"](condition, timeout)  # type: ignore[no-any-return]
    told, state = getattr(condition, "_told", 0), condition._release_save()
    try:
        return bool(one.wait(lambda: getattr(condition, "_told", 0) != told, timeout))
    finally:
        condition._acquire_restore(state)


def _notify(condition: Any, n: int = 1) -> None:
    condition._told = getattr(condition, "_told", 0) + 1
    _real["notify"](condition, n)


def _sleep(seconds: float) -> None:
    one = fiber()
    if one is None:
        return _real["sleep"](seconds)  # type: ignore[no-any-return]
    one.wait(lambda: False, seconds)


def _monotonic() -> float:
    one = fiber()
    return _real["monotonic"]() if one is None else one.actor.monotonic()


def _unix(actor: Actor) -> float:
    return BEGIN_UNIX + actor.world.now + actor.wall


def _time() -> float:
    one = fiber()
    return _real["time"]() if one is None else _unix(one.actor)


def _time_ns() -> int:
    one = fiber()
    return _real["time_ns"]() if one is None else int(_unix(one.actor) * 1e9)


def _clock_gettime(clock: int) -> float:
    one = fiber()
    if one is None:
        return _real["clock_gettime"](clock)  # type: ignore[no-any-return]
    return (
        one.actor.world.now
        if clock == time.CLOCK_BOOTTIME
        else one.actor.monotonic()
        if clock == time.CLOCK_MONOTONIC
        else _unix(one.actor)
    )


@contextlib.contextmanager
def replaced(owner: Any, name: str, by: Any) -> Iterator[None]:
    """While this lasts."""
    before = getattr(owner, name)
    setattr(owner, name, by)
    try:
        yield
    finally:
        setattr(owner, name, before)


_PLACES: Final = (
    ("monotonic", time, _monotonic),
    ("time", time, _time),
    ("time_ns", time, _time_ns),
    ("clock_gettime", time, _clock_gettime),
    ("sleep", time, _sleep),
    ("poll", select, _Poll),
    ("start", threading.Thread, _start),
    ("join", threading.Thread, _join),
    ("wait", threading.Condition, _wait),
    ("notify", threading.Condition, _notify),
    ("urandom", os, None),
    ("_time", threading, _monotonic),
)


def _put_between(world: World) -> None:
    assert not _real, "one world at a time"
    _real.update({name: getattr(owner, name) for name, owner, _ in _PLACES})
    _real["state"], _real["gc"], _real["cores"] = (
        random.getstate(),
        gc.isenabled(),
        os.sched_getaffinity(0),
    )
    os.sched_setaffinity(
        0, {sorted(_real["cores"])[os.getpid() % len(_real["cores"])]}
    )  # one thread at a time: handing over on one core takes a third less
    random.seed(world.seed)
    gc.disable()  # the objects it would free, and when, would not depend on the programs alone

    def urandom(count: int) -> bytes:
        return world.random.randbytes(count) if fiber() is not None else _real["urandom"](count)

    for name, owner, made in _PLACES:
        setattr(owner, name, made or urandom)


def _put_back() -> None:
    for name, owner, _ in _PLACES:
        setattr(owner, name, _real[name])
    random.setstate(_real["state"])
    os.sched_setaffinity(0, _real["cores"])
    if _real["gc"]:
        gc.enable()
    _real.clear()
