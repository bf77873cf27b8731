"""What a branch has changed: files with their text, processes and ports, against the fork."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from holdfast.core.branch.changes import FILE, Change, Entry, compare, over, with_renames
from holdfast.host.branches.parts import own_layer
from holdfast.host.branches.store import FILES, Fork, Tree
from holdfast.host.branches.walk import open_file, scan
from holdfast.model.errors import NotFound, Usage

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

    def __init__(self, tree: Tree, layers: str) -> None:
        """`layers`: the branch's own."""
        self.tree = tree
        self.places = [*reversed(tree.below), f"{own_layer(layers, tree)}/upper"]
        states = [scan(place, number) for number, place in enumerate(self.places)]
        self.base: Mapping[str, Entry] = states[0]
        for one in states[1:-1]:
            self.base = over(self.base, one)
        self.after = over(self.base, states[-1])

    def changes(self) -> list[Change]:
        return compare(self.base, self.after, self.same)

    def open(self, path: str, entry: Entry) -> int:
        return open_file(self.places[entry.layer], path)

    def same(self, path: str, old: Entry, new: Entry) -> bool:
        return same_content(self.open(path, old), self.open(path, new))

    def content(self, path: str, entry: Entry) -> str:
        digest = hashlib.sha256()
        with open(self.open(path, entry), "rb", buffering=0) as f:
            while piece := f.read(_PIECE_BYTES):
                digest.update(piece)
        return digest.hexdigest()

    def read(self, path: str, entry: Entry) -> bytes:
        with open(self.open(path, entry), "rb") as f:
            return f.read(TEXT_BYTES_MAX + 1)


def same_content(one: int, other: int) -> bool:
    """Compare two open files and close them."""
    with open(one, "rb", buffering=0) as a, open(other, "rb", buffering=0) as b:
        while True:
            piece = a.read(_PIECE_BYTES)
            if piece != b.read(_PIECE_BYTES):
                return False
            if not piece:
                return True


def layers_of(fork: Fork, layers: str, role: str = "") -> Iterator[Layers]:
    for tree in fork.trees:
        if not role or tree.role == role:
            yield Layers(tree, layers)


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
    if change.source or not any(e is not None and e.kind == FILE for e in (old, new)):
        return "", ""
    contents = []
    for entry in (old, new):
        data = b""
        if entry is not None and entry.kind == FILE:
            with contextlib.suppress(OSError):
                data = one.read(change.path, entry)
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
    names = ("/dev/null" if old is None else f"a{path}", "/dev/null" if new is None else f"b{path}")
    lines = difflib.unified_diff(before, after, *names)
    text = "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )
    if len(text) > room:
        return "", "the answer has no room for more text"
    return text, ""
