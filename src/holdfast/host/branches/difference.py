"""What a branch has changed: files with their text, processes and ports, against the fork."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from holdfast.core.branch import attributes
from holdfast.core.branch.changes import (
    ATTRIBUTES,
    FILE,
    MODE,
    Change,
    Entry,
    compare,
    over,
    with_renames,
)
from holdfast.host.branches.parts import own_layer
from holdfast.host.branches.store import FILES, Fork, Tree
from holdfast.host.branches.walk import open_file, scan
from holdfast.model.errors import NotFound, Usage
from holdfast.model.printable import printable

CHANGES_MAX: Final = 2_000  # in one answer
TEXT_BYTES_MAX: Final = 128 << 10  # of a file that is shown as text
LINES_MAX: Final = 5_000  # of the same
SHOWN_BYTES_MAX: Final = 1 << 20  # of text in one answer
_PIECE_BYTES: Final = 1 << 20


class Changed(NamedTuple):
    """`path`: inside. `text`: a unified difference. `why`: why there is none."""

    path: str
    change: Change
    private: bool
    text: str
    why: str


class Difference(NamedTuple):
    """`private`: changes of home, /tmp and /run that were left out. `more`: beyond the bound."""

    files: tuple[Changed, ...]
    private: int
    more: int


class Layers:
    """A directory of a branch: the state at the fork, and the state in the branch."""

    def __init__(self, tree: Tree, layers: str, with_attributes: bool) -> None:
        """`layers`: the branch's own. `with_attributes`: the snapshot has those of all files."""
        self.tree, self.with_attributes = tree, with_attributes
        self.places = [*reversed(tree.below), f"{own_layer(layers, tree)}/upper"]
        self.closed = list[str]()  # directories of the branch that cannot be read
        below, own = self.places[:-1], self.places[-1]
        states = [
            scan(place, number, with_attributes=with_attributes)
            for number, place in enumerate(below)
        ]
        states.append(scan(own, len(below), None, self.closed, with_attributes))
        self.base: Mapping[str, Entry] = states[0]
        for one in states[1:-1]:
            self.base = over(self.base, one)
        self.after = over(self.base, states[-1])

    def changes(self) -> list[Change]:
        return compare(self.base, self.after, self.same)

    def open(self, path: str, entry: Entry) -> int:
        return open_file(self.places[entry.layer], path)

    def same(self, path: str, old: Entry, new: Entry) -> bool:
        return same_content(lambda: self.open(path, old), lambda: self.open(path, new))

    def content(self, path: str, entry: Entry) -> str:
        digest = hashlib.sha256()
        try:
            content = self.open(path, entry)
        except PermissionError:
            return f"unknown: {entry.layer}/{path}"
        with open(content, "rb", buffering=0) as f:
            while piece := f.read(_PIECE_BYTES):
                digest.update(piece)
        return digest.hexdigest()

    def read(self, path: str, entry: Entry) -> bytes:
        with open(self.open(path, entry), "rb") as f:
            return f.read(TEXT_BYTES_MAX + 1)


def same_content(one: Callable[[], int], other: Callable[[], int]) -> bool:
    """Compare two files, which the functions open; False if one cannot be read."""
    try:
        with open(one(), "rb", buffering=0) as a, open(other(), "rb", buffering=0) as b:
            while True:
                piece = a.read(_PIECE_BYTES)
                if piece != b.read(_PIECE_BYTES):
                    return False
                if not piece:
                    return True
    except PermissionError:
        return False


def layers_of(fork: Fork, layers: str, role: str = "") -> Iterator[Layers]:
    for tree in fork.trees:
        if not role or tree.role == role:
            yield Layers(tree, layers, fork.attributes)


def difference(fork: Fork, layers: str, path: str, every: bool, texts: bool) -> Difference:
    """`path`: only below this one. `every`: private directories too."""
    check_absolute([path] if path else ())
    found, private = list[Changed](), 0
    room = SHOWN_BYTES_MAX
    for one in layers_of(fork, layers):
        wanted = one.tree.role == FILES or every or bool(path)
        for change in with_renames(one.changes(), one.content):
            inside = f"{one.tree.target.rstrip('/')}/{change.path}"
            if path and inside != path and not inside.startswith(f"{path.rstrip('/')}/"):
                continue
            if not wanted:
                private += 1
                continue
            text, why = ("", "")
            if texts and len(found) < CHANGES_MAX:
                text, why = _text(one, change, inside, room)
                room -= len(text)
            found.append(Changed(inside, change, one.tree.role != FILES, text, why))
    check_matched([path] if path else (), [one.path for one in found])
    found.sort(key=lambda changed: changed.path)
    return Difference(tuple(found[:CHANGES_MAX]), private, max(0, len(found) - CHANGES_MAX))


def check_absolute(words: Iterable[str]) -> None:
    for word in words:
        if not word.startswith("/"):
            raise Usage(f"the path {word[:200]!a} is not absolute", "give the path inside")


def check_matched(words: Iterable[str], changed: Collection[str]) -> None:
    """Refuse a word that is neither a changed path nor a directory above one."""
    for word in words:
        begin = word.rstrip("/")
        if not any(path == begin or path.startswith(f"{begin}/") for path in changed):
            raise NotFound(
                f"the branch has changed nothing at {word[:200]}",
                "`holdfast diff SESSION` lists the changed paths",
            )


def _text(one: Layers, change: Change, path: str, room: int) -> tuple[str, str]:
    old, new = change.before, change.after
    if change.path in one.closed:
        return "", "its entries cannot be read"
    if old is not None and new is not None and change.what in (ATTRIBUTES, MODE):
        return attributes.lines(old.attributes, new.attributes)[:room], ""
    if change.source or not any(e is not None and e.kind == FILE for e in (old, new)):
        return "", ""
    contents = []
    for entry in (old, new):
        data = b""
        if entry is not None and entry.kind == FILE:
            try:
                data = one.read(change.path, entry)
            except OSError:
                return "", "it cannot be read"
        if len(data) > TEXT_BYTES_MAX:
            return "", f"larger than {TEXT_BYTES_MAX >> 10} KiB"
        contents.append(data)
    try:
        before, after = (data.decode().splitlines(keepends=True) for data in contents)
    except UnicodeDecodeError:
        return "", "binary"
    if b"\0" in b"".join(contents):
        return "", "binary"
    if max(len(before), len(after)) > LINES_MAX:
        return "", f"more than {LINES_MAX} lines"
    shown = printable(path)  # a newline would look like a line of the text
    names = (
        "/dev/null" if old is None else f"a{shown}",
        "/dev/null" if new is None else f"b{shown}",
    )
    lines = difflib.unified_diff(before, after, *names)
    text = "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )
    if len(text) > room:
        return "", "the answer has no room for more text"
    return text, ""
