"""Version negotiation: each side offers a range, and the highest common version is used."""

from __future__ import annotations

from holdfast.wire.frames import LOWEST, VERSION


def choose(lowest: object, highest: object) -> int | None:
    """Choose the version for a peer that speaks `lowest` to `highest`, or None."""
    if (
        not isinstance(lowest, int)
        or not isinstance(highest, int)
        or isinstance(lowest, bool)
        or lowest > highest
    ):
        return None
    best = min(highest, VERSION)
    return best if best >= max(lowest, LOWEST) else None
