"""What happens to a relay, and what it answers: the two vocabularies of registry.py.

Doors (WebSocket, gRPC) turn what they see into events; the hub carries out the effects. Neither decides anything.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.wire import outer


class Token(NamedTuple):
    """What a bearer token stands for. One that has expired admits nothing new, but what was enrolled with it stays enrolled."""

    id: str
    tenant: str
    expired: bool = False


class Known(NamedTuple):
    """A route as it is remembered while its host is away and over a restart of the relay."""

    key: bytes
    tenant: str
    token: str | None  # by which it was enrolled; None: admitted beforehand
    generation: int
    passes: tuple[bytes, ...]
    seen: int  # Unix seconds


# ------------------------------------------------------------ events


class Connected(NamedTuple):
    connection: int
    names: tuple[str, ...]  # this relay as the other side may have dialled it
    nonce: bytes
    token: Token | None = None


class Received(NamedTuple):
    connection: int
    frame: outer.Frame
    size: int


class Heard(NamedTuple):
    """A sign of life below the frames (a WebSocket's own ping): it counts, and it costs."""

    connection: int
    size: int


class Broken(NamedTuple):
    """Bytes that are no frame, or a door's own reason to end a connection."""

    connection: int
    code: int
    reason: str


class Gone(NamedTuple):
    connection: int


class Tick(NamedTuple):
    pass


class Enrolled(NamedTuple):
    """A route key is admitted beforehand."""

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
    """Says why and ends the connection; the registry has forgotten it already."""

    connection: int
    code: int
    reason: str


class Pause(NamedTuple):
    """Nothing is read from it for so long."""

    connection: int
    seconds: float


class Admitted(NamedTuple):
    """It has shown a token, a key or a pass: it no longer counts as a stranger."""

    connection: int


class Save(NamedTuple):
    known: Known


class Forget(NamedTuple):
    key: bytes


Effect = Send | Drop | Pause | Admitted | Save | Forget
