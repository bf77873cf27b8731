"""What the devices of one operator are called, and what a new one may do.

An operator is one name with several keys, one for each device. A device's name is a label for people: what counts, in the record and everywhere else, is its
key. So it can be changed; but within an operator no two devices ever have the same one, those that were revoked included, because the record is read with it.

A grant is to the operator. As an envelope is bound to a key, each device holds one of its own, made with the same nonce: links of one issuer with the same nonce, held
by the same operator, are one grant. They share their rate, and are revoked together. So another device makes nobody able to do more, or more often. What somebody
handed on with their own key goes through that key, and only they can sign it for another device: it is not carried over.

Rejected: to let every device use whatever another one holds. An envelope would mean more than it says, and revoking the device it was made for would take it
from all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, TypeVar

from holdfast.core.envelope import Terms, Verified
from holdfast.model.errors import NotFound, Refused
from holdfast.model.ids import is_session_id
from holdfast.model.limits import NAME_CHARS

T = TypeVar("T")
UNNAMED: Final = "device"


def plain(text: str) -> str:
    """A name of a device made of whatever a machine calls itself; that of nothing in particular if nothing is left."""
    cleaned = "".join(
        c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in text.partition(".")[0]
    ).lstrip("-")[:NAME_CHARS]
    return cleaned if cleaned and not is_session_id(cleaned) else UNNAMED


def free(wanted: str, taken: Collection[str]) -> str:
    """That name, or the first like it that is free."""
    if wanted not in taken:
        return wanted
    number = 2
    while (
        name := f"{wanted[: NAME_CHARS - len(str(number)) - 1]}-{number}"
    ) in taken or is_session_id(name):
        number += 1
    return name


def named(keys: Iterable[T], names: Mapping[T, str]) -> dict[T, str]:
    """The names of one operator's devices, oldest first; who has none (it is older than names are) gets one that nobody has."""
    found = {key: names.get(key, "") for key in keys}
    taken = {name for name in found.values() if name}
    for key, name in found.items():
        if not name:
            taken.add(name := free(UNNAMED, taken))
            found[key] = name
    return found


def grant(link: Terms) -> bytes:
    """Which grant a link is of: the same for all devices that hold it."""
    return link.issuer + link.nonce


def carried(held: Iterable[tuple[Verified, T]], machine: bytes) -> dict[bytes, tuple[Terms, T]]:
    """Of what an operator's devices hold: each grant of the machine itself once, with what is known of it."""
    found: dict[bytes, tuple[Terms, T]] = {}
    for chain, known in held:
        if len(chain.links) == 1 and chain.last.issuer == machine:
            found.setdefault(grant(chain.last), (chain.last, known))
    return found


def find(word: str, names: Mapping[T, str], shown: Mapping[T, str], operator: str) -> T:
    """The device that a word means: its name, or its key as it is shown."""
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
            f"{operator} has a device {name} already, or had one",
            "choose another name: those of devices that were revoked stay theirs, because the record is read with them",
        )
    return name
