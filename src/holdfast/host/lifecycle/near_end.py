"""Starts the next incarnation of a session whose memory was lost (R1).

The host does this at its start for each session that ran without a keeper being left: after a power
cut, or when keeper and host were killed. It does the same for ends that a shutdown caused
(core/session/interruption.py), at once for a session whose keeper was killed alone, and on request
for any other lost session. `core/session/incarnation.py` decides what comes back.

Order: the new epoch is durable before a keeper is asked for. So a host that dies on the way leaves
either a keeper, which the next host adopts, or a session that is brought back with a later epoch.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from holdfast.core.record.record import host_fact, shown
from holdfast.core.session import incarnation, interruption, lifecycle
from holdfast.core.session.incarnation import LastSeen, Lost
from holdfast.host.leases.fence import Awaited
from holdfast.host.lifecycle import limits, names, prepare
from holdfast.host.lifecycle.beginning import Beginning, Complete
from holdfast.host.lifecycle.contained import removal
from holdfast.host.lifecycle.contained.plan import Decision, Wanted
from holdfast.host.lifecycle.interruptions import SHUTTING_DOWN, Interruptions
from holdfast.host.lifecycle.last_seen import Description
from holdfast.host.lifecycle.nursery import NoNetwork
from holdfast.host.processes import process
from holdfast.host.session.stopped import StoppedOperators
from holdfast.host.shell.launch import is_shell
from holdfast.host.storage import store
from holdfast.host.storage.record_table import Fields
from holdfast.host.storage.spool import Spool
from holdfast.host.storage.store import SessionRow, Store
from holdfast.model.contained import HOST, NETWORKS, NONE, OWN
from holdfast.model.errors import HoldfastError, Impossible, Unavailable
from holdfast.model.references import Ref
from holdfast.wire import keeper as wire

if TYPE_CHECKING:
    from holdfast.host.leases.fences import Leases
    from holdfast.host.lifecycle.contained.own_directories import OwnDirectories
    from holdfast.host.lifecycle.last_seen import Descriptions
    from holdfast.host.lifecycle.spooling import Spooling
    from holdfast.host.processes.halt import Halter
    from holdfast.host.runtime.tasks import Tasks
    from holdfast.host.session.session import Session
    from holdfast.host.storage.events import Events
    from holdfast.host.storage.journal import Journal


GONE_S: Final = 5.0  # for a program to end after its terminal is gone
LOOK_S: Final = 0.05
ENTRIES: Final = 500  # newest entries of a record, searched for the texts of acts


class Loss(NamedTuple):
    """What the host knows of the end of the last incarnation.

    `state`: the one before. `epoch`: that of the last incarnation; attempts since may have used up
    later ones.
    """

    reason: str
    state: str
    in_flight: tuple[str, ...]
    notes: tuple[str, ...]
    epoch: int


class Why(NamedTuple):
    """Why a session comes back, for its users; `by`: the operator."""

    reason: str
    notes: tuple[str, ...]
    by: str


class Output(NamedTuple):
    """Stored output of the lost incarnation: the newest bytes, and the offset of their end."""

    end: int
    tail: bytes
    damaged: str  # what could not be read, in words


class Returner(Protocol):
    """Starts the next incarnation in the background."""

    def return_soon(self, record: SessionRow) -> None: ...


class Saved(Protocol):
    """The checkpoints of sessions."""

    def saved_session(self, session: str) -> bool: ...

    def planned(self, complete: Complete) -> Complete: ...


class Layers(Protocol):
    """The files of branches."""

    def mounts(self, session: str, planned: tuple[wire.Mount, ...]) -> tuple[wire.Mount, ...]: ...


class Host(prepare.Maker, Protocol):
    """The parts of a host that bring a session back."""

    @property
    def journal(self) -> Journal: ...

    @property
    def events(self) -> Events: ...

    @property
    def halter(self) -> Halter: ...

    @property
    def descriptions(self) -> Descriptions: ...

    @property
    def spooling(self) -> Spooling: ...

    @property
    def own_directories(self) -> OwnDirectories: ...

    @property
    def store(self) -> Store: ...

    @property
    def tasks(self) -> Tasks: ...

    @property
    def rediscovery(self) -> Returner: ...

    @property
    def incarnations(self) -> Saved: ...

    @property
    def leases(self) -> Leases: ...

    @property
    def branches(self) -> Layers: ...

    async def begin_described(self, asked: Beginning, description: Description) -> Session: ...


class NearEnd:
    """Brings back the sessions whose memory was lost."""

    def __init__(self, host: Host, replaced: bool) -> None:
        """`replaced`: this host has replaced the last one in place."""
        self._host = host
        self._in_flight: dict[str, list[Fields]] = {}  # intents without outcome at the start
        self.interruptions = Interruptions(self._settled, replaced)
        self._coming = set[str]()  # their keeper was killed; they come back at once
        self._back: dict[str, float] = {}  # when this host last brought a session back so

    async def begin(self) -> set[str]:
        """Returns the sessions with recorded acts that have no outcome."""
        with contextlib.suppress(Unavailable):
            self._in_flight = await self._host.journal.unfinished()
        return {*self._in_flight}

    def possible(self, record: SessionRow) -> bool:
        """Whether a session without a keeper comes back by itself.

        A session with a checkpoint of this boot waits for `restore`, which brings its memory back.
        """
        host, ran = self._host, lifecycle.running(record.state) and record.state != "creating"
        ran = ran or record.id in self._coming or self.interruptions.found(record)
        waits = record.boot == host.boot and host.incarnations.saved_session(record.id)
        return ran and not waits and host.descriptions.has(record.id)

    def keeps(self, record: SessionRow) -> bool:
        """Whether an ended session can come back, so that its description and output stay."""
        return (
            record.lost
            or record.state == "checkpointed"
            or self._host.incarnations.saved_session(record.id)
        )

    # ------------------------------------------------------------ while the host runs

    def ended(self, session: Session) -> None:
        """Decides whether a session that has just ended comes back at once."""
        row, host = session.record, self._host
        if not row.interrupted:
            return
        back = self._back.get(row.id)
        if (
            session.end_of.memory_lost
            and host.descriptions.has(row.id)
            and not host.incarnations.saved_session(row.id)
            and interruption.at_once(None if back is None else time.monotonic() - back)
            and not os.path.exists(SHUTTING_DOWN)
        ):
            self._coming.add(row.id)
            self._back[row.id] = time.monotonic()
            host.rediscovery.return_soon(row)
        else:
            self.interruptions.ended(row)

    def contained(self, session: str) -> bool:
        """Whether the next incarnation of a lost session is contained."""
        known = self._host.descriptions.known(session)
        return known is not None and bool(known.request["contained"])

    def coming(self, session: str) -> bool:
        """Whether a session whose keeper was killed comes back at once."""
        return session in self._coming

    def forget(self, session: str) -> None:
        self.interruptions.returns(session)
        self._back.pop(session, None)
        self._host.descriptions.forget(session)
        self._host.spooling.forget(session)

    def _settled(self, row: SessionRow) -> None:
        """The end is final; a lost session can still be re-established on request."""
        host = self._host
        host.store.post(store.save(row))
        if not self.keeps(row):
            self.forget(row.id)
            host.tasks.spawn(host.own_directories.remove(row.id))

    # ------------------------------------------------------------ the next incarnation

    async def start(self, record: SessionRow) -> str | None:
        """Starts the next incarnation; returns why not, in words, if that is not possible.

        Awaited: it is possible once the session's lease can be taken.
        """
        if not self.possible(record):
            return ""
        why = None
        try:
            await self.re_establish(record, self._reason(record))
        except Awaited:
            raise
        except HoldfastError as e:
            why = f"; it could not be re-established: {e.message}"
        self._coming.discard(record.id)
        return why

    def _reason(self, record: SessionRow) -> str:
        if record.boot != self._host.boot:
            return "The machine was restarted"
        if record.id in self._coming:
            return "Its keeper was killed"
        if record.state == "ended" and not record.reason.startswith("lost"):
            return f"Its program was ended ({record.reason}) while the host was stopped"
        return "Keeper and host died"

    async def re_establish(
        self, record: SessionRow, reason: str, notes: tuple[str, ...] = (), by: str = "host"
    ) -> Session:
        """Starts the next incarnation of a session that has no keeper."""
        host = self._host
        await _gone(record, host.boot)
        known = host.descriptions.known(record.id)
        if known is None:
            raise Unavailable("its description cannot be read")
        last = record.epoch
        await host.leases.take_soon(record)
        try:
            return await self._next(record, known, last, Why(reason, notes, by))
        except BaseException:
            await host.leases.give_up(record.id)
            raise

    async def _next(self, record: SessionRow, known: Description, last: int, why: Why) -> Session:
        """The session with the epoch after `record.epoch`; its last incarnation had `last`."""
        host, reason = self._host, why.reason
        self.interruptions.returns(record.id)
        before = record.state
        record.state = lifecycle.step(before, "interrupted")
        facts = {"before": before, "after": record.state, "reason": reason}
        host.events.note(record.id, "session.interrupted", facts)
        host.writers.forget_acts(record.id)
        await host.halter.in_thread(host.halter.groups.renew, record.id)
        found = await host.journal.unknown(record.id, self._in_flight.pop(record.id, []))
        in_flight = tuple(found[-incarnation.IN_FLIGHT_KEPT :])
        loss = Loss(reason, before, in_flight, why.notes, last)
        known = await _with_words(host.journal, record.id, known)
        output = await host.threads.of(record.id, _stored, host.spooling.spool(record.id, 0))
        record = self._named(record)
        coming = await plan(host, record, known, loss, output)
        try:
            session = await self._begin(coming, why.by)
        except NoNetwork as e:
            note = f"It has no network: its own could not be connected ({e.why})."
            loss = loss._replace(notes=(*loss.notes, note))
            coming = await plan(host, record, known, loss, output, network=False)
            session = await self._begin(coming, why.by)
        tell(session, host.journal, coming.lost)
        with contextlib.suppress(Unavailable):  # acts of the lost incarnation are not done again
            await host.journal.catch_up(
                session.id, session.record.epoch, session.lane.restore_number
            )
        return session

    async def _begin(self, coming: Next, by: str) -> Session:
        host = self._host
        complete = host.incarnations.planned(
            lambda asked: limits.complete(host.halter, asked, coming.label, coming.limits)
        )
        label, spawn = coming.label, coming.spawn
        if (origin := coming.description.request.get("branch")) and spawn.containment is not None:
            mounts = host.branches.mounts(coming.record.id, spawn.containment.mounts)
            label = {**label, **origin}
            containment = spawn.containment._replace(mounts=mounts)
            spawn = spawn._replace(containment=containment, label=prepare.packed(label))
        begun = Beginning(coming.record, label, spawn, complete, by)
        return await host.begin_described(begun, coming.description)

    def _named(self, record: SessionRow) -> SessionRow:
        """The row with a free name: a new session may have got the name since."""
        taken = {one.name for i, one in self._host.sessions.items() if i != record.id}
        name = names.free([record.name], taken) if record.name in taken else record.name
        return replace(record, name=name)


async def _with_words(journal: Journal, session: str, known: Description) -> Description:
    """The description with the texts of the acts that started subshells, by the record."""
    last, texts = known.last, dict[str, str]()
    if last is None or all(one.argv for one in last.running):
        return known
    with contextlib.suppress(Unavailable):
        entries = list(map(shown, await journal.read(session, limit=ENTRIES, newest=True)))
        contents = {one["seq"]: one["content"] for one in entries if one["phase"] == "intent"}
        for one in entries:
            if one["phase"] == "outcome" and (text := contents.get(one["intent"])):
                texts[str(Ref(session, one["epoch"], one["facts"].get("act")))] = text
    last = last._replace(running=incarnation.named(last.running, texts))
    return Description(known.request, known.operator, last, known.shortened)


class Next(NamedTuple):
    """All that a keeper needs, and what is to be said."""

    record: SessionRow
    label: dict[str, Any]
    spawn: wire.Spawn
    limits: limits.Wanted
    description: Description
    lost: Lost


async def plan(
    maker: prepare.Maker,
    record: SessionRow,
    known: Description,
    loss: Loss,
    output: Output,
    network: bool = True,
) -> Next:
    """The next incarnation of `record`. HoldfastError: it cannot be made.

    `network`: false if the session's own network cannot be connected; it then has none.
    """
    request, last = known.request, known.last
    notes = [*loss.notes, *([f"Stored output: {output.damaged}"] if output.damaged else [])]
    shell = not request["argv"] or is_shell(request["argv"], request["env"])
    where = await maker.threads.of(record.id, _directory, request, last)
    if where.missing:
        notes.append(f"There is no directory {where.missing} now.")
    if known.shortened:
        notes.append("Its variables took too much space (1 MiB) and are not back.")
    tree = known.tree()
    decision = None
    if tree is not None:
        had = str(request.get("net") or HOST)
        decision = await _decide(maker, replace(tree, cwd=where.asked), had, network, notes)
    wanted = prepare.NewSession(
        request["argv"] if shell else (),
        where.asked,
        request["env"],
        record.name,
        (record.cols, record.rows),
        request["umask"],
        None,
        None,
        request["contained"],
        request["given"],
        request["gate"],
        known.limits(),
        decision,
        request["maker_kind"],
        request["clipboard"],
    )
    private = prepare.host_only_directory(maker.home, record.id)
    stops = StoppedOperators(private)
    for place in prepare.session_places(maker.home, record.id):
        await maker.threads.of(record.id, removal.remove, place)
    row, label, spawn = await prepare.prepare(maker, record.id, record.name, wanted, known.operator)
    prepare.host_only_directory(maker.home, record.id)
    StoppedOperators(private).take_over(stops)
    start = {name: value for name, _, value in (os.fsdecode(v).partition("=") for v in spawn.env)}
    variables, changed = incarnation.environment(start, request["env"], last)
    row.epoch, row.created, row.state = record.epoch + 1, record.created, record.state
    lost = Lost(
        loss.epoch,
        loss.reason,
        last.at if last is not None else None,
        incarnation.running(last.running if last is not None else (), record.argv, shell),
        loss.in_flight,
        loss.state == "halted",
        tuple(notes),
    )
    notice = incarnation.notice(row.name, row.epoch, lost, _clock(lost.seen), row.cols)
    tail = output.tail + notice
    end = max(output.end, record.output_end)
    base = incarnation.first_offset(end, row.epoch) + len(tail)
    label |= {"begins_at": base, "lost": lost.facts(), "brought_back": changed}
    spawn = spawn._replace(
        epoch=row.epoch,
        base=base,
        ring_tail=tail[-spawn.ring_bytes :],
        label=prepare.packed(label),
        env=tuple(os.fsencode(f"{name}={value}") for name, value in variables.items()),
        cwd=os.fsencode(where.inside) if where.inside else spawn.cwd,
    )
    fresh = Description(known.request, known.operator, last, known.shortened)
    return Next(row, label, spawn, wanted.limits, fresh, lost)


async def _decide(
    maker: prepare.Maker, tree: Wanted, had: str, network: bool, notes: list[str]
) -> Decision:
    """The tree by today's configuration, but with no more network than the session `had`."""
    if network:
        try:
            decision = await prepare.decide(maker, tree)
            if NETWORKS.index(decision.terms.net) >= NETWORKS.index(had):
                return decision
        except Impossible:
            if had != OWN:
                raise
        notes.append("It has no network: its own cannot be connected now.")
    return await prepare.decide(maker, replace(tree, net=NONE, publish=()))


async def _gone(record: SessionRow, boot: str) -> None:
    """Waits until the first program is gone: a keeper that only lost its socket holds it still."""
    deadline = time.monotonic() + GONE_S
    while record.boot == boot and (found := process.read_stat(record.root_pid)) is not None:
        if found.start != record.root_start or found.state in ("Z", "X"):
            return
        if time.monotonic() > deadline:
            raise Unavailable(
                f"its first program (process {record.root_pid}) still runs, and its keeper cannot "
                "be reached"
            )
        await asyncio.sleep(LOOK_S)


def _stored(spool: Spool) -> Output:
    """The output that is on disk. Runs in a thread."""
    try:
        found = spool.load()
    except HoldfastError as e:
        return Output(0, b"", e.message)
    return Output(*incarnation.scrollback(found.pieces), found.damaged)


def _clock(seen: float | None) -> str:
    return "" if seen is None else time.strftime(" at %H:%M", time.localtime(seen))


class _Where(NamedTuple):
    asked: str  # the directory of the request, or one above that exists
    inside: str  # the last directory of the shell, if it exists; else empty
    missing: str


def _directory(request: Mapping[str, Any], last: LastSeen | None) -> _Where:
    """Where the next incarnation starts. A directory that is gone is replaced by one above it."""
    asked = str(request["cwd"])
    while not os.path.isdir(asked) and asked != "/":
        asked = os.path.dirname(asked)
    missing = "" if asked == request["cwd"] else str(request["cwd"])
    inside = last.cwd if last is not None else ""
    if inside and not os.path.isdir(inside) and not request["contained"]:
        missing, inside = inside, ""
    if request["contained"] and inside != asked and not inside.startswith(f"{asked}/"):
        inside = ""  # a path of its own, such as its home
    return _Where(asked, inside, missing)


def tell(session: Session, journal: Journal, lost: Lost) -> None:
    """Publishes the new incarnation: as an event, and in the record."""
    facts = lost.facts()
    session.event("session.re_established", **facts)
    facts["seen"] = None if lost.seen is None else int(lost.seen)  # the record has no fractions
    journal.post(
        host_fact(session.id, session.record.epoch, "re_established", "host", "host", facts=facts)
    )
