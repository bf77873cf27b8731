"""Follows every history of a world, each state once."""

from __future__ import annotations

import gc
from functools import cache
from typing import NamedTuple

from holdfast.core.lease import changes, owner, records
from tests.support.recovery.lease_world import World, canonical

for _module in (changes, owner):  # the same few records are read and written very often
    for _name in ("encode", "lease", "machine"):
        setattr(_module, _name, cache(getattr(records, _name)))


class Explored(NamedTuple):
    states: int
    fault: str
    history: tuple[str, ...]


def explore(world: World, limit: int) -> Explored:
    """All states that can be reached, or the first one (by the fewest steps) with a fault."""
    gc.disable()  # millions of records and no cycle among them
    try:
        return _explore(world, limit)
    finally:
        gc.enable()


def _explore(world: World, limit: int) -> Explored:
    came: dict[World, tuple[World, str] | None] = {canonical(world): None}
    frontier = list(came)
    while frontier:
        following = []
        for one in frontier:
            for step, after in one.steps():
                if after.fault:
                    return Explored(len(came), after.fault, (*_way(came, one), step))
                after = canonical(after)
                if after not in came:
                    came[after] = (one, step)
                    following.append(after)
            assert len(came) < limit, "the world is too large for this check"
        frontier = following
    return Explored(len(came), "", ())


def _way(came: dict[World, tuple[World, str] | None], one: World) -> tuple[str, ...]:
    steps: list[str] = []
    while (before := came[one]) is not None:
        steps.append(before[1])
        one = before[0]
    return tuple(reversed(steps))
