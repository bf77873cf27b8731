"""Whether only the shell wrote what a shell says it is made of (P3): the kernel's word on who opens the files it says it in. Root's only.

A shell's word is a file in the session's private directory (host/shaping.py), and every program of the session has the rights to write there. So each of those files is watched by itself: who opens
or changes it is told with its pid, before the open returns, so nobody can have written, or mapped it, unseen. Anybody but the shell, be it only to read, makes that file say nothing: what the shell
is made of is unknown until the next mark, and an event says who it was. The host puts a fresh file in its place, which has no name until it is watched.

Nothing is read until a mark comes, so this wakes nobody. What the kernel dropped makes all of them say nothing.

Files that a host finds when it begins may be open, or mapped, already: writes by a mapping are not told. The kernel is asked for a lease on each, which it grants only while nobody has it open for
writing (and which is given back at once); a file that somebody but the shell has so says nothing.

Not covered: code in the shell itself, and programs that change its memory or take its descriptors (a debugger's rights); and, of files that a host finds when it begins, what was written to them before.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.host import fileevents
from holdfast.host.filestat import known
from holdfast.host.process import half
from holdfast.host.shell.launch import SLOT, SLOTS

if TYPE_CHECKING:
    from holdfast.host.session import Session

READS_MAX: Final = 256  # of the kernel's queue, at one mark: more than it can hold
TRIES: Final = 3  # whether somebody writes it: the shell may have had it open when that was asked, and have closed it when it was looked for
SCARCE: Final = (
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.ENOSPC,
)  # a program can have used it up
_NO_NAMELESS: Final = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT)
_LOOK: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class _Watched(NamedTuple):
    session: Session
    slot: int


class Witness:
    """One per host, on its loop; only `replace` is called in a thread."""

    def __init__(self) -> None:
        """OSError if the kernel does not tell who it was."""
        self._group = fileevents.group()
        self._watched: dict[bytes, _Watched] = {}
        self._doubted: set[bytes] = set()  # files that another opened
        self._live: set[int] = set()  # sessions, by their identity

    def close(self) -> None:
        if self._group >= 0:
            os.close(self._group)
            self._group = -1

    def begin(self, session: Session) -> None:
        self._live.add(id(session))
        for slot in range(SLOTS):
            with contextlib.suppress(OSError):
                fd = os.open(_path(session, slot), _LOOK)
                try:
                    self._watch(session, slot, fd)
                    if (key := fileevents.key_of(fd)) is not None and not _nobody_writes(
                        fd, session.commands.lineage.root
                    ):
                        self._doubt(
                            key,
                            self._watched[key],
                            None,
                            "another program had the file in which the shell says what it is made of open before it was watched",
                        )
                finally:
                    os.close(fd)

    def end(self, session: Session) -> None:
        self._live.discard(id(session))
        for key in [key for key, one in [*self._watched.items()] if one.session is session]:
            self._forget(key)

    def genuine(self, session: Session, slot: int, fd: int) -> bool:
        """Whether this file, which was just read, holds the shell's own words."""
        self._read()
        key = fileevents.key_of(fd)
        return (
            key is not None
            and self._watched.get(key) == (session, slot)
            and key not in self._doubted
        )

    def doubted(self, session: Session) -> list[int]:
        """Of which of its files that is not so: they want replacing."""
        return sorted(
            one.slot
            for key in [*self._doubted]
            if (one := self._watched.get(key)) is not None and one.session is session
        )

    def replace(self, session: Session, slot: int, still: Callable[[], bool]) -> None:
        """An empty one in its place, if that is `still` wanted when all is ready: the shell goes on, and may have written into it again."""
        path = _path(session, slot)
        fresh = f"{path}.{secrets.token_hex(8)}"  # which nobody can be there before
        try:
            fd, nameless = (
                os.open(os.path.dirname(path), os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600),
                True,
            )
        except OSError as e:
            if e.errno not in _NO_NAMELESS:
                raise
            fd, nameless = (
                os.open(
                    fresh,
                    os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW,
                    0o600,
                ),
                False,
            )  # a file system that has no files without a name
        kept = False
        try:
            os.fchmod(fd, 0o600)  # whatever the umask is
            self._watch(session, slot, fd)
            if nameless:
                os.link(
                    f"/proc/self/fd/{fd}", fresh, src_dir_fd=fd
                )  # with it Python asks for the file behind the link, which is the one
            elif not _nobody_writes(fd, None):
                raise OSError(errno.EBUSY, "somebody was quicker", fresh)
            if still():
                os.replace(fresh, path)
                kept = True
                self._keep(session, slot, fd)
        finally:
            if not kept:
                if (key := fileevents.key_of(fd)) is not None:
                    self._forget(key)
                with contextlib.suppress(OSError):
                    os.unlink(fresh)
            os.close(fd)

    def _watch(self, session: Session, slot: int, fd: int) -> None:
        fileevents.watch(self._group, fd)
        if (key := fileevents.key_of(fd)) is not None:
            self._watched[key] = _Watched(session, slot)
            if id(session) not in self._live:  # it ended meanwhile
                self._forget(key)

    def _keep(self, session: Session, slot: int, fd: int) -> None:
        """Only this one is that file now."""
        key = fileevents.key_of(fd)
        for old in [
            old for old, one in [*self._watched.items()] if one == (session, slot) and old != key
        ]:
            self._forget(old)

    def _forget(self, key: bytes) -> None:
        self._watched.pop(key, None)
        self._doubted.discard(key)

    def _read(self) -> None:
        for _ in range(READS_MAX):
            try:
                data = os.read(self._group, fileevents.BYTES_AT_ONCE)
            except BlockingIOError:  # nothing more
                return
            except OSError:
                break
            _, found, lost = fileevents.parsed(data, os.getpid())
            for _, pid, key in found:
                if (
                    (one := self._watched.get(key)) is not None
                    and pid != one.session.commands.lineage.root
                    and key not in self._doubted
                ):
                    self._doubt(key, one, pid)
            if lost:
                self._lost()
        self._lost()  # there are more, and who knows of whom

    def _lost(self) -> None:
        for key, one in [*self._watched.items()]:
            if key not in self._doubted:
                self._doubt(key, one, None)

    def _doubt(
        self,
        key: bytes,
        one: _Watched,
        pid: int | None,
        because: str = "the kernel told of too many at once",
    ) -> None:
        first = not self.doubted(one.session)
        self._doubted.add(key)
        if first:
            cause = one.session.commands.lineage.of(pid) if pid is not None else None
            one.session.event(
                "originators.doubted",
                **(
                    {"pid": pid, "operator": cause.actor, "caused_by": cause.ref(one.session.ref)}
                    if cause is not None
                    else {"operator": "unknown"}
                ),
                because="another program opened the file in which the shell says what it is made of"
                if pid is not None
                else because,
            )


def _nobody_writes(fd: int, but: int | None) -> bool:
    """Whether no process (`but` this one) has the file open for writing, or mapped. It is open here for reading only."""
    for _ in range(TRIES):
        try:
            fcntl.fcntl(
                fd, fcntl.F_SETSIG, signal.SIGURG
            )  # who opens it just now is not to end this process
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
            return True
        except OSError as e:
            if e.errno not in (errno.EAGAIN, errno.EACCES) or (
                but is not None and _has_open(but, os.fstat(fd))
            ):
                return True  # a file system that knows of no leases says something else
    return False


def _has_open(pid: int, file: os.stat_result) -> bool:
    """On the loop: of its other files nothing is asked, they may be on a file system that does not answer."""
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd") if not half(pid) else ():
            with contextlib.suppress(OSError):
                if not os.path.basename(os.readlink(f"/proc/{pid}/fd/{name}")).startswith(SLOT):
                    continue
                found = known(f"/proc/{pid}/fd/{name}")
                if (found.device, found.inode) == (file.st_dev, file.st_ino):
                    return True
    return False


def _path(session: Session, slot: int) -> str:
    return f"{session.directory}/{SLOT}{slot}"
