"""One cgroup v2 directory per session, where this account may make one.

    PLACE/holdfast-<hash of the home>/SESSION          its program starts in it, so all that comes of it is in it

PLACE is the nursery's own group, if it is a unit's, whose group is delegated to it (`beside`): what starts there may move below it, whoever it is.
Else it is the root of the cgroup file system for root, as other supervisors do it: it stays the same wherever a host is
started from. For an ordinary user it is the topmost group above the nursery's own that belongs to that user; usually there is
none, unless a service manager delegated one. (A host's own group will not do where the two are apart: into a group of
another branch an ordinary user may move nothing.) Whether a session is in its group is never remembered but read from
/proc/PID/cgroup: its host may have died, or the launcher may not have been allowed to enter.

A host that was started inside a session leaves that session's group (`leave`), or the session's halt would freeze the
host with it. Groups of sessions that are no more are removed when they are empty. One with processes in it is left
alone: nobody asked to end them, and to thaw what somebody halted is nobody's decision here.

Everything here but `find` and `order` may wait for the kernel: not to be called on the host's loop.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import select
import time

from holdfast.core import halt as rules
from holdfast.host.process import read_proc

PREFIX = "holdfast-"
_OF_A_HOME = re.compile(PREFIX + "[0-9a-f]{12}")  # and not a unit of a service manager
PROCS_BYTES_MAX = 4 << 20
MAKE_ROUNDS = 16  # tries to make a group while others are removed beside it
ABANDONED_S = 3600.0  # an empty group of another home that is as old as this is nobody's


class Groups:
    def __init__(self, state: str) -> None:
        digest = hashlib.blake2b(os.fsencode(os.path.realpath(state)), digest_size=6).hexdigest()
        self.name = PREFIX + digest
        self.mount, self._root = _mounted()
        self.why = "cgroup v2 is not mounted" if not self.mount else ""  # there is none
        self._bases: list[str] = []
        self._choose(_own())

    def beside(self, pid: int, delegated: bool) -> None:
        """That is the nursery: sessions start where it is."""
        group = _of(pid)
        if group:
            self._choose(group, delegated)

    def _choose(self, near: str, delegated: bool = False) -> None:
        bases = [f"{place}/{self.name}" for place in self._places(near)] if self.mount else []
        bases.sort(key=lambda base: not os.path.isdir(base))  # what is there already first
        if self.mount and delegated:
            bases.insert(0, f"{self._path(near)}/{self.name}")
        self._bases = list(
            dict.fromkeys((*bases, *self._bases))
        )  # of the earlier ones, sessions may live

    def _places(self, near: str) -> list[str]:
        own = self._path(near)
        if os.geteuid() == 0:
            return list(dict.fromkeys((self.mount, own)))
        top = own
        while top != self.mount and _is_ours(os.path.dirname(top)):
            top = os.path.dirname(top)
        return [top]

    def _path(self, group: str) -> str:
        """The directory of a group as /proc names it."""
        inner = group.removeprefix(self._root) if self._root != "/" else group
        return f"{self.mount}/{inner.strip('/')}".rstrip("/")

    # ------------------------------------------------------------ life of a group

    def make(self, session: str) -> str:
        """The directory for a new session; empty if there can be none."""
        for base in self._bases:
            for _ in range(MAKE_ROUNDS):
                try:
                    for path in (
                        base,
                        f"{base}/{session}",
                    ):  # not what is above: a unit's group is its manager's to make
                        with contextlib.suppress(FileExistsError):
                            os.mkdir(path)
                    self.why = ""
                    return f"{base}/{session}"
                except (
                    FileNotFoundError
                ) as e:  # the last session before it has just taken the place of all with it
                    self.why = f"no group may be made in {os.path.dirname(base)}: {e.strerror}"
                except OSError as e:
                    self.why = f"no group may be made in {os.path.dirname(base)}: {e.strerror}"
                    break
        return ""

    def find(self, session: str, root_pid: int) -> str:
        """The directory of a session's group, by what the kernel says of its root process, or if that has ended, by name."""
        if not self.mount:
            return ""
        try:
            group = rules.group_of(
                read_proc(f"/proc/{root_pid}/cgroup").decode("utf-8", "replace"), self.name, session
            )
        except OSError:
            group = None
        if group:
            return self._path(group)
        return next(
            (path for base in self._bases if self.populated(path := f"{base}/{session}")), ""
        )

    def remove(self, session: str) -> bool:
        """Whether it is gone now. Not while there is a process in it."""
        gone = True
        for base in self._bases:
            gone = _remove(f"{base}/{session}") and gone
            with contextlib.suppress(OSError):
                os.rmdir(base)  # the last one's
        return gone

    def sweep(self, alive: set[str]) -> list[str]:
        """Removes groups of sessions that are not alive; gives those that still have processes."""
        left: list[str] = []
        for base in self._bases:
            _sweep_abandoned(os.path.dirname(base))
            with contextlib.suppress(OSError):
                names = [
                    entry.name for entry in os.scandir(base) if entry.is_dir(follow_symlinks=False)
                ]
                left += [name for name in names if name not in alive and not self.remove(name)]
        return left

    def leave(self) -> None:
        """This process leaves a session's group, if somebody started it in one."""
        parts = _own().strip("/").split("/")
        at = next((n for n, part in enumerate(parts) if _OF_A_HOME.fullmatch(part)), None)
        if at is not None and self.mount:
            outside = self._path("/" + "/".join(parts[:at]))
            with contextlib.suppress(OSError):
                _write(f"{outside}/cgroup.procs", str(os.getpid()))

    # ------------------------------------------------------------ what is done with one

    def order(self, path: str) -> None:
        """To freeze. Does not wait for it: the one call here that may be made on the loop."""
        with contextlib.suppress(OSError):
            _write(f"{path}/cgroup.freeze", "1")

    def freeze(self, path: str, on: bool, wait_s: float) -> bool:
        """Freezes or thaws; whether the kernel says within that time that it is done."""
        events = os.open(f"{path}/cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
        try:
            poll = select.poll()
            poll.register(events, select.POLLPRI)
            _write(f"{path}/cgroup.freeze", "1" if on else "0")
            deadline = time.monotonic() + wait_s
            while rules.flag(os.pread(events, 4096, 0).decode(), "frozen") is not on:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                poll.poll(max(1.0, left * 1000))
            return True
        finally:
            os.close(events)

    def frozen(self, path: str) -> bool:
        """Whether somebody ordered it. (Whether it is complete: `freeze` says.)"""
        try:
            return read_proc(f"{path}/cgroup.freeze").strip() == b"1"
        except OSError:
            return False

    def populated(self, path: str) -> bool:
        try:
            return rules.flag(read_proc(f"{path}/cgroup.events").decode(), "populated")
        except OSError:
            return False

    def pids(self, path: str) -> set[int]:
        """Its processes and those of groups that were made below it."""
        found: set[int] = set()
        for directory, _, _ in os.walk(path):
            with contextlib.suppress(OSError):
                found.update(
                    map(int, read_proc(f"{directory}/cgroup.procs", PROCS_BYTES_MAX).split())
                )
        return found

    def fetch(self, path: str, pid: int) -> bool:
        """Moves a process into it: into a frozen group, it freezes on arrival."""
        try:
            _write(f"{path}/cgroup.procs", str(pid))
            return True
        except ProcessLookupError:
            return True
        except OSError:
            return False

    def kill(self, path: str) -> bool:
        """Kills everything in it, frozen or not, in one step of the kernel. False: this kernel cannot (before 5.14)."""
        try:
            _write(f"{path}/cgroup.kill", "1")
            return True
        except OSError:
            return False


def _mounted() -> tuple[str, str]:
    """Where cgroup v2 is mounted, and which group is there."""
    with contextlib.suppress(OSError):
        for line in (
            read_proc("/proc/self/mountinfo").decode("utf-8", "surrogateescape").splitlines()
        ):
            left, _, right = line.partition(" - ")
            if right.startswith("cgroup2 "):
                fields = left.split()
                return fields[4], fields[3]
    return "", "/"


def _own() -> str:
    return _of("self") or "/"


def _of(pid: int | str) -> str:
    with contextlib.suppress(OSError):
        for line in (
            read_proc(f"/proc/{pid}/cgroup").decode("utf-8", "surrogateescape").splitlines()
        ):
            if line.startswith("0::/"):
                return line[3:]
    return ""


def _is_ours(path: str) -> bool:
    try:
        return os.stat(path).st_uid == os.geteuid() and os.access(f"{path}/cgroup.procs", os.W_OK)
    except OSError:
        return False


def _sweep_abandoned(place: str) -> None:
    """Of homes that were removed while a host was dead. Only what is empty can be removed at all."""
    before = time.time() - ABANDONED_S
    with contextlib.suppress(OSError):
        for home in [
            entry
            for entry in os.scandir(place)
            if _OF_A_HOME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
        ]:
            if all(
                entry.stat(follow_symlinks=False).st_ctime < before
                for entry in (home, *os.scandir(home.path))
                if entry.is_dir()
            ):
                _remove(home.path)


def _remove(path: str) -> bool:
    """Bottom up: programs may have made groups below theirs."""
    for directory, _, _ in os.walk(path, topdown=False):
        try:
            os.rmdir(directory)
        except FileNotFoundError:
            continue
        except OSError:
            return False
    return True


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
