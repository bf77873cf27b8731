"""Finds the running sessions again: when a host starts, and when the link to a keeper breaks.

A keeper that exists but does not answer (stopped, swapped out) delays no other session. Its session
is "unknown", and the host asks again until the keeper answers or is gone. A session that ran
without a keeper being left comes back as a new incarnation, or is filed as lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from typing import TYPE_CHECKING

from holdfast.core.session import lifecycle
from holdfast.host.acts.record_recovery import go_on_recording, retain
from holdfast.host.checkpoints import finishing
from holdfast.host.leases.fence import Awaited
from holdfast.host.lifecycle import prepare
from holdfast.host.lifecycle.prepare import KEEPER_SUFFIX
from holdfast.host.people import reserved
from holdfast.host.runtime.notify import log_errors
from holdfast.host.session.keeper_link import KeeperLink, StaleTerm
from holdfast.host.session.session import Session
from holdfast.host.storage import store
from holdfast.host.storage.store import SessionRow
from holdfast.model.errors import HoldfastError, PeerFault, Unavailable
from holdfast.model.limits import SPAWN_WAIT_S
from holdfast.model.probe import probe
from holdfast.transport import unix

if TYPE_CHECKING:
    from holdfast.host.engine import Engine

ADOPT_WAIT_S = 2.0  # for a keeper's answer; a client waits longer than that for a new host
ADOPT_AGAIN_S, ADOPT_AGAIN_MAX_S = 0.5, 30.0
TERM_MAX = 1 << 62  # far below the limit of the wire and the store; no host of ours gets there


class Rediscovery:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: dict[str, SessionRow] = {}  # the store's rows when this host started
        self._reachable = False

    async def begin(self) -> None:
        """Does all work that must precede the first client. The other sessions follow."""
        engine = self._engine
        await engine.halter.in_thread(engine.halter.groups.leave)
        reserved.report(engine.home.reserved_names, engine.authority)
        engine.lineages.open()
        engine.shell_origins.open()
        await engine.halter.in_thread(engine.copies.trust_makers)
        known = self._known = {r.id: r for r in engine.store.records()}
        found = [
            n.removesuffix(KEEPER_SUFFIX)
            for n in sorted(os.listdir(engine.home.run))
            if n.endswith(KEEPER_SUFFIX)
        ]
        unfinished = await engine.near_end.begin()
        absent = [record for record in known.values() if record.id not in found]
        lost = [record.id for record in absent if engine.near_end.possible(record)]
        for record in (one for one in absent if one.id not in lost):
            self._is_gone(record)
        # Only keepers know the outcome of acts, and the record needs it before any new entry.
        first = unfinished.intersection(found)
        await asyncio.gather(*(self._adopt_found(i) for i in first))
        for damaged in await go_on_recording(engine.journal, engine.door, engine.sessions):
            engine.events.note(damaged, "record.damaged", {})
        engine.tasks.spawn(retain(engine.journal, engine.settings.record_days))
        later = [i for i in (*found, *lost) if i not in first]
        living = {
            *engine.sessions,
            *engine.unreachable,
            *later,
            *engine.incarnations.saved(known),
            *(record.id for record in known.values() if record.lost),
        }
        engine.tasks.spawn(engine.own_directories.remove_all(engine.own_directories.stale(living)))
        engine.spooling.sweep(living, engine.ended.values())
        engine.forget_old()
        engine.held_acts.begin(
            {i: s.record.epoch for i, s in engine.sessions.items()}
            | dict.fromkeys((*engine.unreachable, *later)),
            engine.authority.counts,
        )
        await engine.halter.in_thread(
            engine.halter.groups.sweep,
            {*engine.sessions, *engine.unreachable, *later},
        )
        engine.copies.begin()
        engine.adoptions.begin({i: known[i].name if i in known else None for i in later})

    async def _adopt_found(self, session_id: str) -> None:
        """Adopts a session; a failure makes only this session unreachable."""
        try:
            await self._adopt(session_id, self._known)
        except Exception as e:
            self._is_odd(session_id, e)
        gone = (
            session_id not in self._engine.sessions and session_id not in self._engine.unreachable
        )
        if gone and (record := self._known.get(session_id)) is not None:
            await self._come_back(record)

    def _is_odd(self, session_id: str, error: Exception) -> None:
        if session_id not in self._engine.sessions:
            why = f"its keeper's answer is odd: {type(error).__name__}: {error}"
            self._engine.unreachable[session_id] = why

    async def adopt_begun(self, record: SessionRow) -> Session | None:
        """Adopts an incarnation of this host whose beginning seemed to fail, if its keeper is here.

        A keeper that does not answer is asked again, as at the start of a host.
        """
        try:
            await self._adopt(record.id, {record.id: record})
        except Exception as e:
            self._is_odd(record.id, e)
        if record.id in self._engine.unreachable:
            self._engine.ended.pop(record.id, None)  # again if the keeper is gone in the end
        return self._engine.sessions.get(record.id)

    async def adopt_later(self, session_id: str) -> None:
        """Adopts a session while clients are served."""
        await self._engine.incarnations.buried_by_now(session_id)
        await self._adopt_found(session_id)
        if (session := self._engine.sessions.get(session_id)) is not None:
            with contextlib.suppress(Unavailable):
                await self._engine.journal.catch_up(
                    session.id, session.record.epoch, session.lane.restore_number
                )
            if self._reachable:
                session.pace.reachable()

    def return_soon(self, record: SessionRow) -> None:
        """Starts the next incarnation in the background; requests for the session wait."""
        self._known[record.id] = record
        self._engine.adoptions.begin({record.id: record.name})

    async def _come_back(self, record: SessionRow) -> None:
        """Starts the next incarnation of a session whose keeper is gone, or files it as lost."""
        if not await self._engine.copies.still_here(record):
            return
        try:
            why = await self._engine.near_end.start(record)
        except Awaited as e:
            return self._await_lease(record, e)
        if why is not None:
            self._is_gone(record, why)

    def _await_lease(self, record: SessionRow, why: Awaited) -> None:
        """Waits in the background: no client, and no other session, waits too."""
        self._engine.unreachable[record.id] = f"it waits for its lease: {why.message}"
        self._engine.unreached[record.id] = record
        self._engine.tasks.spawn(self._return_with_lease(record))

    async def _return_with_lease(self, record: SessionRow) -> None:
        await self._engine.leases.can_be_taken(record.id)
        self._engine.unreachable.pop(record.id, None)
        self._engine.unreached.pop(record.id, None)
        self.return_soon(record)

    def _is_gone(self, record: SessionRow, why: str = "") -> None:
        """Files a session without a keeper as ended, or as lost if it was running."""
        if lifecycle.running(record.state):
            reason = (
                "lost: the machine was restarted"
                if record.boot != self._engine.boot
                else "lost: its keeper died"
                if record.state != "creating"
                else "lost: the host died while making it"
            ) + why
            record.ended, record.reason, record.state = time.time(), reason, "ended"
            self._engine.events.note(record.id, "session.lost", {"reason": reason})
            self._engine.store.post(store.save(record))
        self._engine.ended[record.id] = record
        self._engine.held_acts.session_changed(record.id, None)

    async def _adopt(self, session_id: str, known: dict[str, SessionRow]) -> None:
        path = f"{self._engine.home.run}/{session_id}{KEEPER_SUFFIX}"
        try:
            link = await self.claim(path, ADOPT_WAIT_S)
        except (FileNotFoundError, ConnectionRefusedError):
            self._engine.unreachable.pop(session_id, None)  # the keeper is gone
            with contextlib.suppress(OSError):
                os.unlink(path)
            return
        except (HoldfastError, OSError) as e:
            if session_id not in self._engine.unreachable:
                self._engine.tasks.spawn(self._ask_again(session_id, known))
            self._engine.unreachable[session_id] = (
                e.message if isinstance(e, HoldfastError) else str(e)
            )
            if session_id in known:
                self._engine.unreached[session_id] = known[session_id]
            return
        self._engine.unreachable.pop(session_id, None)
        self._engine.unreached.pop(session_id, None)
        try:
            await self._adopt_claimed(session_id, known, link)
        except Exception:
            if session_id not in self._engine.sessions:
                link.dispose()
                if session_id in known:
                    self._engine.unreached[session_id] = known[session_id]
            raise

    async def _adopt_claimed(
        self, session_id: str, known: dict[str, SessionRow], link: KeeperLink
    ) -> None:
        label = link.label
        record = known.get(session_id) or prepare.row_of(
            session_id, label, link.welcome, self._engine.boot
        )
        probe("host.keeper.claimed")
        checkpoints = self._engine.incarnations.checkpoints
        left = await finishing.go_on(self._engine, checkpoints, session_id, link)
        if left is not None:  # the store may have the row of the last incarnation
            record = left.row
        was, record.state = record.state, "detached"
        record.name = str(label.get("name", record.name))
        if link.welcome.epoch > record.epoch:  # the row is of the last incarnation
            record.ended, record.exit_code, record.reason, record.ended_by = None, None, "", ""
            record.interrupted = False
            self._engine.near_end.interruptions.returns(session_id)
        self._engine.ended.pop(session_id, None)
        session = self._engine.make_session(record, link, label)
        if left is not None and session_id not in self._engine.incarnations.finishes:
            await self._finish(session, left)
            was = record.state  # a fence keeps the halt
        session.pace.await_return(record.viewers)
        halted = await self._engine.read_layout_and_gate(session, adopted=True) is not None
        if halted and left is None and await self._engine.branches.stands(session, was):
            record.state = "halted"  # an earlier host halted the processes
        self._engine.leases.adopted(session, was)
        output = [link.ring.start, link.ring.head]
        facts = {"term": self._engine.term, "root_pid": record.root_pid, "output": output}
        self._engine.events.note(session_id, "session.adopted", facts)

    async def _finish(self, session: Session, left: finishing.Left) -> None:
        """Does what the last host left to do of a restore."""
        with log_errors(f"the restore of {session.id}"):
            checkpoints = self._engine.incarnations.checkpoints
            await finishing.finish(self._engine, checkpoints, session, left)
            if left.note.taken_over:
                await self._engine.copies.finish(session, left.note.taken_over)

    async def _ask_again(self, session_id: str, known: dict[str, SessionRow]) -> None:
        pause = ADOPT_AGAIN_S
        while session_id in self._engine.unreachable or pause == ADOPT_AGAIN_S:
            await asyncio.sleep(pause)
            pause = min(pause * 2, ADOPT_AGAIN_MAX_S)
            await self._adopt(session_id, known)
        self.reachable()
        if (
            record := self._engine.unreached.pop(session_id, None)
        ) is not None and session_id not in self._engine.sessions:
            self.return_soon(record)

    def reachable(self) -> None:
        """Tells the adopted sessions that clients can reconnect now."""
        self._reachable = True
        for session in self._engine.sessions.values():
            session.pace.reachable()

    async def claim(self, path: str, wait_s: float = SPAWN_WAIT_S) -> KeeperLink:
        for _ in range(3):
            try:
                return await KeeperLink.open(path, self._engine.term, wait_s)
            except StaleTerm as e:  # the store has lost the last term: choose a higher term
                if e.term >= TERM_MAX:
                    raise PeerFault(
                        f"the keeper listens to no host below term {e.term}, which none reaches",
                        "end its program",
                    ) from e
                self._engine.term = max(self._engine.term, e.term + 1)
                self._engine.store.post(store.raise_term(self._engine.term))
        raise Unavailable("another host claims the same keeper")

    async def reclaim(self, session: Session) -> None:
        """Claims a keeper again after the link broke; if the keeper is dead, the session is lost.

        As after a restart of the host, clients reconnect and continue where they were.
        """
        record = session.record
        if not self._engine.program.still_ours():
            return self._engine.program.superseded()
        try:
            unix.connect(
                f"{self._engine.home.run}/{record.id}{KEEPER_SUFFIX}", socket.SOCK_SEQPACKET
            ).close()
        except OSError:
            return session.lost()
        self._engine.sessions.pop(record.id, None)
        self._engine.unreachable[record.id], self._engine.unreached[record.id] = (
            "it is being claimed again",
            record,
        )
        for conn in list(self._engine.counters.connections):
            conn.close()  # clients must reconnect
        self._engine.leave(session)
        await session.dispose()
        probe("host.reclaiming")
        known = {record.id: record}
        await self._adopt(record.id, known)
        self.reachable()
        if record.id in self._engine.unreachable:
            self._engine.tasks.spawn(self._ask_again(record.id, known))
        elif record.id not in self._engine.sessions:
            self.return_soon(record)
        self._engine.events.note(record.id, "session.reclaimed", {"term": self._engine.term})
