"""Events that a relay handles and the effects that it answers: the vocabulary of registry.py.

WebSocket and gRPC servers produce the events, and the hub carries out the effects. Neither makes
a decision.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.wire import outer


class Token(NamedTuple):
    """The meaning of a bearer token. An expired one enrols no new route; old ones stay."""

    id: str
    tenant: str
    expired: bool = False


class Known(NamedTuple):
    """A route as remembered while its host is away and across a restart of the relay."""

    key: bytes
    tenant: str
    token: str | None  # that enrolled the route; None: admitted by key
    generation: int
    passes: tuple[bytes, ...]
    seen: int  # Unix seconds


# ------------------------------------------------------------ events


class Connected(NamedTuple):
    connection: int
    names: tuple[str, ...]  # this relay as the peer may have dialled it
    nonce: bytes
    token: Token | None = None


class Received(NamedTuple):
    connection: int
    frame: outer.Frame
    size: int


class Heard(NamedTuple):
    """A sign of life below the frames (a WebSocket ping); its bytes are charged."""

    connection: int
    size: int


class Broken(NamedTuple):
    """Bytes that are not a frame, or a transport's own reason to end a connection."""

    connection: int
    code: int
    reason: str


class Gone(NamedTuple):
    connection: int


class Tick(NamedTuple):
    pass


class Enrolled(NamedTuple):
    """The relay's operator admitted a route key."""

    known: Known


class Revoked(NamedTuple):
    token: str


class Stopping(NamedTuple):
    pass


Event = Connected | Received | Heard | Broken | Gone | Tick | Enrolled | Revoked | Stopping


# ------------------------------------------------------------ effects


class Send(NamedTuple):
    connection: int
    frame: outer.Frame


class Drop(NamedTuple):
    """Tell the peer why and close; the registry has forgotten the connection already."""

    connection: int
    code: int
    reason: str


class Pause(NamedTuple):
    """Stop reading from a connection for this long."""

    connection: int
    seconds: float


class Admitted(NamedTuple):
    """The connection has shown a token, key or pass and no longer counts as a stranger."""

    connection: int


class Save(NamedTuple):
    known: Known


class Forget(NamedTuple):
    key: bytes


Effect = Send | Drop | Pause | Admitted | Save | Forget
