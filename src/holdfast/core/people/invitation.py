"""An invitation from when it is made until it has let somebody in, or has ended: what each step does to it.

    open ──(the code is proved)──> used            or, with `confirm`, the inviter is asked first: used or refused
    open ──(INVITATION_GUESSES wrong ones)──> void, also when whoever made it may not hand on any more what it gives
    open ──(its inviter, or somebody with `manage`)──> revoked
    open ──(time)──> expired: nothing has to happen for that, it is so from that moment on

Whatever is not open stays as it is. An invitation is used by one key; that key may come again with the same code (its answer was lost) and is
welcome, without getting anything more. Who cannot prove the code changes nothing but the count of guesses, and only while it is open.
A refusal ends the invitation: somebody whom the inviter did not mean has its code.

One that is for another device of an operator (`of`) gives no rights of its own: the device gets what its operator has when it comes (core/devices.py).

Pure: time is an argument. That the inviter may hand on what it gives is asked by the host, when it is made and again when it is used.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple

from holdfast.core import scope as scopes
from holdfast.core.scope import Malformed, Scope
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
    by: bytes  # the key of who made it
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
    of: str = ""  # the operator whose device the newcomer becomes; "": it becomes an operator
    device: str = ""  # what that device is to be called; "": as it says itself

    def at(self, now: float) -> State:
        return "expired" if self.state == "open" and now >= self.expires else self.state


class Enter(NamedTuple):
    """Let in now."""


class Ask(NamedTuple):
    """The inviter decides."""


class Again(NamedTuple):
    """It was let in before, by this invitation: nothing more happens."""


class Wrong(NamedTuple):
    """That is not the code; so many more tries."""

    left: int


class Closed(NamedTuple):
    """It was the right code, too late."""

    state: State
    why: str


Outcome = Enter | Ask | Again | Wrong | Closed


def knock(one: Invitation, key: bytes, proved: bool, now: float) -> tuple[Invitation, Outcome]:
    """Somebody with this key comes and has proved the code, or not."""
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
    """It has let this key in."""
    if one.at(now) != "open":
        raise ValueError(f"an invitation that is {one.at(now)} lets nobody in")
    return replace(one, state="used", joiner=key, ended=int(now))


def end(one: Invitation, state: State, why: str, now: float) -> Invitation:
    """Ends it; what has ended before stays as it was."""
    if state not in ENDS:
        raise ValueError(f"an invitation does not end as {state}")
    return replace(one, state=state, ended=int(now), why=why) if one.at(now) == "open" else one


# ------------------------------------------------------------ as it is stored


def write(one: Invitation) -> dict[str, Any]:
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
    """What `write` wrote; ValueError otherwise: an invitation that is not understood lets nobody in."""
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
