"""Decides which checkpoints are removed: all but the newest of a session, and beyond the bound.

Checkpoints share objects, so the removal of one frees only what no other uses. The newest of a
session always stays: it may be the only way back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Kept(NamedTuple):
    """A checkpoint. `files`: sizes of its stored files; sessions share none."""

    session: str
    id: str
    at: float
    files: Mapping[str, int]


def surplus(found: Iterable[Kept], keep: int, most: int) -> list[Kept]:
    """The checkpoints to remove, oldest first."""
    by_session = dict[str, list[Kept]]()
    for one in sorted(found, key=lambda one: one.at):
        by_session.setdefault(one.session, []).append(one)
    gone = [one for group in by_session.values() for one in group[: -max(keep, 1)]]
    left = [one for group in by_session.values() for one in group[-max(keep, 1) :]]
    used, sizes = Counter[tuple[str, str]](), dict[tuple[str, str], int]()
    for one in left:
        for name, size in one.files.items():
            used[one.session, name] += 1
            sizes[one.session, name] = size
    total = sum(sizes.values())
    newest = {group[-1].id for group in by_session.values()}
    for one in sorted(left, key=lambda one: one.at):
        if total <= most:
            break
        if one.id in newest:
            continue
        gone.append(one)
        for name in one.files:
            used[one.session, name] -= 1
            if not used[one.session, name]:
                total -= sizes[one.session, name]
    return sorted(gone, key=lambda one: one.at)
