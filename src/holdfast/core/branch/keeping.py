"""Decides how the changes of a branch get into the directory of its parent, and finds conflicts.

The directory may have changed since the fork. A path conflicts if it is now neither as at the fork
nor as in the branch. The operator decides for each conflict: `take` the branch's version, or
`leave` the path as it is. Without a decision nothing is written at all.

Steps are in an order that can be carried out, and each step can be repeated after a crash. A step
concerns one entry: a directory that goes has a step for each entry below. So an entry that appears
after the decision is in no step, and stays.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from holdfast.core.branch.changes import (
    DIRECTORY,
    FILE,
    LINK,
    REMOVED,
    Change,
    Entry,
    State,
    parents,
)

REMOVE, MAKE = "remove", "make"


class Step(NamedTuple):
    """One step. REMOVE: the entry goes. MAKE: the entry becomes `after`, whatever it was.

    A directory is empty when it goes, or when another kind of entry takes its place.

    `before`: the entry at the fork; None if there was none.
    """

    do: str
    path: str
    before: Entry | None
    after: Entry | None


class Conflict(NamedTuple):
    path: str
    why: str


class Plan(NamedTuple):
    """`done`: changes that the directory has already. `left`: changes that the operator left."""

    steps: tuple[Step, ...]
    conflicts: tuple[Conflict, ...]
    done: tuple[str, ...] = ()
    left: tuple[str, ...] = ()

    @property
    def changed(self) -> tuple[str, ...]:
        """All changes, whatever becomes of them."""
        steps = (one.path for one in self.steps)
        return (*steps, *(one.path for one in self.conflicts), *self.done, *self.left)


# Whether a file of the directory has the content of this entry of the snapshot or of the branch.
Equal = Callable[[str, Entry, Entry], bool]


def plan(
    changes: Iterable[Change],
    base: State,
    now: State,
    equal: Equal,
    take: Collection[str] = (),
    leave: Collection[str] = (),
    tied: Mapping[str, str] = MappingProxyType({}),
) -> Plan:
    """`base`: the state at the fork. `now`: the directory as it is. Renames must be split.

    `tied`: further paths that conflict, with the reasons.
    """
    steps, conflicts = dict[str, Step](), list[Conflict]()
    done, left = list[str](), list[str]()
    listed, within = [*changes], _Within(now)
    removed = {one.path for one in listed if one.what == REMOVED and not _named(one.path, leave)}
    made = {one.path: one.after for one in listed if one.after is not None}
    for one in listed:
        if _named(one.path, leave):
            left.append(one.path)
            continue
        if _is(one.path, one.after, now, equal):
            done.append(one.path)
            continue
        blocked = [*_blocked(one, now, made)]
        goes = within.below(one.path) if one.after is None or one.after.kind != DIRECTORY else []
        if stays := next((path for path in goes if _named(path, leave)), ""):
            conflicts.append(Conflict(one.path, f"{stays} is in it, which is to be left"))
            continue
        fresh = [path for path in goes if path not in removed]
        why = _against(one, now, equal, blocked, fresh) or tied.get(one.path, "")
        if why and not _named(one.path, take):
            conflicts.append(Conflict(one.path, why))
            continue
        for path in fresh:
            steps.setdefault(path, Step(REMOVE, path, base.get(path), None))
        for above in blocked:
            steps.setdefault(above, Step(MAKE, above, base.get(above), base[above]))
        steps[one.path] = Step(
            REMOVE if one.after is None else MAKE, one.path, one.before, one.after
        )
    return Plan(_ordered([*steps.values()]), tuple(conflicts), tuple(done), tuple(left))


class _Within:
    """Finds the entries below a path."""

    def __init__(self, state: State) -> None:
        self._paths = sorted(state)

    def below(self, path: str) -> list[str]:
        first, end = (
            bisect_left(self._paths, f"{path}{sign}") for sign in ("/", chr(ord("/") + 1))
        )
        return self._paths[first:end]


def _named(path: str, words: Collection[str]) -> bool:
    return path in words or any(above in words for above in parents(path))


def _is(path: str, wanted: Entry | None, now: State, equal: Equal) -> bool:
    """Whether the directory has this entry, or as little as this."""
    there = now.get(path)
    if wanted is None or there is None:
        return wanted is None and there is None
    if there.kind != wanted.kind or (there.mode != wanted.mode and wanted.kind != LINK):
        return False
    if wanted.kind == LINK:
        return there.text == wanted.text
    if there.attributes != wanted.attributes:
        return False
    return wanted.kind != FILE or (there.size == wanted.size and equal(path, there, wanted))


def _blocked(one: Change, now: State, made: Mapping[str, Entry]) -> Iterator[str]:
    """Directories above a new entry that are none any more."""
    for above in parents(one.path) if one.after is not None else ():
        entry = made.get(above) or now.get(above)
        if entry is None or entry.kind != DIRECTORY:
            yield above


def _against(
    one: Change, now: State, equal: Equal, blocked: Sequence[str], fresh: Sequence[str]
) -> str:
    """Why the change conflicts. `fresh`: entries that would go, and that the branch left alone."""
    there = now.get(one.path)
    if blocked:
        return f"{blocked[0]} is no directory any more"
    if one.before is None:
        return "" if there is None else "it was made in the parent too, with another content"
    if there is None:
        return "it was removed in the parent"
    if not _is(one.path, one.before, now, equal):
        return "it was changed in the parent too"
    if fresh:
        return f"it has {fresh[0].removeprefix(f'{one.path}/')} now, which the branch does not know"
    return ""


def _ordered(steps: list[Step]) -> tuple[Step, ...]:
    """Removals first, the deepest first, so that a directory is empty and a name is free."""
    removals = sorted((s for s in steps if s.do == REMOVE), key=lambda s: s.path, reverse=True)
    others = sorted((s for s in steps if s.do == MAKE), key=lambda s: s.path)
    return (*removals, *others)


def applied(now: State, steps: Iterable[Step]) -> dict[str, Entry]:
    """The directory after the steps: the meaning of each step. ValueError if one is impossible."""
    found = dict(now)
    for one in steps:
        stays = one.after is not None and one.after.kind == DIRECTORY
        if not stays and any(path.startswith(f"{one.path}/") for path in found):
            raise ValueError(f"{one.path} is not empty")
        if any(found[above].kind != DIRECTORY for above in parents(one.path)):
            raise ValueError(f"there is no directory for {one.path}")
        if one.after is not None:
            found[one.path] = one.after
        else:
            del found[one.path]
    return found
