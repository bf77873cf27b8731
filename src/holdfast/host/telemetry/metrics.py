"""The host's numbers in the format of Prometheus: amounts and durations, no names or content.

Every label has few possible values: states, kinds of operators, kinds of clients (MODALITIES, or
`other`), kinds of acts, verdicts, names of events and errors. The page contains no name of a
session, operator, device or rule, no text of a command and no content of a terminal. So every
account of the machine may read the page, and a loopback port is enough protection
(docs/reference/metrics.md lists every name).

The host reads all numbers when a request for the page comes. No work happens on the path of a key.
"""

from __future__ import annotations

import contextlib
import os
import platform
import resource
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from holdfast import __version__
from holdfast.core.prometheus_text import Family, Histogram, Kind, by, one, render
from holdfast.core.session import lifecycle
from holdfast.core.session.events import EVENTS
from holdfast.model.ids import OPERATOR_KINDS
from holdfast.wire import frames
from holdfast.wire.ring import HEADER_BYTES

if TYPE_CHECKING:
    from holdfast.host.engine import Engine

MODALITIES: Final = ("cli", "web", "phone", "sdk", "mcp", "acp", "ssh", "chat", "service")
LEFT: Final = ("lost", "detached", "switched", "ended")  # how a client left
TAKEN: Final = ("write", "request", "grant", "hand", "seize")  # how the turn was taken
OTHER: Final = "other"
CLOSED: Final = ("closed_by_restore", "closed_by_move", "closed_by_fork")
LOST: Final = ("reset", "timeout", "silent", *CLOSED)  # how a connection of a program was lost
SESSIONS_NAMED: Final = 20  # the most expensive ones: more labels would burden Prometheus
UNKNOWN: Final = "unknown"  # the keeper of the session does not answer
PAGE: Final = os.sysconf("SC_PAGE_SIZE")
# Each family with its help. On the page every name begins with `holdfast_`.
HELP: Final = {
    "sessions": "Sessions that run, by state; unknown: their keeper does not answer.",
    "sessions_ended_kept": "Ended sessions that are still listed.",
    "keeper_links": "Keepers, by whether this host speaks to them.",
    "output_bytes_total": "Bytes that programs have put out since this host began.",
    "output_rolled_bytes_total": "Bytes of output that rolled off the sessions' bounded buffers.",
    "rings_bytes": "Memory set aside for the output of sessions.",
    "keepers_resident_bytes": "Memory that the keepers of sessions hold, without what runs in "
    "them.",
    "connections_watched": "TCP connections of programs to peers outside of their session.",
    "connections_lost_total": "Such connections that were lost, by kind.",
    "sessions_pinned_bytes": "Memory that sessions and their keepers pin, by whether they are "
    "attached, or detached and silent for an hour; as of the last round.",
    "session_pinned_bytes": "The same of the most expensive sessions, by id; only with "
    "telemetry.names.",
    "sessions_evicted": "Sessions that the host saved to disk and that come back by themselves.",
    "draining": "1 while the machine is drained and new sessions are refused.",
    "attached_clients": "Clients that are attached, by kind of operator, kind of client, and "
    "whether they may write.",
    "attached_operators": "Operators that are attached, each once, to however many sessions.",
    "connections": "Connections to the host, by where they come from.",
    "slow_viewers": "Attached clients that are behind and are not waited for.",
    "viewer_skips_total": "Times that a client was shown the newest screen instead of what it "
    "had missed.",
    "clients_left_total": "Clients that left a session, by how.",
    "key_inputs_total": "Inputs of raw keys, by verdict.",
    "acts_total": "Discrete acts that came to their end, by kind and verdict.",
    "request_errors_total": "Requests that failed, by the name of the error.",
    "gate_decisions_total": "Decisions of the gate, by kind of act and verdict.",
    "gate_seconds": "How long the gate took for a discrete act, approvals not included.",
    "approvals_waiting": "Acts that wait for somebody's decision.",
    "turn_moves_total": "Times that the turn was taken, by how.",
    "seize_seconds": "From a request to seize until what the old holder had on its way was "
    "discarded.",
    "halt_seconds": "From a request to halt until every process stood still.",
    "record_entries_total": "Entries of the record that were made durable.",
    "record_write_seconds": "From a group of entries until it was durable.",
    "record_queue_entries": "Entries that wait to be written.",
    "record_refused_total": "Entries that were recorded without their facts, or not at all: a "
    "defect, which the host's log names.",
    "record_failing": "1 while the disk does not take the record.",
    "store_commit_seconds": "How long the disk took to make a group of changes durable.",
    "store_failures_total": "Changes that the disk did not take.",
    "spool_bytes_total": "Bytes of output that were stored for a cold start.",
    "spool_failures_total": "Times that the disk did not take the newest output of a session.",
    "spool_failing": "1 while the disk does not take the output of some session.",
    "events_total": "Events, by name.",
    "process_events_told": "1 if the kernel tells of every new process; 0: they are looked for "
    "now and then.",
    "process_events_total": "Messages of the kernel about processes.",
    "process_events_lost_total": "Times that some of them were lost, and all sessions were "
    "looked at.",
    "trace_spans_total": "Spans of acts, by what became of them; none where traces are off.",
    "host_term": "Which host of this home this is: one more with every start.",
    "host_start_time_seconds": "When it began, in seconds since 1970.",
    "host_cpu_seconds_total": "Processor time of the host.",
    "host_resident_bytes": "Memory that the host holds.",
    "host_open_fds": "Descriptors that the host has open.",
    "build_info": "Always 1; what runs here.",
}


def text(engine: Engine) -> str:
    return render(families(engine))


def families(engine: Engine) -> list[Family]:
    return [*_sessions(engine), *_clients(engine), *_acts(engine), *_machine(engine)]


def modality(name: str) -> str:
    """Limits the label to known values: a client chooses its modality freely."""
    return name if name in MODALITIES else OTHER


def kind(name: str) -> str:
    return name if name in OPERATOR_KINDS else OTHER


def _family(name: str, value: float | Mapping[Any, float] | Histogram, *labels: str) -> Family:
    """A family of the kind that the name and the value imply. A mapping has a key per label."""
    help, name = HELP[name], f"holdfast_{name}"
    if isinstance(value, Histogram):
        return Family(name, "histogram", help, value)
    kind: Kind = "counter" if name.endswith("_total") else "gauge"
    if isinstance(value, Mapping):
        return by(name, kind, help, labels, value)
    return one(name, kind, help, value)


def _by_how(
    engine: Engine, name: str, event: str, hows: Iterable[str], label: str = "how"
) -> Family:
    return _family(name, {how: engine.events.hows[event, how] for how in hows}, label)


def _sessions(engine: Engine) -> Iterator[Family]:
    running = tuple(engine.sessions.values())
    states = Counter(
        dict.fromkeys((*(s for s in lifecycle.STATES if lifecycle.running(s)), UNKNOWN), 0)
    )
    states.update(s.state for s in running)
    states[UNKNOWN] += len(engine.unreachable)
    totals = engine.counters.totals()
    yield _family("sessions", states, "state")
    yield _family("sessions_ended_kept", len(engine.ended))
    connected = sum(not s.link.closed for s in running)
    links = {"connected": connected, "unreachable": len(engine.unreachable)}
    yield _family("keeper_links", links, "state")
    yield _family("output_bytes_total", totals.output)
    yield _family("output_rolled_bytes_total", totals.rolled)
    yield _family("rings_bytes", sum(s.ring.size + HEADER_BYTES for s in running))
    yield _family("connections_watched", engine.connection_watch.watched)
    yield _by_how(engine, "connections_lost_total", "connection.lost", LOST, "kind")
    yield _family("keepers_resident_bytes", sum(_resident(s.keeper_pid) for s in running))
    yield from _residency(engine)


def _residency(engine: Engine) -> Iterator[Family]:
    """The figures of the last round, if there is one; this begins the next if they are old."""
    costs = engine.residency.costs
    if not engine.adoptions.waiting:  # else the first round would miss sessions
        costs.refresh()
    if costs.measured:
        yield from _pinned(engine)
    evicted = sum(engine.residency.evictions.known(row) for row in engine.ended.values())
    yield _family("sessions_evicted", evicted)
    yield _family("draining", int(bool(engine.residency.draining.state)))


def _pinned(engine: Engine) -> Iterator[Family]:
    costs = engine.residency.costs
    silent = {*costs.silent(engine.sessions)}
    pinned = dict.fromkeys(("attached", "detached", "silent"), 0)
    for id, cost in costs.last.items():
        session = engine.sessions.get(id)
        if session is not None:
            use = "attached" if session.viewers else "silent" if id in silent else "detached"
            pinned[use] += cost.memory
    yield _family("sessions_pinned_bytes", pinned, "use")
    most = sorted(costs.last.items(), key=lambda one: -one[1].memory)[:SESSIONS_NAMED]
    named = {id: cost.memory for id, cost in most} if engine.settings.trace_names else {}
    yield _family("session_pinned_bytes", named, "session")


def _clients(engine: Engine) -> Iterator[Family]:
    viewers = [v for s in engine.sessions.values() for v in s.viewers]
    attached = Counter(
        dict.fromkeys(((k, "cli", how) for k in OPERATOR_KINDS for how in ("write", "observe")), 0)
    )
    attached.update(
        (kind(v.conn.kind), modality(v.conn.modality), "observe" if v.observe else "write")
        for v in viewers
    )
    yield _family("attached_clients", attached, "kind", "modality", "mode")
    yield _family("attached_operators", len({v.conn.operator for v in viewers}))
    connections = engine.counters.connections
    relayed = sum(bool(c.channel) for c in connections)
    yield _family("connections", {"local": len(connections) - relayed, "relay": relayed}, "way")
    yield _family("slow_viewers", sum(v.lagging for v in viewers))
    yield _family("viewer_skips_total", engine.counters.totals().skips)
    yield _by_how(engine, "clients_left_total", "client.left", LEFT)


def _acts(engine: Engine) -> Iterator[Family]:
    totals = engine.counters.totals()
    yield _family(
        "key_inputs_total", {"applied": totals.typed, "refused": totals.untaken}, "verdict"
    )
    yield _family("acts_total", engine.door.verdicts, "kind", "verdict")
    yield _family("request_errors_total", engine.counters.refusals, "error")
    yield _family("gate_decisions_total", engine.gate.decisions, "act", "verdict")
    yield _family("gate_seconds", engine.gate.took)
    yield _family(
        "approvals_waiting",
        sum(p.state == "waiting" for p in engine.held_acts.approvals.open.values()),
    )
    yield _by_how(engine, "turn_moves_total", "turn.taken", TAKEN)
    yield _family("seize_seconds", engine.counters.seizing)
    yield _family("halt_seconds", engine.counters.halting)


def _machine(engine: Engine) -> Iterator[Family]:
    writer = engine.journal.writer
    yield _family("record_entries_total", writer.entries)
    yield _family("record_write_seconds", writer.took)
    yield _family("record_queue_entries", writer.waiting)
    yield _family("record_refused_total", writer.refused)
    yield _family("record_failing", int(writer.failing))
    yield _family("store_commit_seconds", engine.store.took)
    yield _family("store_failures_total", engine.store.failures)
    yield _family("spool_bytes_total", engine.spooling.stored)
    yield _family("spool_failures_total", engine.spooling.failures)
    yield _family("spool_failing", int(engine.spooling.failing))
    yield _family(
        "events_total",
        {
            name: engine.events.counters[name]
            for name, event in EVENTS.items()
            if not event.planned or engine.events.counters[name]
        },
        "event",
    )
    yield _family("process_events_told", int(engine.lineages.told))
    yield _family("process_events_total", engine.lineages.heard)
    yield _family("process_events_lost_total", engine.lineages.lost)
    # A copy, because the exporting thread may add a key.
    yield _family("trace_spans_total", dict(engine.counters.spans), "result")
    yield _family("host_term", engine.term)
    yield _family("host_start_time_seconds", engine.counters.began)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    yield _family("host_cpu_seconds_total", round(usage.ru_utime + usage.ru_stime, 3))
    yield _family("host_resident_bytes", _resident(os.getpid()))
    yield _family("host_open_fds", _open_fds())
    build = (__version__, platform.python_version(), str(frames.VERSION))
    yield _family("build_info", {build: 1}, "version", "python", "wire")


def _open_fds() -> int:
    """The number of open descriptors; the limit, if no descriptor is left to count them with."""
    try:
        return len(os.listdir("/proc/self/fd")) - 1  # without the descriptor of this directory
    except OSError:
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _resident(pid: int) -> int:
    """The resident bytes of a process; 0 if the process is gone."""
    with (
        contextlib.suppress(OSError, ValueError, IndexError),
        open(f"/proc/{pid}/statm", encoding="ascii") as file,
    ):
        return int(file.read().split()[1]) * PAGE
    return 0
