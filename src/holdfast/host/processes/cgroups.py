"""A cgroup v2 directory for each session, where this account may make directories.

    PLACE/holdfast-<hash of the home>/SESSION

The program of the session starts in that group, so all its descendants are in the group too.

PLACE depends on the account and the service manager:

- If the nursery is a unit with a delegated group, PLACE is the unit's group (`beside`). Any
  process that starts there may move below that group, whatever its user. systemd 254 and later
  puts the nursery into the group KEEPERS below, so that sessions beside it can have limits.
- Otherwise, for root, PLACE is the root of the cgroup file system, as for other supervisors. So
  PLACE does not depend on where a host was started.
- Otherwise, for an ordinary user, PLACE is the topmost group above the nursery's own group that
  belongs to the user. Usually there is none, unless a service manager delegated a group. If host
  and nursery are in different branches, the host's group does not work: an ordinary user cannot
  move a process into a group of a different branch.

The host never remembers whether a session is in its group, but reads /proc/PID/cgroup: an earlier
host may have died, or the launcher may not have been allowed to enter the group.

A host that was started inside a session leaves that session's group (`leave`). Otherwise halting
the session would freeze the host too. The host removes the empty groups of ended sessions. A group
with processes stays: no operator asked to end these processes, and the host must not thaw processes
that an operator halted.

All functions but `find` and `order` may wait for the kernel: do not call them on the host's loop.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import select
import time
from collections.abc import Mapping

from holdfast.core.session import halt as rules
from holdfast.core.session.limits import CONTROLLERS, oom_kills
from holdfast.core.systemd_units import KEEPERS
from holdfast.host.processes.process import read_proc

PREFIX = "holdfast-"
_OF_A_HOME = re.compile(PREFIX + "[0-9a-f]{12}")  # and not a unit of a service manager
PROCS_BYTES_MAX = 4 << 20
MAKE_ROUNDS = 16  # tries to make a group while a host removes groups next to it
ABANDONED_S = 3600.0  # an empty group of another home that is older has no owner


class Groups:
    def __init__(self, state: str) -> None:
        digest = hashlib.blake2b(os.fsencode(os.path.realpath(state)), digest_size=6).hexdigest()
        self.name = PREFIX + digest
        self.mount, self._root = _mounted()
        self.why = "cgroup v2 is not mounted" if not self.mount else ""  # why there is no group
        self._bases: list[str] = []
        self._choose(_own())

    def beside(self, pid: int, delegated: bool) -> None:
        """Chooses the place of new sessions: `pid` is the nursery, in whose group they start."""
        group = _of(pid).removesuffix(f"/{KEEPERS}")
        if group:
            self._choose(group, delegated)

    def _choose(self, near: str, delegated: bool = False) -> None:
        bases = [f"{place}/{self.name}" for place in self._places(near)] if self.mount else []
        bases.sort(key=lambda base: not os.path.isdir(base))  # existing directories first
        if self.mount and delegated:
            bases.insert(0, f"{self._path(near)}/{self.name}")
        # Sessions may still live in the earlier places.
        self._bases = list(dict.fromkeys((*bases, *self._bases)))

    def _places(self, near: str) -> list[str]:
        own = self._path(near)
        if os.geteuid() == 0:
            return list(dict.fromkeys((self.mount, own)))
        top = own
        while top != self.mount and _is_ours(os.path.dirname(top)):
            top = os.path.dirname(top)
        return [top]

    def _path(self, group: str) -> str:
        """The directory of a group with this name in /proc."""
        inner = group.removeprefix(self._root) if self._root != "/" else group
        return f"{self.mount}/{inner.strip('/')}".rstrip("/")

    # ------------------------------------------------------------ life of a group

    def make(self, session: str) -> str:
        """The directory for a new session; empty if there can be none."""
        for base in self._bases:
            for _ in range(MAKE_ROUNDS):
                try:
                    # Not the directories above: the manager makes the group of a unit.
                    for path in (base, f"{base}/{session}"):
                        with contextlib.suppress(FileExistsError):
                            os.mkdir(path)
                    self.why = ""
                    return f"{base}/{session}"
                except FileNotFoundError as e:  # the last other session just removed `base`
                    self.why = f"no group may be made in {os.path.dirname(base)}: {e.strerror}"
                except OSError as e:
                    self.why = f"no group may be made in {os.path.dirname(base)}: {e.strerror}"
                    break
        return ""

    def limit(self, path: str, files: Mapping[str, Mapping[str, str]]) -> set[str]:
        """Writes limits, given as files by resource; returns the resources that are now bound.

        A controller must be enabled in every group above. In a group with processes of its own the
        kernel refuses that, except at the root: so a delegated unit has its processes in KEEPERS.
        """
        if not path or not files:
            return set()
        base = os.path.dirname(path)
        for above in (os.path.dirname(base), base):
            _enable(above)
        return {resource for resource, wanted in files.items() if _bind(path, wanted)}

    def oom_kills(self, path: str) -> int | None:
        """How often the kernel killed a process of the group for memory; None: not counted here."""
        try:
            return oom_kills(read_proc(f"{path}/memory.events").decode())
        except OSError:
            return None

    def find(self, session: str, root_pid: int) -> str:
        """The directory of a session's group.

        The kernel names the group of the root process. If that process has ended, the directory is
        found by name.
        """
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
        """Removes the session's group; False while the group contains a process."""
        gone = True
        for base in self._bases:
            gone = _remove(f"{base}/{session}") and gone
            with contextlib.suppress(OSError):
                os.rmdir(base)  # succeeds after the last session
        return gone

    def renew(self, session: str) -> None:
        """Thaws what a dead keeper left of the session's group, and removes it if it is empty."""
        for base in self._bases:
            for path, _, _ in os.walk(f"{base}/{session}"):
                with contextlib.suppress(OSError):
                    _write(f"{path}/cgroup.freeze", "0")
        self.remove(session)

    def sweep(self, alive: set[str]) -> list[str]:
        """Removes the groups of ended sessions; returns the groups that still have processes."""
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
        """Moves this process out of a session's group, if it was started inside a session."""
        parts = _own().strip("/").split("/")
        at = next((n for n, part in enumerate(parts) if _OF_A_HOME.fullmatch(part)), None)
        if at is not None and self.mount:
            outside = self._path("/" + "/".join(parts[:at]))
            with contextlib.suppress(OSError):
                _write(f"{outside}/cgroup.procs", str(os.getpid()))

    # ------------------------------------------------------------ operations on a group

    def order(self, path: str) -> None:
        """Orders a freeze without waiting: the only operation here that may run on the loop."""
        with contextlib.suppress(OSError):
            _write(f"{path}/cgroup.freeze", "1")

    def freeze(self, path: str, on: bool, wait_s: float) -> bool:
        """Freezes or thaws; returns whether the kernel confirms within `wait_s`."""
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
        """Whether a freeze was ordered; `freeze` tells whether the freeze is complete."""
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
        """The processes of the group, and of groups that were made below."""
        found: set[int] = set()
        for directory, _, _ in os.walk(path):
            with contextlib.suppress(OSError):
                found.update(
                    map(int, read_proc(f"{directory}/cgroup.procs", PROCS_BYTES_MAX).split())
                )
        return found

    def frozen_pids(self, path: str) -> set[int]:
        """The processes of this group that the freezer holds, by this group or one below."""
        return {
            pid
            for directory, _, _ in os.walk(path)
            if self.frozen(directory)
            for pid in self.pids(directory)
        }

    def threads(self, path: str) -> int:
        """The number of threads of all processes in the group and below."""
        count = 0
        for directory, _, _ in os.walk(path):
            with contextlib.suppress(OSError):
                count += read_proc(f"{directory}/cgroup.threads", PROCS_BYTES_MAX).count(b"\n")
        return count

    def fetch(self, path: str, pid: int) -> bool:
        """Moves a process into the group; in a frozen group, the process freezes on arrival."""
        try:
            _write(f"{path}/cgroup.procs", str(pid))
            return True
        except ProcessLookupError:
            return True
        except OSError:
            return False

    def kill(self, path: str) -> bool:
        """Kills all processes of the group, frozen or not, in one step of the kernel.

        False: this kernel cannot (before 5.14).
        """
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


def _enable(group: str) -> None:
    with contextlib.suppress(OSError):
        offered = read_proc(f"{group}/cgroup.controllers").decode().split()
        enabled = read_proc(f"{group}/cgroup.subtree_control").decode().split()
        for controller in CONTROLLERS.values():
            if controller in offered and controller not in enabled:
                with contextlib.suppress(OSError):
                    _write(f"{group}/cgroup.subtree_control", f"+{controller}")


def _bind(path: str, files: Mapping[str, str]) -> bool:
    """Whether the last file could be written; the others are refinements."""
    bound = False
    for name, text in files.items():
        try:
            _write(f"{path}/{name}", text)
            bound = True
        except OSError:
            bound = False
    return bound


def _is_ours(path: str) -> bool:
    try:
        return os.stat(path).st_uid == os.geteuid() and os.access(f"{path}/cgroup.procs", os.W_OK)
    except OSError:
        return False


def _sweep_abandoned(place: str) -> None:
    """Removes groups of homes that were deleted while no host ran; only empty groups can go."""
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
    """Removes a group bottom up: programs may have made groups below."""
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
