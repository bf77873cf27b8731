"""Invitations: letting a new operator or device in with a one-time code."""

from __future__ import annotations

from holdfast.core.contract.message import Json, MachineAct, checked, message
from holdfast.model.limits import INVITATION_S


@message
class Invite(MachineAct):
    """An invitation.

    The code never reaches the host; `verifier` is the public half of its key.

    `meeting`: a secret made from a typed code, for meeting at a relay. `device` and `of`: for a
    device of an existing operator instead of a new operator.
    """

    id: str
    verifier: str
    rights: tuple[str, ...] = checked("rights are names")
    session: str | None = None
    expires: int | None = None
    kind: str = "human"
    confirm: bool = False
    lasts: int = INVITATION_S
    meeting: str | None = None
    device: str | None = None
    of: str | None = None


@message
class InvitationNamed(MachineAct):
    """The id of an invitation."""

    id: str


@message
class DecideInvitation(MachineAct):
    """The inviter's answer about the key that waits."""

    id: str
    key: str
    accept: bool


@message
class WaitInvitation:
    """`seen`: the state that the caller knows; the reply comes when the state differs."""

    id: str
    seen: str | None = None


@message
class Joiner:
    """A key that proved the code and waits for the inviter."""

    name: str
    kind: str
    key: str
    fingerprint: str


@message
class Invitation:
    """An invitation as the inviter sees it."""

    id: str
    state: str
    by: str
    kind: str
    rights: tuple[str, ...]
    scope: Json
    confirm: bool
    made: int
    expires: int
    guesses: int
    why: str
    joined: str | None
    asks: Joiner | None
    of: str | None
    device: str | None
    seen: str


@message
class Joined:
    """The rights of a key that joined with a code. `again`: the key had joined before."""

    name: str
    kind: str
    by: str
    rights: tuple[str, ...]
    scope: Json
    device: str | None
    of: str | None
    again: bool


@message
class Invited(Invitation):
    """The invitation, and how to use the code from elsewhere."""

    elsewhere: Json | None


@message
class Invitations:
    """The caller's invitations, or all for an operator that may manage the machine."""

    invitations: tuple[Invitation, ...]
