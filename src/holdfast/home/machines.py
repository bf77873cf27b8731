"""The machines that this home can reach through relays: one file, readable by this account alone, because it holds the passes to their lines.

    HOME/machines.json   canonical JSON {v, machines: [{name, key, static, as, added, ways: [{url, route, pass, ca?}], identity?}]}

`key` is the machine's own (Ed25519), `static` the key of its sealed channels; both are pinned from the moment of pairing, so no relay can stand in for it. A
pass lets one through to the machine's line at a relay, nothing more: who one is, one proves to the machine. `identity` names the local key if it is not that of `as`:
of somebody whose key was revoked there and who came again with another. The file appears whole or not at all.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from holdfast.home import Home, private
from holdfast.model import base64url, signing
from holdfast.model.errors import NotFound, Refused
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

    def __repr__(self) -> str:  # a pass must not end up in a log
        return f"Way({self.url!r}, {self.route.hex()})"


class Machine(NamedTuple):
    name: str
    key: bytes
    static: bytes
    operator: str  # the local identity that is known there
    added: int
    ways: tuple[Way, ...]
    identity: str | None = None  # the local key, if it is not the one of that name


def path(home: Home) -> str:
    return f"{home.state}/machines.json"


def listing(home: Home) -> list[Machine]:
    """All of them by name; a file that cannot be read is said so, not overwritten."""
    recover = "put it aside and pair again"
    try:
        return sorted(
            (_read(one) for one in private.entries(path(home), FILE_BYTES, "machines", recover)),
            key=lambda m: (m.name, m.added),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise private.damaged(path(home), e, recover) from e


def find(home: Home, name: str, operator: str | None = None) -> Machine:
    """As who this identity is there, or whoever was paired first."""
    known = listing(home)
    found = sorted(
        (m for m in known if m.name == name), key=lambda m: (m.operator != operator, m.added)
    )
    if not found:
        raise NotFound(
            f"no machine {name[:80]!a} is known here",
            f"known: {', '.join(sorted({m.name for m in known}))}"
            if known
            else "`holdfast join` makes one known",
        )
    if operator is not None and found[0].operator != operator:
        raise NotFound(
            f"{operator} is not paired with {name}",
            f"paired: {', '.join(m.operator for m in found)}; `holdfast join` pairs another one",
        )
    return found[0]


def keep(home: Home, machine: Machine) -> None:
    """Adds it, or puts it in the place of what that identity knew of the same machine. Another machine with that name is not replaced."""
    check_name(machine.name)
    others = [
        m._replace(name=machine.name) if m.key == machine.key else m
        for m in listing(home)
        if (m.key, m.operator) != (machine.key, machine.operator)
    ]
    if any(m.name == machine.name for m in others if m.key != machine.key):
        raise Refused(f"another machine is called {machine.name} here", "choose another name")
    if len(others) >= MACHINES_MAX or len(machine.ways) > WAYS_MAX:
        raise Refused(f"{MACHINES_MAX} machines are known here", "forget some")
    _write(home, [*others, machine])


def forget(home: Home, name: str) -> None:
    find(home, name)
    _write(home, [m for m in listing(home) if m.name != name])


def _read(one: dict[str, Any]) -> Machine:
    ways = tuple(
        Way(str(w["url"]), base64url.decode(w["route"]), base64url.decode(w["pass"]), w.get("ca"))
        for w in one["ways"]
    )
    return Machine(
        str(one["name"]),
        signing.read(one["key"]),
        base64url.decode(one["static"]),
        str(one["as"]),
        int(one["added"]),
        ways,
        one.get("identity"),
    )


def _show(m: Machine) -> dict[str, Any]:
    ways = [
        {
            "url": w.url,
            "route": base64url.encode(w.route),
            "pass": base64url.encode(w.pass_),
            **({"ca": w.ca} if w.ca else {}),
        }
        for w in m.ways
    ]
    return {
        "name": m.name,
        "key": signing.show(m.key),
        "static": base64url.encode(m.static),
        "as": m.operator,
        "added": m.added,
        "ways": ways,
        **({"identity": m.identity} if m.identity else {}),
    }


def _write(home: Home, machines: list[Machine]) -> None:
    private.keep(path(home), "machines", [_show(m) for m in machines])
