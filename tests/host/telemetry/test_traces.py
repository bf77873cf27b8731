"""Traces with a dead or slow collector: bounded memory, a counter, and no delay for an act."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from holdfast.host.telemetry import traces
from holdfast.host.telemetry.counters import Counters
from holdfast.host.telemetry.traces import QUEUE_ACTS, Traces
from tests.support.installation import eventually


class Collecting(SpanExporter):
    """Accepts spans as soon as the test allows."""

    def __init__(self) -> None:
        self.open, self.taken = threading.Event(), list[ReadableSpan]()
        self.answer: SpanExportResult | Exception = SpanExportResult.SUCCESS

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.open.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        self.taken += spans
        return self.answer

    def shutdown(self) -> None:
        pass


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collecting]:
    monkeypatch.setattr(traces, "GATHER_S", 0.0)
    made = Collecting()
    yield made
    made.open.set()


def act(number: int = 1, **more: Any) -> Any:
    """An act in the form that the door passes on."""
    session = SimpleNamespace(id="s1", name="hideaway")
    conn = SimpleNamespace(kind="agent", modality="my-own-client", operator="zelda")
    return SimpleNamespace(
        **(
            {
                "session": session,
                "conn": conn,
                "epoch": 1,
                "number": number,
                "kind": "command",
                "began": 1_000,
                "taken": 7,
                "shapers": 2,
                "written": None,
                "outcome": {"exit_code": 0},
                "approvers": (),
                "meant": {"prompt": "message 4"},
                "content": b"make test",
                "effects": None,
                "phases": [("gate", 1_100, 1_200), ("record", 1_200, 1_300)],
            }
            | more
        )
    )


def test_o_a_hanging_collector_delays_no_act_and_the_queue_is_bounded(
    exporter: Collecting,
) -> None:
    counters = Counters()
    made = Traces(exporter, counters)
    for number in range(2 * QUEUE_ACTS + traces.BATCH_ACTS):
        made.over(act(number), "applied")
    dropped = counters.spans["dropped"]
    assert 4 * QUEUE_ACTS <= dropped <= 4 * (QUEUE_ACTS + traces.BATCH_ACTS) and not exporter.taken
    exporter.open.set()
    eventually(
        lambda: counters.spans["exported"] == 4 * (2 * QUEUE_ACTS + traces.BATCH_ACTS) - dropped,
        "what waited",
    )
    made.close()


@pytest.mark.parametrize("answer", [SpanExportResult.FAILURE, RuntimeError("a library's mistake")])
def test_o_failed_exports_are_counted_and_logged_once(
    exporter: Collecting, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    counters = Counters()
    made = Traces(exporter, counters)
    exporter.answer = answer
    exporter.open.set()
    for number in range(3):
        made.over(act(number), "applied")
        eventually(lambda: counters.spans["failed"] == 4 * (number + 1), "the count")
    exporter.answer = SpanExportResult.SUCCESS
    made.over(act(9), "applied")
    eventually(lambda: counters.spans["exported"] == 4, "the next")
    made.close()
    assert [record.message.split(";")[0].split(":")[0] for record in caplog.records] == [
        "the collector does not take traces",
        "the collector takes traces again",
    ]


def test_o_a_span_has_kinds_and_numbers_and_a_client_cannot_put_words_into_it(
    exporter: Collecting,
) -> None:
    made = Traces(exporter, Counters())
    exporter.open.set()
    made.over(act(), "refused")
    made.close()
    spans = {span.name: span for span in exporter.taken}
    assert set(spans) == {"act command", "gate", "record"}
    assert dict(spans["act command"].attributes or {}) == {
        "holdfast.session.id": "s1",
        "holdfast.session.epoch": 1,
        "holdfast.act.number": 1,
        "holdfast.act.kind": "command",
        "holdfast.act.verdict": "refused",
        "holdfast.actor.kind": "agent",
        "holdfast.actor.modality": "other",
        "holdfast.originators.count": 2,
        "holdfast.act.sequence": 7,
        "holdfast.act.exit_code": 0,
    }
    parent = spans["gate"].parent
    assert (
        parent is not None
        and spans["act command"].context is not None
        and parent.span_id == spans["act command"].context.span_id
    )
    assert spans["act command"].start_time == 1_000 and spans["gate"].end_time == 1_200
