"""For tests of telemetry: the numbers as a dictionary, and a collector that decodes its input."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.installation import Installation, eventually

Numbers = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parsed(page: str) -> Numbers:
    """Every sample, by Prometheus' own parser."""
    return {
        (s.name, tuple(sorted(s.labels.items()))): s.value
        for family in text_string_to_metric_families(page)
        for s in family.samples
    }


def numbers(hf: Installation) -> Numbers:
    return parsed(hf.quick("metrics"))


def of(found: Numbers, name: str, **labels: str) -> float:
    """The value of a sample; 0 if the sample does not exist (yet)."""
    return found.get((name, tuple(sorted(labels.items()))), 0.0)


def until(hf: Installation, check: Callable[[Numbers], bool], what: str) -> Numbers:
    """The numbers, once they satisfy the check."""
    return wanted(lambda: numbers(hf), check, what)


def wanted(look: Callable[[], Numbers], check: Callable[[Numbers], bool], what: str) -> Numbers:
    found: Numbers = {}

    def once() -> bool:
        found.clear()
        found.update(look())
        return check(found)

    eventually(once, what)
    return found


class Collector:
    """A receiver of OTLP over HTTP."""

    def __init__(self) -> None:
        self.raw: list[bytes] = []
        self.spans: list[Any] = []
        self.answer = 200
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                if collector.answer == 200:
                    collector.raw.append(body)
                    request = ExportTraceServiceRequest.FromString(body)
                    collector.spans += [
                        span
                        for one in request.resource_spans
                        for scope in one.scope_spans
                        for span in scope.spans
                    ]
                self.send_response(collector.answer)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def acts(self, kind: str) -> list[Any]:
        return [span for span in self.spans if span.name == f"act {kind}"]

    def inside(self, span: Any) -> dict[str, Any]:
        return {one.name: one for one in self.spans if one.parent_span_id == span.span_id}

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextmanager
def collector() -> Iterator[Collector]:
    made = Collector()
    try:
        yield made
    finally:
        made.close()


def facts(span: Any) -> dict[str, Any]:
    return {
        one.key: one.value.int_value
        if one.value.WhichOneof("value") == "int_value"
        else one.value.string_value
        for one in span.attributes
    }
