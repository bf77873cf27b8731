"""Traces of acts for OpenTelemetry: one span for each discrete act, from when it came to the door until it was over, with what it went through as children (gate, record, effect).

Off unless it is configured (`telemetry.otlp`), and then it needs the extra [otel]. The loop only writes down what a span needs and puts it into a bounded queue; spans are made and sent by
a thread of their own. A collector that is dead, slow or wrong costs the spans and a counter (`holdfast_trace_spans_total`), never an act: a full queue drops what comes. Nothing wakes up
while nothing is done. The library's own batching was rejected: it wakes every few seconds for ever, and starts a thread in every child that this process forks.

A span names the session by its id, the act by its numbers, kind and verdict, the actor by kind. It has no text of a command and nothing that a terminal shows; names of people and sessions
only if `telemetry.names` says so. Keys have no spans: they are counted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from holdfast import __version__
from holdfast.host.door import Act
from holdfast.host.metrics import kind, modality
from holdfast.host.tally import Tally
from holdfast.model.errors import Impossible

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan, Tracer
    from opentelemetry.sdk.trace.export import SpanExporter

QUEUE_ACTS: Final = 1024  # that wait to be sent
BATCH_ACTS: Final = 128  # sent together
GATHER_S: Final = 1.0  # for others that come, before a batch is sent
SEND_S: Final = 5.0  # for one batch, retries included
CLOSE_S: Final = 0.5  # for what still waits when the host goes
ENVIRONMENT: Final = "environment"
PATH: Final = "/v1/traces"
log = logging.getLogger("holdfast.traces")


class Done(NamedTuple):
    """An act that is over, as its span will tell it."""

    kind: str
    began: int  # nanoseconds since 1970, as the rest
    ended: int
    phases: tuple[tuple[str, int, int], ...]
    facts: dict[str, str | int]


class Traces:
    """One per host, if it is on."""

    def __init__(self, exporter: SpanExporter, tally: Tally, names: bool = False) -> None:
        self._exporter, self._tally, self._names = exporter, tally, names
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
        if len(self._queue) >= QUEUE_ACTS:
            self._tally.spans["dropped"] += 1 + len(phases)
            return
        facts: dict[str, str | int] = {
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
        self._queue.append(Done(act.kind, act.began, ended, phases, facts))
        self._woken.set()

    def close(self) -> None:
        """What waits is sent if the collector takes it at once."""
        self._closing.set()
        self._woken.set()
        self._thread.join(CLOSE_S)

    # ------------------------------------------------------------ in its thread

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
        except Exception as e:  # whatever a library does wrong is no reason to end this thread
            count, taken, why = len(self._gathered), False, f": {type(e).__name__}"
        self._gathered.clear()
        self._tally.spans["exported" if taken else "failed"] += count
        if taken is self._failing:
            self._failing = not taken
            log.warning(
                "the collector takes traces again"
                if taken
                else f"the collector does not take traces{why}; they are dropped, and counted as failed"
            )

    def _export(self) -> bool:
        from opentelemetry.sdk.trace.export import SpanExportResult

        return (
            not self._gathered
            or self._exporter.export(tuple(self._gathered)) is SpanExportResult.SUCCESS
        )

    def _make(self, done: Done) -> None:
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        span = self._tracer.start_span(
            f"act {done.kind}", Context(), SpanKind.SERVER, dict(done.facts), start_time=done.began
        )
        inside = set_span_in_context(span, Context())
        for phase, began, ended in done.phases:
            self._tracer.start_span(phase, inside, start_time=began).end(ended)
        if done.facts["holdfast.act.verdict"] in ("failed", "unknown"):
            span.set_status(Status(StatusCode.ERROR))
        span.end(done.ended)


def _tracer(gathered: list[ReadableSpan]) -> Tracer:
    """Whose ended spans are put into that list, by the thread that ends them."""
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


def to_collector(where: str, tally: Tally, names: bool) -> Traces:
    """To that address, or to where the standard OTEL_* variables say. Impossible: the extra is not installed."""
    for noisy in ("opentelemetry", "urllib3", "requests"):
        logging.getLogger(noisy).setLevel(
            logging.CRITICAL
        )  # each batch that fails would fill the log; it is said once
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
        tally,
        names,
    )
