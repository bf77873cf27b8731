"""Writes docs/reference/operations.md and contract.schema.json from src/holdfast/core/contract.

`--check` only compares.
"""

from __future__ import annotations

import json
import sys
import textwrap
import typing
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

from holdfast.core.contract.message import ABSENT, Absent, Acknowledgement  # noqa: E402
from holdfast.core.contract.schema import PLAIN, message_schema, name_of, options  # noqa: E402
from holdfast.core.contract.table import OPERATIONS, Operation  # noqa: E402
from holdfast.core.session import events  # noqa: E402
from holdfast.model import errors  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "operations.md"
SCHEMA = ROOT / "docs" / "reference" / "contract.schema.json"
COLUMNS = 96
HEAD = """# Operations

<!-- rendered: scripts/render_operations.py -->

Every request that a client can send to a host, from the table in
[`core/contract/table.py`](../../src/holdfast/core/contract/table.py). The frames that carry a
request and its answer are in [protocol.md](protocol.md). The same types as JSON Schema are in
[contract.schema.json](contract.schema.json): `operations` (a request has `op` beside its fields),
`events` as the operation `events` gives them, and `errors`.

- **may**: the right that the caller needs on the session that the request names, else on the
  machine; *known*: every operator that the machine knows; *handler*: it depends on what is asked.
- **act**: where the operation takes effect and what [the record](record.md) calls it. An act is
  signed by its actor. Its request has `seq` (the client's number of the act), `signed` and `hold`
  (how long to wait for an approval, in seconds). Its answer has `recorded` besides, the machine's
  receipt, and `shaped`, the state that the act used and other operators changed.
- **repeat**: *again*: a client asks again after a lost connection; *harmless*: it changes nothing,
  so a lost answer leaves nothing unknown; *same number*: a repeat has the number of the first
  request, by which the keeper recognises it.
- **streams**: events, or frames of bytes, that come before the answer.

A field marked with `?` may be left out; of an answer, it may be absent. Null is written `null`.
"""


def schema() -> dict[str, Any]:
    """The whole contract as one JSON Schema."""
    requests = {name_of(row.request): row.request for row in OPERATIONS.values()}
    replies = {name_of(row.reply): row.reply for row in OPERATIONS.values()}
    used: dict[str, Any] = dict(replies) | {name_of(Acknowledgement): Acknowledgement}
    found: dict[str, Any] = {}
    for name, cls in requests.items():
        found[name] = message_schema(cls, True, used)
    while missing := [name for name in used if name not in found]:
        for name in missing:
            found[name] = message_schema(used[name], False, used)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Requests, replies, events and errors of a Holdfast host",
        "operations": {row.name: row_schema(row) for row in OPERATIONS.values()},
        "events": {name: event_schema(name, one) for name, one in events.EVENTS.items()},
        "errors": {one.name: error_schema(one) for one in (errors.HoldfastError, *errors.ALL)},
        "$defs": dict(sorted(found.items())),
    }


def row_schema(row: Operation) -> dict[str, Any]:
    reply: dict[str, Any] = {"$ref": f"#/$defs/{name_of(row.reply)}"}
    if row.act:
        reply = {"allOf": [reply, {"$ref": f"#/$defs/{name_of(Acknowledgement)}"}]}
    return {
        "description": row.help,
        "request": {"$ref": f"#/$defs/{name_of(row.request)}"},
        "reply": reply,
        "who": row.right or row.who,
        "act": {"place": row.place, "kind": row.kind} if row.act else None,
        "repeatable": row.repeatable,
        "harmless": row.harmless,
        "same_number": row.same_number,
        "streams": list(row.streams),
    }


FACTS = {"text": "string", "number": "number", "yes": "boolean", "list": "array"}


def event_schema(name: str, event: events.Event) -> dict[str, Any]:
    """An event as the operation `events` gives it."""
    properties: dict[str, Any] = {
        "number": {"type": "integer"},
        "time": {"type": "number"},
        "session": {"type": "string"},
        "event": {"const": name},
    }
    required = list(properties)
    properties["when"] = {"description": "the time as text, only of a command", "type": "string"}
    for fact, (kind, says) in event.facts.items():
        plain = kind.rstrip("?*")
        found = FACTS.get(plain, plain)
        properties[fact] = {"description": says, "type": [found, "null"] if "?" in kind else found}
        if not kind.endswith("*"):
            required.append(fact)
    return {
        "description": event.means,
        "type": "object",
        "properties": properties,
        "required": required,
    }


def error_schema(cls: type[errors.HoldfastError]) -> dict[str, Any]:
    """An error as a REPLY with `ok` 0 has it."""
    properties: dict[str, Any] = {
        "name": {"const": cls.name},
        "code": {"const": cls.exit_code},
        "message": {"type": "string"},
        "recover": {"type": "string"},
        "retry_safe": {"type": "boolean"} if cls.retry_safe else {"const": False},
        "facts": {"type": "object"},
    }
    required = [name for name in properties if name != "facts"]
    return {"type": "object", "properties": properties, "required": required}


# ------------------------------------------------------------ the page


def shown(hint: Any) -> str:
    """An annotation as the page has it."""
    found = []
    for one in options(hint):
        origin, arguments = typing.get_origin(one), typing.get_args(one)
        if one is type(None):
            found.append("null")
        elif is_dataclass(one):
            found.append(typing.cast(Any, one).__name__)
        elif origin is tuple and arguments[-1] is not ...:
            found.append(f"[{', '.join(map(shown, arguments))}]")
        elif origin in (tuple, list):
            found.append(f"[{shown(arguments[0])}, ...]")
        elif origin is not None or one is object:
            found.append("object" if origin else "any")
        else:
            found.append(PLAIN[one])
    return " or ".join(found)


def listed(cls: Any, request: bool, without: tuple[str, ...] = ()) -> Iterator[str]:
    hints = typing.get_type_hints(cls)
    for one in fields(cls):
        wire, hint = one.name.rstrip("_"), hints[one.name]
        if wire in without:
            continue
        left_out = Absent in typing.get_args(hint) or (request and one.default is not MISSING)
        default = (
            one.default if request and one.default not in (MISSING, None, (), ABSENT) else None
        )
        tail = "" if default is None else f" = {json.dumps(default)}"
        yield f"{wire}{'?' if left_out else ''}: {shown(hint)}{tail}"


def block(title: str, cls: Any, request: bool, without: tuple[str, ...] = ()) -> str:
    doc = " ".join((cls.__doc__ or "").split())
    head = "" if title.startswith("#") else f"{title}: "
    text = textwrap.fill(head + doc, COLUMNS, break_on_hyphens=False)
    if not head:
        text = f"{title}\n{text}"
    lines = list(listed(cls, request, without))
    return text + ("\n\n```\n" + "\n".join(lines) + "\n```\n" if lines else "\n")


def facts(row: Operation) -> str:
    may = f"`{row.right}`" if row.right else f"*{row.who}*"
    parts = [f"may: {may}"]
    if row.act:
        parts.append(f"act: on the {row.place}, `{row.kind}`")
    how = ["again"] * row.repeatable + ["harmless"] * row.harmless
    how += ["same number"] * row.same_number
    if how:
        parts.append(f"repeat: {', '.join(how)}")
    if row.streams:
        parts.append(f"streams: {', '.join(f'`{one}`' for one in row.streams)}")
    return "- " + "\n- ".join(parts)


def page() -> str:
    out, used = [HEAD], dict[str, Any]()
    for row in OPERATIONS.values():
        out.append(f"## {row.name}\n\n{row.help}\n\n{facts(row)}\n")
        about = ("seq", "signed", "hold") if row.act else ()
        if any(True for _ in listed(row.request, True, about)):
            out.append(block("Request", row.request, True, about))
        if any(True for _ in listed(row.reply, False)):
            out.append(block("Reply", row.reply, False))
        message_schema(row.request, True, used)
        message_schema(row.reply, False, used)
    out.append("## Parts\n\nThe messages that requests and replies are made of.\n")
    done: set[str] = set()
    while missing := sorted(used.keys() - done):
        for name in missing:
            done.add(name)
            message_schema(used[name], False, used)
    replies = {name_of(row.reply) for row in OPERATIONS.values()}
    for name in sorted(done - replies):
        out.append(block(f"### {used[name].__name__}\n", used[name], False))
    return "\n".join(out).rstrip() + "\n"


if __name__ == "__main__":
    made = {PAGE: page(), SCHEMA: json.dumps(schema(), indent=1) + "\n"}
    if "--check" in sys.argv:
        sys.exit(any(not path.exists() or path.read_text() != text for path, text in made.items()))
    for path, text in made.items():
        path.write_text(text)
