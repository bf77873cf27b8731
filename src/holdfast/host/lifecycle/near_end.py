"""Starts the next incarnation of a session whose memory was lost (R1).

The host does this at its start for each session that ran without a keeper being left: after a power
cut, or when keeper and host were killed. `core/session/incarnation.py` decides what comes back.

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

from holdfast.core.record.record import host_fact
from holdfast.core.session import incarnation, lifecycle
from holdfast.core.session.incarnation import LastSeen, Lost
from holdfast.host.lifecycle import limits, prepare
from holdfast.host.lifecycle.beginning import Beginning, Complete
from holdfast.host.lifecycle.contained import removal
from holdfast.host.lifecycle.last_seen import Description
from holdfast.host.processes import process
from holdfast.host.session.stopped import StoppedOperators
from holdfast.host.shell.launch import is_shell
from holdfast.host.storage.spool import Spool
from holdfast.host.storage.store import SessionRow
from holdfast.model.errors import HoldfastError, Unavailable
from holdfast.wire import keeper as wire

if TYPE_CHECKING:
    from holdfast.host.lifecycle.spooling import Spooling
    from holdfast.host.processes.halt import Halter
    from holdfast.host.session.session import Session
    from holdfast.host.storage.events import Events
    from holdfast.host.storage.journal import Journal
    from holdfast.host.storage.remembered import Remembered


GONE_S: Final = 5.0  # for a program to end after its terminal is gone
LOOK_S: Final = 0.05


class Loss(NamedTuple):
    """What the host knows of the end of the last incarnation. `state`: the one before."""

    reason: str
    state: str
    in_flight: tuple[str, ...] = ()


class Output(NamedTuple):
    """Stored output of the lost incarnation: the newest bytes, and the offset of their end."""

    end: int
    tail: bytes
    damaged: str  # what could not be read, in words


class Saved(Protocol):
    """The checkpoints of sessions."""

    def saved_session(self, session: str) -> bool: ...

    def planned(self, complete: Complete) -> Complete: ...


class Host(prepare.Maker, Protocol):
    """The parts of a host that bring a session back."""

    @property
    def journal(self) -> Journal: ...

    @property
    def events(self) -> Events: ...

    @property
    def halter(self) -> Halter: ...

    @property
    def remembered(self) -> Remembered: ...

    @property
    def spooling(self) -> Spooling: ...

    @property
    def incarnations(self) -> Saved: ...

    async def begin_described(self, asked: Beginning, description: Description) -> Session: ...


class NearEnd:
    """Brings back the sessions that ran without a keeper being left when this host started."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._in_flight: dict[str, list[str]] = {}  # acts without outcome, by session

    async def begin(self) -> set[str]:
        """Returns the sessions with recorded acts that have no outcome."""
        with contextlib.suppress(Unavailable):
            self._in_flight = await self._host.journal.unfinished()
        return {*self._in_flight}

    def possible(self, record: SessionRow) -> bool:
        """Whether a session without a keeper ran, and its description is stored.

        A session with a checkpoint of this boot waits for `restore`, which brings its memory back.
        """
        host, ran = self._host, lifecycle.running(record.state) and record.state != "creating"
        waits = record.boot == host.boot and host.incarnations.saved_session(record.id)
        return ran and not waits and host.remembered.has(record.id)

    async def start(self, record: SessionRow) -> str | None:
        """Starts the next incarnation; returns why not, in words, if that is not possible."""
        if not self.possible(record):
            return ""
        try:
            await self._start(record)
        except HoldfastError as e:
            return f"; it could not be re-established: {e.message}"
        return None

    async def _start(self, record: SessionRow) -> None:
        host = self._host
        await _gone(record, host.boot)
        saved = host.remembered.take(record.id)
        if saved is None:
            raise Unavailable("its description cannot be read")
        reason = "The machine was restarted" if record.boot != host.boot else "Keeper and host died"
        before = record.state
        record.state = lifecycle.step(before, "interrupted")
        facts = {"before": before, "after": record.state, "reason": reason}
        host.events.note(record.id, "session.interrupted", facts)
        host.writers.forget_acts(record.id)
        await host.halter.in_thread(host.halter.groups.renew, record.id)
        in_flight = self._in_flight.get(record.id, [])[-incarnation.IN_FLIGHT_KEPT :]
        loss = Loss(reason, before, tuple(in_flight))
        output = await host.threads.of(record.id, _stored, host.spooling.spool(record.id, 0))
        coming = await plan(host, record, Description.restore(saved), loss, output)
        complete = host.incarnations.planned(
            lambda asked: limits.complete(host.halter, asked, coming.label, coming.limits)
        )
        begun = Beginning(coming.record, coming.label, coming.spawn, complete, "host")
        tell(await host.begin_described(begun, coming.description), host.journal, coming.lost)


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
) -> Next:
    """The next incarnation of `record`. HoldfastError: it cannot be made."""
    request, last = known.request, known.last
    notes = [f"Stored output: {output.damaged}"] if output.damaged else []
    shell = not request["argv"] or is_shell(request["argv"], request["env"])
    where = await maker.threads.of(record.id, _directory, request, last)
    if where.missing:
        notes.append(f"There is no directory {where.missing} now.")
    tree = known.tree()
    decision = None
    if tree is not None:
        decision = await prepare.decide(maker, replace(tree, cwd=where.asked))
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
        record.epoch,
        loss.reason,
        last.at if last is not None else None,
        incarnation.running(last.running if last is not None else (), record.argv, shell),
        loss.in_flight,
        loss.state == "halted",
        tuple(notes),
    )
    tail = output.tail + incarnation.notice(row.name, row.epoch, lost, _clock(lost.seen))
    base = incarnation.first_offset(output.end, row.epoch) + len(tail)
    label |= {"begins_at": base, "lost": lost.facts(), "brought_back": changed}
    spawn = spawn._replace(
        epoch=row.epoch,
        base=base,
        ring_tail=tail[-spawn.ring_bytes :],
        label=prepare.packed(label),
        env=tuple(os.fsencode(f"{name}={value}") for name, value in variables.items()),
        cwd=os.fsencode(where.inside) if where.inside else spawn.cwd,
    )
    fresh = Description(known.request, known.operator, last)
    return Next(row, label, spawn, wanted.limits, fresh, lost)


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
    journal.post(
        host_fact(session.id, session.record.epoch, "re_established", "host", "host", facts=facts)
    )
