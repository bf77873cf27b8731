"""The machines that may keep copies of sessions of this machine, and take these sessions over.

    <state>/trusted.json    {v, machines: [{machine: as in machines.json, by, since}]}

An operator adds a machine (`holdfast machines trust`). The entry has a way to the machine and the
name of this machine there. The file appears whole or not at all.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from holdfast.home import Home, machines, private
from holdfast.home.machines import Machine
from holdfast.model import signing
from holdfast.model.errors import NotAllowed, Refused

FILE_BYTES: Final = 1 << 20
TRUSTED_MAX: Final = 100


class Trusted(NamedTuple):
    machine: Machine
    by: str
    since: float


def listing(home: Home) -> list[Trusted]:
    recover = "move it away and trust the machines again"
    try:
        return [
            Trusted(machines.read(one["machine"]), str(one["by"]), float(one["since"]))
            for one in private.entries(_path(home), FILE_BYTES, "machines", recover)
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise private.damaged(_path(home), e, recover) from e


def find(home: Home, word: str) -> Machine:
    """A trusted machine by its name or key; else NotFound, or NotAllowed with the advice."""
    for one in listing(home):
        if word in (one.machine.name, signing.show(one.machine.key)):
            return one.machine
    machines.find(home, word)  # NotFound if it is not known at all
    raise NotAllowed(
        f"{word[:80]} may not keep sessions of this machine",
        f"`holdfast machines` lists machines; `holdfast machines trust {word[:80]}` allows it",
    )


def keep(home: Home, machine: Machine, by: str, now: float) -> None:
    others = [one for one in listing(home) if one.machine.key != machine.key]
    if len(others) >= TRUSTED_MAX:
        raise Refused(f"{TRUSTED_MAX} machines are trusted here", "trust fewer machines")
    _write(home, [*others, Trusted(machine, by, now)])


def drop(home: Home, key: bytes) -> bool:
    found = listing(home)
    left = [one for one in found if one.machine.key != key]
    _write(home, left)
    return len(left) != len(found)


def _path(home: Home) -> str:
    return f"{home.state}/trusted.json"


def _write(home: Home, trusted: list[Trusted]) -> None:
    rows: list[Any] = [
        {"machine": machines.show(one.machine), "by": one.by, "since": int(one.since)}
        for one in trusted
    ]
    private.keep(_path(home), "machines", rows)
