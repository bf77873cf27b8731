"""Files with several names, which a keep neither separates nor copies silently.

A layer separates the names of a file: a program of the branch that changes one name leaves the
others as they were. The same would happen in the parent's directory, so the path conflicts. Names
that the branch gave to a file become names of a single file there too.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from holdfast.core.branch.changes import DIRECTORY, FILE, Change
from holdfast.host.branches.walk import identity, scan
from holdfast.host.lifecycle.contained.disk import open_directory


def status(top: str, path: str) -> os.stat_result:
    above, _, name = path.rpartition("/")
    at = open_directory(f"{top}/{above}")
    try:
        return os.stat(name, dir_fd=at, follow_symlinks=False)
    finally:
        os.close(at)


def content_of(identity: str) -> str:
    """The part of a file's identity that a copy has too."""
    return identity.partition(":")[2]


def _by_inode(seen: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path, mark in seen.items():
        found.setdefault(mark.partition(":")[0], []).append(path)
    return found


def separated(top: str, changes: Iterable[Change], seen: Mapping[str, str]) -> dict[str, str]:
    """Files of the directory that would get new content while another name keeps the old one.

    The values are reasons for the operator. `seen`: the identities of the entries.
    """
    listed, names, found = [*changes], _by_inode(seen), dict[str, str]()
    changed = {one.path for one in listed}
    for one in listed:
        mark = seen.get(one.path, "")
        known = names.get(mark.partition(":")[0], [])
        if one.after is None or one.after.kind != FILE or not mark or mark.startswith(DIRECTORY):
            continue
        try:
            count = status(top, one.path).st_nlink
        except OSError:
            continue  # it changes now, which shows later
        outside = "" if count <= len(known) else "a path elsewhere"
        if other := next((path for path in known if path not in changed), outside):
            found[one.path] = f"{other} is a name of the same file, and would keep the old content"
    return found


class Names:
    """Finds for the files of a branch another name that the parent's directory has, or will have.

    `upper`: the branch's layer. `made`: paths that the keep makes. `seen`: as above.
    """

    def __init__(self, upper: str, made: Iterable[str], seen: Mapping[str, str]) -> None:
        self._upper, self._made, self._seen = upper, frozenset(made), seen
        self._first: dict[int, str] = {}
        self._known: dict[str, list[str]] | None = None

    def other(self, path: str, found: os.stat_result) -> str:
        """Empty if there is none. Call it for the paths in the order in which they are made."""
        if found.st_nlink == 1:
            return ""
        if (first := self._first.setdefault(found.st_ino, path)) != path:
            return first
        if self._known is None:
            marks: dict[str, str] = {}
            scan(self._upper, 1, marks)
            self._known = _by_inode(marks)
        wanted = content_of(identity(found))
        return next(
            (
                one
                for one in self._known.get(f"{found.st_ino}", ())
                if one not in self._made and content_of(self._seen.get(one, "")) == wanted
            ),
            "",
        )
