"""Invite and join, on the client's side.

The inviter's client makes the code and never sends the code (core/people/join_code.py). A
newcomer's key is on disk before any host sees the key. So if a host admits the key and dies before
answering, the next attempt presents the same key. A key that was made for joining and was certainly
not admitted is removed, so a mistyped code leaves no file behind.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.client.gone import HostGone, NotRunning
from holdfast.client.link import SETTLED_S, Link
from holdfast.core.people import join_code
from holdfast.core.people.join_code import Code, Elsewhere
from holdfast.core.sealed import channel_key, meeting, route
from holdfast.home import Home, keys, machines
from holdfast.home.keys import Identity
from holdfast.home.machines import Machine, Way
from holdfast.model import address, agreement, base64url, ids, signing
from holdfast.model.errors import (
    HoldfastError,
    NotAllowed,
    NotFound,
    PeerFault,
    Refused,
    TimedOut,
    Usage,
)
from holdfast.model.limits import CONNECT_WAIT_S, NAME_CHARS, RECONNECT_FIRST_S

if TYPE_CHECKING:
    from holdfast.home.keys import Ask
    from holdfast.model.jsontext import Json

DRAWS = 5  # attempts to find a free id
INVITE = b"invite/1"  # the purpose of bytes that are derived for a code


def invite(link: Link, **wishes: Any) -> tuple[Code, Json]:
    """A new invitation: the code, which only the caller has, and the host's description.

    Under an idempotency key, the code is derived from that key and the caller's private key. So a
    retry from a new process asks for the same invitation.
    """
    link.request("ping")  # connects, so that the machine's key is known
    for draw in range(DRAWS):
        code = join_code.make(os.urandom(8) if link.once is None else _keyed(link, draw))
        verifier = signing.public(join_code.private(code, machine_of(link)))
        try:
            return code, link.request(
                "invite",
                id=code.id,
                verifier=signing.show(verifier),
                meeting=meeting.password(code).hex(),
                **wishes,
            )
        except Refused as e:
            if not e.facts.get("taken"):
                raise
    raise Refused("no free id was found for an invitation", "try again")


def _keyed(link: Link, draw: int) -> bytes:
    """The random bytes of the code for this machine under the idempotency key of the link."""
    assert link.identity is not None
    purpose = b"\0".join((INVITE, machine_of(link), b"%d" % draw, str(link.once).encode()))
    return agreement.derive(link.identity.secret(), purpose)


def machine_of(link: Link) -> bytes:
    """The key of the machine that a link has reached."""
    return _key(link.machine)


def _key(text: str) -> bytes:
    try:
        return signing.read(text)
    except ValueError as e:
        raise PeerFault("the host's challenge does not contain the machine's key") from e


class Joining:
    """Proves to the host that this client has an invitation's code."""

    def __init__(
        self, code: Code, machine: str | None, told: Callable[[Json], None], device: str
    ) -> None:
        self._code, self._fingerprint, self._told, self._device = code, machine, told, device
        self._private: tuple[bytes, bytes] | None = None

    def prove(self, machine_key: str, statement: bytes) -> dict[str, str]:
        machine = _key(machine_key)
        if self._fingerprint is not None and join_code.fingerprint(machine) != self._fingerprint:
            raise Refused(
                "the invitation is for another machine",
                "set HOLDFAST_HOME to the home where it was made",
            )
        if self._private is None or self._private[0] != machine:
            self._private = machine, join_code.private(self._code, machine)
        return {
            "id": self._code.id,
            "device": self._device,
            "proof": signing.sign(self._private[1], join_code.DOMAIN, statement).hex(),
        }

    def waiting(self, event: Json) -> None:
        self._told(event)


def check_home(home: Home) -> None:
    """Refuse to join where no host ever ran: that would set up a new machine instead."""
    try:
        os.stat(f"{keys.directory(home)}/{keys.MACHINE}")
    except PermissionError as e:
        raise Refused(
            f"{home.state} belongs to another account, and only that account can connect to it",
            "that account can join under any name; from another account join by the link, "
            "or with --relay, as `holdfast invite` shows it",
        ) from e
    except OSError as e:
        raise NotFound(
            f"no host ever ran in {home.state}, so you cannot join there",
            "join another machine with --relay URL or by its link; on this machine set "
            "HOLDFAST_HOME to the inviter's home",
        ) from e


def reached(elsewhere: Json | None) -> Elsewhere | None:
    """The relays that the host says lead to this machine; None if there are none."""
    if elsewhere is None:
        return None
    try:
        return Elsewhere(
            base64url.decode(elsewhere["key"]),
            base64url.decode(elsewhere["static"]),
            tuple((str(url), base64url.decode(route)) for url, route in elsewhere["doors"]),
        )
    except (ValueError, KeyError, TypeError) as e:
        raise PeerFault("the host does not say how it can be reached") from e


def stranger(link: Link, code: Code, where: Elsewhere, ca: str | None = None) -> None:
    """Point the link to a machine that is known only from an invitation."""
    pass_ = join_code.pass_of(signing.public(join_code.private(code, where.key)))
    us = (where.key, link.operator)
    paired = (m.identity for m in machines.listing(link.home) if (m.key, m.operator) == us)
    ways = tuple(Way(url, route, pass_, ca) for url, route in where.doors)
    link.away = Machine(
        join_code.fingerprint(where.key),
        where.key,
        where.static,
        link.operator,
        int(time.time()),
        ways,
        next(paired, None),
    )


def strangers(link: Link, code: Code, relay: str, ca: str | None = None) -> None:
    """Point the link to the machine that waits at this relay for the code."""
    at = route.route(signing.public(meeting.route_key(code.id)))
    name, way = f"the machine with the code {code.id}", Way(relay, at, meeting.pass_(code.id), ca)
    link.away = Machine(name, b"", b"", link.operator, int(time.time()), (way,))
    link.meeting = meeting.password(code)


def keep_machine(link: Link, name: str, over_ssh: tuple[str, str] | None = None) -> Machine:
    """After joining, save the machine with this operator's own passes, under a free name.

    `over_ssh`: the machine's relay on loopback, and the address of that relay through ssh.
    """
    assert link.away is not None
    answer, key = link.request("ways"), link.away.key or machine_of(link)
    trusted = {_host(way.url): way.ca for way in link.away.ways}
    # From another machine, the machine's loopback relay would mean a relay of this machine.
    near = any(address.on_loopback(way.url) for way in link.away.ways)
    link.meeting = None
    try:
        said, signature = answer["static"]["statement"], answer["static"]["signature"]
        static_key = channel_key.read(key, said.encode(), bytes.fromhex(signature))
        ways = tuple(
            machines.read_way({**w, "ca": trusted.get(_host(str(w["url"])))})
            for w in answer["ways"]
            if near or not address.on_loopback(str(w["url"]))
        )
        if over_ssh is not None:
            ways = tuple(
                machines.read_way({**w, "url": over_ssh[1]})
                for w in answer["ways"]
                if w["url"] == over_ssh[0]
            )
    except (ValueError, KeyError, TypeError) as e:
        raise PeerFault("the machine does not say how it can be reached") from e
    taken = {m.name for m in machines.listing(link.home) if m.key != key}
    plain = ids.clean_name(name, "-")[:48] or "machine"
    free = next(
        n for n in (plain, *(f"{plain}-{i}" for i in range(2, len(taken) + 3))) if n not in taken
    )
    known = next((m.name for m in machines.listing(link.home) if m.key == key), free)
    link.away = Machine(
        known, key, static_key, link.operator, int(time.time()), ways, link.away.identity
    )
    machines.keep(link.home, link.away)
    return link.away


def only_one(home: Home, name: str) -> bool:
    """Whether a single identity is paired with that machine, so that `--as` is not needed."""
    return sum(m.name == name for m in machines.listing(home)) == 1


def _host(url: str) -> str:
    try:
        return address.host_and_port(url)[0]
    except Usage:  # a scheme that only a newer release knows; the next way may work
        return ""


def another_key(link: Link) -> None:
    """Use a new key for that machine.

    The present key was revoked there, and may still be valid elsewhere.
    """
    if link.away is None:
        raise Usage(
            "a second key is only possible on another machine",
            "on the machine itself choose another name, or `holdfast operator recover`",
        )
    taken, number = {one.name for one in keys.listing(link.home)}, 2
    while (name := f"{link.operator[: NAME_CHARS - 4]}.{number}") in taken:
        number += 1
    link.away = link.away._replace(identity=name)


def join(
    link: Link,
    code: Code,
    machine: str | None,
    told: Callable[[Json], None],
    passphrase: Ask | None = None,
    device: str = "",
) -> Json:
    """Join as the link's operator; return the operator's new rights.

    Makes the key if there is none, with `passphrase` if given. `device` is the suggested name of
    this device, if the inviter gave none.
    """
    if link.away is None:
        check_home(link.home)
    identity, made = _identity(link, passphrase)
    link.invited = Joining(code, machine, told, device or os.uname().nodename)
    unsure = False
    deadline, pause = time.monotonic() + CONNECT_WAIT_S, RECONNECT_FIRST_S
    while True:
        begun = time.monotonic()
        try:
            link.connect()
            break
        except HostGone as e:  # the key may be admitted: try again with the same key
            link.close()
            if link.meeting is not None and link.line is not None and not unsure:
                link.line = None
                if made:
                    keys.remove(link.home, identity.name)
                raise NotAllowed(
                    "the machine that waits there has another code; this one is void now",
                    "ask your inviter for a new one",
                ) from e
            unsure, now = unsure or not isinstance(e, NotRunning), time.monotonic()
            if now - begun >= SETTLED_S:
                deadline, pause = now + CONNECT_WAIT_S, RECONNECT_FIRST_S
            if e.stays or now > deadline:
                if made and not unsure:
                    keys.remove(link.home, identity.name)
                raise
            time.sleep(pause)
            pause = min(pause * 2, 0.5)
        except HoldfastError as e:
            link.close()
            if made and not unsure and not isinstance(e, TimedOut):
                keys.remove(link.home, identity.name)
            raise
    link.invited = None
    joined: Json = link.welcome["joined"]
    if (made and joined["kind"] != identity.kind) or (
        identity.private is not None and not os.path.exists(identity.path)
    ):
        # Also if a concurrent refused `join` under this name made the file and removed it.
        keys.change_kind(identity, joined["kind"], passphrase)
    return {
        **joined,
        "key": signing.show(identity.public),
        "fingerprint": join_code.group(join_code.fingerprint(identity.public)),
        "machine": link.machine,
        "host": link.welcome["host"],
    }


def _identity(link: Link, passphrase: Ask | None) -> tuple[Identity, bool]:
    try:
        return keys.load(link.home, link.key_name), False
    except NotFound:
        link.identity = made = keys.make(link.home, link.key_name, "human", time.time(), passphrase)
        return made, True
