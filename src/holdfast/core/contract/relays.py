"""Relays: how this machine is reached from elsewhere."""

from __future__ import annotations

from holdfast.core.contract.message import message


@message
class Way:
    """A way to this machine through a relay, with the caller's own pass."""

    url: str
    route: str
    pass_: str


@message
class StaticKey:
    """The machine's key for sealed channels, signed by the machine."""

    statement: str
    signature: str


@message
class Ways:
    """How the caller comes here from elsewhere."""

    machine: str
    static: StaticKey
    ways: tuple[Way, ...]


@message
class Line:
    """A relay that this host dials."""

    url: str
    state: str
    since: float
    detail: str
    streams: int
    own: bool


@message
class Relays:
    """`trouble`: why the list of relays is unusable; empty otherwise."""

    relays: tuple[Line, ...]
    trouble: str
