"""The operations that HTTP serves, the right that a token needs for each, and the status codes.

An operation that only looks is a GET with query parameters; an act is a POST with a JSON object.
The fields of a request come from the operation table, without those that the server adds itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from holdfast.core.contract.codec import Field, decode, request_fields
from holdfast.core.contract.table import OPERATIONS, Operation
from holdfast.model.errors import BY_NAME, HoldfastError, Usage

PREFIX: Final = "/v1/"
Fields = dict[str, Any]

# docs/reference/http.md lists the operations that are not here.
SERVED: Final = (
    "ping",
    "ls",
    "get",
    "who",
    "view",
    "read",
    "wait",
    "attention",
    "graph",
    "events",
    "log",
    "metrics",
    "resolve",
    "approvals",
    "new",
    "run",
    "send",
    "signal",
    "turn",
    "seize",
    "halt",
    "resume",
    "rename",
    "end",
    "forget",
    "checkpoint",
    "checkpoints",
    "restore",
    "fork",
    "branches",
    "diff",
    "keep",
    "discard",
)
# The right for an operation whose handler decides; an empty right means every valid token.
NEEDS: Final = {
    "ping": "",
    "ls": "observe",
    "resolve": "observe",
    "log": "log",
    "attention": "observe",
    "approvals": "observe",
    "checkpoints": "observe",
    "branches": "observe",
}
TURN_NEEDS: Final = {"show": "observe", "request": "turn.request", "release": "turn.request"}
# Operations without a field `session` that a token of one session may use: the server narrows them.
NARROWED: Final = frozenset(("ping", "ls", "resolve", "attention"))

# Fields that the server fills in, or that only make sense for a terminal.
HIDDEN: Final = frozenset(
    (
        *("seq", "signed", "once", "resume", "for_terminal", "stdin", "follow", "again", "token"),
        *("given", "umask", "agent", "window", "clipboard", "doors"),
    )
)
DEFAULTS: Final[dict[str, dict[str, object]]] = {
    "new": {"argv": [], "cwd": "", "env": {}},
    "send": {"text": ""},
}
# A signature that only fills the place of the real one while the fields are checked.
_UNSIGNED: Final = {"seq": 1, "signed": {"statement": "", "signature": "", "salt": ""}}

STATUS: Final = {
    "usage": 400,
    "not_found": 404,
    "refused": 403,
    "turn_held": 423,
    "busy": 423,
    "unfinished": 423,
    "operator_stopped": 423,
    "held": 202,
    "stale": 409,
    "once_used": 409,
    "nested": 409,
    "unavailable": 503,
    "peer_fault": 502,
    "contradicted": 502,
    "wrong_pin": 502,
    "lost": 410,
    "impossible": 501,
    "outcome_unknown": 500,
    "timed_out": 504,
}


def status(error: HoldfastError) -> int:
    """The status code of an error: by its name, else by the nearest class above it."""
    for cls in type(error).__mro__:
        name = getattr(cls, "name", "")
        if name in STATUS and BY_NAME.get(name) is cls:
            return STATUS[name]
    return 500


def is_post(row: Operation) -> bool:
    return row.act


def shown(row: Operation) -> dict[str, Field]:
    """The fields that a client of HTTP may give."""
    known = request_fields(row.request)
    return {name: field for name, field in known.items() if name not in HIDDEN}


def is_required(row: Operation, field: Field) -> bool:
    return field.required and field.wire not in DEFAULTS.get(row.name, {})


def streams(row: Operation) -> bool:
    """Whether the answer can come as server-sent events."""
    return row.name == "run" or "follow" in request_fields(row.request)


def from_query(row: Operation, pairs: Sequence[tuple[str, str]]) -> Fields:
    """The fields of a request from query parameters; a parameter of a list may be repeated."""
    known, found = shown(row), Fields()
    for name, text in pairs:
        if name not in known:
            raise Usage(
                f"{row.name} has no parameter {name[:40]!a}",
                "secrets go into headers, never into an address"
                if "token" in name
                else f"it has: {', '.join(known) or 'none'}",
            )
        value, is_list = _value(row, known[name], text)
        if is_list:
            found.setdefault(name, []).append(value)
        elif name in found:
            raise Usage(f"the parameter {name} is given twice")
        else:
            found[name] = value
    return found


def _value(row: Operation, field: Field, text: str) -> tuple[object, bool]:
    """The value of a parameter, and whether it is an item of a list."""
    kinds = field.kinds
    try:
        if list in kinds or str in kinds:
            return text, list in kinds
        if bool in kinds:
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()], False
        return (int(text) if int in kinds else float(text)), False
    except (KeyError, ValueError):
        raise Usage(f"the parameter {field.wire} of {row.name} has the wrong type") from None


def checked(row: Operation, given: Fields, session: str | None) -> Fields:
    """The fields with defaults, after the check that the host makes too.

    `session`: the only session of the token, which a request need not name.
    """
    known = shown(row)
    if session is not None and "session" in known:
        given.setdefault("session", session)
    for name in given:
        if name not in known:
            raise Usage(
                f"{row.name} has no field {name[:40]!a}", f"it has: {', '.join(known) or 'none'}"
            )
    fields = {**DEFAULTS.get(row.name, {}), **given}
    filled = _UNSIGNED if "signed" in request_fields(row.request) else {}
    decode(row.request, row.name, {**fields, **filled})
    return fields


def needed(row: Operation, fields: Fields) -> str:
    """The right that a token needs for a request."""
    if row.name == "turn":
        return TURN_NEEDS.get(fields.get("act", "show"), "turn.hand")
    return row.right or NEEDS[row.name]


def served() -> list[Operation]:
    return [OPERATIONS[name] for name in SERVED]
