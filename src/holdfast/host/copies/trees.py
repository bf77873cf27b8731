"""Trees of files that travel with a checkpoint: looked through, kept for sending, and laid out."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from holdfast.core.checkpoint import copies
from holdfast.core.checkpoint.copies import (
    DIRECTORY,
    ENTRIES_MAX,
    FIFO,
    FILE,
    FILES_BYTES_MAX,
    LINK,
    SHARED,
    Entry,
    Root,
)
from holdfast.host.lifecycle.contained.disk import below, open_directory
from holdfast.host.processes.process import boot_id
from holdfast.model import ids
from holdfast.model.errors import Impossible, NotFound

_KINDS: Final = {
    stat.S_IFDIR: DIRECTORY,
    stat.S_IFREG: FILE,
    stat.S_IFLNK: LINK,
    stat.S_IFIFO: FIFO,
}
_PIECE_BYTES: Final = 1 << 20
_TOP: Final = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
OUTBOX: Final = "outbox"
_INDEX, _SENT, _OBJECTS = "index.json", "sent.json", "objects"

Signature = tuple[int, int, int, int, int]


class Outbox:
    """Contents of a session that are to be sent; a sent content leaves the outbox.

    <state>/outbox/SESSION/ has `objects`, the hashes of contents that the other machine has
    (`sent.json`), and the signatures of files that were read before, with the boot (`index.json`).
    Nothing here is synced. So contents of another boot may be torn, and are kept again.
    """

    def __init__(self, state: str, session: str) -> None:
        self.top = place(state, session)
        self.objects = self.top / _OBJECTS
        index = _read(self.top / _INDEX)
        if index.get("boot") != boot_id():
            shutil.rmtree(self.objects, ignore_errors=True)
            index = {}
        for directory in (self.top.parent, self.top, self.objects):
            directory.mkdir(mode=0o700, exist_ok=True)
        self._index: dict[str, list[Any]] = index.get("files", {})
        self._fresh: dict[str, list[Any]] = {}
        self._entries = self._bytes = 0

    def sent(self, machine: str) -> set[str]:
        return set(_read(self.top / _SENT).get(machine, ()))

    def link(self, path: Path, sha: str) -> None:
        """Keep a file that does not change, under its hash."""
        with contextlib.suppress(FileExistsError):
            os.link(path, self.objects / sha)

    def keep(self, data: bytes) -> tuple[int, str]:
        """Keep some bytes; return their size and hash."""
        sha = hashlib.sha256(data).hexdigest()
        (self.objects / sha).write_bytes(data)
        return len(data), sha

    def tree(self, role: str, target: str, base: str, sent: set[str]) -> Root:
        """The files below a directory. Contents that were not `sent` are copied while read."""
        found = list[Entry]()
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            # Programs of sessions can exchange a directory for a link at any moment.
            top = open_directory(base) if role == SHARED else os.open(base, _TOP)
            try:
                found.append(_entry("", DIRECTORY, os.stat(top)))
                waiting = [""]
                while waiting:
                    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                        self._list(base, top, waiting, found, sent)
            finally:
                os.close(top)
        return Root(role, target, tuple(found))

    def _list(
        self, base: str, top: int, waiting: list[str], found: list[Entry], sent: set[str]
    ) -> None:
        """The entries of the last directory that waits; its directories wait afterwards."""
        inside = waiting.pop()
        place = below(top, inside)
        try:
            readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=place)
        finally:
            os.close(place)
        try:
            self._entries_of(readable, base, inside, waiting, found, sent)
        finally:
            os.close(readable)

    def _entries_of(
        self,
        at: int,
        base: str,
        inside: str,
        waiting: list[str],
        found: list[Entry],
        sent: set[str],
    ) -> None:
        for name in sorted(os.listdir(at)):
            path = f"{inside}/{name}" if inside else name
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(name, dir_fd=at, follow_symlinks=False)
                kind = _KINDS.get(stat.S_IFMT(status.st_mode))
                if kind is None:  # sockets are made again by the processes; devices stay
                    continue
                self._count(status.st_size if kind == FILE else 0, base)
                size, ref = 0, ""
                if kind == FILE:
                    size, ref = self._content(at, name, f"{base}/{path}", status, sent)
                elif kind == LINK:
                    ref = os.readlink(name, dir_fd=at)
                found.append(_entry(path, kind, status, size, ref))
                if kind == DIRECTORY:
                    waiting.append(path)

    def _count(self, size: int, base: str) -> None:
        self._entries += 1
        self._bytes += size
        if self._entries > ENTRIES_MAX or self._bytes > FILES_BYTES_MAX:
            raise Impossible(
                f"the files of the session are too many: more than {ENTRIES_MAX} files or "
                f"{FILES_BYTES_MAX >> 30} GiB, up to {base}",
                "start it in a smaller directory, or remove files that can be made again",
            )

    def _content(
        self, at: int, name: str, path: str, status: os.stat_result, sent: set[str]
    ) -> tuple[int, str]:
        signature = _signature(status)
        before = self._index.get(path)
        if before is not None and before[:5] == signature:
            size, sha = status.st_size, str(before[5])
            if sha in sent or (self.objects / sha).exists():
                self._fresh[path] = before
                return size, sha
        size, sha = self._keep(at, name, path)
        self._fresh[path] = [*signature, sha]
        return size, sha

    def _keep(self, at: int, name: str, path: str) -> tuple[int, str]:
        fresh, digest, size = self.objects / ".new", hashlib.sha256(), 0
        how = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(name, how, dir_fd=at)
        with open(fd, "rb") as file, open(fresh, "wb") as out:
            while piece := file.read(_PIECE_BYTES):
                digest.update(piece)
                size += out.write(piece)
                if size > FILES_BYTES_MAX:
                    self._count(size, path)
        fresh.rename(self.objects / digest.hexdigest())
        return size, digest.hexdigest()

    def looked(self) -> None:
        """Remember the signatures, for the next copy."""
        _write(self.top / _INDEX, {"boot": boot_id(), "files": self._fresh})

    def delivered(self, machine: str, hashes: Iterable[str]) -> None:
        """The other machine has all of these contents."""
        _write(self.top / _SENT, {machine: sorted(hashes)})
        shutil.rmtree(self.objects, ignore_errors=True)

    def undelivered(self) -> None:
        """The other machine lacks contents that it had: all are kept again."""
        (self.top / _SENT).unlink(missing_ok=True)
        (self.top / _INDEX).unlink(missing_ok=True)


def changed(state: str, session: str, top: str) -> int | None:
    """How many files below `top` differ from those that were last sent; None: none was sent."""
    files = _read(place(state, session) / _INDEX).get("files", {})
    sent = {path: one for path, one in files.items() if path.startswith(f"{top}/")}
    if not sent:
        return None
    found = 0
    for above, _, names in os.walk(top):
        for name in names:
            with contextlib.suppress(OSError):
                path = os.path.join(above, name)
                status = os.stat(path, follow_symlinks=False)
                if not stat.S_ISLNK(status.st_mode):
                    found += sent.pop(path, [None])[:5] != _signature(status)
    return found + len(sent)


def _signature(status: os.stat_result) -> list[int]:
    """Differs if the content of a file may differ."""
    return [
        *(status.st_dev, status.st_ino, status.st_size),
        *(status.st_mtime_ns, status.st_ctime_ns),
    ]


def _entry(path: str, kind: str, status: os.stat_result, size: int = 0, ref: str = "") -> Entry:
    owner = status.st_uid, status.st_gid
    return Entry(path, kind, stat.S_IMODE(status.st_mode), *owner, status.st_mtime_ns, size, ref)


def place(state: str, session: str) -> Path:
    """The directory of a session in the outbox."""
    if not ids.is_session_id(session):
        raise NotFound("no session has such an id")
    return Path(state) / OUTBOX / session


def remove(state: str, session: str) -> None:
    shutil.rmtree(place(state, session), ignore_errors=True)


def lay_out(entries: Iterable[Entry], top: str, content: Callable[[str], Path]) -> None:
    """Make a tree in a new directory. `copies.check_tree` has checked the entries."""
    privileged, times = os.geteuid() == 0, list[Entry]()
    os.makedirs(top, mode=0o700, exist_ok=True)
    copies.check_tree(entries := tuple(entries))
    for one in entries:
        path = os.path.join(top, one.path) if one.path else top
        if one.kind == DIRECTORY:
            os.makedirs(path, 0o700, exist_ok=not one.path)
            times.append(one)
        elif one.kind == LINK:
            os.symlink(one.ref, path)
        elif one.kind == FIFO:
            os.mkfifo(path)
        else:
            with open(content(one.ref), "rb") as file, open(path, "xb") as made:
                shutil.copyfileobj(file, made)
        if privileged:
            os.lchown(path, one.uid, one.gid)
        if one.kind not in (DIRECTORY, LINK):
            os.chmod(path, one.mode)
            os.utime(path, ns=(one.mtime_ns, one.mtime_ns))
    for one in reversed(times):  # a directory that cannot be written comes after its contents
        path = os.path.join(top, one.path) if one.path else top
        os.chmod(path, one.mode)
        os.utime(path, ns=(one.mtime_ns, one.mtime_ns))


def _read(path: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(path.read_bytes())
        if isinstance(found, dict):
            return found
    return {}


def _write(path: Path, value: object) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(value))
    fresh.rename(path)
