"""The machines that this home can reach through relays.

    HOME/machines.json   canonical JSON {v, machines: [{name, key, static, as, added,
                         ways: [{url, route, pass, ca?}], identity?}]}

The file holds passes to the machines' lines, so only this account may read the file. The file
appears whole or not at all. `key` is the machine's Ed25519 key and `static` the key of the
machine's sealed channels. Both are pinned at pairing, so no relay can impersonate the machine. A
pass only admits to the machine's line at a relay; the client still proves an identity to the
machine. `identity` names the local key if that is not the key of `as`: after a revocation there,
the operator may have joined again with a new key.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from holdfast.home import Home, private
from holdfast.model import base64url, signing
from holdfast.model.errors import NotFound, Refused
from holdfast.model.ids import check_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.model.jsontext import Json

FILE_BYTES: Final = 1 << 20
MACHINES_MAX: Final = 1000
WAYS_MAX: Final = 8


class Way(NamedTuple):
    """A relay through which a machine can be reached."""

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
    operator: str  # the name of this operator on that machine
    added: int
    ways: tuple[Way, ...]
    identity: str | None = None  # the name of the local key, if not `operator`


def path(home: Home) -> str:
    return home.machines


def listing(home: Home) -> list[Machine]:
    """All machines by name. An unreadable file raises, and is never overwritten."""
    recover = "move it away and pair again"
    try:
        return sorted(
            (read(one) for one in private.entries(path(home), FILE_BYTES, "machines", recover)),
            key=lambda m: (m.name, m.added),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise private.damaged(path(home), e, recover) from e


def find(home: Home, name: str, operator: str | None = None) -> Machine:
    """The machine as this identity knows it, or as the first paired identity does."""
    known = listing(home)
    found = sorted(
        (m for m in known if m.name == name), key=lambda m: (m.operator != operator, m.added)
    )
    if not found:
        raise NotFound(
            f"no machine {name[:80]!a} is known here",
            f"known: {', '.join(sorted({m.name for m in known}))}"
            if known
            else "`holdfast join` adds one",
        )
    if operator is not None and found[0].operator != operator:
        raise NotFound(
            f"{operator} is not paired with {name}",
            f"paired: {', '.join(m.operator for m in found)}; `holdfast join` pairs another one",
        )
    return found[0]


def keep(home: Home, machine: Machine) -> None:
    """Add the machine, or replace this identity's entry. Refuses a name in use."""
    check_name(machine.name)
    others = [
        m._replace(name=machine.name) if m.key == machine.key else m
        for m in listing(home)
        if (m.key, m.operator) != (machine.key, machine.operator)
    ]
    if any(m.name == machine.name for m in others if m.key != machine.key):
        raise Refused(f"another machine is called {machine.name} here", "choose another name")
    if len(others) >= MACHINES_MAX or len(machine.ways) > WAYS_MAX:
        raise Refused(
            f"{MACHINES_MAX} machines are known here", "`holdfast machines forget NAME` removes one"
        )
    _write(home, [*others, machine])


def forget(home: Home, name: str) -> None:
    find(home, name)
    _write(home, [m for m in listing(home) if m.name != name])


def read(one: Json) -> Machine:
    return Machine(
        str(one["name"]),
        signing.read(one["key"]),
        base64url.decode(one["static"]),
        str(one["as"]),
        int(one["added"]),
        tuple(map(read_way, one["ways"])),
        one.get("identity"),
    )


def read_way(w: Json) -> Way:
    route, pass_ = base64url.decode(w["route"]), base64url.decode(w["pass"])
    return Way(str(w["url"]), route, pass_, w.get("ca"))


def show(m: Machine) -> Json:
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
    private.keep(path(home), "machines", [show(m) for m in machines])
