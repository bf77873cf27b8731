"""Between the JSON of the wire and the messages of the contract.

`decode` is strict: an unknown, missing or mistyped field is refused by name. `encode` converts
messages and tuples; dicts and lists are passed on as finished JSON.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Final, NamedTuple, TypeVar

from holdfast.core.contract.message import ABSENT, Absent, Form
from holdfast.model.errors import Usage

T = TypeVar("T")
SECONDS_MAX: Final = 1e9
_PLAIN: Final = frozenset((str, int, float, bool, type(None), dict, list))


class Field(NamedTuple):
    """A field of a request."""

    wire: str
    name: str  # of the attribute
    kinds: tuple[type, ...]  # of the JSON value
    default: object  # `...`: required
    read: Callable[[Any], object]  # from JSON; ValueError if the contents have the wrong type
    wrong: tuple[str, str]  # the error for wrong contents, and how to recover

    @property
    def required(self) -> bool:
        return self.default is ...


@functools.cache
def request_fields(cls: Any) -> dict[str, Field]:
    """The fields of a request by their names on the wire, in the order of the checks."""
    hints = typing.get_type_hints(cls, include_extras=True)
    found: dict[str, Field] = {}
    for one in fields(cls):
        wire = one.name.rstrip("_")
        kinds, read = _reader(hints[one.name])
        default = ... if one.default is MISSING else one.default
        wrong = one.metadata.get("wrong", ("", ""))
        found[wire] = Field(wire, one.name, kinds, default, read, wrong)
    return found


def decode(cls: type[T], op: str, body: Mapping[str, object]) -> T:
    """The request of an operation from the body that a client sent; Usage names a wrong field."""
    kind: Any = cls
    known = request_fields(kind)
    unknown = sorted(set(body) - set(known) - {"op"})
    if unknown:
        raise Usage(
            f"unknown field {unknown[0]!a} in {op}", "this host may be older than the client"
        )
    return cls(**{field.name: _value(field, op, body) for field in known.values()})


def _value(field: Field, op: str, body: Mapping[str, object]) -> object:
    if field.wire not in body:
        if field.required:
            raise Usage(f"{op} needs the field {field.wire!a}")
        return field.default
    value = body[field.wire]
    if float in field.kinds and type(value) is int:
        value = float(value) if 0 <= value < SECONDS_MAX else SECONDS_MAX  # out of range
    if value is None and field.default is None:
        return None
    if type(value) not in field.kinds:
        raise Usage(f"the field {field.wire!a} of {op} has the wrong type")
    if (type(value) is int and not 0 <= value < 1 << 63) or (
        type(value) is float and not 0 <= value < SECONDS_MAX
    ):
        raise Usage(f"the field {field.wire!a} of {op} is out of range")
    try:
        return field.read(value)
    except ValueError as e:
        message, recover = field.wrong
        if not message:
            message = f"the field {field.wire!a} of {op} {str(e) or 'has the wrong type'}"
        raise Usage(message.format(op=op), recover) from None


def _reader(hint: Any) -> tuple[tuple[type, ...], Callable[[Any], object]]:
    """The JSON types that an annotation allows, and the function that reads a value."""
    options = [one for one in _options(hint) if one not in (type(None), Absent)]
    if len(options) == 2:  # a text, or a list of texts
        kinds, read = _reader(options[1])
        return (str, *kinds), lambda value: value if type(value) is str else read(value)
    (option,) = options
    origin, arguments = typing.get_origin(option), typing.get_args(option)
    if origin is typing.Annotated:
        return (str,), functools.partial(_formed, arguments[1])
    if origin is tuple:
        return (list,), functools.partial(_items, arguments)
    if origin is dict:
        return (dict,), functools.partial(_values, arguments[1])
    if is_dataclass(option):
        return (dict,), functools.partial(_part, option)
    return (option,), lambda value: value


def _options(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) is types.UnionType else (hint,)


def _formed(form: Form, value: str) -> str:
    if not form.holds(value):
        raise ValueError(f"is no {form.name}")
    return value


def _items(kinds: tuple[Any, ...], value: list[object]) -> tuple[object, ...]:
    if kinds[-1] is ...:
        kinds = kinds[:1] * len(value)
    if len(kinds) != len(value) or not all(map(_is, value, kinds)):
        raise ValueError
    return tuple(value)


def _values(kind: type, value: dict[str, object]) -> dict[str, object]:
    if not all(_is(one, kind) for one in value.values()):
        raise ValueError
    return value


def _part(cls: Any, value: dict[str, object]) -> object:
    known = request_fields(cls)
    if set(value) != set(known) or not all(type(one) is str for one in value.values()):
        raise ValueError
    return cls(**value)


def _is(value: object, kind: type) -> bool:
    return kind is object or type(value) is kind


# ------------------------------------------------------------ to JSON


@functools.cache
def _names(cls: Any) -> tuple[tuple[str, str], ...]:
    return tuple((one.name.rstrip("_"), one.name) for one in fields(cls))


def encode(message: object) -> dict[str, Any]:
    """A message as JSON; fields that are ABSENT are left out."""
    found: dict[str, Any] = {}
    kind: Any = type(message)
    for wire, name in _names(kind):
        value = getattr(message, name)
        if type(value) in _PLAIN:
            found[wire] = value
        elif value is not ABSENT:
            found[wire] = _json(value)
    return found


def _json(value: object) -> object:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, tuple):
        return [_json(one) for one in value]
    return encode(value)
