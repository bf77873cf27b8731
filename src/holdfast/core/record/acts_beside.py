"""Acts that a restored memory does not contain as a whole (R6, R7). Pure.

A checkpoint catches some acts in the middle: in the restored memory they go on from there, so their
effects may come twice. Acts that came after the checkpoint are not in the memory; their effects
remain. Neither is run again, and both are named after a restore.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from holdfast.core.record.acts import BY_KEEPER
from holdfast.core.record.record import INTENT, KEYS

KEPT_MAX: Final = 32  # of each list: the newest
IN_FLIGHT: Final = "goes on from the middle; its effects may come twice"
LATER: Final = "came after that moment; the memory does not know of it"

Entry = Mapping[str, Any]  # of the record
Origins = Iterable[tuple[int, int, int]]  # client, number and sequence of its last act


def in_flight(entries: Iterable[Entry], epoch: int, origins: Origins) -> tuple[dict[str, str], ...]:
    """Of acts without outcome at the moment of a checkpoint: those that the session had taken."""
    known = {client: number for client, number, _ in origins}
    return tuple(
        _named(one)
        for one in entries
        if one["kind"] in BY_KEEPER and one["epoch"] == epoch and _taken(one, known)
    )[-KEPT_MAX:]


def later(entries: Iterable[Entry], epoch: int, origins: Origins) -> list[dict[str, str]]:
    """Of entries behind that moment: the acts that the memory of incarnation `epoch` lacks."""
    known = {client: number for client, number, _ in origins}
    return [
        _named(one)
        for one in entries
        if (one["kind"] == KEYS or (one["kind"] in BY_KEEPER and one["phase"] == INTENT))
        and (one["epoch"] > epoch or (one["epoch"] == epoch and not _taken(one, known)))
    ]


def _taken(entry: Entry, known: Mapping[int, int]) -> bool:
    client, number = entry.get("client"), entry.get("number")
    return client is not None and number is not None and number <= known.get(int(client, 16), 0)


def _named(entry: Entry) -> dict[str, str]:
    reference = f"hf:{entry['session']}@{entry['epoch']}#{entry['seq']}"
    return {"act": reference, "actor": str(entry["actor"]), "kind": str(entry["kind"])}


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
