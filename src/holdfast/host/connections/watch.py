"""Watches the TCP connections of sessions to peers outside, and tells which were lost (R4).

The host looks at the kernel's tables every LOOK_S while a session runs. One table serves all
sessions of a network namespace. It is read if connections are watched there, if the numbers of
sockets have changed, or at every FULL_LOOKS-th look. New connections are searched in the
descriptors of the sessions' programs, TRIES times; after that the connection is of another program.
The next look is at least SHARE times as far away as the last one took. So the watch takes at most
1/SHARE of a processor, however many sessions and connections there are.

core/session/connection_losses.py decides. A connection with both ends in one session is not
watched.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.core.session.connection_losses import OPEN, Change, Namespace, Row
from holdfast.core.session.connections import Connection, facts, inner
from holdfast.host.connections import tables
from holdfast.host.connections.held import sockets_of
from holdfast.host.processes import proc_scan
from holdfast.host.processes.net_entry import namespace
from holdfast.host.processes.process import read_stat
from holdfast.host.runtime.notify import log_errors
from holdfast.host.runtime.tasks import Tasks

if TYPE_CHECKING:
    from holdfast.host.session.session import Session

LOOK_S: Final = 2.0
SHARE: Final = 50
FULL_LOOKS: Final = 15
TRIES: Final = 2
WATCHED_MAX: Final = 4096  # connections; of further ones no loss is told


class _Place(NamedTuple):
    """A session, with the pids of its keeper and its first program."""

    session: str
    keeper: int
    root: int


class _Owned(NamedTuple):
    """A connection that a session's program holds."""

    session: str
    row: Row
    pid: int
    program: str


@dataclass(slots=True)
class _Net:
    """A network namespace. `tries`: how often a holder of a connection was searched, by inode.
    `holders`: the sessions of watched connections, by inode.
    """

    of: Namespace
    counts: bytes = b""
    looks: int = 0
    tries: dict[int, int] = field(default_factory=dict)
    holders: dict[int, str] = field(default_factory=dict)


class _Seen(NamedTuple):
    """What a look found: new connections, what happened to known ones, and those of which the
    other end has turned up in the same session.
    """

    new: list[_Owned]
    changes: list[Change]
    inside: list[int]


class ConnectionWatch:
    """One per host. `silent_s`: how long a peer may leave a segment without acknowledgement.

    `seen` is called for each connection that a look finds.
    """

    def __init__(self, silent_s: float, seen: Callable[[Session, Connection], None]) -> None:
        self._silent_s, self._seen = silent_s, seen
        self._sessions: dict[str, Session] = {}
        self._nets: dict[str, _Net] = {}
        self._owned: dict[int, tuple[Session, Connection]] = {}  # watched, by inode
        self._tasks = Tasks("the connections of sessions")
        self._timer: asyncio.TimerHandle | None = None
        self._looking = self._closing = False

    @property
    def watched(self) -> int:
        return len(self._owned)

    def begin(self, session: Session) -> None:
        self._sessions[session.id] = session
        self._later(LOOK_S)

    def end(self, session: Session) -> None:
        self._sessions.pop(session.id, None)
        for inode in [i for i, (of, _) in self._owned.items() if of is session]:
            del self._owned[inode]

    def close(self) -> None:
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        self._tasks.cancel()

    # ------------------------------------------------------------ the rhythm

    def _later(self, delay: float) -> None:
        if self._timer is None and not self._looking and not self._closing and self._sessions:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(delay, lambda: self._tasks.spawn(self._look()))

    async def _look(self) -> None:
        self._timer, self._looking = None, True
        delay = LOOK_S
        try:
            wanted = [(s.id, s.keeper_pid, s.record.root_pid) for s in self._sessions.values()]
            with log_errors("in the connections of sessions"):
                seen, took = await asyncio.to_thread(self._read, wanted, frozenset(self._owned))
                delay = max(LOOK_S, SHARE * took)
                self._apply(seen)
        finally:
            self._looking = False
            self._later(delay)

    def _apply(self, seen: _Seen) -> None:
        for one in seen.new:
            session = self._sessions.get(one.session)
            if session is None or len(self._owned) >= WATCHED_MAX:
                continue
            cause = session.commands.lineage.of(one.pid)
            known = Connection(
                one.row.protocol,
                one.row.local,
                one.row.remote,
                one.pid,
                one.program,
                cause.actor,
                cause.ref(session.ref),
                one.row.unacked,
            )
            self._owned[one.row.inode] = session, known
            self._seen(session, known)
        for inode in seen.inside:
            self._owned.pop(inode, None)
        for change in seen.changes:
            if (owned := self._owned.get(change.inode)) is None:
                continue
            session, known = owned
            said = facts(known._replace(unacked=change.unacked))
            if change.kind == "recovered":
                session.event("connection.recovered", **said)
                continue
            if change.kind != "silent":
                del self._owned[change.inode]
            if change.kind == "closed":
                continue
            session.event("connection.lost", kind=change.kind, **said, sure=change.sure)

    # ------------------------------------------------------------ in the thread

    def _read(
        self, wanted: Sequence[tuple[str, int, int]], owned: frozenset[int]
    ) -> tuple[_Seen, float]:
        """Looks once. Also returns the processor time of the look."""
        began = time.thread_time()
        nets = dict[str, list[_Place]]()
        for session, keeper, root in wanted:
            if name := namespace(root):
                nets.setdefault(name, []).append(_Place(session, keeper, root))
        for gone in self._nets.keys() - nets.keys():
            del self._nets[gone]
        seen = _Seen([], [], [])
        for name, places in nets.items():
            net = self._nets.setdefault(name, _Net(Namespace(self._silent_s)))
            net.of.forget(net.of.tracked - owned)
            for place in places:
                try:
                    self._read_net(net, place.root, places, seen)
                    break
                except OSError:  # its first process is gone
                    continue
        return seen, time.thread_time() - began

    def _read_net(self, net: _Net, pid: int, places: Sequence[_Place], seen: _Seen) -> None:
        counts = tables.counts(pid)
        net.looks += 1
        if counts == net.counts and not net.of.tracked and net.looks % FULL_LOOKS:
            return
        table = tables.read(pid)
        net.counts = counts
        missing = net.of.missing(table)
        held = set[int]()
        if missing:
            held = _find(places, missing).keys() & missing
        seen.changes.extend(net.of.looked(table, held, time.monotonic()))
        rows = {row.inode: row for row in table.rows if row.inode and row.state in OPEN}
        net.tries = {inode: count for inode, count in net.tries.items() if inode in rows}
        unknown = [
            inode
            for inode in rows
            if inode not in net.of.tracked and net.tries.get(inode, 0) < TRIES
        ]
        if not unknown:
            return
        found = _find(places, unknown)
        sessions = {inode: one for inode, one in net.holders.items() if inode in net.of.tracked}
        net.holders = sessions | {inode: session for inode, (session, _) in found.items()}
        inside = _inside(net.holders, rows)
        net.of.forget(inside)
        seen.inside.extend(inside)
        for inode in unknown:
            net.tries[inode] = net.tries.get(inode, 0) + 1
            if (holder := found.get(inode)) is None or inode in inside:
                continue
            stat = read_stat(holder[1])
            name = stat.comm if stat is not None else ""
            net.of.track(rows[inode])
            seen.new.append(_Owned(holder[0], rows[inode], holder[1], name))


def _find(places: Iterable[_Place], inodes: Iterable[int]) -> dict[int, tuple[str, int]]:
    """The session and the first process that hold each of these sockets."""
    left, found = set(inodes), dict[int, tuple[str, int]]()
    for place in places:
        if not left:
            break
        pids = [one.pid for one in proc_scan.of_session(place.keeper)]
        for inode, pid in sockets_of(pids).items():
            if inode in left:
                left.discard(inode)
                found[inode] = place.session, pid
    return found


def _inside(holders: dict[int, str], rows: dict[int, Row]) -> set[int]:
    """Of these sockets, those with the other end in the same session."""
    by_session = dict[str, dict[tuple[str, str], int]]()
    for inode, session in holders.items():
        if (row := rows.get(inode)) is not None:
            by_session.setdefault(session, {})[row.local, row.remote] = inode
    return {known[pair] for known in by_session.values() for pair in inner(known)}
