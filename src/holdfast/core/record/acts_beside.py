"""Acts that a restored memory does not contain as a whole (R6, R7). Pure.

A checkpoint catches some acts in the middle: in the restored memory they go on from there, so their
effects may come twice. Acts that came after the checkpoint are not in the memory; their effects
remain. Neither is run again, and both are named after a restore: by the reference of the act, or by
its entry in the record if the number of the act is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from holdfast.core.record.acts import BY_KEEPER
from holdfast.core.record.record import INTENT, KEYS
from holdfast.model import references

KEPT_MAX: Final = 32  # of each list: the newest
IN_FLIGHT: Final = "goes on from the middle; its effects may come twice"
_NONE: Final[Mapping[int, tuple[int, int]]] = MappingProxyType({})
LATER: Final = "came after that moment; the memory does not know of it"

Entry = Mapping[str, Any]  # of the record; `act`: the number of the act, if it is known
Origins = Iterable[tuple[int, int, int]]  # client, number and sequence of its last act


def in_flight(entries: Iterable[Entry], epoch: int, origins: Origins) -> tuple[dict[str, str], ...]:
    """Of acts without outcome at the moment of a checkpoint: those that the session had taken."""
    known = {client: (number, act) for client, number, act in origins}
    return tuple(
        _named(one, known)
        for one in entries
        if one["kind"] in BY_KEEPER and one["epoch"] == epoch and _taken(one, known)
    )[-KEPT_MAX:]


def later(entries: Iterable[Entry], epoch: int, origins: Origins) -> list[dict[str, str]]:
    """Of entries behind that moment: the acts that the memory of incarnation `epoch` lacks."""
    known = {client: (number, act) for client, number, act in origins}
    return [
        _named(one)
        for one in entries
        if (one["kind"] == KEYS or (one["kind"] in BY_KEEPER and one["phase"] == INTENT))
        and (one["epoch"] > epoch or (one["epoch"] == epoch and not _taken(one, known)))
    ]


def _taken(entry: Entry, known: Mapping[int, tuple[int, int]]) -> bool:
    client, number = entry.get("client"), entry.get("number")
    return (
        client is not None
        and number is not None
        and number <= known.get(int(client, 16), (0, 0))[0]
    )


def _named(entry: Entry, known: Mapping[int, tuple[int, int]] = _NONE) -> dict[str, str]:
    """`known`: the number of each client's last act, and the session's number of it."""
    session, epoch = str(entry["session"]), int(entry["epoch"])
    act, client = entry.get("act"), entry.get("client")
    last, of_last = known.get(int(client, 16), (None, None)) if client else (None, None)
    if act is None and last == entry.get("number"):
        act = of_last
    said = references.entry(session, epoch, entry["seq"])
    if act is not None:
        said = str(references.Ref(session, epoch, act))
    return {"act": said, "actor": str(entry["actor"]), "kind": str(entry["kind"])}


def rows(saved: Iterable[Mapping[str, Any]]) -> tuple[dict[str, str], ...]:
    """The acts of a manifest; a damaged one is left out."""
    found = list[dict[str, str]]()
    for one in list(saved)[:KEPT_MAX]:
        try:
            found.append({name: str(one[name])[:200] for name in ("act", "actor", "kind")})
        except (KeyError, TypeError):
            continue
    return tuple(found)


def line(one: Mapping[str, Any]) -> str:
    return f"{one['act']} ({one['kind']} of {one['actor']})"


def words(found: Sequence[Mapping[str, Any]], more: int = 0) -> str:
    return ", ".join(map(line, found)) + (f", and {more} before these" if more else "")
