"""Commits the files of a branch into the directories of its parent.

    1. Decide (core/branch/keeping.py). With a conflict nothing is written.
    2. Stage: copy every new content to `keep/`, write the list of steps, and sync both.
    3. Apply: each file is written beside its place, synced and renamed. Directories are synced.
    4. The branch counts as kept, and `keep/` goes.

After a crash before the end of 2 nothing has happened. After a later crash the same command goes on
with the list, after the steps that are done. Nothing is applied without that command.

The parent's programs may write meanwhile. A step is carried out only if its entry is still the one
that the decision saw; otherwise the entry stays, and the answer names it as a conflict. So does a
step that the file system refuses: a keep always comes to its end, or waits for free disk space.

Programs may also exchange directories for links to lead the host elsewhere. So every directory is
opened without following a link.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from holdfast.core.branch import keeping
from holdfast.core.branch.changes import DIRECTORY, FIFO, FILE, LINK, Entry, parents
from holdfast.core.branch.keeping import REMOVE, Conflict, Plan
from holdfast.host.branches import hard_links
from holdfast.host.branches.difference import (
    Layers,
    check_absolute,
    check_matched,
    layers_of,
    same_content,
)
from holdfast.host.branches.hard_links import content_of
from holdfast.host.branches.snapshot import copy_content
from holdfast.host.branches.store import FILES, Fork, Forks, sync
from holdfast.host.branches.walk import identity, open_file, scan, scan_one
from holdfast.host.lifecycle.contained import removal
from holdfast.host.lifecycle.contained.disk import open_directory
from holdfast.host.processes.process import boot_id
from holdfast.model.errors import Impossible, Refused
from holdfast.model.printable import printable
from holdfast.model.probe import probe

KEEP: Final = "keep"
LIST: Final = "steps.json"
FORMAT: Final = 1
PROGRESS: Final = "over"
TEMPORARY: Final = ".holdfast-keep-"
CHANGED: Final = "it changed while the branch was being kept"
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Work:
    """One step on the disk. `top`: the parent's directory. `path`: below it.

    `staged`: the name of the content in `keep/`. `mtime`: in nanoseconds. `was`: the identity of
    the entry that the decision saw; empty if there was none. `inside`: the path in the session.
    `linked`: another name of the same file, below the same top.
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
    now = scan(source, seen=seen)  # before any comparison: a later change must show
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
        sync(place)
        probe("host.keep.staged")
        os.replace(place / f"{LIST}.new", place / LIST)
        sync(place)
        sync(place.parent)
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
            )


def _seen(top: str, path: str) -> str:
    """The identity of an entry; empty if there is none."""
    above, _, name = path.rpartition("/")
    try:
        at = open_directory(f"{top}/{above}")
    except (FileNotFoundError, NotADirectoryError):
        return ""
    try:
        return identity(os.stat(name, dir_fd=at, follow_symlinks=False))
    except FileNotFoundError:
        return ""
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
        begun = str(json.loads((forks.place(fork.id) / KEEP / LIST).read_bytes())["branch"])
        return "" if fork.branch(begun).gone else begun
    return ""


class Applied(NamedTuple):
    """`left`: entries that changed after the decision, or could not be written."""

    steps: int
    left: list[Conflict]


class _Progress:
    """The steps that are over, and why entries were left. It survives the host, but no power cut:
    the file system may have lost steps then.
    """

    def __init__(self, place: Path) -> None:
        path, boot = place / PROGRESS, boot_id()
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        self.over: dict[int, str] = {}
        if lines[:1] == [boot]:
            for line in lines[1:]:
                number, _, why = line.partition(" ")
                self.over[int(number)] = why
        else:
            path.write_text(f"{boot}\n")
        self._file = path.open("a", buffering=1)

    def note(self, number: int, why: str) -> None:
        self.over[number] = why
        self._file.write(f"{number} {why}\n")

    def close(self) -> None:
        self._file.close()


def apply(forks: Forks, fork: Fork, tell: Callable[[int], None] = lambda done: None) -> Applied:
    """Carry out the list of steps. After an error, or a crash, the next call goes on."""
    try:
        return _applied(forks, fork, tell)
    except OSError as e:
        raise Impossible(
            f"the keep is not over: {e.strerror or e}",
            "free disk space; then the same `keep` goes on, and `discard` gives the rest up",
        ) from e


def _applied(forks: Forks, fork: Fork, tell: Callable[[int], None]) -> Applied:
    place = forks.place(fork.id) / KEEP
    data = json.loads((place / LIST).read_bytes())
    work = [Work(**one) for one in data["steps"]]
    with contextlib.closing(_Progress(place)) as progress:
        for number, one in enumerate(work):
            if number not in progress.over:
                why = _carried_out(one, place)
                probe("host.keep.step")
                progress.note(number, why)
            tell(number + 1)
        for number in reversed(range(len(work))):  # modes last: they may forbid writing
            if work[number].kind == DIRECTORY and not progress.over[number]:
                progress.note(number, _described(work[number]))
    for directory in sorted({f"{one.top}/{one.path}".rpartition("/")[0] for one in work}):
        with contextlib.suppress(OSError):
            _sync(directory)
    fork.branch(str(data["branch"])).kept = time.time()
    forks.write(fork)
    probe("host.keep.applied")
    give_up(forks, fork)
    left = [
        Conflict(one.inside or f"{one.top}/{one.path}", progress.over[number])
        for number, one in enumerate(work)
        if progress.over[number]
    ]
    return Applied(len(work) - len(left), left)


def give_up(forks: Forks, fork: Fork) -> None:
    """Carry out no further step. The list goes first: without it the rest means nothing."""
    place = forks.place(fork.id) / KEEP
    (place / LIST).unlink(missing_ok=True)
    removal.remove(str(place))


def _carried_out(one: Work, place: Path) -> str:
    """Carry out a step; return why the entry was left."""
    try:
        if not _is_as_decided(one):
            _remove_temporary(one)
            return "" if _is_done(one, place) else CHANGED
        done = _remove(one) if one.do == REMOVE else _make(one, place)
        return "" if done else CHANGED
    except OSError as e:
        with contextlib.suppress(OSError):
            _remove_temporary(one)
        if e.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        if e.errno in (errno.EEXIST, errno.ENOTEMPTY):
            return CHANGED
        return f"it could not be written: {e.strerror or e}"


def _is_as_decided(one: Work) -> bool:
    seen = _seen(one.top, one.path)
    return seen == one.was or (one.kind == DIRECTORY and _is_directory(seen))


def _is_directory(identity: str) -> bool:
    return identity.startswith(f"{DIRECTORY}:")


def _is_done(one: Work, place: Path) -> bool:
    """Whether an earlier try of this step has made the entry already."""
    seen = _seen(one.top, one.path)
    if one.do == REMOVE or one.kind != FILE:
        return not seen if one.do == REMOVE else bool(seen) and _kind(one) == one.kind
    return content_of(seen) == _content(one, place)


def _content(one: Work, place: Path) -> str:
    size = (place / one.staged).stat().st_size
    return f"{stat.S_IFREG | one.mode:o}:{size}:{one.mtime}"


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


def _remove(one: Work) -> bool:
    """A directory is empty by now, unless it got another entry after the decision."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), _above(one) as (at, name):
        if _is_directory(one.was):
            os.rmdir(name, dir_fd=at)
        else:
            os.unlink(name, dir_fd=at)
    return True


def _make(one: Work, place: Path) -> bool:
    """False if the entry has changed meanwhile."""
    with _above(one) as (at, name):
        if one.kind == DIRECTORY:
            _make_directory(at, name)
            return True
        fresh = _temporary(one)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(fresh, dir_fd=at)
        if one.kind == FILE and not _shared(one, place, at, fresh):
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
        if not _is_as_decided(one):  # copying may have taken a while
            os.unlink(fresh, dir_fd=at)
            return False
        if not one.was and _linked(at, fresh, name):
            return True
        if _is_directory(one.was):
            os.rmdir(name, dir_fd=at)
        os.rename(fresh, name, src_dir_fd=at, dst_dir_fd=at)
        return True


def _shared(one: Work, place: Path, at: int, fresh: str) -> bool:
    """Make the entry another name of a file that is there already."""
    if not one.linked or content_of(_seen(one.top, one.linked)) != _content(one, place):
        return False
    other = replace(one, path=one.linked)
    with contextlib.suppress(OSError), _above(other) as (above, name):
        os.link(name, fresh, src_dir_fd=above, dst_dir_fd=at, follow_symlinks=False)
        return True
    return False


def _linked(at: int, fresh: str, name: str) -> bool:
    """Give a new entry its name, which fails if another entry has got that name meanwhile."""
    try:
        os.link(fresh, name, src_dir_fd=at, dst_dir_fd=at, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError:
        return False  # a file system without hard links
    os.unlink(fresh, dir_fd=at)
    return True


def _temporary(one: Work) -> str:
    return f"{TEMPORARY}{one.staged or 'entry'}"


def _remove_temporary(one: Work) -> None:
    """Remove the file that an interrupted try of this step may have left."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), _above(one) as (at, _):
        os.unlink(_temporary(one), dir_fd=at)


def _make_directory(at: int, name: str) -> None:
    try:
        os.mkdir(name, 0o700, dir_fd=at)
    except FileExistsError:
        if not stat.S_ISDIR(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=at)
            os.mkdir(name, 0o700, dir_fd=at)


def _described(one: Work) -> str:
    """Give a directory its owner and mode; return why it was left."""
    try:
        fd = _readable(f"{one.top}/{one.path}")
    except OSError as e:
        return f"it could not be written: {e.strerror or e}"
    try:
        status = os.fstat(fd)
        if identity(status) != one.was and stat.S_IMODE(status.st_mode) not in (0o700, one.mode):
            return CHANGED
        _own(fd, one)
        os.fchmod(fd, one.mode)
        os.fsync(fd)
        return ""
    except OSError as e:
        return f"it could not be written: {e.strerror or e}"
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
