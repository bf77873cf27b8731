"""Messages of the contract as JSON Schema, for documents and for faces that describe themselves."""

from __future__ import annotations

import types
import typing
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Final

from holdfast.core.contract.message import ABSENT, Absent

PLAIN: Final[dict[Any, str]] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
}


def name_of(cls: Any) -> str:
    return f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}"


def options(hint: Any) -> list[Any]:
    found = typing.get_args(hint) if typing.get_origin(hint) is types.UnionType else (hint,)
    return [one for one in found if one is not Absent]


def schema_of(hint: Any, used: dict[str, Any]) -> dict[str, Any]:
    """The JSON Schema of an annotation; the messages it names are added to `used`."""
    found = options(hint)
    if len(found) > 1:
        return {"anyOf": [schema_of(one, used) for one in found]}
    (one,) = found
    origin, arguments = typing.get_origin(one), typing.get_args(one)
    if is_dataclass(one):
        used[name_of(one)] = one
        return {"$ref": f"#/$defs/{name_of(one)}"}
    if origin is tuple and arguments[-1] is not ...:
        size = len(arguments)
        items = [schema_of(kind, used) for kind in arguments]
        return {"type": "array", "prefixItems": items, "minItems": size, "maxItems": size}
    if origin in (tuple, list):
        return {"type": "array", "items": schema_of(arguments[0], used)}
    if origin is not None:  # a mapping
        values = schema_of(arguments[1], used)
        return {"type": "object"} | ({"additionalProperties": values} if values else {})
    return {"type": PLAIN[one]} if one in PLAIN else {}


def message_schema(cls: Any, request: bool, used: dict[str, Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    properties, required = {}, []
    for one in fields(cls):
        wire, hint = one.name.rstrip("_"), hints[one.name]
        properties[wire] = schema_of(hint, used)
        if request and one.default not in (MISSING, None, ABSENT):
            default = list(one.default) if isinstance(one.default, tuple) else one.default
            properties[wire] = {**properties[wire], "default": default}
        if one.default is MISSING or (not request and Absent not in typing.get_args(hint)):
            required.append(wire)
    closed = {"additionalProperties": False} if request else {}
    doc = " ".join((cls.__doc__ or "").split())
    found = {"description": doc, "type": "object", "properties": properties, **closed}
    return found | ({"required": required} if required else {})
