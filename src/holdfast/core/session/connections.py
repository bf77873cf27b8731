"""TCP connections of a session to peers outside, and those that do not survive (R4). Pure.

A checkpoint keeps the connections of its moment in the manifest, as rows. A restored, moved or
forked session has those connections closed, because the peer's half is in the peer's kernel. The
exception are connections with both ends in a session with a network of its own: they survive.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

KEPT_MAX: Final = 256  # rows of a manifest
SHOWN: Final = 5  # in a line for people
LIVE: Final = ("established", "close-wait", "connecting")  # states in which data may be on its way
MAPPED: Final = "[::ffff:"  # an IPv4 address in a table of IPv6


class Connection(NamedTuple):
    """`unacked`: bytes that the peer had not acknowledged. `act`: reference of the act that started
    the process. `survives`: both ends are in the session, and so is their network.
    """

    protocol: str  # "tcp" or "tcp6"
    local: str
    remote: str
    pid: int
    program: str
    actor: str
    act: str | None
    unacked: int
    survives: bool = False


def plain(address: str) -> str:
    """An address without the notation of IPv4 in IPv6."""
    if address.startswith(MAPPED) and "." in address:
        host, _, port = address.removeprefix(MAPPED).rpartition("]")
        return host + port
    return address


def inner(ends: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """Of the pairs (local, remote) of one session, those whose other end is there as well."""
    known = {(plain(local), plain(remote)): (local, remote) for local, remote in ends}
    return {known[one] for one in known if (one[1], one[0]) in known}


def rows(found: Sequence[Connection]) -> tuple[dict[str, Any], ...]:
    """The rows of a manifest: those with most to lose come first if they are too many."""
    chosen = sorted(found, key=lambda one: (one.survives, -one.unacked, one.local))[:KEPT_MAX]
    return tuple(one._asdict() for one in chosen)


def lost(saved: Iterable[Mapping[str, Any]]) -> tuple[Connection, ...]:
    """The connections that do not survive, from the rows of a manifest; a damaged row is left out.

    The same for a restore, a move and a fork.
    """
    found = list[Connection]()
    for row in list(saved)[:KEPT_MAX]:
        try:
            act = row["act"]
            one = Connection(
                str(row["protocol"]),
                str(row["local"]),
                str(row["remote"]),
                int(row["pid"]),
                str(row["program"]),
                str(row["actor"]),
                None if act is None else str(act),
                int(row["unacked"]),
                bool(row["survives"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
        if not one.survives:
            found.append(one)
    return tuple(found)


def facts(one: Connection) -> dict[str, Any]:
    """Of one lost connection, for events, the record and `restore --json`."""
    return {name: value for name, value in one._asdict().items() if name != "survives"}


def line(one: Mapping[str, Any]) -> str:
    """One lost connection in words."""
    unacked = one["unacked"]
    count = f", {unacked} bytes not acknowledged" if unacked else ""
    by = one["actor"]
    who = f" of {by}" if by not in ("unknown", "shell") else ""
    return f"{one['local']} -> {one['remote']} ({one['program']} {one['pid']}{who}{count})"


def words(found: Sequence[Mapping[str, Any]], more: int = 0) -> str:
    """Lost connections in words; `more`: further ones that are not in the list."""
    left = len(found) - SHOWN + more if len(found) > SHOWN else more
    text = "; ".join(line(one) for one in found[:SHOWN])
    return text + (f"; and {left} more" if left else "")
