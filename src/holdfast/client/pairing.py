"""Inviting somebody and joining, from the client's side. The code is made by the inviter's client and never sent: see core/joincode.py.

A newcomer's key is on disk before it is shown to anybody: a host that has let it in and died before saying so finds the same key when it is asked again.
A key that was made for joining and certainly not let in is removed again, so that a mistyped code leaves nothing behind.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from holdfast.client.link import SETTLED_S, HostGone, Link
from holdfast.core import joincode, meeting, route, static
from holdfast.core.joincode import Code, Elsewhere
from holdfast.home import Home, keys, machines
from holdfast.home.keys import Ask, Identity
from holdfast.home.machines import Machine, Way
from holdfast.model import address, base64url, signing
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

DRAWS = 5  # ids that may turn out to be taken


def invite(link: Link, **wishes: Any) -> tuple[Code, dict[str, Any]]:
    """A new invitation: its code, which only the caller has, and what the host says of it."""
    link.request("ping")  # who the machine is
    for _ in range(DRAWS):
        code = joincode.make(os.urandom(8))
        verifier = signing.public(joincode.private(code, machine_of(link)))
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
    raise Refused("no id was free for an invitation", "try again")


def machine_of(link: Link) -> bytes:
    """The key of the machine that a link has reached."""
    return _key(link.machine)


def _key(text: str) -> bytes:
    try:
        return signing.read(text)
    except ValueError as e:
        raise PeerFault("the host's challenge has no machine's key") from e


class Joining:
    """What a link needs to come in with a code."""

    def __init__(
        self, code: Code, machine: str | None, told: Callable[[dict[str, Any]], None], device: str
    ) -> None:
        self._code, self._fingerprint, self._told, self._device = code, machine, told, device
        self._private: tuple[bytes, bytes] | None = None

    def prove(self, machine: str, statement: bytes) -> dict[str, str]:
        return self._prove(_key(machine), statement)

    def _prove(self, machine: bytes, statement: bytes) -> dict[str, str]:
        if self._fingerprint is not None and joincode.fingerprint(machine) != self._fingerprint:
            raise Refused(
                "the invitation is for another machine",
                "use the home of the one that it was made on: HOLDFAST_HOME",
            )
        if self._private is None or self._private[0] != machine:
            self._private = machine, joincode.private(self._code, machine)
        return {
            "id": self._code.id,
            "device": self._device,
            "proof": signing.sign(self._private[1], joincode.DOMAIN, statement).hex(),
        }

    def waiting(self, event: dict[str, Any]) -> None:
        self._told(event)


def check_home(home: Home) -> None:
    """There is somebody here to join; otherwise a new machine would be set up, with the newcomer as its first."""
    try:
        os.stat(f"{keys.directory(home)}/{keys.MACHINE}")
    except PermissionError as e:
        raise Refused(
            f"{home.state} belongs to another account, and only that account can connect to it",
            "whoever has that account can join there under any name; from another account join by the link, or with --relay, as `holdfast invite` shows it",
        ) from e
    except OSError as e:
        raise NotFound(
            f"there is nobody to join in {home.state}",
            "a machine elsewhere is joined with --relay URL, or by its link; on this machine set HOLDFAST_HOME to the home of whoever invited you",
        ) from e


def reached(elsewhere: dict[str, Any] | None) -> Elsewhere | None:
    """How the host says it is reached from elsewhere; None if it is not."""
    if elsewhere is None:
        return None
    try:
        return Elsewhere(
            base64url.decode(elsewhere["key"]),
            base64url.decode(elsewhere["static"]),
            tuple((str(url), base64url.decode(route)) for url, route in elsewhere["doors"]),
        )
    except (ValueError, KeyError, TypeError) as e:
        raise PeerFault("the host does not say how it is reached") from e


def stranger(link: Link, code: Code, where: Elsewhere, ca: str | None = None) -> None:
    """The link is to a machine elsewhere that nothing is known of but what the invitation says."""
    pass_ = joincode.pass_of(signing.public(joincode.private(code, where.key)))
    known = next(
        (
            m.identity
            for m in machines.listing(link.home)
            if (m.key, m.operator) == (where.key, link.operator)
        ),
        None,
    )
    link.away = Machine(
        joincode.fingerprint(where.key),
        where.key,
        where.static,
        link.operator,
        int(time.time()),
        tuple(Way(url, route, pass_, ca) for url, route in where.doors),
        known,
    )


def strangers(link: Link, code: Code, relay: str, ca: str | None = None) -> None:
    """The link is to whoever waits at that relay for this code."""
    at = route.route(signing.public(meeting.route_key(code.id)))
    link.away = Machine(
        f"whoever has the code {code.id}",
        b"",
        b"",
        link.operator,
        int(time.time()),
        (Way(relay, at, meeting.pass_(code.id), ca),),
    )
    link.meeting = meeting.password(code)


def keep_machine(link: Link, name: str) -> Machine:
    """After joining: remembers the machine, with ways of one's own, under its name or one like it."""
    assert link.away is not None
    answer, key = link.request("ways"), link.away.key or machine_of(link)
    trusted = {_host(way.url): way.ca for way in link.away.ways}
    link.meeting = None
    try:
        static_key = static.read(
            key,
            answer["static"]["statement"].encode(),
            bytes.fromhex(answer["static"]["signature"]),
        )
        ways = tuple(
            Way(
                str(w["url"]),
                base64url.decode(w["route"]),
                base64url.decode(w["pass"]),
                trusted.get(_host(str(w["url"]))),
            )
            for w in answer["ways"]
        )
    except (ValueError, KeyError, TypeError) as e:
        raise PeerFault("the machine does not say how it is reached") from e
    taken = {m.name for m in machines.listing(link.home) if m.key != key}
    plain = (
        "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in name).lstrip(
            "-"
        )[:48]
        or "machine"
    )
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
    """Whether one identity alone is paired with that machine: then nobody has to say which."""
    return sum(m.name == name for m in machines.listing(home)) == 1


def _host(url: str) -> str:
    try:
        return address.place(url)[0]
    except Usage:  # of a scheme that only a newer release has: another way may do
        return ""


def another_key(link: Link) -> None:
    """The link uses a key of its own for that machine, which is made when it joins: the one there is was revoked there, and may still count elsewhere."""
    if link.away is None:
        raise Usage(
            "another key is for another machine",
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
    told: Callable[[dict[str, Any]], None],
    passphrase: Ask | None = None,
    device: str = "",
) -> dict[str, Any]:
    """Comes in as the link's operator, whose key is made if there is none, under a passphrase if there is one. What it is and may do from now on. `device`: how this
    one is to be called there, if the inviter has not said it."""
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
        except HostGone as e:  # perhaps after it had let us in: the same key, once more
            link.close()
            if link.meeting is not None and link.line is not None and not unsure:
                link.line = None
                if made:
                    keys.remove(link.home, identity.name)
                raise NotAllowed(
                    "whoever waits there has another code; this one is void now",
                    "ask whoever invited you for a new one",
                ) from e
            unsure, now = True, time.monotonic()
            if now - begun >= SETTLED_S:
                deadline, pause = now + CONNECT_WAIT_S, RECONNECT_FIRST_S
            if e.reason == "down" or now > deadline:
                raise
            time.sleep(pause)
            pause = min(pause * 2, 0.5)
        except HoldfastError as e:
            link.close()
            if made and not unsure and not isinstance(e, TimedOut):
                keys.remove(link.home, identity.name)
            raise
    link.invited = None
    joined: dict[str, Any] = link.welcome["joined"]
    if (made and joined["kind"] != identity.kind) or (
        identity.private is not None and not os.path.exists(identity.path)
    ):
        keys.turned(
            identity, joined["kind"], passphrase
        )  # also what another `join` of this name made, and removed when it was refused
    return {
        **joined,
        "key": signing.show(identity.public),
        "fingerprint": joincode.group(joincode.fingerprint(identity.public)),
        "machine": link.machine,
        "host": link.welcome["host"],
    }


def _identity(link: Link, passphrase: Ask | None) -> tuple[Identity, bool]:
    try:
        return keys.load(link.home, link.key_name), False
    except NotFound:
        link.identity = made = keys.make(link.home, link.key_name, "human", time.time(), passphrase)
        return made, True
