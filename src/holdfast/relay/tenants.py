"""The tenants of a relay: their usage and quotas.

All that a peer can make a relay hold is counted here, for the tenant that pays for it. A host's
tenant pays for its routes, for the streams to them, for the clients that came with its passes, and
for the bytes that all of these send. Bytes are not refused but slowed: a tenant over its rate is
not read for a while, and TCP slows the sender. A tenant without connections takes no memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from holdfast.model import limits


class Quotas(NamedTuple):
    """What a relay allows; the defaults are in model/limits.py."""

    tenant_routes: int = limits.RELAY_TENANT_ROUTES
    tenant_known: int = limits.RELAY_TENANT_ROUTES_KNOWN
    tenant_streams: int = limits.RELAY_TENANT_STREAMS
    tenant_connections: int = limits.RELAY_TENANT_CONNECTIONS
    tenant_bytes_s: int = limits.RELAY_TENANT_BYTES_S
    tenant_burst: int = int(limits.RELAY_TENANT_BYTES_S * limits.RELAY_TENANT_BURST_S)
    host_streams: int = limits.RELAY_HOST_STREAMS
    client_streams: int = limits.RELAY_CLIENT_STREAMS
    watches: int = limits.RELAY_WATCHES
    window: int = limits.STREAM_WINDOW_BYTES
    strange_frames: int = limits.RELAY_STRANGE_FRAMES
    wrong_passes: int = limits.RELAY_WRONG_PASSES
    hello_s: float = limits.RELAY_HELLO_S
    admit_s: float = limits.RELAY_ADMIT_S
    accept_s: float = limits.RELAY_ACCEPT_S
    ping_s: int = limits.RELAY_PING_S


@dataclass(slots=True)
class Tenant:
    name: str
    left: float  # bytes that may come now
    at: float
    routes: int = 0  # online
    streams: int = 0
    connections: int = 0

    def idle(self) -> bool:
        return not (self.routes or self.streams or self.connections)

    def charge(self, size: int, now: float, quotas: Quotas) -> float:
        """Charge a frame; return the seconds until the tenant is within its rate again."""
        rate = quotas.tenant_bytes_s
        if now > self.at:
            self.left = min(float(quotas.tenant_burst), self.left + (now - self.at) * rate)
            self.at = now
        self.left -= max(size, limits.RELAY_FRAME_COST_BYTES)
        return 0.0 if self.left >= 0 else min(-self.left / rate, limits.RELAY_PAUSE_S_MAX)


class Tenants(dict[str, Tenant]):
    """The tenants that have a connection, route or stream open."""

    def __init__(self, quotas: Quotas) -> None:
        super().__init__()
        self._quotas = quotas

    def of(self, name: str, now: float) -> Tenant:
        found = self.get(name)
        if found is None:
            found = self[name] = Tenant(name, float(self._quotas.tenant_burst), now)
        return found

    def tidy(self, tenant: Tenant) -> None:
        if tenant.idle() and self.get(tenant.name) is tenant:
            del self[tenant.name]
