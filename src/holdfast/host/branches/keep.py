"""Decides and prepares how the files of a branch get into the directories of its parent.

    1. Decide (core/branch/keeping.py). With a conflict nothing is written.
    2. Stage: copy every new content to `keep/`, write the list of steps, and sync both.
    3. Apply: each file is written beside its place, synced and renamed. Directories are synced.
    4. The branch counts as kept, and `keep/` goes.

After a crash before the end of 2 nothing has happened. apply.py has the other steps.

The parent's programs may write meanwhile, and may exchange directories for links to lead the host
elsewhere. So every directory is opened without following a link.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, NamedTuple

from holdfast.core.branch import keeping
from holdfast.core.branch.attributes import Attributes
from holdfast.core.branch.changes import FILE, Entry, parents
from holdfast.core.branch.keeping import REMOVE, Conflict, Plan
from holdfast.home import private
from holdfast.host.branches import hard_links
from holdfast.host.branches.difference import (
    Layers,
    check_absolute,
    check_matched,
    layers_of,
    same_content,
)
from holdfast.host.branches.snapshot import copy_content
from holdfast.host.branches.store import FILES, Fork, Forks
from holdfast.host.branches.walk import open_file, scan
from holdfast.host.lifecycle.contained import removal
from holdfast.model.errors import Impossible, Refused
from holdfast.model.printable import printable
from holdfast.model.probe import probe

KEEP: Final = "keep"
LIST: Final = "steps.json"
FORMAT: Final = 1
CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Work:
    """One step on the disk. `top`: the parent's directory. `path`: below it.

    `staged`: the name of the content in `keep/`. `mtime`: in nanoseconds. `was`: the identity of
    the entry that the decision saw; empty if there was none. `inside`: the path in the session.
    `linked`: another name of the same file, below the same top. `attributes`: None if the fork does
    not know them; then the parent's stay.
    """

    do: str
    top: str
    path: str
    kind: str = ""
    mode: int = 0
    uid: int = -1
    gid: int = -1
    mtime: int = 0
    text: str = ""
    staged: str = ""
    was: str = ""
    inside: str = ""
    linked: str = ""
    attributes: Attributes | None = None


class Decided(NamedTuple):
    """Of each directory the plan; conflicts and left paths with their directories.

    `seen`: of each directory the identities of the entries that the plan is for.
    """

    plans: tuple[tuple[Layers, Plan], ...]
    seen: tuple[Mapping[str, str], ...]

    @property
    def conflicts(self) -> list[Conflict]:
        return [
            Conflict(f"{layers.tree.target}/{one.path}", one.why)
            for layers, plan in self.plans
            for one in plan.conflicts
        ]

    @property
    def left(self) -> list[str]:
        return [f"{one.tree.target}/{path}" for one, plan in self.plans for path in plan.left]

    @property
    def changed(self) -> list[str]:
        """All changes of the branch, whatever becomes of them."""
        return [
            f"{one.tree.target.rstrip('/')}/{path}"
            for one, plan in self.plans
            for path in plan.changed
        ]

    @property
    def steps(self) -> int:
        return sum(len(plan.steps) for _, plan in self.plans)


def decide(fork: Fork, layers: str, take: Collection[str], leave: Collection[str]) -> Decided:
    """`take`, `leave`: paths inside, or directories above them."""
    check_absolute((*take, *leave))
    if any(not tree.source for tree in fork.trees if tree.role == FILES):
        raise Impossible(
            "the parent is a branch itself, whose files are a layer that its programs use",
            "keep its changes with `holdfast diff`, or keep the branch that is nearer to the base",
        )
    plans, marks = list[tuple[Layers, Plan]](), list[dict[str, str]]()
    for one in layers_of(fork, layers, FILES):
        seen: dict[str, str] = {}
        plans.append((one, _plan(one, take, leave, seen)))
        marks.append(seen)
    made = Decided(tuple(plans), tuple(marks))
    check_matched((*take, *leave), made.changed)
    return made


def _plan(one: Layers, take: Collection[str], leave: Collection[str], seen: dict[str, str]) -> Plan:
    source, target = one.tree.source, one.tree.target

    def equal(path: str, there: Entry, wanted: Entry) -> bool:
        with contextlib.suppress(OSError):
            return same_content(lambda: open_file(source, path), lambda: one.open(path, wanted))
        return False

    def here(words: Collection[str]) -> set[str]:
        """The words that are paths of this directory; its own path stands for everything."""
        begin = f"{target.rstrip('/')}/"
        found = {word.removeprefix(begin).rstrip("/") for word in words if word.startswith(begin)}
        if any(word.rstrip("/") == target for word in words):
            found |= {path for path in (*one.base, *one.after) if "/" not in path}
        return found

    left = here(leave)
    for path in one.closed:
        if path not in left and not left.intersection(parents(path)):
            raise _unreadable(f"{target.rstrip('/')}/{path}")
    if not os.path.isdir(source):
        raise Impossible(f"the directory {source} is gone", "make it again, or `diff` the branch")
    now = scan(
        source, 0, seen, None, one.with_attributes
    )  # before any comparison: a later change must show
    changes = one.changes()
    tied = hard_links.separated(source, changes, seen)
    return keeping.plan(changes, one.base, now, equal, here(take), left, tied)


def _unreadable(inside: str) -> Impossible:
    return Impossible(
        f"{printable(inside)[:200]} of the branch cannot be read",
        "change its mode in the branch, or leave it with `--leave`",
    )


# ---------------------------------------------------------------- stage


def stage(forks: Forks, fork: Fork, session: str, decided: Decided) -> None:
    """Copy the contents and write the list of steps."""
    place = forks.place(fork.id) / KEEP
    removal.remove(str(place))
    place.mkdir(mode=0o700)
    try:
        work = [*_staged(place, decided)]
        data = {"format": FORMAT, "branch": session, "steps": [asdict(one) for one in work]}
        _write(place / f"{LIST}.new", json.dumps(data).encode())
        private.sync_directory(place)
        probe("host.keep.staged")
        os.replace(place / f"{LIST}.new", place / LIST)
        private.sync_directory(place)
        private.sync_directory(place.parent)
    except OSError as e:
        removal.remove(str(place))
        raise Impossible(f"nothing was written: {e.strerror or e}", "free disk space") from e
    except BaseException:
        removal.remove(str(place))
        raise
    probe("host.keep.decided")


def _staged(place: Path, decided: Decided) -> Iterator[Work]:
    number = 0
    for (layers, plan), seen in zip(decided.plans, decided.seen, strict=True):
        top = layers.tree.source
        others = hard_links.Names(layers.places[-1], (one.path for one in plan.steps), seen)
        for step in plan.steps:
            entry, was = step.after, seen.get(step.path, "")
            inside = f"{layers.tree.target.rstrip('/')}/{step.path}"
            if step.do == REMOVE or entry is None:
                yield Work(REMOVE, top, step.path, was=was, inside=inside)
                continue
            staged = linked = ""
            try:
                status = hard_links.status(layers.places[entry.layer], step.path)
                if entry.kind == FILE:
                    linked = others.other(step.path, status)
                    number += 1
                    staged = f"{number}"
                    _copy(layers.open(step.path, entry), place / staged)
            except PermissionError as e:
                raise _unreadable(inside) from e
            yield Work(
                step.do,
                top,
                step.path,
                entry.kind,
                entry.mode,
                status.st_uid,
                status.st_gid,
                status.st_mtime_ns,
                entry.text,
                staged,
                was,
                inside,
                linked,
                entry.attributes if layers.with_attributes else None,
            )


def _copy(source: int, target: Path) -> None:
    with open(source, "rb", buffering=0) as content:
        if not stat.S_ISREG(os.fstat(content.fileno()).st_mode):
            raise Refused(f"{target.name} changed meanwhile", "try again")
        with open(os.open(target, CREATE, 0o600), "wb", buffering=0) as copy:
            copy_content(content.fileno(), copy.fileno())
            os.fsync(copy.fileno())


def _write(path: Path, data: bytes) -> None:
    with open(os.open(path, CREATE, 0o600), "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
