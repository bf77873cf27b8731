"""Decides which connections of sessions were lost, from the kernel's tables. Pure (R4).

The kernel drops a connection from its tables when the peer resets it, when it gives up on a silent
peer, and at an orderly close. The tables do not say which of these it was. These rules decide:

1. A connection that is still listed under its addresses without a holder (TIME_WAIT, or an orphan
   that the kernel finishes) was closed by its program. So was one that was seen closing.
2. A program still holds the socket: the peer reset the connection, or the kernel gave it up.
3. No program holds the socket. Either the program closed it in order, or it noticed a reset at
   once. The kernel counts resets for each network namespace. Without a reset since the last look,
   the close was in order. If more connections are gone than were reset, it is not sure which.
4. A connection whose segments the peer did not acknowledge for `silent_s` is silent, also if only
   keepalive probes are not answered. It may recover, which is told too.

A connection that began and ended between two looks is not known. If both ends are on this machine,
it is not known which end reset the connection.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from holdfast.core.session.connections import plain

OPEN: Final = ("established", "close-wait")  # states of a connection that can be lost
Kind = Literal["reset", "timeout", "silent", "recovered", "closed"]


class Row(NamedTuple):
    """A TCP socket in the table. `inode` 0: no program holds it. `stuck`: a segment or a probe was
    repeated, and the peer has not answered since.
    """

    protocol: str
    local: str
    remote: str
    state: str
    inode: int
    unacked: int
    stuck: bool


class Table(NamedTuple):
    """The TCP sockets of a network namespace, and its counters since it began."""

    rows: Sequence[Row]
    resets: int  # connections reset by a peer or given up
    timeouts: int  # connections given up


class Change(NamedTuple):
    """`closed` is in order. `sure`: false if another connection may have been reset instead."""

    inode: int
    kind: Kind
    unacked: int
    sure: bool = True


@dataclass(slots=True)
class _Tracked:
    row: Row
    stuck_since: float | None = None
    silent: bool = False


class Namespace:
    """The open connections of one network namespace, from look to look."""

    def __init__(self, silent_s: float) -> None:
        self._silent_s = silent_s
        self._tracked: dict[int, _Tracked] = {}
        self._open: dict[int, Row] = {}  # of the last look, tracked or not
        self._counted: tuple[int, int] | None = None

    @property
    def tracked(self) -> AbstractSet[int]:
        return self._tracked.keys()

    def track(self, row: Row) -> None:
        """From now on the losses of this connection are told."""
        self._tracked[row.inode] = _Tracked(row)

    def forget(self, inodes: Iterable[int]) -> None:
        for inode in inodes:
            self._tracked.pop(inode, None)

    def missing(self, table: Table) -> set[int]:
        """Tracked connections that the table lacks: for these the caller looks for a holder."""
        return self._tracked.keys() - {row.inode for row in table.rows}

    def looked(self, table: Table, held: Collection[int], now: float) -> list[Change]:
        """`held`: those of `missing` that a program still holds."""
        rows = {row.inode: row for row in table.rows if row.inode}
        gone = self._gone(table, rows)
        resets, timeouts = self._counts(table)
        loose = {frozenset(_ends(row)) for inode, row in gone.items() if inode not in held}
        resets = max(0, resets - len(self._tracked.keys() & gone.keys() & set(held)))
        sure = len(loose) <= resets
        changes = list[Change]()
        for inode, one in list(self._tracked.items()):
            if (row := rows.get(inode)) is not None:
                changes += self._seen(one, row, now)
                continue
            del self._tracked[inode]
            if inode not in gone or (inode not in held and not resets):
                changes.append(Change(inode, "closed", one.row.unacked))
                continue
            given_up = timeouts > 0 and one.stuck_since is not None
            kind: Kind = "timeout" if given_up else "reset"
            changes.append(Change(inode, kind, one.row.unacked, inode in held or sure))
        self._open = {inode: row for inode, row in rows.items() if row.state in OPEN}
        return changes

    def _gone(self, table: Table, rows: Mapping[int, Row]) -> dict[int, Row]:
        """Connections of the last look that are gone without a sign of an orderly close."""
        finishing = {_ends(row) for row in table.rows if not row.inode}
        known = self._open | {inode: one.row for inode, one in self._tracked.items()}
        return {
            inode: row
            for inode, row in known.items()
            if inode not in rows and row.state == "established" and _ends(row) not in finishing
        }

    def _counts(self, table: Table) -> tuple[int, int]:
        """Resets and timeouts since the last look."""
        last, self._counted = self._counted, (table.resets, table.timeouts)
        if last is None:
            return 0, 0
        return max(0, table.resets - last[0]), max(0, table.timeouts - last[1])

    def _seen(self, one: _Tracked, row: Row, now: float) -> Iterable[Change]:
        one.row = row
        if not row.stuck:
            one.stuck_since = None
            if one.silent:
                one.silent = False
                yield Change(row.inode, "recovered", row.unacked)
        elif one.stuck_since is None:
            one.stuck_since = now
        elif not one.silent and now - one.stuck_since >= self._silent_s:
            one.silent = True
            yield Change(row.inode, "silent", row.unacked)


def _ends(row: Row) -> tuple[str, str]:
    return plain(row.local), plain(row.remote)
