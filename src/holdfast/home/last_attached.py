"""Remembers the last attached session on another machine, for `attach` without a name.

    HOME/last-attached   {v, last: [{operator, place}]}

The local host remembers local sessions itself. An entry exists while the operator's last attach
went to another machine. Losing the file costs only this default.
"""

from __future__ import annotations

from holdfast.home import private
from holdfast.model.errors import HoldfastError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from holdfast.home import Home

OPERATORS_KEPT: Final = 64
_BYTES: Final = 64 << 10


def _path(home: Home) -> str:
    return f"{home.state}/last-attached"


def _read(home: Home) -> dict[str, str]:
    try:
        found = private.entries(_path(home), _BYTES, "last", "remove it")
        return {str(one["operator"]): str(one["place"]) for one in found}
    except (HoldfastError, KeyError, TypeError):
        return {}


def elsewhere(home: Home, operator: str) -> str | None:
    """Return MACHINE/SESSION if the operator's last attach went to another machine."""
    return _read(home).get(operator)


def note(home: Home, operator: str, place: str | None) -> None:
    """Note an attach to MACHINE/SESSION, or with None an attach to a local session."""
    before = _read(home)
    if before.get(operator) == place:
        return
    others = [(one, at) for one, at in before.items() if one != operator]
    kept = [*others, *([] if place is None else [(operator, place)])][-OPERATORS_KEPT:]
    try:
        private.keep(_path(home), "last", [{"operator": o, "place": at} for o, at in kept])
    except HoldfastError:
        pass
