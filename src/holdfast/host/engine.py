"""All sessions of this host: finding them again, making them, keeping the ended ones, naming them.

Sequences only. The truth about a running session is its keeper; the store remembers names, ends and events. After any
death of the host the keepers' sockets in the run directory are enough to have every session again.

A keeper that exists and does not answer (stopped, swapped out) holds up nobody: its session is "unknown", and asked again
until it answers or is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from holdfast.core import session as lifecycle
from holdfast.core.record import MACHINE
from holdfast.core.turn import POLICIES
from holdfast.home import Home, keys
from holdfast.home.config import Settings
from holdfast.host import execgate, making, names, process, store
from holdfast.host.aftermath import Aftermath
from holdfast.host.approvals import Desk
from holdfast.host.authority import Authority
from holdfast.host.burying import bury
from holdfast.host.devices import Devices
from holdfast.host.door import Door
from holdfast.host.events import Events
from holdfast.host.gate import Gate
from holdfast.host.halt import Halter, execution
from holdfast.host.invitations import Invitations
from holdfast.host.journal import Journal
from holdfast.host.keeperlink import KeeperLink, StaleTerm
from holdfast.host.keyboard import Keyboard
from holdfast.host.lineage import Kin
from holdfast.host.making import KEEPER_SUFFIX
from holdfast.host.nursery import Nursery
from holdfast.host.plugins import discover
from holdfast.host.recordagain import go_on_recording, retain
from holdfast.host.session import Session
from holdfast.host.shaping import Shapes
from holdfast.host.store import Record, Store
from holdfast.host.tally import Tally
from holdfast.host.telling import tell
from holdfast.host.threads import Threads
from holdfast.host.uplinks import Uplinks
from holdfast.host.writers import Writers
from holdfast.model import ids
from holdfast.model.errors import HoldfastError, NotFound, PeerFault, Refused, Unavailable
from holdfast.model.limits import (
    ENDED_KEPT_COUNT,
    SESSIONS_MAX,
    SPAWN_WAIT_S,
)
from holdfast.model.probe import probe
from holdfast.transport import unix

ADOPT_WAIT_S = (
    2.0  # for a keeper's answer at the start: within the time a client waits for a new host
)
ADOPT_AGAIN_S, ADOPT_AGAIN_MAX_S = 0.5, 30.0
TERM_MAX = 1 << 62  # far from what fits into the wire and the store; only a stranger names more
BURY_WAIT_S = 3.0  # before leaving: for what has just ended to be recorded


class Engine:
    def __init__(self, home: Home, settings: Settings, database: Store) -> None:
        self.home = home
        self.settings = settings
        self.store = database
        self.events = Events(database)
        self.term = database.next_term()
        machine = keys.machine(home, time.time())
        self.authority = Authority(database, machine, self.events.count)
        self.journal = Journal(database, machine.secret())
        self.invitations = Invitations(database, self.authority, self._invitations_changed)
        self.devices = Devices(database, self.authority)
        self.uplinks = Uplinks(
            home, machine, self.authority, self.invitations.passes, self.invitations.awaited
        )
        self.boot = process.boot_id()
        self.sessions: dict[str, Session] = {}
        self.ended: dict[str, Record] = {}
        self.unreachable: dict[
            str, str
        ] = {}  # keepers that do not answer, and why: neither alive nor dead, "unknown"
        self.unreached: dict[str, Record] = {}  # what the store knows of those
        self.nursery = Nursery(home.run)
        self.halter = Halter(
            home.state,
            lambda: (self.nursery.pid, *(s.keeper_pid for s in tuple(self.sessions.values()))),
        )
        self.nursery.on_found = lambda pid: self.halter.groups.beside(pid, bool(self.nursery.apart))
        self.kin = Kin()
        self.tally = Tally()
        self.aftermath = Aftermath(self)
        self.writers = Writers(self.kin, home.state)
        self.shapes = Shapes(self.sessions.get, self.writers.all)
        self.pool = ThreadPoolExecutor(1, "view")
        self.threads = Threads("sessions")
        self._creating: dict[
            str, asyncio.Future[None]
        ] = {}  # by name: done when the session is there, or is not to be
        self._tasks: set[asyncio.Task[None]] = set()
        self._burying: set[asyncio.Task[None]] = set()
        self.gate = Gate(
            home.policy,
            discover(),
            on_policy=self._policy_changed,
            private=(home.state, os.path.dirname(home.config)),
        )
        self.gate.touched = self.shapes.touched
        self.desk = Desk(self.gate, database, self._asked_about, self.authority.approves)
        self.door = Door(self.journal, self.desk, self.events.note)
        self.execgate = execgate.ExecGate(
            self.gate,
            self.desk,
            self.authority,
            self.journal,
            self.kin,
            self.halter,
            self.shapes.kinds,
        )
        self.authority.on_change.append(lambda: self.desk.keys_changed(self.authority.counts))
        self.on_broken: Callable[[], None] = lambda: None  # clients must connect anew
        self.still_ours: Callable[[], bool] = lambda: (
            True
        )  # this home: somebody may have removed our lock and started another host
        self.on_superseded: Callable[[], None] = lambda: None

    # ------------------------------------------------------------ finding sessions again

    async def adopt_all(self) -> None:
        """Every keeper of this home, again; what has no keeper any more is said to be lost."""
        await self.halter.in_thread(self.halter.groups.leave)
        self.kin.open()
        self.shapes.open()
        known = {r.id: r for r in self.store.records()}
        found = [
            n.removesuffix(KEEPER_SUFFIX)
            for n in sorted(os.listdir(self.home.run))
            if n.endswith(KEEPER_SUFFIX)
        ]
        for session_id, error in zip(
            found,
            await asyncio.gather(*(self._adopt(i, known) for i in found), return_exceptions=True),
            strict=True,
        ):
            if (
                isinstance(error, BaseException) and session_id not in self.sessions
            ):  # of one keeper: the others are not to suffer for it
                self.unreachable[session_id] = (
                    f"its keeper's answer is odd: {type(error).__name__}: {error}"
                )
        for record in known.values():
            if record.id not in self.sessions and record.id not in self.unreachable:
                self._is_gone(record)
        for damaged in await go_on_recording(self.journal, self.door, self.sessions):
            self.events.note(damaged, "record.damaged", {})
        self._spawn(retain(self.journal, self.settings.record_days))
        self._sweep()
        await self.halter.in_thread(self.halter.groups.sweep, {*self.sessions, *self.unreachable})
        self.forget_old()
        self.desk.begin(
            {i: s.record.epoch for i, s in self.sessions.items()} | dict.fromkeys(self.unreachable),
            self.authority.counts,
        )

    def _is_gone(self, record: Record) -> None:
        """It has no keeper: it ended before, or it is lost."""
        if lifecycle.running(record.state):
            reason = (
                "lost: the machine was restarted"
                if record.boot != self.boot
                else "lost: its keeper died"
                if record.state != "creating"
                else "lost: the host died while making it"
            )
            record.ended, record.reason, record.state = time.time(), reason, "ended"
            self.events.note(record.id, "session.lost", {"reason": reason})
            self.store.post(store.save(record))
        self.ended[record.id] = record
        self.desk.session_changed(record.id, None)

    def _sweep(self) -> None:
        """Private files of sessions that are no more."""
        with contextlib.suppress(OSError):
            for name in {
                name
                for each in (making.SHARED, making.MEMORY)
                if os.path.isdir(f"{self.home.run}/{each}")
                for name in os.listdir(f"{self.home.run}/{each}")
            }:
                if name not in self.sessions and name not in self.unreachable:
                    making.remove(self.home, name)

    async def _adopt(self, session_id: str, known: dict[str, Record]) -> None:
        path = f"{self.home.run}/{session_id}{KEEPER_SUFFIX}"
        try:
            link = await self._claim(path, ADOPT_WAIT_S)
        except (FileNotFoundError, ConnectionRefusedError):
            self.unreachable.pop(session_id, None)  # a keeper that is no more
            with contextlib.suppress(OSError):
                os.unlink(path)
            return
        except (HoldfastError, OSError) as e:
            if session_id not in self.unreachable:
                self._spawn(self._ask_again(session_id, known))
            self.unreachable[session_id] = e.message if isinstance(e, HoldfastError) else str(e)
            if session_id in known:
                self.unreached[session_id] = known[session_id]
            return
        self.unreachable.pop(session_id, None)
        self.unreached.pop(session_id, None)
        try:
            await self._adopt_claimed(session_id, known, link)
        except Exception:
            if session_id not in self.sessions:
                link.dispose()
                if session_id in known:
                    self.unreached[session_id] = known[session_id]
            raise

    async def _adopt_claimed(
        self, session_id: str, known: dict[str, Record], link: KeeperLink
    ) -> None:
        try:
            label = json.loads(link.welcome.label)
        except ValueError:
            label = {}
        if not isinstance(label, dict):
            label = {}
        record = known.get(session_id) or Record(
            session_id,
            str(label.get("name", session_id)),
            "detached",
            link.welcome.epoch,
            link.welcome.created_ns / 1e9,
            list(label.get("argv", [])),
            str(label.get("cwd", "")),
            self.boot,
        )
        record.state = "detached"
        record.name = str(label.get("name", record.name))
        probe("host.keeper.claimed")
        session = self._take(record, link, label)
        session.pace.await_return(record.viewers)
        if await self._look(session, adopted=True) is not None:
            record.state = "halted"  # its processes were stopped before this host came
        self.events.note(
            session_id,
            "session.adopted",
            {
                "term": self.term,
                "root_pid": record.root_pid,
                "output": [link.ring.start, link.ring.head],
            },
        )

    async def _ask_again(self, session_id: str, known: dict[str, Record]) -> None:
        pause = ADOPT_AGAIN_S
        while session_id in self.unreachable or pause == ADOPT_AGAIN_S:
            await asyncio.sleep(pause)
            pause = min(pause * 2, ADOPT_AGAIN_MAX_S)
            await self._adopt(session_id, known)
        self.reachable()
        if (
            record := self.unreached.pop(session_id, None)
        ) is not None and session_id not in self.sessions:
            self._is_gone(record)

    def reachable(self) -> None:
        """Clients can come back to what was found."""
        for session in self.sessions.values():
            session.pace.reachable()

    async def _claim(self, path: str, wait_s: float = SPAWN_WAIT_S) -> KeeperLink:
        for _ in range(3):
            try:
                return await KeeperLink.open(path, self.term, wait_s)
            except StaleTerm as e:  # the store lost its memory of terms: go above
                if e.term >= TERM_MAX:
                    raise PeerFault(
                        f"the keeper listens to no host below term {e.term}, which none reaches",
                        "end its program",
                    ) from e
                self.term = max(self.term, e.term + 1)
                self.store.post(store.raise_term(self.term))
        raise Unavailable("another host claims the same keeper")

    def _take(self, record: Record, link: KeeperLink, label: dict[str, Any]) -> Session:
        w = link.welcome
        record.root_pid, record.root_start, record.epoch = w.root_pid, w.root_start, w.epoch
        _, record.cols, record.rows = link.ring.resized
        session = Session(
            record,
            link,
            label,
            making.directory(self.home, record.id),
            making.memory(self.home, record.id),
            self.pool,
            self.threads,
            self._session_event,
            link.peer_pid,
        )
        session.keyboard = Keyboard(session, self.journal, self.authority, self.gate)
        session.pace.window_s = self.settings.pace_s
        session.turn.rules.idle_s, session.turn.rules.policy = (
            self.settings.turn_idle_s,
            POLICIES[self.settings.turn_policy],
        )
        session.on_company = lambda: self.store.post(store.save(record))
        self.sessions[record.id] = session
        self.desk.session_changed(record.id, record.epoch)
        session.ended.add_done_callback(lambda _: self._over(session))
        tell((one.begin for one in (self.kin, self.tally, self.aftermath, self.shapes)), session)
        session.on_link_lost = lambda: self._spawn(self._reclaim(session))
        return session

    async def _look(self, session: Session, adopted: bool = False) -> str | None:
        """How it is laid out and can be halted, from the kernel, and how deep it is gated; and how it is halted, if it is."""
        session.layout = await self.halter.layout(execution(session))
        session.layout |= await self.execgate.look(session, adopted)
        return await self.halter.halted(execution(session))

    async def _reclaim(self, session: Session) -> None:
        """The link to a keeper broke. If it is alive, it is claimed again, as after a restart of the host: clients come back by
        themselves and go on where they were. Otherwise the session is lost."""
        record = session.record
        if not self.still_ours():
            return self.on_superseded()
        try:
            unix.connect(
                f"{self.home.run}/{record.id}{KEEPER_SUFFIX}", socket.SOCK_SEQPACKET
            ).close()
        except OSError:
            return session.lost()
        self.sessions.pop(record.id, None)
        self.unreachable[record.id], self.unreached[record.id] = "it is being claimed again", record
        self.on_broken()
        self._leave(session)
        await session.dispose()
        probe("host.reclaiming")
        known = {record.id: record}
        await self._adopt(record.id, known)
        self.reachable()
        if record.id in self.unreachable:
            self._spawn(self._ask_again(record.id, known))
        elif record.id not in self.sessions:
            self._is_gone(record)
        self.events.note(record.id, "session.reclaimed", {"term": self.term})

    # ------------------------------------------------------------ making one

    async def create(self, request: dict[str, Any], operator: str) -> Session:
        if len(self.sessions) >= SESSIONS_MAX:
            raise Refused(f"{SESSIONS_MAX} sessions run already", "end some")
        session_id = ids.session_id(secrets.token_bytes(8))
        name = request.get("name") or names.free(
            request["argv"], {*self._names().values(), *self._creating}
        )
        self._reserve(name)
        try:
            return await self._create(session_id, name, request, operator)
        except BaseException:
            making.remove(self.home, session_id)
            raise
        finally:
            self._unreserve(name)

    def made_for(self, token: str | None) -> Session | None:
        """The session that this very request has made already: its keeper remembers, whatever became of the host that asked for it."""
        return next(
            (
                s
                for s in self.sessions.values()
                if token and s.label.get("token") == making.token(token)
            ),
            None,
        )

    async def named(self, name: str) -> Session | None:
        """The session of that name, also if somebody is just making it."""
        while name in self._creating:
            await asyncio.wait({self._creating[name]})
        return next((s for s in self.sessions.values() if s.name == name), None)

    async def _create(
        self, session_id: str, name: str, request: dict[str, Any], operator: str
    ) -> Session:
        record, label, spawn = await making.prepare(self, session_id, name, request, operator)
        await self.store.write(store.save(record))
        probe("host.create.recorded")
        try:
            await self.nursery.spawn(
                spawn, lambda: self.halter.in_thread(self.halter.groups.make, session_id)
            )
            probe("host.create.spawned")
            link = await self._claim(f"{self.home.run}/{session_id}{KEEPER_SUFFIX}")
        except BaseException:
            self.store.post(store.forget(session_id))
            await self.halter.in_thread(self.halter.groups.remove, session_id)
            raise
        session = self._take(record, link, label)
        session.change(
            "started", operator=operator, root_pid=record.root_pid
        )  # at once: it may be over before anything else is asked
        self.store.post(store.save(record))
        await self._look(session)
        return session

    def _reserve(self, name: str) -> None:
        if ids.check_name(name) == MACHINE:
            raise Refused(f"the name {name} is the machine's own", "choose another name")
        other = next((i for i, n in self._names().items() if n == name), None)
        if other is not None or name in self._creating:
            raise Refused(
                f"a session named {name} runs already" + (f" ({other})" if other else ""),
                f"attach to it (`holdfast attach {name}`), use `new -A`, or choose another name",
                taken=True,
            )
        self._creating[name] = asyncio.get_running_loop().create_future()

    def _unreserve(self, name: str) -> None:
        self._creating.pop(name).set_result(None)

    def _names(self) -> dict[str, str]:
        """Of everything that may be running, by id."""
        return {s.id: s.name for s in self.sessions.values()} | {
            i: self.unreached[i].name if i in self.unreached else i for i in self.unreachable
        }

    def rename(self, session: Session, name: str) -> None:
        if name == session.name:
            return
        self._reserve(name)
        try:
            session.rename(name)
        finally:
            self._unreserve(name)
        self.store.post(store.save(session.record))
        session.event("session.renamed", name=name)

    # ------------------------------------------------------------ finding one

    def find(self, text: str) -> Session:
        """A running session by id, name or unique prefix of its id; but who says the whole name of one that has ended means that one."""
        known = self._names()
        found = names.match(text, known)
        if (
            found is not None
            and text not in (found, known[found])
            and any(text in (r.id, r.name) for r in self.ended.values())
        ):
            found = None
        if found in self.unreachable:
            raise Unavailable(
                f"the keeper of {text} does not answer: {self.unreachable[found]}",
                "it may be stopped; it is asked again until it answers",
            )
        if found is not None:
            return self.sessions[found]
        if any(text in (r.id, r.name) for r in self.ended.values()):
            raise NotFound(
                f"session {text} has ended",
                "`holdfast ls --all` shows how; `holdfast view` shows its last screen",
            )
        raise NotFound(f"no session {text[:80]!a}", what="session", word=text[:80])

    def find_any(self, text: str) -> Session | Record:
        """Also an ended one: the newest of that name."""
        try:
            return self.find(text)
        except NotFound:
            newest = sorted(self.ended.values(), key=lambda r: -(r.ended or 0))
            found = next((r for r in newest if text in (r.id, r.name)), None)
            if found is None:
                prefix = names.match(text, {r.id: r.id for r in newest})
                found = self.ended[prefix] if prefix else None
            if found is None:
                raise
            return found

    # ------------------------------------------------------------ after the end

    def _over(self, session: Session) -> None:
        """At once, before anybody who waits for the end goes on: its name is free, and it is found among the ended."""
        self.sessions.pop(session.id, None)
        self.ended[session.id] = session.record
        tell((self.desk.session_changed,), session.id, None)
        self._leave(session)
        task = asyncio.get_running_loop().create_task(bury(self, session))
        self._burying.add(task)
        task.add_done_callback(self._buried)

    def _leave(self, session: Session) -> None:
        tell(
            (one.end for one in (self.kin, self.tally, self.aftermath, self.shapes, self.execgate)),
            session,
        )

    def _buried(self, task: asyncio.Task[None]) -> None:
        self._burying.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            task.get_loop().call_exception_handler(
                {"message": "the end of a session", "exception": error}
            )

    def forget_old(self) -> None:
        now = time.time()
        newest = sorted(self.ended.values(), key=lambda r: -(r.ended or 0))
        for n, record in enumerate(newest):
            if n >= ENDED_KEPT_COUNT or now - (record.ended or 0) > self.settings.keep_ended_s:
                self.forget(record)

    def forget(self, record: Record) -> None:
        self.ended.pop(record.id, None)
        self.store.post(store.forget(record.id))

    # ------------------------------------------------------------ events

    def _session_event(self, session: Session, name: str, facts: dict[str, Any]) -> None:
        self.events.note(session.id, name, facts)
        if name.startswith("session.") and name != "session.output_rolled":
            self.store.post(store.save(session.record))

    def _invitations_changed(self) -> None:
        self.events.wake()
        self.uplinks.changed()

    def _policy_changed(self, version: str) -> None:
        self.desk.policy_changed(version)
        for session in self.sessions.values():
            session.keyboard.again()

    def _asked_about(self, session_id: str, name: str, facts: dict[str, Any]) -> None:
        """An act waits for approval, or no longer: for the record of events, and for who is attached."""
        self.events.note(session_id, name, facts)
        for viewer in self.sessions[session_id].viewers if session_id in self.sessions else ():
            viewer.conn.event(
                "approval",
                session=session_id,
                what=name.removeprefix("approval."),
                **facts,
                **self.desk.stands(viewer.conn, facts["id"]),
            )

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Leaves every session running: the links are dropped, the keepers do not mind. Those of ended sessions are let go
        first, or they would wait for the next host."""
        await self.uplinks.close()
        if self._burying:
            await asyncio.wait(self._burying, timeout=BURY_WAIT_S)
        for task in self._tasks:
            task.cancel()
        await self.journal.close()
        self.execgate.close()
        self.kin.close()
        self.shapes.close(self.sessions.values())
        for session in list(self.sessions.values()):
            await session.dispose()
        self.pool.shutdown(wait=True)
        self.threads.close()
        self.desk.close()
        self.gate.close()
        self.halter.close()
        self.devices.flush()
        self.store.close()
