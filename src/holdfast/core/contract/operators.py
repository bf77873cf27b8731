"""Operators and their envelopes."""

from __future__ import annotations

from holdfast.core.contract.message import Json, MachineAct, checked, message


@message
class AddOperator(MachineAct):
    """A new operator with a first key. `device`: the name of the device with that key."""

    name: str
    kind: str
    key: str
    device: str = ""


@message
class OperatorNamed:
    """The name of an operator."""

    name: str


@message
class OperatorKey:
    """A key of an operator."""

    key: str
    device: str
    added: int
    added_by: str
    revoked: int | None
    revoked_by: str | None


@message
class EnvelopeHeld:
    """An envelope of an operator. `through`: the operators that handed the envelope on."""

    id: str
    holder: str
    rights: tuple[str, ...]
    scope: Json
    given: int
    given_by: str
    through: tuple[str, ...]
    state: str


@message
class Operator:
    """An operator with keys and envelopes."""

    name: str
    kind: str
    added: int
    added_by: str
    revoked: int | None
    revoked_by: str | None
    keys: tuple[OperatorKey, ...]
    envelopes: tuple[EnvelopeHeld, ...]


@message
class Operators:
    """All operators that are or were known here."""

    operators: tuple[Operator, ...]


@message
class RevokeOperator(MachineAct):
    """`force`: also if no operator could manage the machine then.

    `grants`: revoke given rights too.
    """

    name: str
    force: bool = False
    grants: bool = False


@message
class Recovery:
    """Whether the machine's own key may still make an administrator."""

    possible: bool


@message
class Envelopes:
    """The caller's own envelopes, as texts that can be handed on."""

    key: str
    machine: str
    envelopes: tuple[str, ...]


@message
class Grant(MachineAct):
    """Rights for an operator, or an envelope that the caller signed."""

    name: str | None = None
    rights: tuple[str, ...] = ()
    session: str | None = None
    expires: int | None = None
    rate: tuple[int, int] | None = None
    envelope: str | None = None
    commands: tuple[str, ...] | None = checked("commands are names", default=None)


@message
class Granted:
    """The envelope that was given."""

    name: str
    rights: tuple[str, ...]
    scope: Json
    id: str
