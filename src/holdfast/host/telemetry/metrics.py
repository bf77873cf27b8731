"""The host's numbers as Prometheus reads them: how much and how long, never who or what.

Labels are one of a few words: states, kinds of operators, kinds of clients (MODALITIES, everything else is `other`), kinds of acts, verdicts, names of events and errors. No name of a
session, an operator, a device or a rule is in it, no text of a command, and nothing that a terminal shows. So whoever may look at the machine may read it, and a loopback port is enough
to keep it (docs/operations.md lists every name).

Everything is read when somebody asks; nothing here is done on the way of a key.
"""

from __future__ import annotations

import contextlib
import os
import platform
import resource
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from holdfast import __version__
from holdfast.core import session as lifecycle
from holdfast.core.events import EVENTS
from holdfast.core.exposition import Family, by, one, render
from holdfast.host.connection import Connection
from holdfast.model.ids import OPERATOR_KINDS
from holdfast.wire import frames
from holdfast.wire.ring import HEADER_BYTES

if TYPE_CHECKING:
    from holdfast.host.engine import Engine
    from holdfast.host.ops import Ops

MODALITIES: Final = ("cli", "web", "phone", "sdk", "mcp", "ssh", "chat", "service")
OTHER: Final = "other"
UNKNOWN: Final = "unknown"  # a session whose keeper does not answer
PAGE: Final = os.sysconf("SC_PAGE_SIZE")


async def metrics(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    found = families(ops.engine)
    return (
        {"families": [family.show() for family in found]}
        if q["families"]
        else {"text": render(found)}
    )


def text(engine: Engine) -> str:
    return render(families(engine))


def families(engine: Engine) -> list[Family]:
    return [*_sessions(engine), *_clients(engine), *_acts(engine), *_machine(engine)]


def modality(name: str) -> str:
    """One of a few: a client says of itself what it is."""
    return name if name in MODALITIES else OTHER


def kind(name: str) -> str:
    return name if name in OPERATOR_KINDS else OTHER


def _sessions(engine: Engine) -> Iterator[Family]:
    running = tuple(engine.sessions.values())
    states = Counter(
        dict.fromkeys((*(s for s in lifecycle.STATES if lifecycle.running(s)), UNKNOWN), 0)
    )
    states.update(s.state for s in running)
    states[UNKNOWN] += len(engine.unreachable)
    totals = engine.tally.totals()
    yield by(
        "holdfast_sessions",
        "gauge",
        "Sessions that run, by state; unknown: their keeper does not answer.",
        ("state",),
        states,
    )
    yield one(
        "holdfast_sessions_ended_kept",
        "gauge",
        "Ended sessions that are still listed.",
        len(engine.ended),
    )
    yield by(
        "holdfast_keeper_links",
        "gauge",
        "Keepers, by whether this host speaks to them.",
        ("state",),
        {
            "connected": sum(not s.link.closed for s in running),
            "unreachable": len(engine.unreachable),
        },
    )
    yield one(
        "holdfast_output_bytes_total",
        "counter",
        "Bytes that programs have put out since this host began.",
        totals.output,
    )
    yield one(
        "holdfast_output_rolled_bytes_total",
        "counter",
        "Bytes of output that rolled off the sessions' bounded buffers.",
        totals.rolled,
    )
    yield one(
        "holdfast_rings_bytes",
        "gauge",
        "Memory set aside for the output of sessions.",
        sum(s.ring.size + HEADER_BYTES for s in running),
    )
    yield one(
        "holdfast_keepers_resident_bytes",
        "gauge",
        "Memory that the keepers of sessions hold, without what runs in them.",
        sum(_resident(s.keeper_pid) for s in running),
    )


def _clients(engine: Engine) -> Iterator[Family]:
    viewers = [v for s in engine.sessions.values() for v in s.viewers]
    attached = Counter(
        dict.fromkeys(((k, "cli", how) for k in OPERATOR_KINDS for how in ("write", "observe")), 0)
    )
    attached.update(
        (kind(v.conn.kind), modality(v.conn.modality), "observe" if v.observe else "write")
        for v in viewers
    )
    yield by(
        "holdfast_attached_clients",
        "gauge",
        "Clients that are attached, by kind of operator, kind of client, and whether they may write.",
        ("kind", "modality", "mode"),
        attached,
    )
    yield one(
        "holdfast_attached_operators",
        "gauge",
        "Operators that are attached, each once, to however many sessions.",
        len({v.conn.operator for v in viewers}),
    )
    yield by(
        "holdfast_connections",
        "gauge",
        "Connections to the host, by where they come from.",
        ("way",),
        {
            "local": sum(not c.channel for c in engine.tally.connections),
            "relay": sum(bool(c.channel) for c in engine.tally.connections),
        },
    )
    yield one(
        "holdfast_slow_viewers",
        "gauge",
        "Attached clients that are behind and are not waited for.",
        sum(v.lagging for v in viewers),
    )
    yield one(
        "holdfast_viewer_skips_total",
        "counter",
        "Times that a client was shown the newest screen instead of what it had missed.",
        engine.tally.totals().skips,
    )
    yield by(
        "holdfast_clients_left_total",
        "counter",
        "Clients that left a session, by how.",
        ("how",),
        {
            how: engine.events.hows["client.left", how]
            for how in ("lost", "detached", "switched", "ended")
        },
    )


def _acts(engine: Engine) -> Iterator[Family]:
    totals = engine.tally.totals()
    yield by(
        "holdfast_key_inputs_total",
        "counter",
        "Inputs of raw keys, by verdict.",
        ("verdict",),
        {"applied": totals.typed, "refused": totals.untaken},
    )
    yield by(
        "holdfast_acts_total",
        "counter",
        "Discrete acts that came to their end, by kind and verdict.",
        ("kind", "verdict"),
        engine.door.verdicts,
    )
    yield by(
        "holdfast_request_errors_total",
        "counter",
        "Requests that failed, by the name of the error.",
        ("error",),
        engine.tally.refusals,
    )
    yield by(
        "holdfast_gate_decisions_total",
        "counter",
        "Decisions of the gate, by kind of act and verdict.",
        ("act", "verdict"),
        engine.gate.decisions,
    )
    yield Family(
        "holdfast_gate_seconds",
        "histogram",
        "How long the gate took for a discrete act, approvals not included.",
        engine.gate.took,
    )
    yield one(
        "holdfast_approvals_waiting",
        "gauge",
        "Acts that wait for somebody's decision.",
        sum(p.state == "waiting" for p in engine.desk.approvals.open.values()),
    )
    yield by(
        "holdfast_turn_moves_total",
        "counter",
        "Times that the turn was taken, by how.",
        ("how",),
        {
            how: engine.events.hows["turn.taken", how]
            for how in ("write", "request", "grant", "hand", "seize")
        },
    )
    yield Family(
        "holdfast_seize_seconds",
        "histogram",
        "From a request to seize until what the old holder had on its way was discarded.",
        engine.tally.seizing,
    )
    yield Family(
        "holdfast_halt_seconds",
        "histogram",
        "From a request to halt until every process stood still.",
        engine.tally.halting,
    )


def _machine(engine: Engine) -> Iterator[Family]:
    writer, told = engine.journal.writer, engine.kin.events
    yield one(
        "holdfast_record_entries_total",
        "counter",
        "Entries of the record that were made durable.",
        writer.entries,
    )
    yield Family(
        "holdfast_record_write_seconds",
        "histogram",
        "From a group of entries until it was durable.",
        writer.took,
    )
    yield one(
        "holdfast_record_queue_entries", "gauge", "Entries that wait to be written.", writer.waiting
    )
    yield one(
        "holdfast_record_failing",
        "gauge",
        "1 while the disk does not take the record.",
        int(writer.failing),
    )
    yield Family(
        "holdfast_store_commit_seconds",
        "histogram",
        "How long the disk took to make a group of changes durable.",
        engine.store.took,
    )
    yield one(
        "holdfast_store_failures_total",
        "counter",
        "Changes that the disk did not take.",
        engine.store.failures,
    )
    yield by(
        "holdfast_events_total",
        "counter",
        "Events, by name.",
        ("event",),
        {
            name: engine.events.counters[name]
            for name, event in EVENTS.items()
            if not event.planned or engine.events.counters[name]
        },
    )
    yield one(
        "holdfast_process_events_told",
        "gauge",
        "1 if the kernel tells of every new process; 0: they are looked for now and then.",
        int(engine.kin.told),
    )
    yield one(
        "holdfast_process_events_total",
        "counter",
        "Messages of the kernel about processes of this machine.",
        told.heard if told is not None else 0,
    )
    yield one(
        "holdfast_process_events_lost_total",
        "counter",
        "Times that some of them were lost, and all sessions were looked at.",
        told.lost if told is not None else 0,
    )
    yield by(
        "holdfast_trace_spans_total",
        "counter",
        "Spans of acts, by what became of them; none where traces are off.",
        ("result",),
        dict(engine.tally.spans),
    )  # at once: the thread that exports may add a word
    yield one(
        "holdfast_host_term",
        "gauge",
        "Which host of this home this is: one more with every start.",
        engine.term,
    )
    yield one(
        "holdfast_host_start_time_seconds",
        "gauge",
        "When it began, in seconds since 1970.",
        engine.tally.began,
    )
    usage = resource.getrusage(resource.RUSAGE_SELF)
    yield one(
        "holdfast_host_cpu_seconds_total",
        "counter",
        "Processor time of the host.",
        round(usage.ru_utime + usage.ru_stime, 3),
    )
    yield one(
        "holdfast_host_resident_bytes",
        "gauge",
        "Memory that the host holds.",
        _resident(os.getpid()),
    )
    yield one("holdfast_host_open_fds", "gauge", "Descriptors that the host has open.", _open_fds())
    yield by(
        "holdfast_build_info",
        "gauge",
        "Always 1; what runs here.",
        ("version", "python", "wire"),
        {(__version__, platform.python_version(), str(frames.VERSION)): 1},
    )


def _open_fds() -> int:
    """All that it may have, if there is none left to look with."""
    try:
        return len(os.listdir("/proc/self/fd")) - 1  # the one it is read by
    except OSError:
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _resident(pid: int) -> int:
    """0 if it is gone."""
    with (
        contextlib.suppress(OSError, ValueError, IndexError),
        open(f"/proc/{pid}/statm", encoding="ascii") as file,
    ):
        return int(file.read().split()[1]) * PAGE
    return 0
