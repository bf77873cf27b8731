"""Names of the devices of an operator, and the rights of a new device.

An operator is a name with several keys, one per device. The name of a device is a label for
people; the record and all checks use its key. So the name can be changed. But two devices of an
operator never share a name, revoked devices included, because readers of the record use it.

A grant is given to the operator. An envelope is bound to a key, so each device holds its own, made
with the same nonce. Links of the same issuer and nonce, held by the same operator, are one grant.
All links of a grant share the rate and are revoked together. So a further device lets an operator
do neither more nor more often. A grant that an operator handed on goes through the key that signed
it, and only that key can sign for a further device: the grant is not carried over.

Rejected: to let every device use the envelopes of all devices. An envelope would mean more than
the text, and revoking a single device would take the envelope from all devices.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, TypeVar

from holdfast.core.people.envelope import Terms, Verified
from holdfast.model.errors import NotFound, Refused
from holdfast.model.ids import is_session_id
from holdfast.model.limits import NAME_CHARS

T = TypeVar("T")
UNNAMED: Final = "device"


def plain(text: str) -> str:
    """Make a device name from a host name; UNNAMED if no usable character is left."""
    cleaned = "".join(
        c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in text.partition(".")[0]
    ).lstrip("-")[:NAME_CHARS]
    return cleaned if cleaned and not is_session_id(cleaned) else UNNAMED


def free(wanted: str, taken: Collection[str]) -> str:
    """Return that name, or the first free name like it."""
    if wanted not in taken:
        return wanted
    number = 2
    while (
        name := f"{wanted[: NAME_CHARS - len(str(number)) - 1]}-{number}"
    ) in taken or is_session_id(name):
        number += 1
    return name


def named(keys: Iterable[T], names: Mapping[T, str]) -> dict[T, str]:
    """Return the names of an operator's devices, oldest first; nameless ones get a free name."""
    found = {key: names.get(key, "") for key in keys}
    taken = {name for name in found.values() if name}
    for key, name in found.items():
        if not name:
            taken.add(name := free(UNNAMED, taken))
            found[key] = name
    return found


def grant(link: Terms) -> bytes:
    """Return the id of a link's grant: the same for all devices that hold it."""
    return link.issuer + link.nonce


def carried(held: Iterable[tuple[Verified, T]], machine: bytes) -> dict[bytes, tuple[Terms, T]]:
    """Return each grant that the machine itself made once, from the envelopes of all devices."""
    found: dict[bytes, tuple[Terms, T]] = {}
    for chain, known in held:
        if len(chain.links) == 1 and chain.last.issuer == machine:
            found.setdefault(grant(chain.last), (chain.last, known))
    return found


def find(word: str, names: Mapping[T, str], shown: Mapping[T, str], operator: str) -> T:
    """Return the device with this name, or with this key as shown."""
    for key, name in names.items():
        if word in (name, shown[key]):
            return key
    raise NotFound(
        f"{operator} has no device {word[:80]!a}",
        f"`holdfast device ls {operator}` lists them",
        what="device",
        word=word[:80],
    )


def unused(name: str, operator: str, taken: Collection[str]) -> str:
    if name in taken:
        raise Refused(
            f"{operator} has or had a device named {name}",
            "choose another name: revoked devices keep theirs, because the record refers to them",
        )
    return name
