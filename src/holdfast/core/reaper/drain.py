"""Decides the order in which a drain saves sessions, and when there is no time left (R9).

    Examined, Done, Tick, Cancelled -> handle(event, now) -> Save, Stop

Rule 1: up to `parallel` sessions are saved at the same time, as long as their expected sizes fit
into the free space of the disk together.
Rule 2: if the rest fits into the notice, the biggest goes first: then the end is earliest. If not,
the quickest goes first: then most sessions are saved.
Rule 3: no save begins that is expected to end after the notice, unless it is the last hope: a
session that never fits is tried first of all if nothing else is left.
Rule 4: at the end of the notice, and when the drain is cancelled, saves under way are stopped. Such
a session goes on as it was.
Every session has one result, and a session that is not saved has a reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

NO_TIME: Final = "no time was left in the notice"
CANCELLED: Final = "the drain was cancelled"


class Candidate(NamedTuple):
    """A session that the preflight has examined; sizes and times are estimates."""

    id: str
    bytes: int
    seconds: float


class Examined(NamedTuple):
    """The preflight of all sessions: those that can be saved."""

    candidates: tuple[Candidate, ...]
    free: int  # bytes on the disk


class Done(NamedTuple):
    """A save has ended; `why` is empty if the session is saved."""

    session: str
    why: str
    free: int


class Tick(NamedTuple):
    """Time has passed."""


class Cancelled(NamedTuple):
    """An operator cancelled the drain."""


class Save(NamedTuple):
    session: str


class Stop(NamedTuple):
    """Stop a save under way; the session goes on."""

    session: str


Event = Examined | Done | Tick | Cancelled
Effect = Save | Stop


@dataclass(slots=True)
class Drain:
    until: float
    parallel: int
    waiting: dict[str, Candidate] = field(default_factory=dict)
    saving: dict[str, Candidate] = field(default_factory=dict)
    results: dict[str, str] = field(default_factory=dict)  # why a session is not saved, or ""
    _free: int = 0
    _over: str = ""
    _stopped: set[str] = field(default_factory=set)

    @property
    def finished(self) -> bool:
        return not self.waiting and not self.saving

    def handle(self, event: Event, now: float) -> list[Effect]:
        if isinstance(event, Examined):
            self.waiting = {one.id: one for one in event.candidates}
            self._free = event.free
        elif isinstance(event, Done):
            stopped = event.session in self._stopped
            if self.saving.pop(event.session, None) is not None:
                self.results[event.session] = event.why and (self._over if stopped else event.why)
            self._free = event.free
        elif isinstance(event, Cancelled):
            self._over = CANCELLED
        if not self._over and now >= self.until:
            self._over = NO_TIME
        return [*(self._end() if self._over else self._begin(now))]

    def _end(self) -> Iterator[Effect]:
        self.results |= dict.fromkeys(self.waiting, self._over)
        self.waiting.clear()
        for id in self.saving.keys() - self._stopped:
            self._stopped.add(id)
            yield Stop(id)

    def _begin(self, now: float) -> Iterator[Effect]:
        while self.waiting and len(self.saving) < self.parallel:
            left = self.until - now
            chosen = next(iter(self._fitting(left)), None)
            if chosen is None:
                break
            self.saving[chosen.id] = self.waiting.pop(chosen.id)
            yield Save(chosen.id)

    def _fitting(self, left: float) -> Iterable[Candidate]:
        room = self._free - sum(one.bytes for one in self.saving.values())
        fits = [one for one in self.waiting.values() if one.bytes <= room or not self.saving]
        whole = sum(one.seconds for one in self.waiting.values()) / self.parallel
        ordered = sorted(fits, key=lambda one: -one.bytes if whole <= left else one.seconds)
        quick = [one for one in ordered if one.seconds <= left]
        return quick or ([] if self.saving else ordered)
