"""The states of an invitation, from creation until a key is admitted or the invitation ends.

    open ──(code proved)──> used            with `confirm`, the inviter decides: used or refused
    open ──(INVITATION_GUESSES wrong codes)──> void; also if the inviter lost the right to grant it
    open ──(by the inviter, or an operator with `manage`)──> revoked
    open ──(time)──> expired, without any event

An invitation that is not open does not change any more. A single key uses the invitation. That key
may return with the same code (the answer was lost) and is admitted again, without further effect. A
client that cannot prove the code only increases the count of guesses, and only while the invitation
is open. A refusal ends the invitation, because a person has the code whom the inviter did not mean.

An invitation for a further device of an operator (`of`) gives no rights: the device gets
the rights of the operator at the time of joining (core/people/devices.py).

Pure: time is an argument. The host checks that the inviter may hand on the rights, when the
invitation is made and again when it is used.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple

from holdfast.core.people import scope as scopes
from holdfast.core.people.scope import Malformed, Scope
from holdfast.model import rights, signing
from holdfast.model.ids import OPERATOR_KINDS
from holdfast.model.limits import INVITATION_GUESSES

State = Literal["open", "used", "refused", "revoked", "void", "expired"]
ENDS: Final = frozenset(("refused", "revoked", "void"))
STORED: Final = frozenset(("open", "used")) | ENDS


@dataclass(frozen=True)
class Invitation:
    id: str
    verifier: bytes  # the public half of the code's key
    by: bytes  # the key of the inviter
    rights: frozenset[str]
    scope: Scope
    kind: str  # of a newcomer
    confirm: bool
    made: int
    expires: int
    state: State = "open"
    guesses: int = 0
    joiner: bytes | None = None
    ended: int | None = None
    why: str = ""
    of: str = ""  # the operator whose device the newcomer becomes; "": a new operator
    device: str = ""  # the name of that device; "": the device chooses

    def at(self, now: float) -> State:
        return "expired" if self.state == "open" and now >= self.expires else self.state


class Enter(NamedTuple):
    """Admit the key now."""


class Ask(NamedTuple):
    """Let the inviter decide."""


class Again(NamedTuple):
    """This invitation admitted the key before: no further effect."""


class Wrong(NamedTuple):
    """The code is wrong; `left` further guesses are allowed."""

    left: int


class Closed(NamedTuple):
    """The code is right, but too late."""

    state: State
    why: str


Outcome = Enter | Ask | Again | Wrong | Closed


def knock(one: Invitation, key: bytes, proved: bool, now: float) -> tuple[Invitation, Outcome]:
    """Process a client with this key, which has proved the code or not."""
    state = one.at(now)
    if not proved:
        if state != "open":
            return one, Wrong(0)
        one = replace(one, guesses=one.guesses + 1)
        left = INVITATION_GUESSES - one.guesses
        return (
            one if left > 0 else end(one, "void", f"{one.guesses} wrong codes were tried", now)
        ), Wrong(max(0, left))
    if one.state == "used" and one.joiner == key:
        return one, Again()
    if state != "open":
        return one, Closed(state, one.why)
    return one, Ask() if one.confirm else Enter()


def enter(one: Invitation, key: bytes, now: float) -> Invitation:
    """Note that the invitation admitted this key."""
    if one.at(now) != "open":
        raise ValueError(f"an invitation that is {one.at(now)} lets nobody in")
    return replace(one, state="used", joiner=key, ended=int(now))


def end(one: Invitation, state: State, why: str, now: float) -> Invitation:
    """End an open invitation; an ended one does not change."""
    if state not in ENDS:
        raise ValueError(f"an invitation does not end as {state}")
    return replace(one, state=state, ended=int(now), why=why) if one.at(now) == "open" else one


# ------------------------------------------------------------ as it is stored


def write(one: Invitation) -> dict[str, object]:
    return {
        "v": 2 if one.of else 1,
        **({"of": one.of, "device": one.device} if one.of else {}),
        "id": one.id,
        "verifier": signing.show(one.verifier),
        "by": signing.show(one.by),
        "rights": sorted(one.rights),
        "scope": one.scope.show(),
        "kind": one.kind,
        "confirm": one.confirm,
        "made": one.made,
        "expires": one.expires,
        "state": one.state,
        "guesses": one.guesses,
        "joiner": None if one.joiner is None else signing.show(one.joiner),
        "ended": one.ended,
        "why": one.why,
    }


def read(value: Any) -> Invitation:
    """Parse the result of `write`; ValueError otherwise, so an unknown format admits no key."""
    try:
        of, device = (value["of"], value["device"]) if value["v"] == 2 else ("", "")
        if (
            type(of) is not str
            or type(device) is not str
            or bool(of) != (value["v"] == 2)
            or bool(of) == bool(value["rights"])
        ):
            raise Malformed("not an invitation")
        if (
            value["v"] not in (1, 2)
            or value["state"] not in STORED
            or value["kind"] not in OPERATOR_KINDS
            or not set(value["rights"]) <= set(rights.RIGHTS)
        ):
            raise Malformed("not an invitation of this version")
        if (
            not all(type(value[name]) is int for name in ("made", "expires", "guesses"))
            or type(value["confirm"]) is not bool
            or type(value["id"]) is not str
        ):
            raise Malformed("not an invitation")
        return Invitation(
            value["id"],
            signing.read(value["verifier"]),
            signing.read(value["by"]),
            frozenset(value["rights"]),
            scopes.read(value["scope"]),
            value["kind"],
            value["confirm"],
            value["made"],
            value["expires"],
            value["state"],
            value["guesses"],
            None if value["joiner"] is None else signing.read(value["joiner"]),
            value["ended"],
            value["why"],
            of,
            device,
        )
    except (KeyError, TypeError, AttributeError) as e:
        raise Malformed(f"not an invitation: {e}") from e
