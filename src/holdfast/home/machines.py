"""The machines that this home can reach through relays: one file, readable by this account alone, because it holds the passes to their lines.

    HOME/machines.json   canonical JSON {v, machines: [{name, key, static, as, added, ways: [{url, route, pass, ca?}]}]}

`key` is the machine's own (Ed25519), `static` the key of its sealed channels; both are pinned from the moment of pairing, so no relay can stand in for it. A
pass lets one through to the machine's line at a relay, nothing more: who one is, one proves to the machine. The file appears whole or not at all.
"""

from __future__ import annotations

import os
import secrets
from typing import Any, Final, NamedTuple

from holdfast import home as homes
from holdfast.home import Home
from holdfast.model import base64url, canonical, signing
from holdfast.model.errors import NotFound, Refused, Unavailable
from holdfast.model.ids import check_name

FILE_BYTES: Final = 1 << 20
MACHINES_MAX: Final = 1000
WAYS_MAX: Final = 8


class Way(NamedTuple):
    """One relay that leads to a machine."""

    url: str
    route: bytes
    pass_: bytes
    ca: str | None = None

    def __repr__(self) -> str:            # a pass must not end up in a log
        return f"Way({self.url!r}, {self.route.hex()})"


class Machine(NamedTuple):
    name: str
    key: bytes
    static: bytes
    operator: str                         # the local identity that is known there
    added: int
    ways: tuple[Way, ...]


def path(home: Home) -> str:
    return f"{home.state}/machines.json"


def listing(home: Home) -> list[Machine]:
    """All of them by name; a file that cannot be read is said so, not overwritten."""
    try:
        with open(path(home), "rb") as file:
            homes.check_private(path(home))
            data = file.read(FILE_BYTES + 1)
    except FileNotFoundError:
        return []
    except OSError as e:
        raise Unavailable(f"cannot read {path(home)}: {e.strerror}", "make it readable for this account") from e
    try:
        value = canonical.decode(data.strip())
        if len(data) > FILE_BYTES or value["v"] != 1:
            raise ValueError("another version")
        return sorted((_read(one) for one in value["machines"]), key=lambda m: m.name)
    except (ValueError, KeyError, TypeError) as e:
        raise Unavailable(f"{path(home)} is damaged: {e}", "put it aside and pair again") from e


def find(home: Home, name: str) -> Machine:
    known = listing(home)
    found = next((m for m in known if m.name == name), None)
    if found is None:
        raise NotFound(f"no machine {name[:80]!a} is known here", f"known: {', '.join(m.name for m in known)}" if known else "`holdfast join` makes one known")
    return found


def keep(home: Home, machine: Machine) -> None:
    """Adds it, or puts it in the place of the one with the same key. Another machine with that name is not replaced."""
    check_name(machine.name)
    others = [m for m in listing(home) if m.key != machine.key]
    if any(m.name == machine.name for m in others):
        raise Refused(f"another machine is called {machine.name} here", "choose another name")
    if len(others) >= MACHINES_MAX or len(machine.ways) > WAYS_MAX:
        raise Refused(f"{MACHINES_MAX} machines are known here", "forget some")
    _write(home, [*others, machine])


def forget(home: Home, name: str) -> None:
    find(home, name)
    _write(home, [m for m in listing(home) if m.name != name])


def _read(one: dict[str, Any]) -> Machine:
    ways = tuple(Way(str(w["url"]), base64url.decode(w["route"]), base64url.decode(w["pass"]), w.get("ca")) for w in one["ways"])
    return Machine(str(one["name"]), signing.read(one["key"]), base64url.decode(one["static"]), str(one["as"]), int(one["added"]), ways)


def _show(m: Machine) -> dict[str, Any]:
    ways = [{"url": w.url, "route": base64url.encode(w.route), "pass": base64url.encode(w.pass_), **({"ca": w.ca} if w.ca else {})} for w in m.ways]
    return {"name": m.name, "key": signing.show(m.key), "static": base64url.encode(m.static), "as": m.operator, "added": m.added, "ways": ways}


def _write(home: Home, machines: list[Machine]) -> None:
    data = canonical.encode({"v": 1, "machines": [_show(m) for m in machines]}) + b"\n"
    fresh = f"{path(home)}.{secrets.token_hex(4)}"
    try:
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.rename(fresh, path(home))
        except BaseException:
            os.unlink(fresh)
            raise
    except OSError as e:
        raise Unavailable(f"cannot write {path(home)}: {e.strerror}", "free disk space or make the directory writable") from e
