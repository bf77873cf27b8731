"""Carries out the steps of a keep in the directories of the parent.

After a crash the same command goes on with the list, after the steps that are done. Nothing is
applied without that command.

The parent's programs may write meanwhile. A step is carried out only if its entry is still the one
that the decision saw; otherwise the entry stays, and the answer names it as a conflict. So does a
step that the file system refuses: a keep always comes to its end, or waits for free disk space.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from holdfast.core.branch.attributes import Attributes
from holdfast.core.branch.changes import DIRECTORY, FIFO, FILE, LINK
from holdfast.core.branch.keeping import REMOVE, Conflict
from holdfast.host.branches import attributes
from holdfast.host.branches.hard_links import content_of
from holdfast.host.branches.keep import CREATE, KEEP, LIST, Work
from holdfast.host.branches.snapshot import copy_content
from holdfast.host.branches.store import Fork, Forks
from holdfast.host.branches.walk import identity, scan_one
from holdfast.host.lifecycle.contained import removal
from holdfast.host.lifecycle.contained.disk import open_directory
from holdfast.host.processes.process import boot_id
from holdfast.model.errors import Impossible
from holdfast.model.probe import probe

PROGRESS: Final = "over"
TEMPORARY: Final = ".holdfast-keep-"
CHANGED: Final = "it changed while the branch was being kept"


def pending(forks: Forks, fork: Fork) -> str:
    """The branch whose keep was interrupted after the decision; empty if there is none."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        begun = str(json.loads((forks.place(fork.id) / KEEP / LIST).read_bytes())["branch"])
        return "" if fork.branch(begun).gone else begun
    return ""


def steps(forks: Forks, fork: Fork) -> list[Work]:
    data = json.loads((forks.place(fork.id) / KEEP / LIST).read_bytes())
    return [Work(**one | {"attributes": _attributes(one)}) for one in data["steps"]]


def _attributes(step: dict[str, Any]) -> Attributes | None:
    """None also of a list that an older release made."""
    found = step.get("attributes")
    return None if found is None else tuple((str(name), str(value)) for name, value in found)


class Applied(NamedTuple):
    """`left`: entries that changed after the decision, or could not be written."""

    steps: int
    left: list[Conflict]


class _Progress:
    """The steps that are over, and why entries were left. It survives the host, but no power cut:
    the file system may have lost steps then.
    """

    def __init__(self, place: Path) -> None:
        path, fresh = place / PROGRESS, place / f"{PROGRESS}.new"
        known = path.read_text().split("\n")[:-1] if path.exists() else []
        lines = known if known[:1] == [boot_id()] else [boot_id()]
        self.over: dict[int, str] = {}
        for line in lines[1:]:
            number, _, why = line.partition(" ")
            self.over[int(number)] = why
        # Written anew: after a full disk the last line may be a part of one.
        fresh.write_text("".join(f"{line}\n" for line in lines))
        os.replace(fresh, path)
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
    begun, work = pending(forks, fork), steps(forks, fork)
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
    fork.branch(begun).kept = time.time()
    forks.write(fork)
    probe("host.keep.applied")
    give_up(forks, fork)
    left = [
        Conflict(one.inside or f"{one.top}/{one.path}", progress.over[number])
        for number, one in enumerate(work)
        if progress.over[number]
    ]
    return Applied(len(work) - len(left), left)


def abandon(forks: Forks, fork: Fork) -> None:
    """Give an interrupted keep up, and remove the file that it may have left at the parent's."""
    place = forks.place(fork.id) / KEEP
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        for one in steps(forks, fork):
            with contextlib.suppress(OSError):
                _remove_temporary(one, place)
    give_up(forks, fork)


def give_up(forks: Forks, fork: Fork) -> None:
    """Carry out no further step. The list goes first: without it the rest means nothing."""
    place = forks.place(fork.id) / KEEP
    (place / LIST).unlink(missing_ok=True)
    removal.remove(str(place))


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


def _carried_out(one: Work, place: Path) -> str:
    """Carry out a step; return why the entry was left."""
    try:
        if not _is_as_decided(one):
            _remove_temporary(one, place)
            return "" if _is_done(one, place) else CHANGED
        if one.do == REMOVE:
            _remove(one)
            return ""
        return _make(one, place)
    except OSError as e:
        with contextlib.suppress(OSError):
            _remove_temporary(one, place)
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


def _remove(one: Work) -> None:
    """A directory is empty by now, unless it got another entry after the decision."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), _above(one) as (at, name):
        if _is_directory(one.was):
            os.rmdir(name, dir_fd=at)
        else:
            os.unlink(name, dir_fd=at)


def _make(one: Work, place: Path) -> str:
    """Make the entry; return why it was left, or what it lacks."""
    lacks = ""
    with _above(one) as (at, name):
        if one.kind == DIRECTORY:
            _make_directory(at, name)
            return ""
        fresh = temporary(one, place)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(fresh, dir_fd=at)
        if one.kind == FILE and not _shared(one, place, at, fresh):
            with (
                open(place / one.staged, "rb", buffering=0) as content,
                open(os.open(fresh, CREATE | os.O_EXCL, 0o600, dir_fd=at), "wb", 0) as copy,
            ):
                copy_content(content.fileno(), copy.fileno())
                _own(copy.fileno(), one)
                lacks = _give_attributes(copy.fileno(), one, at, name)
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
            return CHANGED
        if not one.was and _linked(at, fresh, name):
            return _lacking(lacks)
        if _is_directory(one.was):
            os.rmdir(name, dir_fd=at)
        os.rename(fresh, name, src_dir_fd=at, dst_dir_fd=at)
        return _lacking(lacks)


def _give_attributes(copy: int, one: Work, at: int, name: str) -> str:
    """Give a file those of the step, or of the file whose place it takes."""
    if one.attributes is not None:
        return attributes.write(copy, one.attributes)
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISREG(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
            return attributes.copy(f"/proc/self/fd/{at}/{name}", copy)
    return ""


def _lacking(attributes: str) -> str:
    return f"it was written {attributes}" if attributes else ""


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


def temporary(one: Work, place: Path) -> str:
    """Keeps of several forks may write to one directory at a time, so the fork is in the name."""
    return f"{TEMPORARY}{place.parent.name}-{one.staged or 'entry'}"


def _remove_temporary(one: Work, place: Path) -> None:
    """Remove the file that an interrupted try of this step may have left."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), _above(one) as (at, _):
        os.unlink(temporary(one, place), dir_fd=at)


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
        mode = stat.S_IMODE(status.st_mode)
        # A new directory may inherit the bit of the group, and a list without rights of its owner.
        fresh = not mode & ~(stat.S_ISGID | stat.S_IRWXU)
        if identity(status) != one.was and mode != one.mode and not fresh:
            return CHANGED
        _own(fd, one)
        lacks = attributes.write(fd, one.attributes) if one.attributes is not None else ""
        os.fchmod(fd, one.mode)
        os.fsync(fd)
        return _lacking(lacks)
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
