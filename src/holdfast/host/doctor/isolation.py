"""Containing, halting and moving a session: namespaces, control groups, CRIU."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import shutil
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from holdfast.core import halt
from holdfast.host.checks import Check, Derived, Outcome, Surroundings, sysctl
from holdfast.host.checks.libc import (
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    MS_PRIVATE,
    MS_REC,
    become_ordinary,
    call,
    forked,
    in_child,
)
from holdfast.host.checks.machine import dotted, output_of, version_of

FREEZE_WAIT_S = 3.0
_ROOT_FIX = "this root lacks CAP_SYS_ADMIN: use the machine itself or a privileged container"
REMOVE_WAIT_S = 2.0
CRIU_MIN_BY_KERNEL = (
    ((6, 18), (4, 2, 1)),
    ((0,), (3, 17)),
)  # 3.17 and 4.1 fail on 6.18: any INET socket


# --- namespaces ---------------------------------------------------------------------------------------------


def _first_process() -> str:
    """In the new namespaces: be process 1 with a /proc of our own."""
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
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
        wrong = in_child(_first_process)
    except OSError as error:
        return Outcome(
            False,
            f"an ordinary user may not: {error.filename}: {error.strerror}",
            _allow_user_namespaces(),
        )
    if wrong:
        return Outcome(False, wrong, _allow_user_namespaces())
    return Outcome(True, "an ordinary user got a user, pid and mount namespace with its own /proc")


def allow_namespaces(uid: int) -> str:
    """What lets this account have contained sessions."""
    return _ROOT_FIX if uid == 0 else _allow_user_namespaces()


def _allow_user_namespaces() -> str:
    for name, closed, opened in (
        ("kernel.unprivileged_userns_clone", "0", "1"),
        ("user.max_user_namespaces", "0", "15000"),
        ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
    ):
        if sysctl(name) == closed:
            return f"sysctl -w {name}={opened}"
    return "in a container: allow unshare and mount in its seccomp profile, or run on the machine itself"


def _root_namespaces(surroundings: Surroundings) -> Outcome:
    if surroundings.uid != 0:
        return Outcome(
            None,
            "asked as an ordinary user; root was not tried (user namespaces serve instead)",
            "run `holdfast doctor` as root to know",
        )
    try:
        call("unshare", CLONE_NEWPID | CLONE_NEWNS)
        wrong = in_child(_first_process)
    except OSError as error:
        return Outcome(False, f"root may not: {error.filename}: {error.strerror}", _ROOT_FIX)
    return Outcome(
        not wrong,
        wrong or "root got a pid and mount namespace with its own /proc",
        "run on the machine itself" if wrong else "",
    )


# --- control groups -----------------------------------------------------------------------------------------


def _cgroup2_mount() -> Path | None:
    for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
        left, _, right = line.partition(" - ")
        if right.startswith("cgroup2 "):
            return Path(left.split()[4])
    return None


def _own_group(mount: Path) -> Path:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        if line.startswith("0::/"):
            return mount / line[4:]
    return mount


def _places(mount: Path) -> list[Path]:
    """Where a group for sessions may go: below our own; as a second choice below the root of all."""
    return list(dict.fromkeys((_own_group(mount), mount)))


def _cgroup(surroundings: Surroundings) -> Outcome:
    mount = _cgroup2_mount()
    if mount is None:
        return Outcome(
            False,
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
    return Outcome(False, f"cgroup v2 is at {mount}; {refused}", _delegate(surroundings.uid))


def _delegate(uid: int) -> str:
    if uid == 0:
        return "mount cgroup v2 writable (in a container: run it privileged, with its own cgroup namespace)"
    if Path("/run/systemd/system").is_dir():
        return "have the user manager run it, which owns its groups: `holdfast service install`"
    return (
        f"as root: mkdir G && chown -R {uid} G && echo PID >G/cgroup.procs, with G a new group below "
        "the cgroup v2 mount and PID your login shell (you cannot move into it yourself)"
    )


def _freeze(group: Path) -> Outcome:
    if not (group / "cgroup.freeze").exists():
        return Outcome(
            False,
            f"groups below {group.parent} have no cgroup.freeze",
            "upgrade to Linux 5.2 or later",
        )
    sleeper = forked(_wait_for_ever)
    try:
        (group / "cgroup.procs").write_text(str(sleeper))
        began = time.monotonic()
        (group / "cgroup.freeze").write_text("1")
        if not _until_frozen(group, True):
            return Outcome(
                False,
                f"a process in {group.parent} did not freeze within {FREEZE_WAIT_S:g} s",
                "look at `dmesg`; a process in an uninterruptible wait cannot be frozen",
            )
        frozen_ms = (time.monotonic() - began) * 1000
        (group / "cgroup.freeze").write_text("0")
        if not _until_frozen(group, False):
            return Outcome(
                False,
                f"a process in {group.parent} did not thaw within {FREEZE_WAIT_S:g} s",
                "look at `dmesg`",
            )
    finally:
        with contextlib.suppress(OSError):
            (group / "cgroup.freeze").write_text("0")
        os.kill(sleeper, signal.SIGKILL)
        os.waitpid(sleeper, 0)
    return Outcome(True, f"a process in {group.parent} froze in {frozen_ms:.1f} ms and thawed")


def _wait_for_ever() -> None:
    while True:
        signal.pause()


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
    """Also after a kill in the middle: thaw, end whatever is in it, remove it."""
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
        except OSError as error:  # busy until the kernel has let go of its last process
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                return
            select.select([], [], [], 0.005)


def _remove_groups(surroundings: Surroundings) -> None:
    mount = _cgroup2_mount()
    if mount is not None:
        for place in _places(mount):
            _remove_group(place / surroundings.tag)


def _halt(found: Mapping[str, Outcome]) -> Outcome:
    if found["cgroup-freeze"].ok:
        return Outcome(True, f"complete in every session, by {halt.FREEZE}")
    if found["user-namespaces"].ok or found["root-namespaces"].ok:
        return Outcome(
            False,
            f"complete in contained sessions only, by {halt.NAMESPACE} (process 1 of the namespace); in "
            f"plain ones {halt.BEST_EFFORT}: a walk that quick forking can outrun",
            f"use contained sessions, or: {found['cgroup-freeze'].fix}",
        )
    return Outcome(
        False,
        f"{halt.BEST_EFFORT} only: a walk over processes that quick forking can outrun",
        found["cgroup-freeze"].fix or found["user-namespaces"].fix,
    )


# --- checkpoints --------------------------------------------------------------------------------------------


def criu_wanted(kernel: tuple[int, ...]) -> tuple[int, ...]:
    return next(wanted for since, wanted in CRIU_MIN_BY_KERNEL if kernel >= since)


def _criu(surroundings: Surroundings) -> Outcome:
    wanted = criu_wanted(version_of(os.uname().release))
    install = (
        f"install CRIU {dotted(wanted)} or later (a package if it is new enough, else build it)"
    )
    path = shutil.which("criu") or shutil.which("criu", path="/usr/local/sbin:/usr/sbin:/sbin")
    if path is None:
        return Outcome(False, "criu is not installed", install)
    version = version_of(output_of([path, "--version"]))
    if not version:
        return Outcome(None, f"{path} does not say its version", install)
    if version < wanted:
        return Outcome(
            False, f"CRIU {dotted(version)} at {path}; needed is {dotted(wanted)}", install
        )
    said = output_of(
        [path, "check"] if surroundings.uid == 0 else [path, "--unprivileged", "check"]
    )
    good = "Looks good" in said
    why = said.splitlines()[-1] if said else "criu check said nothing"
    return Outcome(
        good,
        f"CRIU {dotted(version)} at {path}: {why}",
        "" if good else "run `criu check` for the details",
    )


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
    Check("cgroup-freeze", "Freezing by control group", "halt, fence", _cgroup, _remove_groups),
    Derived("halt", "Halt that nothing escapes", "halt, fence", _halt),
    Check("criu", "CRIU", "checkpoint, restore, move, branch", _criu),
)
