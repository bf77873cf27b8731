"""Messages of the Agent Client Protocol: JSON-RPC 2.0, one object per line. Pure."""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING, Any, Final

from holdfast.core.session.inheritance import names_a_secret
from holdfast.model.errors import HoldfastError, Refused, Usage

if TYPE_CHECKING:
    from holdfast.model.jsontext import Json

PARSE_ERROR: Final = -32700
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
CANCELLED: Final = -32800
REFUSED: Final = -32000  # every other error of Holdfast; `data.name` tells them apart

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def parsed(line: bytes) -> Json | None:
    """The message; None if the line is no JSON object."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


def written(message: Json) -> bytes:
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def result(id: object, body: Json) -> Json:
    return {"jsonrpc": "2.0", "id": id, "result": body}


def error(id: object, code: int, message: str, data: Json | None = None) -> Json:
    body: Json = {"code": code, "message": message}
    return {"jsonrpc": "2.0", "id": id, "error": body if data is None else {**body, "data": data}}


def refusal(id: object, e: HoldfastError) -> Json:
    code = INVALID_PARAMS if isinstance(e, Usage) else REFUSED
    data: Json = {"name": e.name, "recover": e.recover, "retry_safe": e.retry_safe}
    return error(id, code, e.message, data)


def announced(initialize: Json, inside: bool) -> Json:
    """The editor's `initialize`, with the capability `terminal`; `inside`: without any acts."""
    params = _object(initialize.get("params"))
    capabilities = {**_object(params.get("clientCapabilities")), "terminal": not inside}
    if inside:
        capabilities["fs"] = {"readTextFile": False, "writeTextFile": False}
    return {**initialize, "params": {**params, "clientCapabilities": capabilities}}


def outside(request: Json) -> Json:
    """The refusal of an act outside of the session in which the agent runs."""
    why = "the agent runs inside a session and uses its own files and commands there"
    return error(request.get("id"), METHOD_NOT_FOUND, why)


def _object(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def field(q: Json, name: str, kind: type, default: Any = None, needed: bool = False) -> Any:
    """A field of a request, or its default if the field is null or absent."""
    value = q.get(name)
    if value is None and not needed:
        return default
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise Usage(f"{name} is not {kind.__name__}", f"give {name} as the protocol defines it")
    return value


def command_text(q: Json, directory: str | None) -> str:
    """The command of `terminal/create` as shell text.

    A terminal of the protocol is new each time. So the command runs in a subshell, and its
    directory and variables do not stay. A command without arguments is shell text itself.
    """
    command: str = field(q, "command", str, needed=True)
    words = field(q, "args", list, [])
    if not all(isinstance(one, str) for one in words):
        raise Usage("args is not a list of strings", "give args as the protocol defines it")
    lines = [shlex.join([command, *words]) if words else command]
    lines[:0] = [_exported(one) for one in field(q, "env", list, [])]
    if cwd := field(q, "cwd", str, directory):
        if not cwd.startswith("/"):
            raise Usage(f"cwd {cwd[:80]!a} is not absolute", "give an absolute path")
        lines.insert(0, f"cd {shlex.quote(cwd)} || exit")
    return "(" + "\n".join(lines) + "\n)"


def _exported(variable: object) -> str:
    if not isinstance(variable, dict):
        raise Usage("env is not a list of objects", "give env as the protocol defines it")
    name, value = field(variable, "name", str, needed=True), field(variable, "value", str, "")
    if _VARIABLE.fullmatch(name) is None:
        raise Usage(f"{name[:40]!a} is no name of a variable", "use letters, digits and _")
    if names_a_secret(name):
        raise Refused(
            f"the variable {name[:40]} looks like a secret, and the record would show it",
            "leave the variable out; a person can set it in the session",
        )
    return f"export {name}={shlex.quote(value)}"
