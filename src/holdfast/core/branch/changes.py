"""Layers of files, and the difference between two states of a directory.

A branch writes into a layer of its own above the snapshot of the fork (overlayfs). A layer has new
and changed entries, and marks: a whiteout hides an entry below, and an opaque directory hides all
entries below. `over` lays one layer over another; `compare` finds the changes between two states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from holdfast.core.branch.attributes import Attributes

FILE, DIRECTORY, LINK, FIFO, WHITEOUT = "file", "dir", "link", "fifo", "whiteout"
OTHER: Final = "other"  # a socket or a device, which no fork copies
ADDED, REMOVED, CHANGED, RENAMED = "added", "removed", "changed", "renamed"
MODE, KIND, ATTRIBUTES = "mode", "kind", "attributes"
_SHOWN: Final = {
    ADDED: "A",
    REMOVED: "D",
    CHANGED: "M",
    MODE: "m",
    KIND: "T",
    RENAMED: "R",
    ATTRIBUTES: "x",
}


class Entry(NamedTuple):
    """An entry of a directory. `text`: of a link. `layer`: the number of the layer that has it.

    `opaque`: of a directory in a layer, whose entries below the layer are hidden.
    """

    kind: str
    mode: int = 0
    size: int = 0
    text: str = ""
    layer: int = 0
    opaque: bool = False
    attributes: Attributes = ()


class Change(NamedTuple):
    """`what`: one of the words above. `source`: of a renamed file, its path before."""

    path: str
    what: str
    before: Entry | None
    after: Entry | None
    source: str = ""

    @property
    def letter(self) -> str:
        return _SHOWN[self.what]


State = Mapping[str, Entry]  # by path, relative and without a leading slash
Same = Callable[[str, Entry, Entry], bool]  # whether two files of that path have the same content
Content = Callable[[str, Entry], str]  # stands for the content of a file


def over(below: State, layer: State) -> dict[str, Entry]:
    """The state that programs see when a layer lies over a state."""
    found = dict(below)
    hidden = [
        path
        for path, entry in layer.items()
        if entry.kind != DIRECTORY or entry.opaque or _kind(below, path) != DIRECTORY
    ]
    tops = {*hidden}
    for path in below:
        if path in tops or any(above in tops for above in parents(path)):
            del found[path]
    found.update((p, e) for p, e in layer.items() if e.kind != WHITEOUT)
    return found


def _kind(state: State, path: str) -> str:
    entry = state.get(path)
    return entry.kind if entry is not None else ""


def parents(path: str) -> Iterator[str]:
    """The directories above a path, the nearest first."""
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def compare(before: State, after: State, same: Same) -> list[Change]:
    """The changes from one state to another, sorted by path."""
    found = list[Change]()
    for path in sorted({*before, *after}):
        old, new = before.get(path), after.get(path)
        if what := _what(path, old, new, same):
            found.append(Change(path, what, old, new))
    return found


def _what(path: str, old: Entry | None, new: Entry | None, same: Same) -> str:
    if old is None:
        return ADDED
    if new is None:
        return REMOVED
    if old.kind != new.kind:
        return KIND
    if old.kind == LINK:
        return CHANGED if old.text != new.text else ""
    if (
        old.kind == FILE
        and old.layer != new.layer
        and (old.size != new.size or not same(path, old, new))
    ):
        return CHANGED
    if old.mode != new.mode:
        return MODE
    return ATTRIBUTES if old.attributes != new.attributes else ""


def with_renames(changes: list[Change], content: Content) -> list[Change]:
    """The same with pairs of a removed and an added file of one content as one change each.

    `content` is asked only for files whose sizes match. Empty files are all alike, and stay apart.
    """
    removed: dict[int, list[Change]] = {}
    for one in changes:
        if one.what == REMOVED and one.before is not None and one.before.kind == FILE:
            removed.setdefault(one.before.size, []).append(one)
    gone, found = set[str](), list[Change]()
    for one in changes:
        old = None
        if one.what == ADDED and one.after is not None and one.after.kind == FILE:
            old = _moved(one, removed.get(one.after.size, []), content)
        if old is None:
            found.append(one)
            continue
        removed[old.before.size if old.before else 0].remove(old)
        gone.add(old.path)
        found.append(Change(one.path, RENAMED, old.before, one.after, old.path))
    return [one for one in found if one.what != REMOVED or one.path not in gone]


def _moved(added: Change, candidates: list[Change], content: Content) -> Change | None:
    new = added.after
    if new is None or not new.size or not candidates:
        return None
    wanted = content(added.path, new)
    return next((c for c in candidates if c.before and content(c.path, c.before) == wanted), None)
