"""Server-sent events: the parts of an answer as text, with ids by which a client resumes.

The id of output is the offset after it; the id of an event or of an entry is its number. A client
that sends `Last-Event-ID` gets the next part, with a gap event for output that rolled off.
"""

from __future__ import annotations

import json
from typing import Any, Final

from holdfast.client.engine.parts import Data, Gap, Part, Reply
from holdfast.core.contract.table import Operation
from holdfast.faces.http.calls import piece
from holdfast.faces.http.recovery import for_http
from holdfast.faces.http.routes import Fields
from holdfast.model.errors import HoldfastError, Usage

HEARTBEAT: Final = b": \n\n"
RESUMES: Final = {"read": "from", "run": "resume", "events": "after", "log": "after"}
_OF_THE_WIRE: Final = ("event", "request")


def resume(row: Operation, fields: Fields, last: str | None) -> None:
    """Makes a request go on after the id that the client saw last."""
    name = RESUMES.get(row.name)
    if row.name in ("run", "log"):
        fields.setdefault(RESUMES[row.name], None if row.name == "run" else 0)
    if not last or name is None:  # attention, graph and approvals begin with the present state
        return
    if not last.isascii() or not last.isdigit() or len(last) > 18:
        raise Usage("Last-Event-ID is not an id of this stream", "leave it out to begin anew")
    if row.name == "run" and "once" not in fields:
        raise Usage(
            "a run is resumed by its Idempotency-Key", "without the key it would be a second run"
        )
    fields[name] = int(last)


class Encoder:
    """Writes parts; leaves out entries that a repeated request brings again."""

    def __init__(self) -> None:
        self._last = 0

    def part(self, part: Part) -> bytes:
        if isinstance(part, Data):
            return event("output", piece(part), part.end)
        if isinstance(part, Gap):
            return event("gap", {"start": part.start, "end": part.end}, part.end)
        if isinstance(part, Reply):
            return event("end", part.body)
        body: dict[str, Any] = {k: v for k, v in part.body.items() if k not in _OF_THE_WIRE}
        if isinstance(inner := body.get("body"), dict):
            body = inner
        if part.name not in ("happened", "recorded"):
            return event(part.name, body)
        number = int(body.get("seq", body.get("number", 0)))
        if number <= self._last:
            return b""
        self._last = number
        return event(part.name, body, number)


def event(name: str, body: dict[str, Any], id: int | None = None) -> bytes:
    head = f"event: {name}\n" + ("" if id is None else f"id: {id}\n")
    return f"{head}data: {json.dumps(body)}\n\n".encode("utf-8", "backslashreplace")


def error(failed: HoldfastError) -> bytes:
    return event("error", {"error": for_http(failed).to_wire()})
