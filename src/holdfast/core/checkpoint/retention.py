"""Decides which checkpoints are removed: all but the newest of a session, and beyond the bound.

Checkpoints share objects, so the removal of one frees only what no other uses. The newest of a
session that can be used always stays: it may be the only way back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import NamedTuple


class Kept(NamedTuple):
    """A checkpoint. `files`: sizes of its stored files; sessions share none."""

    session: str
    id: str
    epoch: int
    at: float
    files: Mapping[str, int]


def surplus(
    found: Iterable[Kept], keep: int, most: int, usable: Callable[[Kept], bool] = lambda one: True
) -> list[Kept]:
    """The checkpoints to remove, oldest first. `usable`: asked only where one may be removed."""
    by_session = dict[str, list[Kept]]()
    for one in sorted(found, key=lambda one: (one.epoch, one.at)):
        by_session.setdefault(one.session, []).append(one)

    @cache
    def stays(session: str) -> str:
        """The newest that can be used; the newest, if none can."""
        group = by_session[session]
        return next((one.id for one in reversed(group) if usable(one)), group[-1].id)

    old = {
        one.id
        for group in by_session.values()
        for one in group[: -max(keep, 1)]
        if one.id != stays(one.session)
    }
    gone = [one for group in by_session.values() for one in group if one.id in old]
    left = [one for group in by_session.values() for one in group if one.id not in old]
    used, sizes = Counter[tuple[str, str]](), dict[tuple[str, str], int]()
    for one in left:
        for name, size in one.files.items():
            used[one.session, name] += 1
            sizes[one.session, name] = size
    total = sum(sizes.values())
    for one in sorted(left, key=lambda one: one.at):
        if total <= most:
            break
        if one.id == stays(one.session):
            continue
        gone.append(one)
        for name in one.files:
            used[one.session, name] -= 1
            if not used[one.session, name]:
                total -= sizes[one.session, name]
    return sorted(gone, key=lambda one: one.at)
