"""The interpreter, kernel and libraries; terminals and limits; programs that a session may use."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

from holdfast.host.doctor.check import (
    Check,
    Outcome,
    Surroundings,
    failed,
    judged,
    readable,
    sysctl,
)
from holdfast.host.doctor.libc import PR_SET_CHILD_SUBREAPER, call, forked

PYTHON_MIN = (3, 11)
KERNEL_MIN = (5, 4)  # has pidfd, the cgroup v2 freezer and seccomp notification
PTYS_FREE_MIN = 64
OPEN_FILES_MIN = 1024  # a host needs about six descriptors per session
INOTIFY_WATCHES_MIN, INOTIFY_INSTANCES_MIN = 8192, 128
BASH_MIN = (4, 4)  # PS0, which marks the start of a command
TOOL_WAIT_S = 5.0
SHELLS = ("bash", "zsh", "dash")
OPTIONAL = ("etcd", "nats-server", "ssh", "chromium")

_F_ADD_SEALS, _F_SEAL_SHRINK, _F_SEAL_GROW = 1033, 0x2, 0x4


def version_of(text: str) -> tuple[int, ...]:
    """The first dotted number of a text: (5, 2, 15) of "GNU bash, version 5.2.15(1)-release"."""
    found = re.search(r"\d+(?:\.\d+)+", text)
    return tuple(int(part) for part in found.group().split(".")) if found else ()


def dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def output_of(argv: list[str]) -> str:
    """The output of a program; raises if the program takes too long."""
    done = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=TOOL_WAIT_S,
        check=False,
    )
    return done.stdout.decode("utf-8", "replace").strip()


def _python(_: Surroundings) -> Outcome:
    have = sys.version_info[:3]
    return judged(
        have >= PYTHON_MIN,
        f"{dotted(have)} at {sys.executable or 'an unknown path'}",
        f"run holdfast with Python {dotted(PYTHON_MIN)} or later",
    )


def _kernel(_: Surroundings) -> Outcome:
    system = os.uname()
    have = version_of(system.release)
    if system.sysname != "Linux":
        return failed(f"{system.sysname}; sessions need Linux", "use a Linux (virtual) machine")
    return judged(
        have >= KERNEL_MIN,
        f"Linux {system.release} on {system.machine}",
        f"upgrade to Linux {dotted(KERNEL_MIN)} or later",
    )


def _terminals(_: Surroundings) -> Outcome:
    try:
        master, slave = pty.openpty()
    except OSError as error:
        return failed(
            f"no terminal can be opened: {error.strerror}",
            "mount -t devpts devpts /dev/pts -o ptmxmode=0666,mode=0620 "
            "(in a container: allow /dev/ptmx)",
        )
    os.write(master, b"holdfast\n")
    said = os.read(slave, 100)
    os.close(slave)
    os.close(master)
    if said != b"holdfast\n":
        return failed(f"a new terminal returned {said!r} instead of its input")
    return Outcome(True, "a line went through a new terminal")


def _terminals_left(_: Surroundings) -> Outcome:
    most, used = sysctl("kernel.pty.max"), sysctl("kernel.pty.nr")
    if most is None or used is None:
        return Outcome(None, "this kernel does not report its limit of terminals")
    left = int(most) - int(used)
    return judged(
        left >= PTYS_FREE_MIN,
        f"{used} of {most} terminals in use",
        f"sysctl -w kernel.pty.max={int(used) + 4096}",
    )


def _memfd(_: Surroundings) -> Outcome:
    try:
        fd = os.memfd_create("holdfast-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        return failed(f"memfd_create: {error.strerror}", "allow it in the seccomp profile")
    os.ftruncate(fd, 4096)
    fcntl.fcntl(fd, _F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_GROW)
    try:
        os.ftruncate(fd, 0)
    except PermissionError:
        return Outcome(True, "shared memory was made and its size sealed")
    finally:
        os.close(fd)
    return failed("sealed shared memory could be shrunk", "use Linux 3.17 or later")


def _pidfd(_: Surroundings) -> Outcome:
    pid = forked(signal.pause)
    try:
        fd = os.pidfd_open(pid)
        signal.pidfd_send_signal(fd, signal.SIGKILL)
        ended = readable(fd, TOOL_WAIT_S)
        os.close(fd)
    except OSError as error:
        os.kill(pid, signal.SIGKILL)
        return failed(
            f"pidfd: {error.strerror}",
            "upgrade to Linux 5.4 or later, or allow it in the container's seccomp profile",
        )
    finally:
        os.waitpid(pid, 0)
    if not ended:
        return failed("the end of a process was not reported", "upgrade to Linux 5.4 or later")
    return Outcome(True, "a process was signalled, and its end reported, by descriptor")


def _subreaper(_: Surroundings) -> Outcome:
    call("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    reader, writer = os.pipe()

    def daemonise() -> None:
        os.setsid()
        os.write(writer, b"%d" % forked(lambda: None))

    middle = forked(daemonise)
    os.waitpid(middle, 0)
    orphan = int(os.read(reader, 20))
    try:
        collected = os.waitpid(orphan, 0)[0] == orphan
    except ChildProcessError:
        collected = False
    if not collected:
        return failed("a daemon that forked twice was not adopted", "use Linux 3.4 or later")
    return Outcome(True, "a daemon that forked twice was adopted")


def _open_files(_: Surroundings) -> Outcome:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = soft == resource.RLIM_INFINITY or soft >= OPEN_FILES_MIN
    return judged(
        enough,
        f"limit {_limit(soft)}, at most {_limit(hard)}",
        f"ulimit -n {OPEN_FILES_MIN}, or LimitNOFILE= in the service",
    )


def _limit(value: int) -> str:
    return "none" if value == resource.RLIM_INFINITY else str(value)


def _inotify(_: Surroundings) -> Outcome:
    watches = sysctl("fs.inotify.max_user_watches")
    instances = sysctl("fs.inotify.max_user_instances")
    if watches is None or instances is None:
        return failed("this kernel has no inotify", "use a kernel with CONFIG_INOTIFY_USER")
    said = f"{watches} watches and {instances} instances per user"
    try:
        os.close(call("inotify_init1", os.O_CLOEXEC))
    except OSError as error:
        return failed(
            f"{said}; no instance is available now: {error.strerror}",
            f"sysctl -w fs.inotify.max_user_instances={int(instances) + INOTIFY_INSTANCES_MIN}",
        )
    enough = int(watches) >= INOTIFY_WATCHES_MIN and int(instances) >= INOTIFY_INSTANCES_MIN
    raise_them = (
        f"sysctl -w fs.inotify.max_user_watches={max(int(watches), INOTIFY_WATCHES_MIN)} "
        f"fs.inotify.max_user_instances={max(int(instances), INOTIFY_INSTANCES_MIN)}"
    )
    return judged(enough, said, raise_them)


def wal_reset_fixed(version: tuple[int, ...]) -> bool:
    """SQLite 3.7.0 to 3.51.2 have the WAL-reset race, except 3.50.7 and 3.44.6 upwards."""
    return (
        version >= (3, 51, 3)
        or (3, 50, 7) <= version < (3, 51)
        or (3, 44, 6) <= version < (3, 45)
        or version < (3, 7)
    )


def _sqlite(_: Surroundings) -> Outcome:
    try:
        import apsw
    except ImportError as error:
        import sqlite3

        return failed(
            f"apsw cannot be imported ({error}); the interpreter's own SQLite is "
            f"{sqlite3.sqlite_version}",
            "pip install 'apsw>=3.51.3.0'",
        )
    have = version_of(apsw.sqlite_lib_version())
    fixed = wal_reset_fixed(have)
    return judged(
        fixed,
        f"SQLite {dotted(have)} (apsw), {'without' if fixed else 'with'} the WAL-reset bug",
        "pip install --upgrade 'apsw>=3.51.3.0'",
    )


def _emulator(_: Surroundings) -> Outcome:
    try:
        import pyghostty
    except (ImportError, OSError) as error:
        return failed(
            f"pyghostty cannot be imported: {error}", "pip install 'pyghostty>=0.1.3,<0.2'"
        )
    return Outcome(True, f"pyghostty {getattr(pyghostty, '__version__', 'of unknown version')}")


def _shells(_: Surroundings) -> Outcome:
    found, too_old = [], []
    for name in SHELLS:
        path = shutil.which(name)
        if path is None:
            continue
        version = version_of(output_of([path, "--version"])) if name != "dash" else ()
        found.append(f"{name} {dotted(version)}".strip())
        if name == "bash" and version < BASH_MIN:
            too_old.append(f"before bash {dotted(BASH_MIN)} the start of a command is not marked")
    if not found:
        return failed(f"none of {', '.join(SHELLS)} was found", "install bash")
    return Outcome(
        not too_old or len(found) > 1,
        "; ".join([", ".join(found), *too_old]),
        "install a newer bash" if too_old else "",
    )


def _service_manager(surroundings: Surroundings) -> Outcome:
    if not Path("/run/systemd/system").is_dir():
        return failed(
            "this machine does not run systemd",
            "start the host another way at boot: `holdfast up --detach` from your init system",
        )
    if surroundings.uid == 0:
        return Outcome(
            True, "the system's systemd serves root: `holdfast service install --system`"
        )
    private = f"/run/user/{surroundings.uid}/systemd/private"
    with socket.socket(socket.AF_UNIX) as manager:
        manager.settimeout(TOOL_WAIT_S)
        try:
            manager.connect(private)
        except OSError as error:
            return failed(
                f"no user manager answers at {private}: {error.strerror}",
                "loginctl enable-linger, or log in by a way that opens a systemd session",
            )
    import pwd

    user = pwd.getpwuid(surroundings.uid).pw_name
    if not Path("/var/lib/systemd/linger", user).exists():
        return failed(
            "the user manager runs, but ends with your last login, and sessions with it",
            f"loginctl enable-linger {user}",
        )
    return Outcome(
        True, "the user manager runs and lingers after logout: `holdfast service install`"
    )


def _optional(_: Surroundings) -> Outcome:
    here = [name for name in OPTIONAL if shutil.which(name)]
    absent = [name for name in OPTIONAL if name not in here]
    return Outcome(
        True, f"found: {', '.join(here) or 'none'}; absent: {', '.join(absent) or 'none'}"
    )


CHECKS = (
    Check("python", "Python", "everything", _python),
    Check("kernel", "Kernel", "everything", _kernel),
    Check("pty", "Terminals", "every session", _terminals),
    Check("pty-limit", "Room for terminals", "many sessions", _terminals_left),
    Check(
        "memfd",
        "Shared memory with a fixed size",
        "output and screen that outlive the host",
        _memfd,
    ),
    Check("pidfd", "Processes by descriptor", "signals that never hit a reused pid", _pidfd),
    Check("subreaper", "Keeping orphans", "exit codes of daemons, the process graph", _subreaper),
    Check("open-files", "Open files", "many sessions and clients", _open_files),
    Check("inotify", "File watches", "noticing changed files", _inotify),
    Check("sqlite", "SQLite", "the host's durable state", _sqlite),
    Check("emulator", "Terminal emulator", "screens: attach, view, wait for text", _emulator),
    Check("shells", "Shells with integration", "run, wait for idle", _shells),
    Check("service", "Service manager", "starting at boot, outliving a logout", _service_manager),
    Check(
        "optional",
        "Optional programs",
        "several relays (etcd, nats-server), plain ssh, web tests",
        _optional,
    ),
)
