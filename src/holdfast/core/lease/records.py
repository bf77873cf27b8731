"""The records in the store, as JSON: one for each machine, one for each session with an epoch.

    machine/MACHINE   {"run", "renewals", "term_s", "name"}
    session/SESSION   {"epoch", "owner", "state", "rehomable", "run", "wait_s", "by", "at"}

A machine renews its one record for all its sessions. Whoever ends its ownership of a session
writes both records in one transaction, so the machine's next renewal fails and it looks again.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, fields
from typing import Final, NamedTuple, TypeVar

RECORD_BYTES_MAX: Final = 4096
EPOCH_MAX: Final = (1 << 63) - 1
HELD, RELEASED, INVALIDATED = "held", "released", "invalidated"
_NAME: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class Unreadable(Exception):
    """A record that this release cannot use; the text says why."""


@dataclass(frozen=True, slots=True)
class Machine:
    """`run`: which host process of the machine speaks. `term_s`: the longest term of deadlines."""

    run: int = 0
    renewals: int = 0
    term_s: float = 0.0
    name: str = ""  # for people


@dataclass(frozen=True, slots=True)
class Lease:
    """`wait_s`: of an invalidated lease, the owner's term. `by`, `at`: of the last change."""

    epoch: int
    owner: str
    state: str = HELD
    rehomable: bool = False
    run: int = 0
    wait_s: float = 0.0
    by: str = ""
    at: float = 0.0


class Stored(NamedTuple):
    """A value of the store; revision 0: there is none. A revision is never used twice."""

    value: bytes
    revision: int


class Commit(NamedTuple):
    """A transaction: all of `puts`, if the keys of `expect` still have these revisions."""

    expect: tuple[tuple[str, int], ...]
    puts: tuple[tuple[str, bytes], ...]


R = TypeVar("R", Machine, Lease)


def machine_key(machine: str) -> str:
    return f"machine/{_checked(machine)}"


def session_key(session: str) -> str:
    return f"session/{_checked(session)}"


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise Unreadable(f"{name[:80]!a} cannot be a key")
    return name


def encode(record: Machine | Lease) -> bytes:
    return json.dumps(asdict(record), separators=(",", ":")).encode()


def machine(stored: Stored) -> Machine:
    """The machine's record; that of a machine that never renewed, if there is none."""
    if not stored.revision:
        return Machine()
    found = _decode(Machine, stored.value)
    if min(found.run, found.renewals) < 0 or found.term_s < 0:
        raise Unreadable("a number of the machine's record is negative")
    return found


def lease(stored: Stored) -> Lease | None:
    if not stored.revision:
        return None
    found = _decode(Lease, stored.value)
    if found.state not in (HELD, RELEASED, INVALIDATED) or not 0 < found.epoch <= EPOCH_MAX:
        raise Unreadable("the state or the epoch of the session's record is unknown")
    if not _NAME.fullmatch(found.owner) or found.wait_s < 0:
        raise Unreadable("the owner or the wait of the session's record is unknown")
    return found


def _decode(kind: type[R], data: bytes) -> R:
    try:
        raw = json.loads(data) if len(data) <= RECORD_BYTES_MAX else None
    except (ValueError, RecursionError):
        raw = None
    if not isinstance(raw, dict):
        raise Unreadable("a record is no JSON object, or too long")
    plain = kind.__dataclass_fields__
    values: dict[str, object] = {}
    for name, value in raw.items():
        if name not in plain:
            continue  # of a later release
        wanted = plain[name].type
        if wanted == "float" and type(value) is int:
            value = float(value)
        if type(value).__name__ != wanted or value != value:
            raise Unreadable(f"{name} of a record is no {wanted}")
        values[name] = value
    if missing := [f.name for f in fields(kind) if f.name in _NEEDED and f.name not in values]:
        raise Unreadable(f"a record lacks {missing[0]}")
    return kind(**values)  # type: ignore[arg-type]


_NEEDED: Final = {"epoch", "owner"}
