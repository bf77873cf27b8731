"""All sessions of this host: adopts, creates, names and finds them, and keeps the ended ones.

The truth about a running session is its keeper. The store remembers names, ends and events. After
any death of the host, the keepers' sockets in the run directory are enough to get every session
back.
"""

from __future__ import annotations

import asyncio
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from holdfast.core.session.connections import Connection
from holdfast.home import Home, keys, recovery_switch
from holdfast.home.config import TURN_PLUGIN
from holdfast.home.settings import Settings
from holdfast.host.acts.approvals import HeldActs
from holdfast.host.acts.door import Door
from holdfast.host.acts.keyboard import Keyboard
from holdfast.host.branches.branches import Branches
from holdfast.host.checkpoints import before_acts, unfinished
from holdfast.host.checkpoints.incarnations import Incarnations
from holdfast.host.connections.watch import ConnectionWatch
from holdfast.host.copies import arrive
from holdfast.host.copies.copies import Copies
from holdfast.host.exec_gate import gate
from holdfast.host.leases.fences import Leases
from holdfast.host.leases.opening import open_ownership
from holdfast.host.lifecycle import limits, names, prepare, retry, token_file
from holdfast.host.lifecycle.adoption import Adoptions, keeper_pid
from holdfast.host.lifecycle.after_end import bury, record_end
from holdfast.host.lifecycle.beginning import Beginning
from holdfast.host.lifecycle.contained.own_directories import OwnDirectories
from holdfast.host.lifecycle.host_program import HostProgram
from holdfast.host.lifecycle.last_seen import Description, Descriptions
from holdfast.host.lifecycle.last_used import LastUsed
from holdfast.host.lifecycle.limit_watch import LimitWatch
from holdfast.host.lifecycle.near_end import NearEnd
from holdfast.host.lifecycle.nursery import Nursery
from holdfast.host.lifecycle.prepare import KEEPER_SUFFIX, NewSession, closed_to_agents
from holdfast.host.lifecycle.spooling import Spooling
from holdfast.host.originators.act_effects import ActEffects
from holdfast.host.originators.background_exits import BackgroundExits
from holdfast.host.originators.further import FurtherFiles
from holdfast.host.originators.insiders import Insiders
from holdfast.host.originators.lineage import Lineages
from holdfast.host.originators.operator_stops import OperatorStops
from holdfast.host.originators.program_exits import ProgramExits
from holdfast.host.originators.shell_origins import ShellOrigins
from holdfast.host.originators.writers import Writers
from holdfast.host.people.authority import Authority
from holdfast.host.people.devices import Devices
from holdfast.host.people.invitations import Invitations
from holdfast.host.policy.gate import Gate
from holdfast.host.policy.plugins import discover
from holdfast.host.policy.turn_plugin import TurnPlugin
from holdfast.host.processes import process
from holdfast.host.processes.halt import Halter, execution
from holdfast.host.rediscovery import Rediscovery
from holdfast.host.relays.uplinks import Uplinks
from holdfast.host.residency.residency import Residency
from holdfast.host.runtime.notify import tell
from holdfast.host.runtime.tasks import Tasks
from holdfast.host.runtime.threads import Threads
from holdfast.host.session.keeper_link import KeeperLink
from holdfast.host.session.presence import Presence
from holdfast.host.session.session import Session
from holdfast.host.storage import store
from holdfast.host.storage.events import Events
from holdfast.host.storage.journal import Journal
from holdfast.host.storage.remembered import ROWS, Remembered
from holdfast.host.storage.store import SessionRow, Store
from holdfast.host.telemetry.counters import Counters
from holdfast.model import signing
from holdfast.model.errors import NotFound, Refused, Saved, Unavailable
from holdfast.model.limits import ENDED_KEPT_COUNT, SESSIONS_MAX
from holdfast.model.probe import probe

BURY_WAIT_S = 3.0  # before this host leaves: until sessions that just ended are recorded


class Engine:
    def __init__(
        self, home: Home, settings: Settings, database: Store, program: HostProgram = HostProgram()
    ) -> None:
        self.home, self.program, self.environment = home, program, program.environment
        self.settings, self.store = settings, database
        self.events = Events(database)
        self.term = database.next_term()
        machine = keys.machine(home, time.time())
        self.sessions: dict[str, Session] = {}
        closed = closed_to_agents(self.sessions)
        self.authority = Authority(database, machine, self.events.count, closed)
        if recovery_switch.is_off(home):
            self.authority.recovery_is_off()
        self.journal = Journal(database, machine.secret())
        self.invitations = Invitations(database, self.authority, self._invitations_changed)
        self.devices = Devices(database, self.authority)
        self.uplinks = Uplinks(
            home, machine, self.authority, self.invitations.passes, self.invitations.awaited
        )
        self.boot = process.boot_id()
        self.ended: dict[str, SessionRow] = {}
        # Sessions with a silent keeper, and the reason: neither alive nor dead, but "unknown".
        self.unreachable: dict[str, str] = {}
        self.unreached: dict[str, SessionRow] = {}  # rows of unreachable sessions in the store
        self.nursery = Nursery(home.run, self._nursery_found, program.nursery, program.descriptors)
        self.halter = Halter(
            home.state,
            lambda: (self.nursery.pid, *(s.keeper_pid for s in tuple(self.sessions.values()))),
        )
        self.lineages = Lineages(program.replace)
        self.insiders = Insiders(self.sessions, self.lineages, settings, self.authority)
        self.operator_stops = OperatorStops(self.halter, self.lineages)
        self.counters, self.presence = Counters(), Presence()
        self.background_exits = BackgroundExits(self.lineages, self.journal, database)
        self.program_exits = ProgramExits()
        self.writers = Writers(self.lineages, home.state, self.authority.names, self.journal)
        self.act_effects = ActEffects(self.writers, self.journal, self.authority.kind_of)
        self.writers.on_events.append(self.act_effects.written)
        self.shell_origins = ShellOrigins(
            self.sessions.get, self.writers.authors_blocking, FurtherFiles(self.writers).includes
        )
        self.limit_watch = LimitWatch(
            home.state,
            self.halter,
            self.journal,
            self.background_exits.name_of,
            lambda: self.lineages.told,
        )
        self.connection_watch = ConnectionWatch(settings.connections_silent_s, self._connected)
        self.last_used = LastUsed(database)
        self.near_end = NearEnd(self, program.replaced)
        remembered = Remembered(database.rows(ROWS), keys.remembered_key(machine))
        self.descriptions = Descriptions(database, remembered, self.near_end.keeps)
        self.spooling = Spooling(
            home, machine, settings.spool_bytes, self.events.note, self.near_end.keeps
        )
        # Told of the beginning and the end of every session, in this order.
        self.leases = Leases(
            lambda: open_ownership(home, settings, signing.show(machine.public), self.term),
            settings.lease.store == "etcd",
            self.halter,
            self.sessions,
            self._may_act,
        )
        self._observers = (
            self.lineages,
            self.counters,
            self.program_exits,
            self.background_exits,
            self.shell_origins,
            self.limit_watch,
            self.connection_watch,
            self.last_used,
            self.operator_stops,
            self.act_effects,
            self.descriptions,
            self.spooling,
            self.leases,
        )
        self.pool, self.threads = ThreadPoolExecutor(1, "view"), Threads("sessions")
        self.own_directories = OwnDirectories(home, prepare.DIRECTORIES)
        self.incarnations = Incarnations(self)
        self.branches = Branches(self)
        self.copies = Copies(self, machine, settings.copies_bytes)
        # By name: done when the session exists, or could not be created.
        self._creating: dict[str, asyncio.Future[None]] = {}
        self.tasks = Tasks("a background task of the host")
        self._burying = Tasks("the end of a session")
        self.rediscovery = Rediscovery(self)
        self.adoptions = Adoptions(
            self.rediscovery.adopt_later,
            self.tasks.spawn,
            lambda word: word in (known := self.session_names()) or word in known.values(),
            lambda i: keeper_pid(f"{home.run}/{i}{KEEPER_SUFFIX}"),
        )
        self.gate = Gate(
            home.policy,
            discover(),
            on_policy=self._policy_changed,
            private=(home.state, os.path.dirname(home.config)),
            used_state=self.shell_origins.used_state,
        )
        named = self.settings.turn_policy.partition(TURN_PLUGIN)[2]
        self.turn_plugin = TurnPlugin(named, self.threads) if named else None
        self.held_acts = HeldActs(self.gate, database, self._asked_about, self.authority)
        self.door = Door(
            self.journal,
            self.held_acts,
            self.authority,
            self.events.note,
            self.insiders.of,
            before_acts.saver(
                lambda: self.incarnations.checkpoints,
                self.halter,
                self.journal,
                self.copies.outgoing.send_as_scheduled,
            ),
        )
        self.execgate = gate.ExecGate(
            self.gate,
            self.held_acts,
            self.authority,
            self.journal,
            self.lineages,
            self.halter,
            self.shell_origins.kinds,
            self.writers.authors,
        )
        self.lineages.wire(
            observers=(self.writers,),
            changed=(
                self.program_exits.process_changed,
                self.limit_watch.process_changed,  # before names of exited programs are dropped
                self.background_exits.process_changed,
                self.writers.process_changed,
                self.execgate.process_changed,
                self.operator_stops.process_changed,
                self.act_effects.process_changed,
            ),
            executed=(
                lambda pid: self.act_effects.executed(pid, self.execgate.verifier.judged(pid)),
                self.execgate.verifier.executed,
            ),
        )
        self.authority.on_change.append(lambda: self.held_acts.keys_changed(self.authority.counts))
        self.residency = Residency(self)
        self.residency.draining.mover = self.copies.moving.drain
        self.residency.evictions.may_wake = self.copies.may_wake

    def _nursery_found(self, pid: int) -> None:
        self.halter.groups.beside(pid, bool(self.nursery.apart))

    def _connected(self, session: Session, found: Connection) -> None:
        self.branches.connected(session, found)

    # ------------------------------------------------------------ sessions begin

    def make_session(self, record: SessionRow, link: KeeperLink, label: dict[str, Any]) -> Session:
        w = link.welcome
        record.root_pid, record.root_start, record.epoch = w.root_pid, w.root_start, w.epoch
        _, record.cols, record.rows = link.ring.resized
        session = Session(
            record,
            link,
            label,
            prepare.session_directories(self.home, record.id, label.get("files", prepare.TOGETHER)),
            prepare.host_only_directory(self.home, record.id),
            self.pool,
            self.threads,
            self._session_event,
            link.peer_pid,
        )
        session.leave_name()
        session.end_of.find_saved = lambda: self.incarnations.ended_with(record)
        session.keyboard = Keyboard(session, self.journal, self.authority, self.gate, self.insiders)
        session.pace.window_s = self.settings.pace_s
        session.turn.begin(self.settings, self.presence, self.turn_plugin)
        session.on_company = lambda: self.store.post(store.save(record))
        self.sessions[record.id] = session
        self.held_acts.session_changed(record.id, record.epoch)
        session.ended.add_done_callback(lambda _: self._over(session))
        tell((one.begin for one in self._observers), session)
        session.on_link_lost = lambda: self.tasks.spawn(self.rediscovery.reclaim(session))
        return session

    async def read_layout_and_gate(self, session: Session, adopted: bool = False) -> str | None:
        """Reads the layout from the kernel and gates the session; returns the kind of halt."""
        session.layout = await self.halter.layout(execution(session))
        session.layout |= await self.execgate.gate_session(session, adopted)
        session.layout |= prepare.sees(session.label)
        return await self.halter.halted(execution(session))

    @property
    def running(self) -> list[str]:
        """The ids of all sessions, including sessions that are not adopted yet."""
        return [*self.sessions, *self.adoptions.waiting]

    # ------------------------------------------------------------ creating a session

    async def create(self, request: NewSession, operator: str) -> Session:
        if len(self.sessions) >= SESSIONS_MAX:
            raise Refused(f"{SESSIONS_MAX} sessions run already", "end some")
        taken = {*self.session_names().values(), *self._creating}
        session_id = names.new_id({*taken, *(record.name for record in self.ended.values())})
        name = request.name or names.free(list(request.argv), taken)
        self._reserve(name)
        try:
            prepare.check_kept_home(self, request, name, operator)
            return await retry.attempt(self, self._create, session_id, name, request, operator)
        except BaseException:
            self.tasks.spawn(self.own_directories.remove(session_id))
            raise
        finally:
            self._unreserve(name)

    async def revive(self, asked: Beginning) -> Session:
        """Begins a new incarnation of an ended session, which stays as it was without a keeper."""
        self._reserve(name := asked.record.name)
        try:
            return await self._begin_session(asked)
        finally:
            self._unreserve(name)

    async def named(self, name: str) -> Session | None:
        """The session of that name; waits while the session is being created."""
        while name in self._creating:
            await asyncio.wait({self._creating[name]})
        return next((s for s in self.sessions.values() if s.name == name), None)

    async def _create(
        self, session_id: str, name: str, request: NewSession, operator: str
    ) -> Session:
        record, label, spawn = await prepare.prepare(self, session_id, name, request, operator)
        complete = self.incarnations.planned(
            lambda asked: limits.complete(self.halter, asked, label, request.limits)
        )
        try:
            return await self.begin_described(
                Beginning(record, label, spawn, complete, operator),
                Description.of(request, operator),
            )
        except BaseException:
            if session_id not in self.sessions and session_id not in self.ended:
                self.store.post(store.forget(session_id))
                await self.halter.in_thread(self.halter.groups.remove, session_id)
            raise

    async def begin_described(self, asked: Beginning, description: Description) -> Session:
        """Begins an incarnation; what is needed to make the next one is durable before."""
        remember = self.descriptions.job(asked.record.id, description)
        # A restore that failed may have had this epoch.
        unfinished.remove(prepare.host_only_directory(self.home, asked.record.id))
        await self.store.run(store.together(store.save(asked.record), remember))
        probe("host.create.recorded")
        return await self._begin_session(asked)

    async def _begin_session(self, asked: Beginning) -> Session:
        record = asked.record
        request = asked.request._replace(deadline_ns=self.leases.deadline_ns(record.id))
        token_file.write(self.home, record.id, asked.request.epoch, asked.label)
        await self.nursery.spawn(request, asked.complete, asked.patience_s)
        probe("host.create.spawned")
        link = await self.rediscovery.claim(f"{self.home.run}/{record.id}{KEEPER_SUFFIX}")
        try:
            await asked.claimed(link)
        except BaseException:
            link.dispose()
            raise
        self.ended.pop(record.id, None)
        self.near_end.interruptions.returns(record.id)
        session = self.make_session(record, link, asked.label)
        # At once: the program may exit before the answer to the next question.
        session.change("started", operator=asked.operator, root_pid=record.root_pid)
        self.store.post(store.save(record))
        await self.read_layout_and_gate(session)
        return session

    async def _may_act(self, session: str) -> bool:
        """Whether an incarnation of the session may act on this machine."""
        await self.incarnations.buried_by_now(session)
        known = session in self.sessions or session in self.unreachable
        return known or keeper_pid(f"{self.home.run}/{session}{KEEPER_SUFFIX}") != 0

    def _reserve(self, name: str) -> None:
        names.check_new(name, (*self.session_names(), *self.ended))
        other = next((i for i, n in self.session_names().items() if n == name), None)
        if other is not None or name in self._creating:
            raise Refused(
                f"a session named {name} runs already" + (f" ({other})" if other else ""),
                f"attach to it (`holdfast attach {name}`), use `new -A`, or choose another name",
                taken=True,
            )
        self._creating[name] = asyncio.get_running_loop().create_future()

    def _unreserve(self, name: str) -> None:
        self._creating.pop(name).set_result(None)

    def session_names(self) -> dict[str, str]:
        """Names of all sessions that may be running, by id."""
        return {s.id: s.name for s in self.sessions.values()} | {
            i: self.unreached[i].name if i in self.unreached else i for i in self.unreachable
        }

    def keep(self, session: Session) -> None:
        """Makes a change of the session's row durable."""
        self.store.post(store.save(session.record))

    async def keep_now(self, record: SessionRow) -> None:
        """The same at once, as far as the disk allows: else as soon as it does."""
        try:
            await self.store.run(store.save(record))
        except Unavailable:
            self.store.post(store.save(record))

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

    # ------------------------------------------------------------ finding a session

    def find(self, text: str) -> Session:
        """A running session by id, name or unique prefix of the id."""
        ended = {word for record in self.ended.values() for word in (record.id, record.name)}
        known, refuse = self.session_names(), self.copies.refuse
        return self.sessions[names.living(text, known, self.unreachable, ended, refuse)]

    def find_any(self, text: str) -> Session | SessionRow:
        """A running session, or else the newest ended session of that name."""
        try:
            return self.find(text)
        except (NotFound, Saved):
            if (found := names.newest_ended(text, self.ended)) is None:
                raise
            return found

    # ------------------------------------------------------------ after the end

    def _over(self, session: Session) -> None:
        """Frees the name and files the session as ended, before waiters for the end continue."""
        self.sessions.pop(session.id, None)
        self.ended[session.id] = session.record
        tell((self.held_acts.session_changed,), session.id, None)
        tell((record_end,), self.journal, session)
        tell((self.near_end.ended,), session)
        self.leave(session)
        self.incarnations.buried(session.id, self._burying.spawn(bury(self, session)))

    def leave(self, session: Session) -> None:
        tell((one.end for one in (*self._observers, self.execgate)), session)

    def forget_old(self) -> None:
        """Forgets old sessions. A branch stays: its files wait for `keep` or `discard`."""
        now = time.time()
        newest = sorted(self.ended.values(), key=lambda r: -(r.ended or 0))
        for n, record in enumerate(newest):
            old = n >= ENDED_KEPT_COUNT or now - (record.ended or 0) > self.settings.keep_ended_s
            over = old and record.state in ("ended", "reaped")
            used = record.id in self.incarnations.checkpoints.busy
            if over and not used and self.branches.forks.of_branch(record.id) is None:
                self.forget(record)

    def forget(self, record: SessionRow) -> str:
        """Returns the directory of files that came from another machine, which stay; else ""."""
        if place := arrive.files(self.home, record.id):
            self.events.note(record.id, "session.files_stay", {"path": place})
        self.ended.pop(record.id, None)
        self.store.post(store.forget(record.id))
        if self.near_end.keeps(record):
            self.tasks.spawn(self.incarnations.forget(record.id))
        self.near_end.forget(record.id)
        self.tasks.spawn(self.copies.forget(record.id))
        return place

    # ------------------------------------------------------------ events

    def _session_event(self, session: Session, name: str, facts: dict[str, Any]) -> None:
        self.events.note(session.id, name, facts)
        if name.startswith("session.") and name != "session.output_rolled":
            self.store.post(store.save(session.record))

    def _invitations_changed(self) -> None:
        self.events.wake()
        self.uplinks.changed()

    def _policy_changed(self, version: str) -> None:
        self.held_acts.policy_changed(version)
        for session in self.sessions.values():
            session.keyboard.recheck()

    def _asked_about(self, session_id: str, name: str, facts: dict[str, Any]) -> None:
        """Reports to events and attached clients that an act waits for approval, or no longer."""
        self.events.note(session_id, name, facts)
        for viewer in self.sessions[session_id].viewers if session_id in self.sessions else ():
            viewer.conn.event(
                "approval",
                session=session_id,
                what=name.removeprefix("approval."),
                **facts,
                **self.held_acts.deciding_facts(viewer.conn, facts["id"]),
            )

    async def close(self) -> None:
        """Drops the links; every session keeps running.

        Keepers of ended sessions are released first; otherwise they would wait for the next host.
        """
        await self.uplinks.close()
        await self._burying.wait(BURY_WAIT_S)
        self.tasks.cancel()
        for part in (
            self.leases,
            self.limit_watch,
            self.connection_watch,
            self.descriptions,
            self.residency,
        ):
            part.close()
        await self.journal.close()
        await self.spooling.close()
        self.execgate.close()
        self.lineages.close()
        self.shell_origins.close(self.sessions.values())
        for session in list(self.sessions.values()):
            await session.dispose()
        self.pool.shutdown(wait=True)
        if self.turn_plugin is not None:
            self.turn_plugin.close()
        self.threads.close()
        for last in (self.own_directories, self.held_acts, self.gate, self.halter):
            last.close()
        self.devices.flush()
        self.store.close()
