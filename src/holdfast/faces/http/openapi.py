"""The OpenAPI document, made from the operation table."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final

from holdfast import __version__
from holdfast.core.contract.message import Acknowledgement
from holdfast.core.contract.schema import message_schema, name_of
from holdfast.core.contract.table import Operation
from holdfast.faces.http import routes

Schema = dict[str, Any]

JSON: Final = "application/json"
ERROR: Final = "Error"
HELD: Final = "Held"
TEXT: Final[Schema] = {"type": "string"}
FLAG: Final[Schema] = {"type": "boolean"}
# What the server adds to the reply of the contract.
MORE: Final[Mapping[str, Schema]] = {
    "run": {
        "state": {"enum": ["done", "ended"]},
        "text": {**TEXT, "description": "The output, up to 1 MiB."},
        "truncated": {**FLAG, "description": "More output came; `read` has it."},
    },
    "read": {
        "pieces": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "offset": {"type": "integer"},
                    "end": {"type": "integer"},
                    "data": {**TEXT, "contentEncoding": "base64"},
                    "text": TEXT,
                    "gap": {"type": ["object", "null"]},
                },
            },
        },
        "next": {"type": ["integer", "null"], "description": "Where the next request goes on."},
        "more": {**FLAG, "description": "The answer was cut after 1 MiB."},
    },
}
FAILURES: Final = {
    "400": "The request is malformed.",
    "401": "There is no valid token.",
    "403": "The token, the operator or the policy does not allow this.",
    "404": "There is no such session, reference or operator.",
    "409": "The Idempotency-Key belongs to another act, or the state has changed.",
    "410": "The output rolled off.",
    "423": "Another operator has the turn, or a program is in the foreground.",
    "500": "The outcome is unknown: look first, or repeat with the same Idempotency-Key.",
    "503": "The host cannot be reached; a retry is safe.",
    "504": "The time was over.",
}
RIGHT: Final = "The token needs the right `{}`."
INFO: Final = "Live terminal sessions for services. See docs/reference/http.md."


@functools.cache
def document() -> Schema:
    """The whole document."""
    used: dict[str, Any] = {}
    paths = {routes.PREFIX + row.name: _path(row, used) for row in routes.served()}
    found: dict[str, Schema] = {}
    while missing := [name for name in used if name not in found]:
        for name in missing:
            found[name] = message_schema(used[name], False, used)
    made: Schema = _references(
        {
            "openapi": "3.1.0",
            "info": {"title": "Holdfast", "version": __version__, "description": INFO},
            "security": [{"token": []}],
            "paths": paths,
            "components": {
                "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
                "schemas": {**dict(sorted(found.items())), ERROR: _error(), HELD: _held()},
            },
        }
    )
    return made


def _path(row: Operation, used: dict[str, Any]) -> Schema:
    request = message_schema(row.request, True, {})
    properties = {name: request["properties"][name] for name in routes.shown(row)}
    fields = routes.shown(row).values()
    required = [field.wire for field in fields if routes.is_required(row, field)]
    right = row.right or routes.NEEDS.get(row.name, "")
    about = request["description"]
    operation: Schema = {
        "operationId": row.name,
        "summary": row.help,
        "description": f"{about} {RIGHT.format(right)}" if right else about,
    }
    if routes.is_post(row):
        body = {"type": "object", "properties": properties, "additionalProperties": False}
        body |= {"required": required} if required else {}
        operation["parameters"] = [_header("Idempotency-Key", "A repeat has one effect.")]
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": body}}}
    else:
        operation["parameters"] = [
            {"name": name, "in": "query", "required": name in required, "schema": schema}
            for name, schema in properties.items()
        ]
    if routes.streams(row):
        operation["parameters"].append(
            _header("Last-Event-ID", "The last id of a stream, to go on after it.")
        )
    operation["responses"] = _responses(row, used)
    return {"post" if routes.is_post(row) else "get": operation}


def _responses(row: Operation, used: dict[str, Any]) -> Schema:
    used[name_of(row.reply)] = row.reply
    reply: Schema = {"$ref": f"#/$defs/{name_of(row.reply)}"}
    parts = [reply]
    if row.act:
        used[name_of(Acknowledgement)] = Acknowledgement
        parts.append({"$ref": f"#/$defs/{name_of(Acknowledgement)}"})
    if row.name in MORE:
        parts.append({"type": "object", "properties": MORE[row.name]})
    content: Schema = {JSON: {"schema": {"allOf": parts} if len(parts) > 1 else reply}}
    if routes.streams(row):
        content["text/event-stream"] = {"schema": TEXT}
    success = "201" if row.name == "new" else "200"
    found: Schema = {success: {"description": "The answer.", "content": content}}
    if row.act:
        schema = {"$ref": f"#/$defs/{HELD}"}
        found["202"] = {
            "description": "The act waits for approval, or a `run` goes on.",
            "content": {JSON: {"schema": schema}},
        }
    failure = {JSON: {"schema": {"$ref": f"#/$defs/{ERROR}"}}}
    for code, text in FAILURES.items():
        found[code] = {"description": text, "content": failure}
    return found


def _header(name: str, about: str) -> Schema:
    return {"name": name, "in": "header", "required": False, "schema": TEXT, "description": about}


def _error() -> Schema:
    properties = {
        "name": TEXT,
        "code": {"type": "integer", "description": "The exit code of the command line."},
        "message": TEXT,
        "recover": TEXT,
        "retry_safe": FLAG,
        "facts": {"type": "object"},
    }
    error = {"type": "object", "properties": properties, "required": ["name", "message"]}
    return {"type": "object", "properties": {"error": error}, "required": ["error"]}


def _held() -> Schema:
    properties = {
        "state": {"enum": ["held", "running"]},
        "approval": {"type": "object"},
        "ref": TEXT,
        "text": TEXT,
        "truncated": FLAG,
    }
    return {"type": "object", "properties": properties, "required": ["state"]}


def _references(value: Any) -> Any:
    """The same value, with references as OpenAPI spells them."""
    if isinstance(value, dict):
        return {key: _references(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_references(one) for one in value]
    if isinstance(value, str) and value.startswith("#/$defs/"):
        return value.replace("#/$defs/", "#/components/schemas/")
    return value
