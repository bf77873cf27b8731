"""Tells those who asked what sessions wait for (S2): one look for all of them, and none while nobody asks.

That a session began, ended, was halted or renamed comes as an event. What the kernel tells only when it is asked (the terminal's mode, who reads it) is looked at. A round every OBSERVE_INTERVAL_S
compares what costs nothing to know: how much was put out and taken in, which processes came and went. Where any of that moved, it is looked at once, and for a moment longer; where all is still, STILL_S after the last look:
that a silent program turns the echo off has no other sign. A round that takes long is followed by a pause LOOK_SHARE times as long.

The last answer is never given for a new one: whoever asks is told what a look says that began after the question (`now`), many at the same time by the same look.

Whoever may not observe a session is not told of it, and that is asked when it is told, not when they came. Who may not any more is told "unknown" as the last of it, or, having named it, is
refused. A reader that does not read costs what it has not been told: the newest notice of each session (core/noticing.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from holdfast.core import execution
from holdfast.core.noticing import OVER, Notice, Pending, doubtful, news
from holdfast.host.attending import Attended, attended
from holdfast.host.connection import Connection
from holdfast.host.session import Session
from holdfast.host.standing import FOREVER
from holdfast.host.store import Record
from holdfast.host.telling import anyway, failed
from holdfast.host.threads import briefly
from holdfast.model.errors import NotFound, Unavailable, Usage
from holdfast.model.limits import OBSERVE_INTERVAL_S, SESSIONS_MAX, KiB

if TYPE_CHECKING:
    from holdfast.host.engine import Engine
    from holdfast.host.ops import Ops

STILL_S: Final = 0.7  # between looks at a session where nothing moves
SETTLE_S: Final = 0.5  # after something moved it is looked at in every round: a program prints its question before it waits for the answer
SOON_S: Final = 0.02  # between an event and the round it begins: more come together
LOOK_SHARE: Final = 2
ENDED_TOLD_MAX: Final = 64  # to whoever begins to follow: the newest
ANSWER_S: Final = 1.0  # for a keeper to say how its terminal is; it is unknown then
LOOKS_AT_ONCE: Final = 2
UNREAD_BYTES: Final = (
    64 * KiB
)  # that a reader may leave before the rest waits here, the newest of each session
RECHECK_MAX_S: Final = 3600.0  # a clock that is set must not make a right outlive its end by more
NO_ANSWER: Final = Attended("unknown", "its keeper does not answer", "", None, None)
NOT_YOURS: Final = "you may not observe it any more"


class Asking:
    """One who wants to be told: of these sessions, or of all that there are."""

    def __init__(self, only: frozenset[str] | None) -> None:
        self.only, self.pending, self.woken = only, Pending(), asyncio.Event()

    def wants(self, session: str) -> bool:
        return self.only is None or session in self.only

    def put(self, notice: Notice) -> None:
        self.pending.put(notice)
        self.woken.set()


@dataclass
class _Seen:
    notice: Notice | None = None
    signs: tuple[Any, ...] = ()
    looked: float = 0.0  # by the loop's clock
    moved: float = 0.0
    look: asyncio.Future[Notice] | None = None  # the last one


class Noticing:
    """One per host."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._asking: set[Asking] = set()
        self._seen: dict[str, _Seen] = {}
        self._over: set[str] = set()  # whose end was told, or came before anybody asked
        self._stirs: Counter[str] = Counter()  # processes that came and went
        self._woken = asyncio.Event()
        self._rounds: asyncio.Task[None] | None = None
        self._next: dict[str, asyncio.Task[Notice]] = {}  # looks that have not begun
        self._tasks: set[asyncio.Task[Notice]] = set()
        self._few = asyncio.Semaphore(LOOKS_AT_ONCE)
        self._through: dict[
            str, asyncio.Event
        ] = {}  # of a look: others need not wait for it any more
        self.looks = 0

    # ------------------------------------------------------------ who asks

    def begin(self, asking: Asking) -> None:
        self._asking.add(asking)
        if self._rounds is None:
            self._over = set(self._engine.ended)
            self._engine.kin.on_change.append(self._stirred)
            self._engine.events.follow(self._woken.set)
            self._rounds = asyncio.get_running_loop().create_task(self._go_round())

    def finish(self, asking: Asking) -> None:
        """Nothing wakes up any more when nobody asks."""
        self._asking.discard(asking)
        if not self._asking and self._rounds is not None:
            self._engine.events.unfollow(self._woken.set)
            self._engine.kin.on_change.remove(self._stirred)
            self._rounds.cancel()
            self._rounds = None
            self._seen.clear()
            self._stirs.clear()

    async def now(self, only: Iterable[str]) -> list[Notice]:
        """As it is, by looks that begin after this was asked."""
        looked_at = [
            found
            for one in only
            if (found := self._engine.sessions.get(one)) is not None and not found.ending
        ]
        notices = {
            n.session: n
            for n in await asyncio.gather(*(self._fresh(session) for session in looked_at))
        }
        return [n for one in only if (n := notices.get(one) or self._elsewhere(one)) is not None]

    def known(self) -> list[str]:
        """Sessions that are there, or may be."""
        return [*self._engine.sessions, *self._engine.unreachable]

    def last(self, session: str) -> Notice | None:
        seen = self._seen.get(session)
        return seen.notice if seen is not None else None

    # ------------------------------------------------------------ rounds

    def _stirred(self, session: Session, *_: Any) -> None:
        self._stirs[session.id] += 1

    async def _go_round(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._woken.clear()
            began = loop.time()
            with anyway("a look at what sessions wait for"):
                await self._round(began)
            pause = (loop.time() - began) * LOOK_SHARE
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(OBSERVE_INTERVAL_S, pause)):
                    await self._woken.wait()
                    await asyncio.sleep(max(SOON_S, pause))

    async def _round(self, now: float) -> None:
        due = []
        for one in [
            one
            for one in self._engine.sessions
            if any(asking.wants(one) for asking in self._asking)
        ]:
            session, seen = self._engine.sessions[one], self._seen.setdefault(one, _Seen())
            signs = (
                session.ring.head,
                session.ring.written,
                session.state,
                session.name,
                self._stirs[one],
                self._held(one),
            )
            if signs != seen.signs:
                seen.signs, seen.moved = signs, now
            if (
                not session.ending
                and (now - seen.moved < SETTLE_S or now - seen.looked >= STILL_S)
                and (seen.look is None or seen.look.done())
            ):
                seen.looked = now
                seen.look = asyncio.ensure_future(self._fresh(session))
                seen.look.add_done_callback(_looked)  # the others are told
                due.append(session.id)
        await asyncio.gather(*(self._through[one].wait() for one in due if one in self._through))
        for one in [
            one
            for one in (*self._seen, *(self._engine.ended.keys() - self._over))
            if one not in self._engine.sessions
        ]:
            if (notice := self._elsewhere(one)) is not None:
                self._tell(notice)
            if one in self._engine.ended:
                self._over.add(one)
            if one not in self._engine.unreachable:
                self._seen.pop(one, None)
                self._stirs.pop(one, None)
        if len(self._over) > 2 * len(self._engine.ended):
            self._over &= self._engine.ended.keys()

    # ------------------------------------------------------------ looks

    def _fresh(self, session: Session) -> asyncio.Future[Notice]:
        if (task := self._next.get(session.id)) is None:
            task = self._next[session.id] = session.loop.create_task(self._look(session))
            self._through[session.id] = asyncio.Event()
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return asyncio.shield(task)

    async def _look(self, session: Session) -> Notice:
        through, me = self._through[session.id], asyncio.current_task()
        try:
            found = await briefly(self._few, self._find(session), through.set)
        finally:
            through.set()
            if self._through.get(session.id) is through:
                del self._through[session.id]
            if self._next.get(session.id) is me:
                del self._next[session.id]
        if session.ended.done() and (over := self._elsewhere(session.id)) is not None:
            return over
        notice = _notice(session, found, self.last(session.id))
        if session.id in self._seen:
            self._tell(notice)
        return notice

    async def _find(self, session: Session) -> Attended:
        del self._next[session.id]
        self.looks += 1
        found, before = await self._read(session), self.last(session.id)
        if doubtful(before, found.kind):
            found = await self._read(session)
        if found.kind == "working" and (held := self._held(session.id)):
            return found._replace(
                kind="approval",
                why="a program that it would start waits for approval"
                if held == 1
                else f"{held} programs that it would start wait for approval",
            )
        return found

    async def _read(self, session: Session) -> Attended:
        if not session.answers:
            return NO_ANSWER
        try:
            async with asyncio.timeout(ANSWER_S):
                state = await session.marks_seen()
            return await attended(session, state)
        except (Unavailable, TimeoutError, OSError):
            return NO_ANSWER

    def _held(self, session: str) -> int:
        """Programs that wait in the kernel until somebody has decided."""
        return sum(
            p.binding.session == session and p.binding.act == execution.ACT and p.state == "waiting"
            for p in self._engine.desk.approvals.open.values()
        )

    def _elsewhere(self, session: str) -> Notice | None:
        """Of one that is not among the living."""
        engine = self._engine
        if (record := engine.ended.get(session)) is not None:
            return over(record)
        if session in engine.unreachable:
            known, before = engine.unreached.get(session), self.last(session)
            since = before.since if before is not None and before.kind == "unknown" else time.time()
            return Notice(
                session,
                known.name if known is not None else "",
                "unknown",
                engine.unreachable[session],
                None,
                since,
                "",
                None,
            )
        return None

    def _tell(self, notice: Notice) -> None:
        seen = self._seen.get(notice.session)
        if not news(seen.notice if seen is not None else None, notice):
            return
        if seen is not None:
            seen.notice = notice
        for asking in self._asking:
            if asking.wants(notice.session):
                asking.put(notice)


def _looked(look: asyncio.Future[Notice]) -> None:
    if not look.cancelled() and isinstance(error := look.exception(), Exception):
        failed("a look at what a session waits for", error)


def over(record: Record) -> Notice:
    kind = "lost" if record.reason.startswith("lost") else "exited"
    return Notice(
        record.id, record.name, kind, record.reason, None, record.ended or 0.0, "", record.exit_code
    )


def _notice(session: Session, found: Attended, before: Notice | None) -> Notice:
    made = Notice(
        session.id,
        session.name,
        found.kind,
        found.why,
        found.pid,
        time.time(),
        found.foreground,
        None,
    )
    if before is not None:
        return (
            made._replace(since=before.since)
            if not news(before._replace(name=made.name), made)
            else made
        )
    if found.kind == "working" and found.started is not None:
        return made._replace(
            since=min(
                made.since, made.since - time.clock_gettime(time.CLOCK_BOOTTIME) + found.started
            )
        )
    quiet = (
        max(0.0, time.monotonic() - session.last_activity)
        if found.kind in ("idle", "input", "secret")
        else 0.0
    )
    return made._replace(since=made.since - quiet)


# ---------------------------------------------------------------- the operation


async def attention(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    """What the named sessions wait for, or all that may be seen; with `follow`, every change of it."""
    only = _named(ops, conn, q["sessions"])
    if q["follow"]:
        return {"attention": [n.facts() for n in await _Reader(ops, conn, number, only).follow()]}
    notices = await ops.noticing.now(
        only if only is not None else [one for one in ops.noticing.known() if _may(ops, conn, one)]
    )
    return {"attention": [n.facts() for n in notices]}


def _named(ops: Ops, conn: Connection, words: list[Any]) -> list[str] | None:
    if not words:
        return None
    if len(words) > SESSIONS_MAX or not all(isinstance(word, str) for word in words):
        raise Usage(
            "`sessions` is a list of names",
            f"at most {SESSIONS_MAX}; none means all that you may observe",
        )
    found = list(dict.fromkeys(_find(ops, word) for word in words))
    for one in found:
        ops.may(conn, "observe", one)
    return found


def _find(ops: Ops, word: str) -> str:
    """Also one whose keeper does not answer: that it cannot be looked at is what is told of it."""
    engine = ops.engine
    silent = next(
        (
            i
            for i in engine.unreachable
            if word in (i, engine.unreached[i].name if i in engine.unreached else i)
        ),
        None,
    )
    return silent if silent is not None else engine.find_any(word).id


def _may(ops: Ops, conn: Connection, session: str) -> bool:
    return "observe" in ops.engine.authority.rights_of(conn.key, session, time.time())


class _Reader:
    """One who follows, through one connection."""

    def __init__(self, ops: Ops, conn: Connection, number: int, only: list[str] | None) -> None:
        self._ops, self._conn, self._number, self._only = ops, conn, number, only
        self._asking = Asking(frozenset(only) if only is not None else None)
        self._told: dict[str, Notice] = {}
        self._check_due = True

    async def follow(self) -> list[Notice]:
        """Until all that were named have ended. Who follows all is told of those that come, too, until it goes."""
        noticing, authority = self._ops.noticing, self._ops.engine.authority
        noticing.begin(self._asking)
        authority.on_change.append(self._rights_changed)
        try:
            for record in (
                sorted(self._ops.engine.ended.values(), key=lambda one: one.ended or 0.0)[
                    -ENDED_TOLD_MAX:
                ]
                if self._only is None
                else ()
            ):
                if _may(
                    self._ops, self._conn, record.id
                ):  # who followed another host knows it as running, perhaps
                    self._conn.event("over", request=self._number, body=over(record).facts())
            for notice in await noticing.now(
                self._only if self._only is not None else noticing.known()
            ):
                self._asking.put(notice)
            while True:
                self._tell()
                if self._only is not None and all(
                    one in self._told and self._told[one].kind in OVER for one in self._only
                ):
                    return [self._told[one] for one in self._only]
                try:
                    async with asyncio.timeout(self._patience()):
                        await self._asking.woken.wait()
                        self._asking.woken.clear()
                except TimeoutError:
                    self._check_due = True
        finally:
            authority.on_change.remove(self._rights_changed)
            noticing.finish(self._asking)

    def _tell(self) -> None:
        if self._check_due:
            self._check()
        pending = self._asking.pending
        for notice in pending.take() if self._conn.unread < UNREAD_BYTES else ():
            if _may(self._ops, self._conn, notice.session) and news(
                self._told.get(notice.session), notice
            ):
                self._say(notice)
            if self._conn.unread >= UNREAD_BYTES:
                break
        if pending.missed and self._conn.unread < UNREAD_BYTES:
            self._conn.event("missed", request=self._number, count=pending.missed)
            pending.missed = 0

    def _say(self, notice: Notice) -> None:
        self._conn.event("attention", request=self._number, body=notice.facts())
        self._told[notice.session] = notice
        if self._only is None and notice.kind in OVER:
            del self._told[notice.session]  # nothing more comes of it

    def _check(self) -> None:
        """Rights end while somebody follows: by being revoked, or by themselves."""
        self._check_due = False
        if self._only is not None:
            for one in self._only:
                self._ops.may(self._conn, "observe", one)
            return
        for one in [one for one in self._told if not _may(self._ops, self._conn, one)]:
            last = self._told.pop(one)
            self._conn.event(
                "attention",
                request=self._number,
                body=Notice(
                    one, last.name, "unknown", NOT_YOURS, None, time.time(), "", None
                ).facts(),
            )

    def _rights_changed(self) -> None:
        """Some may be seen now that could not be before."""
        for one in self._ops.noticing.known() if self._only is None else ():
            if one not in self._told and (last := self._ops.noticing.last(one)) is not None:
                self._asking.pending.put(last)
        self._check_due = True
        self._asking.woken.set()

    def _patience(self) -> float | None:
        """Until the first of its rights runs out; while it does not read, until it is looked whether it does."""
        if self._asking.pending and self._conn.unread >= UNREAD_BYTES:
            return OBSERVE_INTERVAL_S
        authority, now = self._ops.engine.authority, time.time()
        first = min(
            (
                authority.until(self._conn.key, "observe", one, now)
                for one in (self._only if self._only is not None else self._told)
            ),
            default=FOREVER,
        )
        return min(max(0.01, first - now), RECHECK_MAX_S) if first < FOREVER else None


async def until(noticing: Noticing, session: Session, kind: str) -> Notice:
    """When it is so; NotFound if it has ended before."""
    asking = Asking(frozenset((session.id,)))
    noticing.begin(asking)
    try:
        for notice in await noticing.now([session.id]):
            asking.put(notice)
        while True:
            for notice in asking.pending.take():
                if notice.kind == kind:
                    return notice
            if session.ended.done():
                raise NotFound(f"session {session.name} has ended", "`holdfast ls --all`")
            woken = asyncio.ensure_future(asking.woken.wait())
            await session.or_end(woken)
            woken.cancel()
            asking.woken.clear()
    finally:
        noticing.finish(asking)
