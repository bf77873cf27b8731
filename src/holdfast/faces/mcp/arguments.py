"""The arguments of a call, compared with the schema of the tool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from holdfast.model.errors import Usage

if TYPE_CHECKING:
    from holdfast.model.jsontext import Json

_TYPES: Final = {
    "string": str,
    "number": (int, float),
    "integer": int,
    "boolean": bool,
    "array": list,
}


def checked(name: str, schema: Json, given: Mapping[str, object]) -> Json:
    """Returns the arguments, or raises Usage if the schema forbids an argument."""
    fields: Json = schema["properties"]
    missing = [field for field in schema.get("required", ()) if given.get(field) is None]
    if missing:
        raise Usage(f"{name} needs {', '.join(missing)}")
    for field, value in given.items():
        if field not in fields:
            raise Usage(f"{name} takes no {field[:40]!a}", f"it takes {', '.join(fields)}")
        if value is not None and not _fits(fields[field], value):
            raise Usage(f"{name}: {field} is not {_wanted(fields[field])}")
    return {field: value for field, value in given.items() if value is not None}


def _fits(schema: Json, value: object) -> bool:
    if "enum" in schema:
        return value in schema["enum"]
    if isinstance(value, bool) and schema["type"] != "boolean":
        return False
    if not isinstance(value, _TYPES[schema["type"]]):  # type: ignore[arg-type]
        return False
    return not isinstance(value, list) or all(isinstance(one, str) for one in value)


def _wanted(schema: Json) -> str:
    return f"one of {', '.join(schema['enum'])}" if "enum" in schema else str(schema["type"])
