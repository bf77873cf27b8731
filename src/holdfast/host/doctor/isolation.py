"""Checks of the means to contain, halt and move a session: namespaces, control groups, CRIU."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from holdfast.core.containment import network
from holdfast.core.session import halt
from holdfast.core.session.limits import CONTROLLERS
from holdfast.host.doctor.check import Check, Derived, Outcome, Surroundings, failed, judged, sysctl
from holdfast.host.doctor.libc import (
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    MS_PRIVATE,
    MS_REC,
    become_ordinary,
    call,
    forked,
    in_child,
    wait_forever,
)
from holdfast.host.doctor.machine import dotted, version_of
from holdfast.host.runtime import connectors, criu, filesystems
from holdfast.model.errors import Impossible

FREEZE_WAIT_S = 3.0
_ROOT_FIX = "this root lacks CAP_SYS_ADMIN: use the machine itself or a privileged container"
_APPARMOR = "kernel.apparmor_restrict_unprivileged_userns"
KERNEL_MIN = (5, 12)  # mount_setattr
_MOUNT_SETATTR = 442  # on every machine
REMOVE_WAIT_S = 2.0
_LIMITS = "-limits"  # checks run at the same time, so each has its own group


# --- namespaces -----------------------------------------------------------------------------------


def _first_process() -> str:
    """In the new namespaces: check that this is process 1, with a separate /proc."""
    if os.getpid() != 1:
        return f"the first process has pid {os.getpid()}"
    call("mount", None, b"/", None, MS_REC | MS_PRIVATE, None)
    call("mount", b"proc", b"/proc", b"proc", 0, None)
    return "" if os.readlink("/proc/self") == "1" else "/proc is not that of the new namespace"


def _user_namespaces(_: Surroundings) -> Outcome:
    become_ordinary()
    uid, gid = os.getuid(), os.getgid()
    try:
        call("unshare", CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
        wrong = in_child(_first_process)
    except OSError as error:
        return failed(
            f"an ordinary user may not: {error.filename}: {error.strerror}",
            _allow_user_namespaces(),
        )
    if wrong:
        return failed(wrong, _allow_user_namespaces())
    return Outcome(True, "an ordinary user got a user, pid and mount namespace with its own /proc")


def allow_namespaces(uid: int) -> str:
    """How to allow contained sessions for this account."""
    if version_of(os.uname().release) < KERNEL_MIN:
        return f"upgrade to Linux {dotted(KERNEL_MIN)} or later"
    return _allow_for_root() if uid == 0 else _allow_user_namespaces()


def _allow_for_root() -> str:
    if sysctl("user.max_user_namespaces") == "0":
        return "sysctl -w user.max_user_namespaces=15000"
    return _ROOT_FIX


def _allow_user_namespaces(settings: str = "/proc/sys") -> str:
    for name, closed, opened in (
        ("kernel.unprivileged_userns_clone", "0", "1"),
        ("user.max_user_namespaces", "0", "15000"),
    ):
        if sysctl(name, settings) == closed:
            return f"sysctl -w {name}={opened}"
    if sysctl(_APPARMOR, settings) == "1":
        return (
            "AppArmor forbids it, as in Ubuntu since 23.10: give Holdfast's Python a profile with "
            "`userns,` (docs/reference/containment.md), or allow it to every program: "
            f"sysctl -w {_APPARMOR}=0"
        )
    return (
        "in a container: allow unshare and mount in its seccomp profile, "
        "or run on the machine itself"
    )


def _root_namespaces(surroundings: Surroundings) -> Outcome:
    if surroundings.uid != 0:
        return Outcome(
            None,
            "not tried: doctor runs as an ordinary user (user namespaces serve instead)",
            "run `holdfast doctor` as root to find out",
        )
    try:
        call("unshare", CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS)
        wrong = in_child(_first_process)
    except OSError as error:
        return failed(f"root may not: {error.filename}: {error.strerror}", _allow_for_root())
    return judged(
        not wrong,
        wrong or "root got a user, pid and mount namespace with its own /proc",
        "run on the machine itself",
    )


def _file_tree(_: Surroundings) -> Outcome:
    """Whether the kernel has mount_setattr: the call with a bad descriptor tells."""
    try:
        call("syscall", _MOUNT_SETATTR, -1, b"", 0, None, 0)
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EPERM):
            return failed(
                f"mount_setattr: {error.strerror} (Linux {os.uname().release})",
                f"Linux {dotted(KERNEL_MIN)} or later; in a container, allow mount_setattr, "
                "open_tree, move_mount, fsopen, fsconfig and fsmount in its seccomp profile",
            )
    return Outcome(
        True,
        "a contained session sees the system, the tools behind PATH and its own home; it writes "
        "the work tree of its directory and its own home; network: see own-network",
    )


def _own_network(_: Surroundings) -> Outcome:
    """Which program connects one, and whether this account may make a tap device."""
    programs, (why, remedy) = connectors.installed(), connectors.no_device()
    names = " and ".join(program.path for program in programs) or "no program"
    detail = f"{names} connects it; {why or f'this account may open {network.TUN}'}"
    instead = "; until then contained sessions have the machine's network"
    if not programs:
        return failed(detail, f"install the package {network.PACKAGES}{instead}")
    if why:
        return failed(detail, remedy + instead)
    if network.SLIRP not in {program.name for program in programs} and not connectors.routed():
        return Outcome(
            True,
            f"{detail}; this machine has no default route, and if pasta does not start without "
            "one, contained sessions have the machine's network (slirp4netns starts)",
        )
    if all(program.name != network.PASTA for program in programs):
        return Outcome(True, f"{detail}; without pasta (package passt) no port can be published")
    return Outcome(True, detail)


# --- control groups -------------------------------------------------------------------------------


def _cgroup2_mount() -> Path | None:
    table = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    found = (Path(mount.point) for mount in filesystems.mounts(table) if mount.kind == "cgroup2")
    return next(found, None)


def _own_group(mount: Path) -> Path:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        if line.startswith("0::/"):
            return mount / line[4:]
    return mount


def _places(mount: Path) -> list[Path]:
    """Where a group for sessions may be made: below our own group, else below the root."""
    return list(dict.fromkeys((_own_group(mount), mount)))


def _cgroup(surroundings: Surroundings) -> Outcome:
    mount = _cgroup2_mount()
    if mount is None:
        return failed(
            "cgroup v2 is not mounted",
            "mount -t cgroup2 none /sys/fs/cgroup, or boot with systemd.unified_cgroup_hierarchy",
        )
    refused = ""
    for place in _places(mount):
        group = place / surroundings.tag
        try:
            group.mkdir()
        except OSError as error:
            refused = refused or f"no group may be made in {place}: {error.strerror}"
            continue
        try:
            return _freeze(group)
        except OSError as error:
            refused = f"in {place}: {error.strerror} ({error.filename})"
        finally:
            _remove_group(group)
    return failed(f"cgroup v2 is at {mount}; {refused}", _delegate(surroundings.uid))


def _delegate(uid: int) -> str:
    if uid == 0:
        return (
            "mount cgroup v2 writable "
            "(in a container: run it privileged, with its own cgroup namespace)"
        )
    if Path("/run/systemd/system").is_dir():
        return (
            "let the user manager run the host, in a group of its own: `holdfast service install`"
        )
    return (
        f"as root: mkdir G && chown -R {uid} G && echo PID >G/cgroup.procs, with G a new group "
        "below the cgroup v2 mount and PID your login shell (you cannot move into it yourself)"
    )


def _freeze(group: Path) -> Outcome:
    if not (group / "cgroup.freeze").exists():
        return failed(
            f"groups below {group.parent} have no cgroup.freeze", "upgrade to Linux 5.2 or later"
        )
    sleeper = forked(wait_forever)
    try:
        (group / "cgroup.procs").write_text(str(sleeper))
        began = time.monotonic()
        (group / "cgroup.freeze").write_text("1")
        if not _until_frozen(group, True):
            return failed(
                f"a process in {group.parent} did not freeze within {FREEZE_WAIT_S:g} s",
                "look at `dmesg`; a process in an uninterruptible wait cannot be frozen",
            )
        frozen_ms = (time.monotonic() - began) * 1000
        (group / "cgroup.freeze").write_text("0")
        if not _until_frozen(group, False):
            return failed(
                f"a process in {group.parent} did not thaw within {FREEZE_WAIT_S:g} s",
                "look at `dmesg`",
            )
    finally:
        with contextlib.suppress(OSError):
            (group / "cgroup.freeze").write_text("0")
        os.kill(sleeper, signal.SIGKILL)
        os.waitpid(sleeper, 0)
    return Outcome(True, f"a process in {group.parent} froze in {frozen_ms:.1f} ms and thawed")


def _until_frozen(group: Path, frozen: bool) -> bool:
    deadline = time.monotonic() + FREEZE_WAIT_S
    wanted = f"frozen {int(frozen)}"
    with (group / "cgroup.events").open() as events:
        poller = select.poll()
        poller.register(events, select.POLLPRI)
        while True:
            events.seek(0)
            if wanted in events.read().splitlines():
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            poller.poll(max(left * 1000, 1))


def _remove_group(group: Path) -> None:
    """Thaw a group, end the processes and remove the group, also after a killed check."""
    if not group.is_dir():
        return
    for name, text in (("cgroup.freeze", "0"), ("cgroup.kill", "1")):
        with contextlib.suppress(OSError):
            (group / name).write_text(text)
    deadline = time.monotonic() + REMOVE_WAIT_S
    while True:
        try:
            group.rmdir()
            return
        except OSError as error:  # busy until the last process is gone
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                return
            select.select([], [], [], 0.005)


def _remove_groups(surroundings: Surroundings) -> None:
    mount = _cgroup2_mount()
    if mount is not None:
        for place in _places(mount):
            _remove_group(place / surroundings.tag)
            _remove_group(place / (surroundings.tag + _LIMITS))


# --- limits ---------------------------------------------------------------------------------------


def _limits(surroundings: Surroundings) -> Outcome:
    """Which limits the kernel would keep; tried on a group as sessions have it."""
    mount = _cgroup2_mount()
    missing, refused = set(CONTROLLERS.values()), ""
    for place in _session_places(mount, surroundings.uid) if mount is not None else ():
        group = place / (surroundings.tag + _LIMITS)
        try:
            group.mkdir()
        except OSError as error:
            refused = f"no group may be made in {place}: {error.strerror}"
            continue
        try:
            found = set((group / "cgroup.controllers").read_text().split())
            if _may_enable(place):  # the host enables the controllers that are offered there
                found |= set((place / "cgroup.controllers").read_text().split())
            missing &= set(CONTROLLERS.values()) - found
        finally:
            _remove_group(group)
    if not missing:
        return Outcome(
            True, "memory, processes and processor time of a session are bounded by control group"
        )
    return failed(
        f"cgroup v2 offers sessions no controller of {', '.join(sorted(missing))}"
        + (f" ({refused})" if refused else "")
        + f"; instead: {'; '.join(_instead(missing, surroundings.uid))}",
        _controllers_fix(surroundings.uid),
    )


def _session_places(mount: Path, uid: int) -> list[Path]:
    """Where the host makes the groups of sessions (host/processes/cgroups.py)."""
    if uid == 0:
        return [mount]
    place = _own_group(mount)
    while place != mount and _owns(place.parent, uid):
        place = place.parent
    return [place]


def _may_enable(place: Path) -> bool:
    """The kernel refuses it in a group with processes, except at the root, which has no type."""
    with contextlib.suppress(OSError):
        return os.access(place / "cgroup.subtree_control", os.W_OK) and not (
            (place / "cgroup.type").exists() and (place / "cgroup.procs").read_text()
        )
    return False


def _owns(group: Path, uid: int) -> bool:
    with contextlib.suppress(OSError):
        return group.stat().st_uid == uid and os.access(group / "cgroup.procs", os.W_OK)
    return False


def _instead(missing: set[str], uid: int) -> list[str]:
    words = {
        "memory": "memory is not bounded, but the OOM killer takes programs of sessions first; "
        "with `--limit memory=` each process is bounded, not their sum",
        "pids": "a session with too many processes is halted"
        if uid == 0
        else "processes of contained sessions are bounded by RLIMIT_NPROC",
        "cpu": "contained sessions have a lower priority",
    }
    return [text for name, text in words.items() if name in missing]


def _controllers_fix(uid: int) -> str:
    table = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    if any(mount.kind == "cgroup" for mount in filesystems.mounts(table)):
        return (
            "cgroup v1 is mounted and holds controllers: boot with "
            "systemd.unified_cgroup_hierarchy=1"
        )
    if uid == 0:
        return _delegate(uid)
    return f"{_delegate(uid)} (limits need systemd 254 or later)"


def _halt(found: Mapping[str, Outcome]) -> Outcome:
    if found["cgroup-freeze"].ok:
        return Outcome(True, f"complete in every session, by {halt.FREEZE}")
    if found["user-namespaces"].ok or found["root-namespaces"].ok:
        return failed(
            f"complete in contained sessions only, by {halt.NAMESPACE} (process 1 of the namespace)"
            f"; in plain ones {halt.BEST_EFFORT}: fast forking can outrun the walk over processes",
            f"use contained sessions, or: {found['cgroup-freeze'].fix}",
        )
    return failed(
        f"{halt.BEST_EFFORT} only: fast forking can outrun the walk over processes",
        found["cgroup-freeze"].fix or found["user-namespaces"].fix,
    )


# --- checkpoints ----------------------------------------------------------------------------------


def _criu(surroundings: Surroundings) -> Outcome:
    try:
        found = criu.find(surroundings.criu)
    except Impossible as e:
        return failed(e.message, e.recover)
    why = criu.check(found, ordinary=surroundings.uid != 0)
    return judged(
        not why,
        f"CRIU {found.version} at {found.program}" + (f": {why}" if why else ""),
        "run `criu check` for the details; a container may have to allow ptrace",
    )


def _checkpoints(found: Mapping[str, Outcome]) -> Outcome:
    contained = found["user-namespaces"].ok or found["root-namespaces"].ok
    if not found["criu"].ok:
        return failed("sessions cannot be saved: " + found["criu"].detail, found["criu"].fix)
    root = os.geteuid() == 0
    if contained and found["file-tree"].ok:
        plain = ", and plain ones" if root else "; plain ones only as root"
        return Outcome(True, f"contained sessions{plain}")
    if root:
        return Outcome(True, "plain sessions; there are no contained ones here")
    return failed("without root only contained sessions can be saved, and there are none here")


CHECKS: tuple[Check | Derived, ...] = (
    Check(
        "user-namespaces", "User namespaces", "contained sessions without root", _user_namespaces
    ),
    Check(
        "root-namespaces",
        "Pid and mount namespaces",
        "contained sessions as root",
        _root_namespaces,
    ),
    Check(
        "file-tree",
        "A file tree of its own",
        "contained sessions",
        _file_tree,
    ),
    Check("own-network", "A network of its own", "contained sessions, --net own", _own_network),
    Check("cgroup-freeze", "Freezing by control group", "halt, fence", _cgroup, _remove_groups),
    Check(
        "limits",
        "Limits by control group",
        "memory, processes and processor time of contained sessions",
        _limits,
        _remove_groups,
    ),
    Derived("halt", "Halt that nothing escapes", "halt, fence", _halt),
    Check("criu", "CRIU", "checkpoint, restore", _criu),
    Derived("checkpoint", "Saving sessions to disk", "checkpoint, restore", _checkpoints),
)
