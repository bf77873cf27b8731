"""Decides which idle sessions are warned, evicted, ended or left alone (R8).

    Looked, Cannot, Used -> handle(event, now) -> Warn, Withdraw, Evict, End, Leave

Rule 1: a session that is attached, busy, or has an act that waits for approval is never reaped.
Rule 2: there are three limits. A session that was idle for `idle_s` is due. If more than `sessions`
sessions run, or all of them pin more than `memory`, the sessions that were idle longest are due,
after SETTLED_S of idleness at least.
Rule 3: a session is warned `warn_s` before. Any activity withdraws the warning.
Rule 4: then the session is evicted: saved to disk, and its processes end. If it cannot be saved, it
is ended where the policy says so, and left where not, with the reason.
Rule 5: a session that waits for a person (an editor, a question) is saved or left, never ended.
Rule 6: the operators' choice for a session comes first: `never`, `evict` or `end`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

EVICT, END, NEVER, DEFAULT = "evict", "end", "never", "default"
ACTIONS: Final = (EVICT, END)  # of the policy
CHOICES: Final = (DEFAULT, NEVER, EVICT, END)  # of operators, for one session
SETTLED_S: Final = 60.0  # a session that was active since is not reaped for memory or count
AGAIN_S: Final = 600.0  # until a session that could not be evicted is tried again
NOTICE_SHARE: Final = 0.5  # of `idle_s`: the longest notice


class Policy(NamedTuple):
    """The limits; 0 means none. `action`: for sessions that cannot be saved, `evict` or `end`."""

    idle_s: float = 0.0
    memory: int = 0  # bytes, of all sessions together
    sessions: int = 0
    warn_s: float = 300.0
    action: str = EVICT

    @property
    def on(self) -> bool:
        return bool(self.idle_s or self.memory or self.sessions)

    @property
    def notice_s(self) -> float:
        """The time between warning and action: short limits have short notices."""
        return min(self.warn_s, self.idle_s * NOTICE_SHARE) if self.idle_s else self.warn_s


class Resident(NamedTuple):
    """A running session as it was observed just now.

    `busy`: why it is not idle; `person`: why only a person may end it; `cannot`: why it cannot be
    saved, as far as that is known without a preflight. They are empty otherwise.
    """

    id: str
    idle_s: float
    memory: int = 0
    attached: bool = False
    asked: bool = False  # an act waits for approval
    busy: str = ""
    person: str = ""
    cannot: str = ""
    choice: str = DEFAULT

    @property
    def safe(self) -> str:
        """Why the session is not reaped now; empty if it may be."""
        if self.choice == NEVER:
            return "an operator keeps it"
        if self.attached:
            return "a client is attached"
        if self.asked:
            return "an act waits for approval"
        return self.busy


class Looked(NamedTuple):
    """The host has observed all running sessions."""

    sessions: tuple[Resident, ...]


class Cannot(NamedTuple):
    """A session could not be evicted. `final`: it cannot be saved; else the attempt failed."""

    session: str
    why: str
    final: bool


class Used(NamedTuple):
    """A session that was to be evicted is in use again."""

    session: str
    why: str


class Warn(NamedTuple):
    """Tell people that the session leaves the memory at `at`, unless it becomes active."""

    session: str
    why: str
    at: float


class Withdraw(NamedTuple):
    """The session is in use again."""

    session: str
    why: str


class Evict(NamedTuple):
    session: str
    why: str


class End(NamedTuple):
    """`cannot`: why the session is not evicted."""

    session: str
    why: str
    cannot: str


class Leave(NamedTuple):
    """The session stays in memory."""

    session: str
    why: str
    cannot: str


Event = Looked | Cannot | Used
Effect = Warn | Withdraw | Evict | End | Leave


@dataclass(slots=True)
class _Due:
    why: str
    at: float
    under_way: bool = False


@dataclass(slots=True)
class Reaper:
    policy: Policy
    _due: dict[str, _Due] = field(default_factory=dict)
    _left: dict[str, tuple[str, float]] = field(default_factory=dict)  # why, and until when
    _told: dict[str, str] = field(default_factory=dict)  # the last reason to leave a session
    _seen: dict[str, Resident] = field(default_factory=dict)

    def handle(self, event: Event, now: float) -> list[Effect]:
        if isinstance(event, Cannot):
            return [*self._cannot(event, now)]
        if isinstance(event, Used):
            due = self._due.pop(event.session, None)
            return [] if due is None else [Withdraw(event.session, event.why)]
        return [*self._looked(event.sessions, now)]

    def due(self) -> dict[str, tuple[str, float]]:
        """The warned sessions: why, and when."""
        return {one: (due.why, due.at) for one, due in self._due.items()}

    def left(self) -> dict[str, str]:
        """The sessions that are due and cannot be reaped, with the reason."""
        return {one: why for one, (why, _) in self._left.items()}

    # ------------------------------------------------------------ a look

    def _looked(self, sessions: Iterable[Resident], now: float) -> Iterator[Effect]:
        self._seen = seen = {one.id: one for one in sessions}
        kept: dict[str, Any]
        for kept in (self._due, self._left, self._told):
            for gone in kept.keys() - seen.keys():
                kept.pop(gone)
        for id in [id for id, (_, until) in self._left.items() if seen[id].safe or until <= now]:
            del self._left[id]
        wanted = self._wanted()
        for id, due in [*self._due.items()]:
            if not due.under_way and id not in wanted:
                del self._due[id]
                yield Withdraw(id, seen[id].safe or "there is room again")
        for id, why in wanted.items():
            one = seen[id]
            if one.cannot and not self._ends(one):
                self._due.pop(id, None)
                yield from self._leave(one, why, one.cannot, math.inf)
                continue
            if id not in self._due:
                self._due[id] = _Due(why, now + self._notice_of(one))
                yield Warn(id, why, self._due[id].at)
            due = self._due[id]
            if now >= due.at and not due.under_way:
                if one.cannot:
                    yield End(id, due.why, one.cannot)
                else:
                    yield Evict(id, due.why)
                due.under_way = True

    def _notice_of(self, one: Resident) -> float:
        return max(self.policy.notice_s, self.policy.idle_s - one.idle_s)

    def _wanted(self) -> dict[str, str]:
        """The sessions that should leave, and why: those that were idle longest come first."""
        policy, found = self.policy, dict[str, str]()
        idle = sorted(
            (one for one in self._seen.values() if not one.safe and one.id not in self._left),
            key=lambda one: -one.idle_s,
        )
        for one in idle:
            if policy.idle_s and one.idle_s >= policy.idle_s - policy.notice_s:
                found[one.id] = f"idle for {words(one.idle_s)}"
        stays = [one for one in self._seen.values() if one.id not in found]
        count, memory = len(stays), sum(one.memory for one in stays)
        for one in idle:
            crowded = policy.sessions and count > policy.sessions
            full = policy.memory and memory > policy.memory
            if one.id in found or one.idle_s < SETTLED_S:
                continue
            if crowded or (full and one.memory):
                over = _over(policy, bool(crowded))
                found[one.id] = f"idle for {words(one.idle_s)}, and {over}"
                if not one.cannot or self._ends(one):  # else others have to make room
                    count, memory = count - 1, memory - one.memory
        return found

    def _ends(self, one: Resident) -> bool:
        """Whether the session is ended if it cannot be saved."""
        chosen = one.choice == END or (one.choice == DEFAULT and self.policy.action == END)
        return chosen and not one.person

    # ------------------------------------------------------------ it could not be saved

    def _cannot(self, event: Cannot, now: float) -> Iterator[Effect]:
        due, one = self._due.get(event.session), self._seen.get(event.session)
        if due is None or one is None or not due.under_way:
            return  # an attempt of an earlier warning: the session is warned anew
        del self._due[one.id]
        if one.safe:
            yield Withdraw(one.id, one.safe)
        elif event.final and self._ends(one):
            self._due[one.id] = _Due(due.why, due.at, under_way=True)
            yield End(one.id, due.why, event.why)
        else:
            until = math.inf if event.final else now + AGAIN_S
            yield from self._leave(one, due.why, event.why, until)

    def _leave(self, one: Resident, why: str, cannot: str, until: float) -> Iterator[Effect]:
        """The session stays until it was active again, or until another attempt is due."""
        if one.person:
            cannot = f"{cannot}; {one.person}"
        self._left[one.id] = cannot, until
        if self._told.get(one.id) != cannot:
            self._told[one.id] = cannot
            yield Leave(one.id, why, cannot)


def _over(policy: Policy, crowded: bool) -> str:
    """Which limit is exceeded, in words."""
    if crowded:
        return f"more than {policy.sessions} sessions run"
    return f"all sessions pin more than {policy.memory >> 20} MiB"


def words(seconds: float) -> str:
    """A length of time for people."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.0f} s"
