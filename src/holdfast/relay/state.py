"""The registry's objects: one for each connection, stream and route."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.model import limits
from holdfast.relay.events import Known, Token
from holdfast.relay.tenants import Tenant


@dataclass(slots=True, eq=False)
class Connection:
    id: int
    names: tuple[str, ...]
    nonce: bytes
    token: Token | None
    since: float
    heard: float
    role: int = 0  # 0: no HELLO yet
    admitted: bool = False
    payer: Tenant | None = None
    frames: int = 0  # while a stranger
    wrong: int = 0  # passes
    pinged: int = 0
    asked: bool = False  # a PING is out
    highest: int = 0  # the last stream number
    route: Route | None = None  # a host's
    streams: dict[int, Stream] = field(default_factory=dict)
    watches: dict[bytes, bytes] = field(default_factory=dict)  # route -> digest of the pass


@dataclass(slots=True, eq=False)
class Stream:
    client: Connection
    at_client: int
    host: Connection
    at_host: int
    digest: bytes
    tenant: Tenant
    since: float
    to_host: int  # credit
    to_client: int
    accepted: bool = False


@dataclass(slots=True, eq=False)
class Route:
    id: bytes
    known: Known
    passes: frozenset[bytes]
    since: int  # Unix seconds of the last change between online and away
    connection: Connection | None = None
    watchers: dict[int, Connection] = field(default_factory=dict)
    hooks_left: float = limits.RELAY_HOOKS_BURST  # webhooks that may come now …
    hooks_at: float = 0.0  # … as counted then
