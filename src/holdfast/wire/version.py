"""Version negotiation: each side says the range it speaks, the highest common one is used, none is an error that says so."""

from __future__ import annotations

from typing import Any

from holdfast.wire.frames import LOWEST, VERSION


def choose(lowest: Any, highest: Any) -> int | None:
    """The version to speak with a peer that speaks `lowest` to `highest`, or None."""
    if (
        not isinstance(lowest, int)
        or not isinstance(highest, int)
        or isinstance(lowest, bool)
        or lowest > highest
    ):
        return None
    best = min(highest, VERSION)
    return best if best >= max(lowest, LOWEST) else None
