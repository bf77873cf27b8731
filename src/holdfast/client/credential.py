"""A credential: one text with which a program reaches one machine as one operator.

    TEXT ::= "hfc1." base64url of canonical JSON
             {v, machine, private, kind, created, envelope, home?}
    machine: as in HOME/machines.json, with the relays and their passes (home/machines.py)
    home:    the machine's own home, for a program on that machine

The program needs neither a home nor pairing. The text contains the private key of a device that was
made for this credential, so the text is as secret as a key file: a file is refused if other
accounts can read it. The envelope says what the key may do; the host has it and decides. A
credential comes from a file, a variable or a caller, never from the arguments of a command, which
other users can see.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.client.link import Link
from holdfast.core.people import envelope
from holdfast.core.sealed import channel_key
from holdfast.home import Home, keys, machines, private
from holdfast.home.keys import Identity
from holdfast.home.machines import Machine
from holdfast.model import address, base64url, canonical, signing
from holdfast.model.errors import (
    HoldfastError,
    NotAllowed,
    NotFound,
    PeerFault,
    Refused,
    Unavailable,
    Usage,
)
from holdfast.model.ids import clean_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.core.people.scope import Scope
    from holdfast.model.jsontext import Json

PREFIX: Final = "hfc1."
TEXT_CHARS: Final = 128 << 10  # an envelope of 8 links and 8 ways fit
NOWHERE: Final = Home("/dev/null/holdfast", "/dev/null/holdfast/config.toml", True)
RECOVER: Final = "an operator of the machine makes one: `holdfast grant NAME --credential FILE`"


class Credential(NamedTuple):
    machine: Machine
    identity: Identity
    envelope: str
    home: str | None  # of the machine itself

    def __repr__(self) -> str:  # without secrets, because it appears in tracebacks and logs
        return f"Credential({self.machine.operator!r} on {self.machine.name!r})"

    @property
    def scope(self) -> Scope:
        """The limits of the credential, as its maker gave them."""
        return envelope.read(envelope.decode(self.envelope)[-1].body).scope


# ------------------------------------------------------------ text and file


def encode(credential: Credential) -> str:
    one = credential.identity
    body: Json = {
        "v": 1,
        "machine": machines.show(credential.machine),
        "private": base64url.encode(one.secret()),
        "kind": one.kind,
        "created": one.created,
        "envelope": credential.envelope,
        **({"home": credential.home} if credential.home else {}),
    }
    return PREFIX + base64url.encode(canonical.encode(body))


def decode(text: str) -> Credential:
    try:
        if len(text) > TEXT_CHARS or not text.startswith(PREFIX):
            raise ValueError("it does not begin with " + PREFIX)
        body = canonical.decode(base64url.decode(text.removeprefix(PREFIX)))
        if body["v"] != 1:
            raise ValueError("another version")
        machine, secret = machines.read(body["machine"]), base64url.decode(body["private"])
        home = body.get("home")
        identity = Identity(
            machine.operator,
            str(body["kind"]),
            signing.public(secret),
            int(body["created"]),
            secret,
            False,
            "",
        )
        made = Credential(machine, identity, str(body["envelope"]), home and str(home))
        _ = made.scope  # it can be read
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise Usage(f"that is not a credential: {type(e).__name__}", RECOVER) from None
    return made


def load(given: str) -> Credential:
    """A credential from its text, or from a file that only this account can read."""
    given = given.strip()
    if given.startswith(PREFIX):
        return decode(given)
    if (data := private.read(given, TEXT_CHARS)) is None:
        raise NotFound(f"there is no credential in {given[:200]!a}", RECOVER)
    return decode(data.decode("ascii", "replace").strip())


# ------------------------------------------------------------ using


def link(
    credential: Credential, modality: str, autostart: bool, environ: Mapping[str, str]
) -> Link:
    """A link to the machine: by its own socket on the machine itself, else through a relay.

    `environ`: of a host that has to be started there.
    """
    machine, near = credential.machine, _near(credential)
    expires = credential.scope.expires
    if expires is not None and expires <= time.time():
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(expires))
        raise NotAllowed(f"the credential of {machine.operator} expired at {when}", RECOVER)
    if near is None and not machine.ways:
        raise Unavailable(
            f"the credential has no relay to {machine.name}, and this is another machine",
            "connect that machine to a relay (`holdfast host connect`), then make a new credential",
        )
    away = machine if near is None else None
    made = Link(near or NOWHERE, machine.operator, modality, autostart, None, away)
    made.identity = credential.identity
    if near is not None:
        made.host_environ = {**environ, "HOLDFAST_HOME": near.state}
    return made


def _near(credential: Credential) -> Home | None:
    """The machine's home, if this program runs on the machine and as its account."""
    if credential.home is None:
        return None
    home = Home(credential.home, f"{credential.home}/config.toml", True)
    try:
        return home if keys.load_machine(home).public == credential.machine.key else None
    except (HoldfastError, OSError):
        return None


# ------------------------------------------------------------ making


def new_key(link: Link, name: str, kind: str) -> Identity:
    """Makes a key and admits it: as a new operator, or as a device of the one with that name."""
    secret = signing.generate()
    made = Identity(name, kind, signing.public(secret), int(time.time()), secret, False, "")
    device, key = f"credential-{os.urandom(3).hex()}", signing.show(made.public)
    try:
        known = link.request("operator.show", name=name)
    except NotFound:
        link.request("operator.add", name=name, kind=kind, key=key, device=device)
        return made
    if known["revoked"]:
        raise Refused(f"{name} was revoked, and a name is never used again", "choose another name")
    link.request("device.add", operator=name, device=device, key=key)
    made.kind = known["kind"]
    return made


def issue(link: Link, identity: Identity, granted: str) -> Credential:
    """The credential of an admitted key. `granted`: the id of the envelope that was given."""
    asking = Link(link.home, identity.name, link.modality, False, None, link.away)
    asking.identity = identity
    try:
        answer, held = asking.request("ways"), asking.request("envelopes")["envelopes"]
        name = clean_name(str(asking.welcome.get("host")), "-")[:48] or "machine"
    finally:
        asking.close()
    try:
        key = signing.read(answer["machine"])
        said = answer["static"]
        static = channel_key.read(key, said["statement"].encode(), bytes.fromhex(said["signature"]))
        ways = tuple(machines.read_way(way) for way in answer["ways"])
        text = next((one for one in held if _link_id(one) == granted), held[-1])
    except (ValueError, KeyError, TypeError, IndexError) as e:
        raise PeerFault("the machine does not say how it can be reached") from e
    # A relay on loopback leads other machines nowhere: it is named only if there is no other.
    ways = tuple(way for way in ways if not address.on_loopback(way.url)) or ways
    name = link.away.name if link.away is not None else name
    machine = Machine(name, key, static, identity.name, identity.created, ways)
    return Credential(machine, identity, text, None if link.away else link.home.state)


def _link_id(text: str) -> str:
    return envelope.read(envelope.decode(text)[-1].body).id.hex()
