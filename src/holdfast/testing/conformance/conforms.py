"""Whether JSON has the form that a class of the contract promises (core/contract)."""

from __future__ import annotations

import types
import typing
from dataclasses import fields, is_dataclass

from holdfast.core.contract.message import Absent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.model.jsontext import Json


def breaches(cls: type, body: Json, where: str = "") -> list[str]:
    """Each field that is missing, unknown or of another type."""
    hints = typing.get_type_hints(cls)
    known = {one.name.rstrip("_"): hints[one.name] for one in fields(cls)}
    found = [f"{where}{name} is unknown" for name in body.keys() - known.keys()]
    for name, hint in known.items():
        options = _options(hint)
        if name in body:
            found += _wrong(options, body[name], f"{where}{name}")
        elif Absent not in options:
            found.append(f"{where}{name} is missing")
    return found


def _options(hint: object) -> tuple[object, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) is types.UnionType else (hint,)


def _wrong(options: tuple[object, ...], value: object, where: str) -> list[str]:
    tries = [_breaches(one, value, where) for one in options if one is not Absent]
    return [] if [] in tries else min(tries, key=len)


def _breaches(hint: object, value: object, where: str) -> list[str]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if is_dataclass(hint):
        assert isinstance(hint, type)
        return breaches(hint, value, f"{where}.") if isinstance(value, dict) else [f"{where}: part"]
    if origin in (tuple, list):
        if not isinstance(value, list):
            return [f"{where} is no list"]
        kinds = arguments[:1] * len(value) if arguments[-1] is ... or origin is list else arguments
        pairs = zip(kinds, value, strict=True)
        return [line for kind, one in pairs for line in _wrong(_options(kind), one, f"{where}[]")]
    if origin is not None:
        return [] if isinstance(value, dict) else [f"{where} is no object"]
    kinds = (int, float) if hint is float else (hint,)
    return [] if hint is object or type(value) in kinds else [f"{where} is {type(value).__name__}"]
