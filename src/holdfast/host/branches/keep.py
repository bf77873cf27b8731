"""Commits the files of a branch into the directories of its parent.

    1. Decide (core/branch/keeping.py). With a conflict nothing is written.
    2. Stage: copy every new content to `keep/`, write the list of steps, and sync both.
    3. Apply: each file is written beside its place, synced and renamed. Directories are synced.
    4. The branch counts as kept, and `keep/` goes.

After a crash before the end of 2 nothing has happened. After a later crash the same command goes on
with the list: every step can be repeated. Nothing is applied without that command.

The parent's programs may write meanwhile, and may exchange directories for links to lead the host
elsewhere. So every directory is opened without following a link.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import stat
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, NamedTuple

from holdfast.core.branch import keeping
from holdfast.core.branch.changes import DIRECTORY, FIFO, FILE, LINK, Entry
from holdfast.core.branch.keeping import REMOVE, Conflict, Plan
from holdfast.host.branches.difference import (
    Layers,
    check_absolute,
    check_matched,
    layers_of,
    same_content,
)
from holdfast.host.branches.snapshot import copy_content
from holdfast.host.branches.store import FILES, Fork, Forks, sync
from holdfast.host.branches.walk import open_file, scan, scan_one
from holdfast.host.lifecycle.contained import removal
from holdfast.host.lifecycle.contained.disk import open_directory
from holdfast.model.errors import Impossible, Refused
from holdfast.model.probe import probe

KEEP: Final = "keep"
LIST: Final = "steps.json"
FORMAT: Final = 1
TEMPORARY: Final = ".holdfast-keep-"
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Work:
    """One step on the disk. `top`: the parent's directory. `path`: below it.

    `staged`: the name of the content in `keep/`. `mtime`: in nanoseconds. `was`: the entry as the
    decision found it; if it is another one later, the step is left out.
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


class Decided(NamedTuple):
    """Of each directory the plan; conflicts and left paths with their directories."""

    plans: tuple[tuple[Layers, Plan], ...]

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
    plans = list[tuple[Layers, Plan]]()
    for one in layers_of(fork, layers, FILES):
        plans.append((one, _plan(one, take, leave)))
    made = Decided(tuple(plans))
    check_matched((*take, *leave), made.changed)
    return made


def _plan(one: Layers, take: Collection[str], leave: Collection[str]) -> Plan:
    source, target = one.tree.source, one.tree.target

    def equal(path: str, there: Entry, wanted: Entry) -> bool:
        with contextlib.suppress(OSError):
            return same_content(open_file(source, path), one.open(path, wanted))
        return False

    def here(words: Collection[str]) -> set[str]:
        """The words that are paths of this directory; its own path stands for everything."""
        begin = f"{target.rstrip('/')}/"
        found = {word.removeprefix(begin).rstrip("/") for word in words if word.startswith(begin)}
        if any(word.rstrip("/") == target for word in words):
            found |= {path for path in (*one.base, *one.after) if "/" not in path}
        return found

    if not os.path.isdir(source):
        raise Impossible(f"the directory {source} is gone", "make it again, or `diff` the branch")
    now = scan(source)
    return keeping.plan(one.changes(), one.base, now, equal, here(take), here(leave))


# ---------------------------------------------------------------- stage


def stage(forks: Forks, fork: Fork, session: str, decided: Decided) -> None:
    """Copy the contents and write the list of steps."""
    place = forks.place(fork.id) / KEEP
    removal.remove(str(place))
    place.mkdir(mode=0o700)
    work = [*_staged(place, decided)]
    data = {"format": FORMAT, "branch": session, "steps": [asdict(one) for one in work]}
    _write(place / f"{LIST}.new", json.dumps(data).encode())
    sync(place)
    probe("host.keep.staged")
    os.replace(place / f"{LIST}.new", place / LIST)
    sync(place)
    sync(place.parent)
    probe("host.keep.decided")


def _staged(place: Path, decided: Decided) -> Iterator[Work]:
    number = 0
    for layers, plan in decided.plans:
        top = layers.tree.source
        for step in plan.steps:
            entry = step.after
            if step.do == REMOVE or entry is None:
                yield Work(REMOVE, top, step.path, was=_seen(top, step.path))
                continue
            status = _status(layers, step.path, entry)
            staged = ""
            if entry.kind == FILE:
                number += 1
                staged = f"{number}"
                _copy(layers.open(step.path, entry), place / staged)
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
                _seen(top, step.path),
            )


def _seen(top: str, path: str) -> str:
    """What tells an entry from a later one; empty if there is none."""
    above, _, name = path.rpartition("/")
    try:
        at = open_directory(f"{top}/{above}")
    except OSError:
        return ""
    try:
        found = os.stat(name, dir_fd=at, follow_symlinks=False)
    except FileNotFoundError:
        return ""
    finally:
        os.close(at)
    if stat.S_ISDIR(found.st_mode):
        return DIRECTORY
    return f"{found.st_ino}:{found.st_size}:{found.st_mtime_ns}"


def _status(layers: Layers, path: str, entry: Entry) -> os.stat_result:
    above, _, name = path.rpartition("/")
    at = open_directory(f"{layers.places[entry.layer]}/{above}")
    try:
        return os.stat(name, dir_fd=at, follow_symlinks=False)
    finally:
        os.close(at)


def _copy(source: int, target: Path) -> None:
    with open(source, "rb", buffering=0) as content:
        if not stat.S_ISREG(os.fstat(content.fileno()).st_mode):
            raise Refused(f"{target.name} changed meanwhile", "try again")
        with open(os.open(target, _CREATE, 0o600), "wb", buffering=0) as copy:
            copy_content(content.fileno(), copy.fileno())
            os.fsync(copy.fileno())


def _write(path: Path, data: bytes) -> None:
    with open(os.open(path, _CREATE, 0o600), "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())


# ---------------------------------------------------------------- apply


def pending(forks: Forks, fork: Fork) -> str:
    """The branch whose keep was interrupted after the decision; empty if there is none."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        return str(json.loads((forks.place(fork.id) / KEEP / LIST).read_bytes())["branch"])
    return ""


class Applied(NamedTuple):
    """`left`: paths that changed after the decision, and stay as they are."""

    steps: int
    left: list[str]


def apply(forks: Forks, fork: Fork, tell: Callable[[int], None] = lambda done: None) -> Applied:
    """Carry out the list of steps."""
    place = forks.place(fork.id) / KEEP
    data = json.loads((place / LIST).read_bytes())
    work = [Work(**one) for one in data["steps"]]
    left = list[str]()
    for number, one in enumerate(work):
        if not _is_as_decided(one):
            _remove_temporary(one)
            if not _is_done(one, place):
                left.append(f"{one.top}/{one.path}")
        elif one.do == REMOVE:
            _remove(one)
        else:
            _make(one, place)
        probe("host.keep.step")
        tell(number + 1)
    for one in reversed(work):  # modes of directories last: they may forbid writing
        if one.kind == DIRECTORY:
            _describe_directory(one)
    for directory in sorted({f"{one.top}/{one.path}".rpartition("/")[0] for one in work}):
        with contextlib.suppress(OSError):
            _sync(directory)
    fork.branch(str(data["branch"])).kept = time.time()
    forks.write(fork)
    probe("host.keep.applied")
    removal.remove(str(place))
    return Applied(len(work) - len(left), left)


def _is_as_decided(one: Work) -> bool:
    seen = _seen(one.top, one.path)
    return seen == one.was or (seen == DIRECTORY == one.kind)


def _is_done(one: Work, place: Path) -> bool:
    """Whether an earlier try of this step has made the entry already."""
    seen = _seen(one.top, one.path)
    if one.do == REMOVE or one.kind != FILE:
        return not seen if one.do == REMOVE else bool(seen) and _kind(one) == one.kind
    return seen.partition(":")[2] == f"{(place / one.staged).stat().st_size}:{one.mtime}"


def _kind(one: Work) -> str:
    entry = scan_one(f"{one.top}", one.path)
    return entry.kind if entry is not None and entry.text == one.text else ""


@contextlib.contextmanager
def _above(one: Work) -> Iterator[tuple[int, str]]:
    above, _, name = one.path.rpartition("/")
    at = open_directory(f"{one.top}/{above}")
    try:
        yield at, name
    finally:
        os.close(at)


def _remove(one: Work) -> None:
    try:
        with _above(one) as (at, name):
            _clear(at, name, f"{one.top}/{one.path}")
    except (FileNotFoundError, NotADirectoryError):
        return


def _clear(at: int, name: str, path: str) -> None:
    """Remove an entry of any kind."""
    try:
        os.unlink(name, dir_fd=at)
    except IsADirectoryError:
        try:
            os.rmdir(name, dir_fd=at)
        except OSError as e:
            if e.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.EACCES):
                raise
            _remove_all(at, name, path)


def _remove_all(at: int, name: str, path: str) -> None:
    """A directory that the operator takes from the branch has other entries meanwhile."""
    moved = f"{TEMPORARY}{secrets.token_hex(8)}"
    os.rename(name, moved, src_dir_fd=at, dst_dir_fd=at)
    removal.remove(f"{path.rpartition('/')[0]}/{moved}")


def _make(one: Work, place: Path) -> None:
    with _above(one) as (at, name):
        if one.kind == DIRECTORY:
            _make_directory(one, at, name)
            return
        fresh = _temporary(one)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(fresh, dir_fd=at)
        if one.kind == FILE:
            with (
                open(place / one.staged, "rb", buffering=0) as content,
                open(os.open(fresh, _CREATE | os.O_EXCL, 0o600, dir_fd=at), "wb", 0) as copy,
            ):
                copy_content(content.fileno(), copy.fileno())
                _own(copy.fileno(), one)
                os.fchmod(copy.fileno(), one.mode)
                os.utime(copy.fileno(), ns=(one.mtime, one.mtime))
                os.fsync(copy.fileno())
        elif one.kind == LINK:
            os.symlink(one.text, fresh, dir_fd=at)
        elif one.kind == FIFO:
            os.mkfifo(fresh, one.mode, dir_fd=at)
        probe("host.keep.written")
        try:
            os.rename(fresh, name, src_dir_fd=at, dst_dir_fd=at)
        except IsADirectoryError:
            _clear(at, name, f"{one.top}/{one.path}")
            os.rename(fresh, name, src_dir_fd=at, dst_dir_fd=at)


def _temporary(one: Work) -> str:
    return f"{TEMPORARY}{one.staged or 'entry'}"


def _remove_temporary(one: Work) -> None:
    """Remove the file that an interrupted try of this step may have left."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), _above(one) as (at, _):
        os.unlink(_temporary(one), dir_fd=at)


def _make_directory(one: Work, at: int, name: str) -> None:
    try:
        os.mkdir(name, 0o700, dir_fd=at)
    except FileExistsError:
        if not stat.S_ISDIR(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=at)
            os.mkdir(name, 0o700, dir_fd=at)


def _describe_directory(one: Work) -> None:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        fd = _readable(f"{one.top}/{one.path}")
        try:
            _own(fd, one)
            os.fchmod(fd, one.mode)
            os.fsync(fd)
        finally:
            os.close(fd)


def _own(fd: int, one: Work) -> None:
    if os.geteuid() == 0:
        os.fchown(fd, one.uid, one.gid)


def _readable(path: str) -> int:
    at = open_directory(path)
    try:
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=at)
    finally:
        os.close(at)


def _sync(path: str) -> None:
    fd = _readable(path)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
