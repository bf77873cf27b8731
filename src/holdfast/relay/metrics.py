"""Metrics for the relay's operator in Prometheus format, on a loopback listener
(transport/page.py).

They contain no route, tenant name, address, token or size of a single message.
"""

from __future__ import annotations

import resource

from holdfast.core import prometheus_text
from holdfast.relay.hub import Hub, Visit
from holdfast.transport.page import Page
from holdfast.wire import outer


def text(hub: Hub) -> str:
    registry = hub.registry
    roles = [c.role for c in registry.connections.values()]
    usage = resource.getrusage(resource.RUSAGE_SELF)
    gauges = {
        "connections": (len(roles), "Connections that are open."),
        "hosts": (
            sum(r.connection is not None for r in registry.route_table.routes.values()),
            "Hosts that are registered and connected.",
        ),
        "clients": (roles.count(outer.CLIENT), "Clients that are connected."),
        "strangers": (
            hub.strangers.total(),
            "Connections that have shown nothing yet that admits them.",
        ),
        "streams": (
            sum(t.streams for t in registry.tenants.values()),
            "Streams between a client and a host.",
        ),
        "watches": (
            sum(len(c.watches) for c in registry.connections.values()),
            "Clients' watches for hosts.",
        ),
        "routes_known": (len(registry.route_table.routes), "Routes that are remembered."),
        "tenants": (len(registry.tenants), "Tenants that have something open."),
        "queued_bytes": (
            sum(line.carrier.queued() for line in hub.lines.values()),
            "Bytes that wait for sockets.",
        ),
        "resident_bytes_max": (usage.ru_maxrss * 1024, "The most memory that the relay has had."),
    }
    counters = {
        "connections": (registry.counts["connections"], "Connections that were upgraded."),
        "registrations": (registry.counts["registrations"], "Registrations of hosts."),
        "streams": (registry.counts["streams"], "Streams that were opened."),
        "frames": (registry.counts["frames"], "Frames received."),
        "payload_bytes": (
            registry.counts["bytes"],
            "Sealed bytes carried from one end to the other.",
        ),
        "refusals": (registry.counts["refusals"], "Wrong passes and unknown routes."),
        "drops": (registry.counts["drops"], "Connections that the relay ended."),
        "pauses": (
            registry.counts["pauses"],
            "Times that a connection was not read because its tenant was over its rate.",
        ),
        "turned_away": (hub.counts["turned_away"], "Connections refused before they could speak."),
        "slow_readers": (hub.counts["slow"], "Connections ended because they took too little."),
        "frame_faults": (hub.counts["frame_faults"], "Messages that were no frames."),
        "store_failures": (hub.store.failures, "Writes that the disk did not take."),
        "cpu_seconds": (round(usage.ru_utime + usage.ru_stime, 3), "Processor time of the relay."),
    }
    return prometheus_text.render(
        [
            *(
                prometheus_text.one(f"holdfast_relay_{name}", "gauge", help, value)
                for name, (value, help) in gauges.items()
            ),
            *(
                prometheus_text.one(f"holdfast_relay_{name}_total", "counter", help, value)
                for name, (value, help) in counters.items()
            ),
        ]
    )


def page(hub: Hub, visit: Visit) -> Page:
    return Page(lambda: text(hub), prometheus_text.TYPE, visit.over)
