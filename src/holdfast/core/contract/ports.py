"""Listening ports of a session, brought to the client."""

from __future__ import annotations

from holdfast.core.contract.message import SessionAct, message


@message
class Forward(SessionAct):
    """A TCP port on which a process of the session listens."""

    port: int


@message
class Forwarded:
    """A forward that ended with its session: its connections, and the bytes in each direction."""

    id: str
    name: str
    port: int
    connections: int
    sent: int
    received: int


@message
class Connect:
    """`forward`: the id of an open forward, from its event `began`."""

    session: str
    forward: str


@message
class Connected:
    """A connection that ended in both directions, with the bytes sent there and received."""

    sent: int
    received: int
