"""Detects writes to the shell's state files by any other program than the shell (P3). Root only.

A shell reports state in files of the session's private directory
(host/originators/shell_origins.py), which every program of the session may write. So the kernel
watches each of these files. The kernel reports the pid of each process that opens or changes a
file, before the open returns: no program can write or map a file unseen. If any program but the
shell opened a file, even only for reading, that file is not trusted. The state of the shell is then
unknown until the shell's next mark, and an event names the program. The host replaces the file by a
fresh file, which is watched before the file gets a name.

Events are read only when a mark comes, so the guard never wakes the host. If the kernel dropped
events, no file is trusted.

When a host starts, files may already be open or mapped, and the kernel does not report writes
through a mapping. The host therefore asks for a lease on each file, and gives the lease back at
once. The kernel grants a lease only while no process has the file open for writing. A file that a
program other than the shell has open for writing is not trusted.

Not covered: code in the shell itself; programs that change the shell's memory or take the shell's
descriptors (with the rights of a debugger); and writes to existing files before the host started.
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

from holdfast.host.originators import file_events
from holdfast.host.processes.process import half
from holdfast.host.processes.stat_nowait import known
from holdfast.host.shell.launch import SLOT, SLOTS

if TYPE_CHECKING:
    from holdfast.host.session.session import Session

READS_MAX: Final = 256  # reads of the kernel's queue at a mark: more than the queue can hold
# For a lease: the shell may have the file open when we ask, and closed when we look.
TRIES: Final = 3
# Resources that a program of a session can have used up.
SCARCE: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC)
_NO_TMPFILE: Final = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT)
_LOOK: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


STATE_FILE: Final = "a file in which the shell reports its state"


class _Watched(NamedTuple):
    session: Session
    slot: int


class SnapshotGuard:
    """One per host, on the loop. Only `replace` is called in a thread."""

    def __init__(self) -> None:
        """Raises OSError if the kernel does not report which process opened a file."""
        self._group = file_events.open_group()
        self._watched: dict[bytes, _Watched] = {}
        self._doubted: set[bytes] = set()  # files that other programs opened
        self._live: set[int] = set()  # sessions, by object identity

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
                    if (key := file_events.key_of(fd)) is not None and not _no_writer(
                        fd, session.commands.lineage.root
                    ):
                        self._doubt(
                            key,
                            self._watched[key],
                            None,
                            f"another program had {STATE_FILE} open before it was watched",
                        )
                finally:
                    os.close(fd)

    def end(self, session: Session) -> None:
        self._live.discard(id(session))
        for key in [key for key, one in [*self._watched.items()] if one.session is session]:
            self._forget(key)

    def is_genuine(self, session: Session, slot: int, fd: int) -> bool:
        """Whether only the shell can have written this file, which was just read."""
        self._read()
        key = file_events.key_of(fd)
        return (
            key is not None
            and self._watched.get(key) == (session, slot)
            and key not in self._doubted
        )

    def doubted_slots(self, session: Session) -> list[int]:
        """The files of a session that are not trusted and have to be replaced."""
        return sorted(
            one.slot
            for key in [*self._doubted]
            if (one := self._watched.get(key)) is not None and one.session is session
        )

    def replace(self, session: Session, slot: int, still: Callable[[], bool]) -> None:
        """Replace a state file by an empty file.

        `still` is asked at the last moment: the shell may have written into the old file again.
        """
        path = _path(session, slot)
        fresh = f"{path}.{secrets.token_hex(8)}"  # a name that no program can take first
        try:
            fd = os.open(os.path.dirname(path), os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            nameless = True
        except OSError as e:
            if e.errno not in _NO_TMPFILE:
                raise
            flags = os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            fd, nameless = os.open(fresh, flags, 0o600), False
        replaced = False
        try:
            os.fchmod(fd, 0o600)  # independent of the umask
            self._watch(session, slot, fd)
            if nameless:
                # With `src_dir_fd`, Python lets the kernel follow the link to the open file.
                os.link(f"/proc/self/fd/{fd}", fresh, src_dir_fd=fd)
            elif not _no_writer(fd, None):
                raise OSError(errno.EBUSY, "another program opened it first", fresh)
            if still():
                os.replace(fresh, path)
                replaced = True
                self._forget_others(session, slot, fd)
        finally:
            if not replaced:
                if (key := file_events.key_of(fd)) is not None:
                    self._forget(key)
                with contextlib.suppress(OSError):
                    os.unlink(fresh)
            os.close(fd)

    def _watch(self, session: Session, slot: int, fd: int) -> None:
        file_events.watch(self._group, fd)
        if (key := file_events.key_of(fd)) is not None:
            self._watched[key] = _Watched(session, slot)
            if id(session) not in self._live:  # the session ended meanwhile
                self._forget(key)

    def _forget_others(self, session: Session, slot: int, fd: int) -> None:
        """Stop watching the files that this file replaced."""
        key = file_events.key_of(fd)
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
                data = os.read(self._group, file_events.BYTES_AT_ONCE)
            except BlockingIOError:  # the queue is empty
                return
            except OSError:
                break
            _, found, lost = file_events.parsed(data, os.getpid())
            for _, pid, key in found:
                if (
                    (one := self._watched.get(key)) is not None
                    and pid != one.session.commands.lineage.root
                    and key not in self._doubted
                ):
                    self._doubt(key, one, pid)
            if lost:
                self._lost()
        self._lost()  # more events than we read: any file may be among them

    def _lost(self) -> None:
        for key, one in [*self._watched.items()]:
            if key not in self._doubted:
                self._doubt(key, one, None)

    def _doubt(
        self,
        key: bytes,
        one: _Watched,
        pid: int | None,
        because: str = "the kernel dropped reports of opened files",
    ) -> None:
        first = not self.doubted_slots(one.session)
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
                because=f"another program opened {STATE_FILE}" if pid is not None else because,
            )


def _no_writer(fd: int, shell: int | None) -> bool:
    """Whether no process except the shell has the file open for writing, or mapped.

    `fd` must be open for reading only.
    """
    for _ in range(TRIES):
        try:
            # Breaking the lease must not end this process by SIGIO.
            fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
            return True
        except OSError as e:
            if e.errno not in (errno.EAGAIN, errno.EACCES) or (
                shell is not None and _has_open(shell, os.fstat(fd))
            ):
                return True  # the file system has no leases, or the shell has the file open
    return False


def _has_open(pid: int, file: os.stat_result) -> bool:
    """Says whether a process has this file open.

    Runs on the loop, so it looks at no other file: a file system that hangs would block the host.
    """
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
    return f"{session.writable_directory}/{SLOT}{slot}"
