"""The common ground of all handlers: the engine, the attached viewers, and the checks of rights.

Rights are checked again while a request runs. When rights change or end, a viewer that may not
observe any more is disconnected, and a request that shows a session is cancelled. A viewer with an
envelope that ends soon is warned at each of ENDS_SOON_S before the end, or at once if less is left,
and again if the end moves. A revocation comes without a warning.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.core.contract.sessions import ActTarget
from holdfast.core.contract.table import MACHINE
from holdfast.core.people.scope import Command
from holdfast.core.policy.act_facts import programs
from holdfast.host.acts.act_context import ProposedAct
from holdfast.host.acts.door import Act
from holdfast.host.engine import Engine
from holdfast.host.lifecycle.names import match_prefix
from holdfast.host.people.key_exposure import OpenKeys
from holdfast.host.people.rights import FOREVER, Rights
from holdfast.host.requests.attention import AttentionWatch
from holdfast.host.requests.files.workers import Workers
from holdfast.host.requests.follow_graph import Looks
from holdfast.host.runtime.connection import Connection
from holdfast.host.runtime.progress import Progress
from holdfast.host.session.session import Session
from holdfast.host.session.viewer import Viewer
from holdfast.host.storage.store import SessionRow
from holdfast.model.errors import NotAllowed
from holdfast.model.limits import ENDS_SOON_S, GRANTORS_NAMED

if TYPE_CHECKING:
    from holdfast.host.requests.ports.forward import Forward

RECHECK_MAX_S: Final = 3600.0  # an adjusted clock must not make a right outlive its end by more


class Context(NamedTuple):
    """A request under way.

    `limited`: the caller's right holds for certain commands only, so the handler must check the
    command.
    """

    conn: Connection
    number: int
    limited: bool = False
    signed: Act | None = None  # the act, if the request is an act

    def progress(self) -> Progress:
        """Tells the caller how the request goes on."""
        return Progress(partial(self.conn.event, "progress", request=self.number))

    @property
    def act(self) -> Act:
        """The act, for the handler of an operation that is always an act."""
        assert self.signed is not None
        return self.signed


class Host:
    def __init__(self, engine: Engine, stop: Callable[[str], None]) -> None:
        self.engine = engine
        self.stop = stop
        self.viewers: dict[Connection, Viewer] = {}
        self.forwards: dict[str, Forward] = {}  # open ones, by id
        self.following = Looks()
        self.file_workers = Workers()
        self.open_keys = OpenKeys(engine.home)
        self.attention_watch = AttentionWatch(engine)
        self.under_way: Counter[str] = Counter()  # requests that have no answer yet, by handler
        # requests that need a right on a session, or on the machine (None), as long as they run
        self._showing: dict[asyncio.Task[object], tuple[Connection, str | None, str]] = {}
        self._denied: dict[asyncio.Task[object], NotAllowed] = {}
        self._timer: asyncio.TimerHandle | None = None
        engine.authority.on_change.append(self.recheck)

    # ------------------------------------------------------------ rights

    def require(self, conn: Connection, right: str, session: str | None) -> None:
        """Raises NotAllowed, which names the missing right and operators that could give it."""
        self.engine.authority.require(conn.key, right, session, time.time())

    def may_observe(self, conn: Connection, session: str) -> bool:
        return self.engine.authority.could(conn.key, "observe", session, time.time())

    async def permitted(
        self, ctx: Context, right: str, session: Session | None, proposed: ProposedAct
    ) -> Command | None:
        """For a right that holds for certain commands only: checks the programs of the act.

        Gives the programs, for the check after the record; None for a right without such a limit.
        """
        if not ctx.limited:
            return None
        asked = await proposed.observe(session, ctx.conn)
        command = programs(await self.engine.gate.facts_in_thread(asked))
        about = session.id if session is not None else None
        self.engine.authority.require(ctx.conn.key, right, about, time.time(), command)
        return command

    def shows(self, conn: Connection, session: str | None, right: str = "observe") -> None:
        """Checks this request again whenever the caller's right changes or ends."""
        task, now = asyncio.current_task(), time.time()
        assert task is not None
        self._showing[task] = conn, session, right
        self._recheck_at(self.engine.authority.until(conn.key, right, session, now), now)

    def answered(self) -> None:
        """The current request is over."""
        if (task := asyncio.current_task()) is not None:
            self._showing.pop(task, None)

    def denied(self) -> NotAllowed | None:
        """Why the current request was cancelled, if a recheck did that."""
        task = asyncio.current_task()
        return None if task is None else self._denied.pop(task, None)

    def recheck(self) -> None:
        """Disconnects viewers and cancels requests that the present rights do not cover."""
        now, again = time.time(), FOREVER
        authority = self.engine.authority
        for session in self.engine.sessions.values():
            session.keyboard.recheck()
            session.turn.lose(
                lambda key: not authority.dead(key),
                lambda name: bool(authority.devices(name, all=False)),
            )
        for conn, viewer in list(self.viewers.items()):
            try:
                self.require(conn, "observe", viewer.session.id)
            except NotAllowed as e:
                conn.bye("admission", e.message, e.recover)
                continue
            viewer.observe = viewer.observe or "input" not in authority.rights_of(
                conn.key, viewer.session.id, now
            )
            again = min(again, warn(authority, viewer, now))
        for task, (conn, shown, right) in list(self._showing.items()):
            try:
                authority.require(conn.key, right, shown, now, spend=False)
            except NotAllowed as e:
                self._denied[task] = e
                task.cancel()
                continue
            again = min(again, authority.until(conn.key, right, shown, now))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._recheck_at(again, now)

    def _recheck_at(self, at: float, now: float) -> None:
        """Rechecks at that time at the latest."""
        loop = asyncio.get_running_loop()
        if at < FOREVER and (self._timer is None or self._timer.when() - loop.time() > at - now):
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_later(min(max(0.01, at - now), RECHECK_MAX_S), self.recheck)

    def in_use(self, session: Session) -> bool:
        """Whether an open forward leads into the session."""
        return any(one.session is session for one in self.forwards.values())

    # ------------------------------------------------------------ attached clients

    def attached(self, viewer: Viewer) -> None:
        """Warns a new viewer with rights that end soon."""
        now = time.time()
        self._recheck_at(warn(self.engine.authority, viewer, now), now)

    def leave(self, conn: Connection, how: str) -> None:
        viewer = self.viewers.pop(conn, None)
        if viewer is not None:
            viewer.session.viewers.leave(viewer, how)

    # ------------------------------------------------------------ places

    def meant(self, conn: Connection, word: str) -> str:
        """The id of the session for a beginning of its name or id; another word is unchanged.

        Only sessions on which the caller has rights count: an ambiguous word reveals no other.
        Running sessions come first. Of ended sessions with the same name the newest counts.
        """
        engine, now = self.engine, time.time()
        if word == MACHINE or word in engine.sessions or word in engine.ended:
            return word
        running, ended = (
            engine.session_names(),
            sorted(engine.ended.values(), key=lambda r: r.created),
        )
        newest = {r.name: r.id for r in ended}
        if word in running or word in newest or word in running.values():
            return word
        for names in (running, {i: name for name, i in newest.items()}):
            begins = {i: n for i, n in names.items() if n.startswith(word) or i.startswith(word)}
            seen = [i for i in begins if engine.authority.rights_of(conn.key, i, now)]
            if (found := match_prefix(word, {i: begins[i] for i in seen})) is not None:
                return found
        return word

    def place_of(self, conn: Connection, name: str) -> ActTarget:
        """The facts that an act on that session, or on the machine, is signed for."""
        engine = self.engine
        if name == MACHINE:
            epoch = engine.door.here.epoch
            return ActTarget(id=name, epoch=epoch, seen=engine.journal.seen(name), name="")
        found = engine.find_any(name)
        if not engine.authority.rights_of(conn.key, found.id, time.time()):
            self.require(conn, "observe", found.id)
        epoch = found.epoch if isinstance(found, SessionRow) else found.record.epoch
        seen = engine.journal.seen(found.id)
        return ActTarget(id=found.id, epoch=epoch, seen=seen, name=found.name)


def warn(rights: Rights, viewer: Viewer, now: float) -> float:
    """Sends the warnings that are due to a viewer; gives the time of the next warning."""
    conn, session, again, watching = viewer.conn, viewer.session.id, FOREVER, FOREVER
    for right in ("observe",) if viewer.observe else ("observe", "input"):
        ends = rights.until(conn.key, right, session, now)
        if ends == FOREVER or ends <= now:
            continue
        if right == "observe":
            watching = ends
        again = min(again, ends, *(ends - before for before in ENDS_SOON_S if ends - before > now))
        passed = min((before for before in ENDS_SOON_S if ends - now <= before), default=None)
        if passed is None or viewer.warned.get(right) == (ends, passed):
            continue
        viewer.warned[right] = (ends, passed)
        if right == "observe" or ends < watching:  # the end of `observe` ends typing too
            grantors = rights.grantors(right, session, now)
            conn.event(
                "ends",
                session=session,
                right=right,
                at=ends,
                in_s=round(ends - now, 1),
                grantors=[name for name in grantors if name != conn.operator][:GRANTORS_NAMED],
            )
    return again
