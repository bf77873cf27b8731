"""Numbers for the relay's operator, as Prometheus reads them: how much, never who. On a listener of its own that is bound to loopback.

No route, tenant's name, address, token or size of a single message is in it. The page answers to its own loopback address only and to no
browser's page: who can make a name point at 127.0.0.1 gets nothing.
"""

from __future__ import annotations

import asyncio
import resource
from http import HTTPStatus
from typing import cast

from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol

from holdfast.model import limits
from holdfast.relay.hub import Hub, Visit
from holdfast.relay.server import GUARDED, SILENT, at, from_a_page
from holdfast.wire import outer

TYPE = "text/plain; version=0.0.4; charset=utf-8"


def text(hub: Hub) -> str:
    registry = hub.registry
    roles = [c.role for c in registry.connections.values()]
    usage = resource.getrusage(resource.RUSAGE_SELF)
    gauges = {
        "connections": (len(roles), "Connections that are open."),
        "hosts": (sum(r.connection is not None for r in registry.book.routes.values()), "Hosts that are registered and connected."),
        "clients": (roles.count(outer.CLIENT), "Clients that are connected."),
        "strangers": (hub.strangers.total(), "Connections that have shown nothing yet that admits them."),
        "streams": (sum(t.streams for t in registry.tenants.values()), "Streams between a client and a host."),
        "watches": (sum(len(c.watches) for c in registry.connections.values()), "Clients' watches for hosts."),
        "routes_known": (len(registry.book.routes), "Routes that are remembered."),
        "tenants": (len(registry.tenants), "Tenants that have something open."),
        "queued_bytes": (sum(line.carrier.queued() for line in hub.lines.values()), "Bytes that wait for sockets."),
        "resident_bytes_max": (usage.ru_maxrss * 1024, "The most memory that the relay has had."),
    }
    counters = {
        "connections": (registry.counts["connections"], "Connections that were upgraded."),
        "registrations": (registry.counts["registrations"], "Registrations of hosts."),
        "streams": (registry.counts["streams"], "Streams that were opened."),
        "frames": (registry.counts["frames"], "Frames received."),
        "payload_bytes": (registry.counts["bytes"], "Sealed bytes carried from one end to the other."),
        "refusals": (registry.counts["refusals"], "Wrong passes and unknown routes."),
        "drops": (registry.counts["drops"], "Connections that the relay ended."),
        "pauses": (registry.counts["pauses"], "Times that a connection was not read because its tenant was over its rate."),
        "turned_away": (hub.counts["turned_away"], "Connections refused before they could speak."),
        "slow_readers": (hub.counts["slow"], "Connections ended because they took too little."),
        "frame_faults": (hub.counts["frame_faults"], "Messages that were no frames."),
        "store_failures": (hub.store.failures, "Writes that the disk did not take."),
        "cpu_seconds": (round(usage.ru_utime + usage.ru_stime, 3), "Processor time of the relay."),
    }
    lines = [f"# HELP holdfast_relay_{name} {help}\n# TYPE holdfast_relay_{name} gauge\nholdfast_relay_{name} {value}" for name, (value, help) in gauges.items()]
    lines += [f"# HELP holdfast_relay_{name}_total {help}\n# TYPE holdfast_relay_{name}_total counter\nholdfast_relay_{name}_total {value}"
              for name, (value, help) in counters.items()]
    return "\n".join(lines) + "\n"


class Page(asyncio.Protocol):
    """One request, one answer."""

    def __init__(self, hub: Hub, visit: Visit) -> None:
        self._hub, self._visit = hub, visit
        self._protocol = ServerProtocol(max_size=0, logger=SILENT)
        self._transport: asyncio.Transport | None = None
        self._timer = asyncio.get_running_loop().call_later(limits.RELAY_HELLO_S, self._close)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)      # uvloop's is none by name

    def data_received(self, data: bytes) -> None:
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Request):
                self._answer(event)
        for out in self._protocol.data_to_send():
            if out and self._transport is not None:
                self._transport.write(out)
            else:
                self._close()

    def _answer(self, request: Request) -> None:
        assert self._transport is not None
        host, port, *_ = self._transport.get_extra_info("sockname")
        headers = request.headers
        body = ""
        if [h.lower() for h in headers.get_all("Host")] not in [[name] for name in at(host, port, False)]:
            status = HTTPStatus.MISDIRECTED_REQUEST
        elif from_a_page(headers):
            status = HTTPStatus.FORBIDDEN
        elif request.method != "GET" or request.path not in ("/metrics", "/healthz"):
            status = HTTPStatus.NOT_FOUND
        else:
            status = HTTPStatus.OK
            body = text(self._hub) if request.path == "/metrics" else "ok\n"
        self._protocol.send_response(Response(status, status.phrase, Headers([
            ("Content-Type", TYPE), ("Content-Length", str(len(body.encode()))), ("Connection", "close"), *GUARDED]), body.encode()))

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self._visit.over()

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()
