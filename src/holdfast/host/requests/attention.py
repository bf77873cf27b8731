"""What sessions wait for (S2): one look serves all callers, and none happens while nobody asks.

The start, end, halt and rename of a session are events. Facts that the kernel gives only on request
(the terminal's mode, the reading process) are polled. A round every OBSERVE_INTERVAL_S compares
counters that cost nothing: bytes out and in, processes started and exited. A session with any
change is looked at now and for SETTLE_S longer. A session without change is looked at after
STILL_S: a silent program that turns the echo off gives no other sign. A slow round is followed by a
pause LOOK_SHARE times as long.

A request never gets an old answer: its look begins after the request (`now`), and simultaneous
requests share a look. Looks at a session may overlap; of two, the one that began later counts,
whichever ends first.

The right to observe is checked for every notice. A follower that loses the right gets a last notice
"unknown", or an error if the request named the session. A client that does not read costs one
notice per session, the newest (core/session/notices.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.core.contract.output import Attention as Asked
from holdfast.core.contract.output import AttentionReply
from holdfast.core.policy import execution
from holdfast.core.session.notices import OVER, Notice, Pending, doubtful, news
from holdfast.host.people.rights import FOREVER
from holdfast.host.runtime.connection import Connection
from holdfast.host.runtime.notify import log_error, log_errors
from holdfast.host.runtime.tasks import Tasks
from holdfast.host.runtime.threads import in_slot
from holdfast.host.session.attention_probe import Attention, read_attention
from holdfast.host.session.session import Session
from holdfast.host.storage.store import SessionRow
from holdfast.model.errors import NotFound, Unavailable, Usage
from holdfast.model.limits import OBSERVE_INTERVAL_S, SESSIONS_MAX, KiB

if TYPE_CHECKING:
    from holdfast.host.engine import Engine
    from holdfast.host.requests.host import Context, Host

STILL_S: Final = 0.7  # between looks at a session without change
# looks in every round after a change: a program prints its question before it waits
SETTLE_S: Final = 0.5
SOON_S: Final = 0.02  # between an event and its round, so that simultaneous events share the round
LOOK_SHARE: Final = 2
ENDED_TOLD_MAX: Final = 64  # the newest ended sessions, for a client that begins to follow
ANSWER_S: Final = 1.0  # for a keeper to describe its terminal, which is unknown then
LOOKS_AT_ONCE: Final = 2
# that a reader may leave before the rest waits here, the newest of each session
UNREAD_BYTES: Final = 64 * KiB
RECHECK_MAX_S: Final = 3600.0  # an adjusted clock must not make a right outlive its end by more
NO_ANSWER: Final = Attention("unknown", "its keeper does not answer", "", None, None)
NOT_YOURS: Final = "you may not observe it any more"


class Asking:
    """A request that follows these sessions, or all."""

    def __init__(self, only: frozenset[str] | None) -> None:
        self.only, self.pending, self.woken = only, Pending(), asyncio.Event()

    def wants(self, session: str) -> bool:
        return self.only is None or session in self.only

    def put(self, notice: Notice) -> None:
        self.pending.put(notice)
        self.woken.set()

    def begin_with(self, notice: Notice) -> None:
        """Queue the state at the begin of this request, unless a newer notice of it is queued."""
        self.pending.put_if_none(notice)
        self.woken.set()


class Held(NamedTuple):
    """An act that waits for approval."""

    operator: str
    act: str

    def waits_while(self, kind: str) -> bool:
        """Whether the approval is what a session of this kind waits for.

        A held program belongs to a session that works; other acts wait for the prompt's shell.
        """
        return kind == ("working" if self.act == execution.ACT else "idle")


@dataclass
class _Seen:
    notice: Notice | None = None
    signs: tuple[object, ...] = ()
    looked: float = 0.0  # by the loop's clock
    moved: float = 0.0
    told: int = 0  # the number of the newest look whose result is known
    look: asyncio.Future[Notice] | None = None  # the latest


class AttentionWatch:
    """The looks of a host."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._asking: set[Asking] = set()
        self._seen: dict[str, _Seen] = {}
        # sessions whose end was sent, or came before the first request
        self._prompts: set[str] = set()  # sessions at their prompt, with an act that is held
        self._over: set[str] = set()
        self._stirs: Counter[str] = Counter()  # processes that came and went
        self._woken = asyncio.Event()
        self._rounds: asyncio.Task[None] | None = None
        self._next: dict[str, asyncio.Task[Notice]] = {}  # looks that have not begun
        self._tasks = Tasks(None)
        self._few = asyncio.Semaphore(LOOKS_AT_ONCE)
        # By session: set when its look has ended, or is slow and must not delay other looks.
        self._through: dict[str, asyncio.Event] = {}
        self.looks = 0

    # ------------------------------------------------------------ who asks

    def begin(self, asking: Asking) -> None:
        self._asking.add(asking)
        if self._rounds is None:
            self._over = set(self._engine.ended)
            self._engine.lineages.on_change.append(self._stirred)
            self._engine.events.follow(self._woken.set)
            self._rounds = asyncio.get_running_loop().create_task(self._go_round())

    def finish(self, asking: Asking) -> None:
        """Stops the rounds after the last request."""
        self._asking.discard(asking)
        if not self._asking and self._rounds is not None:
            self._engine.events.unfollow(self._woken.set)
            self._engine.lineages.on_change.remove(self._stirred)
            self._rounds.cancel()
            self._rounds = None
            self._seen.clear()
            self._stirs.clear()

    async def now(self, only: Iterable[str]) -> list[Notice]:
        """The state of these sessions, by looks that begin after the call."""
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

    def _stirred(self, session: Session, *_: object) -> None:
        self._stirs[session.id] += 1

    async def _go_round(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._woken.clear()
            began = loop.time()
            with log_errors("a look at what sessions wait for"):
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
            ring, told = session.ring, (session.state, session.name)
            signs = (ring.head, ring.written, *told, self._stirs[one], len(self._held(one)))
            if signs != seen.signs:
                seen.signs, seen.moved = signs, now
            if (
                not session.ending
                and (now - seen.moved < SETTLE_S or now - seen.looked >= STILL_S)
                and (seen.look is None or seen.look.done())
            ):
                seen.looked = now
                seen.look = asyncio.ensure_future(self._fresh(session))
                seen.look.add_done_callback(_looked)  # a failed look is logged
                due.append(session.id)
        await asyncio.gather(*(self._through[one].wait() for one in due if one in self._through))
        for one in [
            one
            for one in (*self._seen, *(self._engine.ended.keys() - self._over))
            if one not in self._engine.sessions
        ]:
            if (notice := self._elsewhere(one)) is not None:
                self._tell(notice, self.looks)
            if one in self._engine.ended:
                self._over.add(one)
            if one not in self._engine.unreachable:
                self._seen.pop(one, None)
                self._prompts.discard(one)
                self._stirs.pop(one, None)
        if len(self._over) > 2 * len(self._engine.ended):
            self._over &= self._engine.ended.keys()

    # ------------------------------------------------------------ looks

    def _fresh(self, session: Session) -> asyncio.Future[Notice]:
        if (task := self._next.get(session.id)) is None:
            task = self._next[session.id] = self._tasks.spawn(self._look(session))
            self._through[session.id] = asyncio.Event()
        return asyncio.shield(task)

    async def _look(self, session: Session) -> Notice:
        through, me = self._through[session.id], asyncio.current_task()
        try:
            number, found = await in_slot(self._few, self._find(session), through.set)
        finally:
            through.set()
            if self._through.get(session.id) is through:
                del self._through[session.id]
            if self._next.get(session.id) is me:
                del self._next[session.id]
        if session.ended.done() and (over := self._elsewhere(session.id)) is not None:
            return over
        notice = _notice(session, found, self.last(session.id))
        return self._tell(notice, number) if session.id in self._seen else notice

    async def _find(self, session: Session) -> tuple[int, Attention]:
        """The number of this look, in the order of their beginnings, and its result."""
        del self._next[session.id]
        self.looks = number = self.looks + 1
        found, before = await self._read(session), self.last(session.id)
        if doubtful(before, found.kind):
            found = await self._read(session)
        held = [one for one in self._held(session.id) if one.waits_while(found.kind)]
        self._prompts.discard(session.id)
        if held:
            if found.kind == "idle":
                self._prompts.add(session.id)
            found = found._replace(kind="approval", why=_awaited(held))
        return number, found

    def is_ready(self, notice: Notice) -> bool:
        """Whether the shell is at its prompt, also while an act waits for approval."""
        return notice.kind == "idle" or (
            notice.kind == "approval" and notice.session in self._prompts
        )

    async def _read(self, session: Session) -> Attention:
        if not session.answers:
            return NO_ANSWER
        try:
            async with asyncio.timeout(ANSWER_S):
                state = await session.marks_seen()
            return await read_attention(session, state)
        except (Unavailable, TimeoutError, OSError):
            return NO_ANSWER

    def _held(self, session: str) -> list[Held]:
        """The acts in a session that wait for approval, and the programs that the gate holds."""
        return [
            Held(p.binding.operator, p.binding.act)
            for p in self._engine.held_acts.approvals.open.values()
            if p.binding.session == session and p.state == "waiting"
        ]

    def _elsewhere(self, session: str) -> Notice | None:
        """The notice of a session that does not run here now."""
        engine = self._engine
        if (record := engine.ended.get(session)) is not None:
            return over(record)
        if session in engine.unreachable:
            known, before = engine.unreached.get(session), self.last(session)
            since = before.since if before is not None and before.kind == "unknown" else time.time()
            name = known.name if known is not None else ""
            return _unknown(session, name, engine.unreachable[session], since)
        return None

    def _tell(self, notice: Notice, look: int) -> Notice:
        """Tells all requests the result of a look; returns the notice that now holds."""
        seen = self._seen.get(notice.session)
        if seen is not None:
            if look < seen.told and seen.notice is not None:
                return seen.notice  # a look that began later was quicker
            seen.told = look
        if not news(seen.notice if seen is not None else None, notice):
            return notice
        if seen is not None:
            seen.notice = notice
        for asking in self._asking:
            if asking.wants(notice.session):
                asking.put(notice)
        return notice


def _awaited(held: list[Held]) -> str:
    """What waits for approval, in words."""
    if held[0].act == execution.ACT:
        return (
            "a program that it would start waits for approval"
            if len(held) == 1
            else f"{len(held)} programs that it would start wait for approval"
        )
    if len(held) == 1:
        return f"the {held[0].act} of {held[0].operator} is held"
    return f"{len(held)} acts are held"


def _looked(look: asyncio.Future[Notice]) -> None:
    if not look.cancelled() and isinstance(error := look.exception(), Exception):
        log_error("a look at what a session waits for", error)


def over(record: SessionRow) -> Notice:
    kind = "lost" if record.reason.startswith("lost") else "exited"
    return Notice(
        record.id, record.name, kind, record.reason, None, record.ended or 0.0, "", record.exit_code
    )


def _unknown(session: str, name: str, why: str, since: float) -> Notice:
    return Notice(session, name, "unknown", why, None, since, "", None)


def _notice(session: Session, found: Attention, before: Notice | None) -> Notice:
    now, facts = time.time(), (found.kind, found.why, found.pid)
    made = Notice(session.id, session.name, *facts, now, found.foreground, None)
    if before is not None:
        if not news(before._replace(name=made.name), made):
            return made._replace(since=before.since)
        return made
    if found.kind == "working" and found.started is not None:
        booted = now - time.clock_gettime(time.CLOCK_BOOTTIME)
        return made._replace(since=min(now, booted + found.started))
    if found.kind in ("idle", "input", "secret"):
        return made._replace(since=now - max(0.0, time.monotonic() - session.last_activity))
    return made


# ---------------------------------------------------------------- the operation


async def attention(host: Host, ctx: Context, q: Asked) -> AttentionReply:
    """Reports the named sessions, or all visible ones; with `follow`, every change."""
    only = _named(host, ctx.conn, q.sessions)
    if q.follow:
        notices = await _Reader(host, ctx.conn, ctx.number, only).follow()
    else:
        known = (one for one in host.attention_watch.known() if host.may_observe(ctx.conn, one))
        notices = await host.attention_watch.now(only if only is not None else list(known))
    return AttentionReply(attention=tuple(n.facts() for n in notices))


def _named(host: Host, conn: Connection, words: tuple[str, ...]) -> list[str] | None:
    if not words:
        return None
    if len(words) > SESSIONS_MAX:
        raise Usage(
            "`sessions` is a list of names",
            f"at most {SESSIONS_MAX}; none means all that you may observe",
        )
    found = list(dict.fromkeys(_find(host, host.meant(conn, word)) for word in words))
    for one in found:
        host.require(conn, "observe", one)
    return found


def _find(host: Host, word: str) -> str:
    """Finds a session by id or name, including sessions whose keeper does not answer."""
    engine = host.engine
    known = engine.session_names()
    silent = next((i for i in engine.unreachable if word in (i, known[i])), None)
    return silent if silent is not None else engine.find_any(word).id


class _Reader:
    """A following request of one connection."""

    def __init__(self, host: Host, conn: Connection, number: int, only: list[str] | None) -> None:
        self._host, self._conn, self._number, self._only = host, conn, number, only
        self._asking = Asking(frozenset(only) if only is not None else None)
        self._told: dict[str, Notice] = {}
        self._check_due = True

    async def follow(self) -> list[Notice]:
        """Returns when all named sessions have ended; for all sessions, never."""
        attention_watch, authority = self._host.attention_watch, self._host.engine.authority
        attention_watch.begin(self._asking)
        authority.on_change.append(self._rights_changed)
        try:
            # a client that followed the last host may take an ended session for running
            ended = sorted(self._host.engine.ended.values(), key=lambda one: one.ended or 0.0)
            for record in ended[-ENDED_TOLD_MAX:] if self._only is None else ():
                if self._host.may_observe(self._conn, record.id):
                    self._conn.event("over", request=self._number, body=over(record).facts())
            for notice in await attention_watch.now(
                self._only if self._only is not None else attention_watch.known()
            ):
                self._asking.begin_with(notice)
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
            attention_watch.finish(self._asking)

    def _tell(self) -> None:
        if self._check_due:
            self._check()
        pending = self._asking.pending
        for notice in pending.take() if self._conn.unread < UNREAD_BYTES else ():
            if self._host.may_observe(self._conn, notice.session) and news(
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
            del self._told[notice.session]  # the last notice of this session

    def _check(self) -> None:
        """Rights may end during the request, by revocation or by expiry."""
        self._check_due = False
        if self._only is not None:
            for one in self._only:
                self._host.require(self._conn, "observe", one)
            return
        for one in [one for one in self._told if not self._host.may_observe(self._conn, one)]:
            last = self._told.pop(one)
            notice = _unknown(one, last.name, NOT_YOURS, time.time())
            self._conn.event("attention", request=self._number, body=notice.facts())

    def _rights_changed(self) -> None:
        """Some may be seen now that could not be before."""
        for one in self._host.attention_watch.known() if self._only is None else ():
            if one not in self._told and (last := self._host.attention_watch.last(one)) is not None:
                self._asking.pending.put(last)
        self._check_due = True
        self._asking.woken.set()

    def _patience(self) -> float | None:
        """How long to sleep: until a right ends, or until the client may have read."""
        if self._asking.pending and self._conn.unread >= UNREAD_BYTES:
            return OBSERVE_INTERVAL_S
        authority, now = self._host.engine.authority, time.time()
        first = min(
            (
                authority.until(self._conn.key, "observe", one, now)
                for one in (self._only if self._only is not None else self._told)
            ),
            default=FOREVER,
        )
        return min(max(0.01, first - now), RECHECK_MAX_S) if first < FOREVER else None


async def until(attention_watch: AttentionWatch, session: Session, kind: str) -> Notice:
    """Returns when the session waits for that; NotFound if the session ends before."""
    asking = Asking(frozenset((session.id,)))
    attention_watch.begin(asking)
    try:
        for notice in await attention_watch.now([session.id]):
            asking.begin_with(notice)
        while True:
            for notice in asking.pending.take():
                if notice.kind == kind or (kind == "idle" and attention_watch.is_ready(notice)):
                    return notice
            if session.ended.done():
                raise NotFound(f"session {session.name} has ended", "`holdfast ls --all`")
            woken = asyncio.ensure_future(asking.woken.wait())
            await session.or_end(woken)
            woken.cancel()
            asking.woken.clear()
    finally:
        attention_watch.finish(asking)
