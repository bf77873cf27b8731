"""Traces of acts for OpenTelemetry.

Each discrete act has a span, from arrival at the door until the end of the act. Its child spans
are the steps: gate, record, effect.

Traces are off unless `telemetry.otlp` is configured, and then need the extra [otel]. The loop only
notes the data of a span in a bounded queue. A separate thread makes and sends the spans. A dead,
slow or wrong collector costs spans and a counter (`holdfast_trace_spans_total`), never an act: a
full queue drops new spans. The thread sleeps while no act happens. We rejected the library's own
batching: it wakes every few seconds for ever, and starts a thread in every child that this process
forks.

A span names the session by id, the act by numbers, kind and verdict, and the actor by kind. Names
of people and sessions appear only if `telemetry.names` says so. Commands, the client's words about
them, and names of programs, files and ports appear only if `telemetry.commands` says so, and only
of agents and services. A span never has content of a terminal. Keys have no spans; the host only
counts them.

The effects of an act that become known after its end are a later child span `effects`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from holdfast import __version__
from holdfast.core.originators.act_effects import KINDS, TRACED, Effects, Shown
from holdfast.host.acts.door import Act
from holdfast.host.telemetry.counters import Counters
from holdfast.host.telemetry.metrics import kind, modality
from holdfast.model.errors import Impossible

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan, Tracer
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import SpanContext

    from holdfast.host.session.session import Session

QUEUE_ACTS: Final = 1024  # limit of unsent acts
BATCH_ACTS: Final = 128  # sent together
GATHER_S: Final = 1.0  # wait for more acts before sending a batch
SEND_S: Final = 5.0  # for each batch, retries included
CLOSE_S: Final = 0.5  # for the queued acts when the host stops
ENVIRONMENT: Final = "environment"
COMMAND_CHARS: Final = 4096
PATH: Final = "/v1/traces"
log = logging.getLogger("holdfast.traces")


Value = str | int | tuple[str, ...]
Which = tuple[str, int, int]  # session, epoch, the session's number of the act


class Done(NamedTuple):
    """A finished act, or effects that were found later, with the data for the span."""

    name: str
    began: int  # nanoseconds since 1970, like the other times
    ended: int
    phases: tuple[tuple[str, int, int], ...]
    facts: dict[str, Value]
    act: Which | None
    later: bool = False


class Traces:
    """The traces of a host that has them configured."""

    def __init__(
        self,
        exporter: SpanExporter,
        counters: Counters,
        names: bool = False,
        commands: bool = False,
    ) -> None:
        self._exporter, self._counters = exporter, counters
        self._names, self._commands = names, commands
        self._acts: OrderedDict[Which, SpanContext] = OrderedDict()  # of the newest acts
        self._queue: deque[Done] = deque()
        self._woken, self._closing = threading.Event(), threading.Event()
        self._failing = False
        self._gathered: list[ReadableSpan] = []
        self._tracer = _tracer(self._gathered)
        self._thread = threading.Thread(target=self._work, name="traces", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------ on the loop

    def over(self, act: Act, verdict: str) -> None:
        ended = time.time_ns()
        phases = tuple(act.phases)
        if act.written is not None or verdict == "applied":
            phases += (("effect", max((end for _, _, end in phases), default=act.began), ended),)
        facts: dict[str, Value] = {
            "holdfast.session.id": act.session.id,
            "holdfast.session.epoch": act.epoch,
            "holdfast.act.number": act.number,
            "holdfast.act.kind": act.kind,
            "holdfast.act.verdict": verdict,
            "holdfast.actor.kind": kind(act.conn.kind),
            "holdfast.actor.modality": modality(act.conn.modality),
            "holdfast.originators.count": act.shapers,
        }
        if act.taken is not None:
            facts["holdfast.act.sequence"] = act.taken
        if act.written is not None:
            facts["holdfast.record.seq"] = act.written.seq
        if self._names:
            facts |= {
                "holdfast.actor.name": act.conn.operator,
                "holdfast.session.name": act.session.name,
            }
            if act.approvers:
                facts["holdfast.act.approvers"] = act.approvers
        if isinstance(code := act.outcome.get("exit_code"), int):
            facts["holdfast.act.exit_code"] = code
        if self._commands and act.conn.kind in TRACED:
            facts |= {f"holdfast.act.{name}": text for name, text in act.meant.items()}
            if act.kind == "command":
                text = act.content.decode("utf-8", "backslashreplace").partition("\0")[0]
                facts["holdfast.act.command"] = text[:COMMAND_CHARS]
        if act.effects is not None:
            facts |= self._effects(act.effects)
        which = (act.session.id, act.epoch, act.taken) if act.taken is not None else None
        self._put(Done(f"act {act.kind}", act.began, ended, phases, facts, which))

    def effects(self, session: Session, act: int, effects: Effects, shown: Shown) -> None:
        """Effects of an act that were found after its end."""
        now, epoch = time.time_ns(), session.record.epoch
        facts: dict[str, Value] = {
            "holdfast.session.id": session.id,
            "holdfast.session.epoch": epoch,
            "holdfast.act.sequence": act,
            **self._effects(shown),
        }
        self._put(Done("effects", now, now, (), facts, (session.id, epoch, act), later=True))

    def _effects(self, shown: Shown) -> dict[str, Value]:
        found: dict[str, Value] = {"holdfast.effects.unknown": tuple(shown["unknown"])}
        for each in KINDS:
            found[f"holdfast.effects.{each}.count"] = shown[each]["count"]
            if self._commands:
                found[f"holdfast.effects.{each}.names"] = tuple(shown[each]["names"])
        return found

    def _put(self, done: Done) -> None:
        if len(self._queue) >= QUEUE_ACTS:
            self._counters.spans["dropped"] += 1 + len(done.phases)
            return
        self._queue.append(done)
        self._woken.set()

    def close(self) -> None:
        """Sends the queued spans, if the collector takes them at once."""
        self._closing.set()
        self._woken.set()
        self._thread.join(CLOSE_S)

    # ------------------------------------------------------------ in the exporting thread

    def _work(self) -> None:
        while not self._closing.is_set() or self._queue:
            self._woken.wait()
            self._woken.clear()
            self._closing.wait(GATHER_S)
            while self._queue:
                self._send(
                    [self._queue.popleft() for _ in range(min(BATCH_ACTS, len(self._queue)))]
                )
        self._exporter.shutdown()

    def _send(self, batch: list[Done]) -> None:
        try:
            for done in batch:
                self._make(done)
            count, taken, why = len(self._gathered), self._export(), ""
        except Exception as e:  # an error of a library must not end this thread
            count, taken, why = len(self._gathered), False, f": {type(e).__name__}"
        self._gathered.clear()
        self._counters.spans["exported" if taken else "failed"] += count
        if taken is self._failing:
            self._failing = not taken
            log.warning(
                "the collector takes traces again"
                if taken
                else f"the collector does not take traces{why}; "
                "they are dropped, and counted as failed"
            )

    def _export(self) -> bool:
        from opentelemetry.sdk.trace.export import SpanExportResult

        return (
            not self._gathered
            or self._exporter.export(tuple(self._gathered)) is SpanExportResult.SUCCESS
        )

    def _make(self, done: Done) -> None:
        from opentelemetry.context import Context
        from opentelemetry.trace import (
            NonRecordingSpan,
            SpanKind,
            Status,
            StatusCode,
            set_span_in_context,
        )

        inside, how = Context(), SpanKind.SERVER
        if done.later:
            how = SpanKind.INTERNAL
            if done.act is not None and (act := self._acts.get(done.act)) is not None:
                inside = set_span_in_context(NonRecordingSpan(act), inside)
        span = self._tracer.start_span(
            done.name, inside, how, dict(done.facts), start_time=done.began
        )
        if done.act is not None and not done.later:
            self._acts[done.act] = span.get_span_context()
            if len(self._acts) > QUEUE_ACTS:
                self._acts.popitem(last=False)
        inside = set_span_in_context(span, Context())
        for phase, began, ended in done.phases:
            self._tracer.start_span(phase, inside, start_time=began).end(ended)
        if done.facts.get("holdfast.act.verdict") in ("failed", "unknown"):
            span.set_status(Status(StatusCode.ERROR))
        span.end(done.ended)


def _tracer(gathered: list[ReadableSpan]) -> Tracer:
    """A tracer that appends ended spans to `gathered`, in the thread that ends the span."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import SpanProcessor, Tracer, TracerProvider

    class Gather(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            if span.context is not None and span.context.trace_flags.sampled:
                gathered.append(span)

    provider = TracerProvider(
        resource=Resource.create({"service.name": "holdfast", "service.version": __version__}),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(Gather())
    made: Any = provider.get_tracer("holdfast", __version__)
    assert isinstance(made, Tracer), "OTEL_SDK_DISABLED is set"
    return made


def to_collector(where: str, counters: Counters, names: bool, commands: bool) -> Traces:
    """Sends traces to `where`, or to the address in the standard OTEL_* variables.

    Raises Impossible if the extra is not installed.
    """
    # Every failed batch would fill the log; this module reports the first failure only.
    for noisy in ("opentelemetry", "urllib3", "requests"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as e:
        raise Impossible(
            "traces are configured, but OpenTelemetry is not installed", "install holdfast[otel]"
        ) from e
    return Traces(
        OTLPSpanExporter(
            endpoint=None if where == ENVIRONMENT else where.rstrip("/") + PATH, timeout=SEND_S
        ),
        counters,
        names,
        commands,
    )
