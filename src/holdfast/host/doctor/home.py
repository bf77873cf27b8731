"""The directory that holds an installation's state and sockets: is it ours alone, and will it hold them?

Nothing is created for the sake of looking: a home that is not there yet is judged by the nearest directory
above it.
"""

from __future__ import annotations

import os
import re
import socket
import stat
from pathlib import Path

from holdfast.host.checks import Check, Outcome, Surroundings

SOCKET_PATH_BYTES_MAX = 107  # sun_path without its closing zero
SOCKET_TAIL_BYTES = 40  # room kept below the home for a directory and a session's name
FREE_BYTES_MIN = 256 * 1024 * 1024
FREE_INODES_MIN = 1000
NETWORK_FILESYSTEMS = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "9p",
        "afs",
        "ceph",
        "coda",
        "gfs2",
        "fuse.sshfs",
        "fuse.glusterfs",
        "fuse.s3fs",
        "fuse.rclone",
        "lustre",
    }
)
FORGETFUL_FILESYSTEMS = frozenset({"tmpfs", "ramfs"})

_NO_HOME = Outcome(None, "no home was named, so it was not looked at", "set HOLDFAST_HOME")


def _nearest(path: Path) -> Path:
    """The path itself, or the nearest directory above it that exists."""
    return next(
        one for one in (path, *path.parents) if os.path.exists(one)
    )  # never raises, unlike Path


def _permissions(surroundings: Surroundings) -> Outcome:
    home = surroundings.home
    if home is None:
        return _NO_HOME
    found = _nearest(home)
    if found != home:
        if os.access(found, os.W_OK | os.X_OK):
            return Outcome(True, f"{home} is not there yet and can be made")
        return Outcome(
            False,
            f"{home} is not there and {found} is not writable for us",
            f"set HOLDFAST_HOME to a directory of yours, or as root: "
            f"install -d -m 0700 -o {surroundings.uid} {home}",
        )
    about = home.stat()
    if not stat.S_ISDIR(about.st_mode):
        return Outcome(False, f"{home} is not a directory", f"move it away: mv {home} {home}.old")
    if about.st_uid != surroundings.uid:
        return Outcome(
            False,
            f"{home} belongs to uid {about.st_uid}, not to us ({surroundings.uid})",
            f"chown -R {surroundings.uid} {home}, or set HOLDFAST_HOME to a directory of yours",
        )
    mode = stat.S_IMODE(about.st_mode)
    if mode & 0o077:
        return Outcome(
            False,
            f"{home} has mode {mode:04o}: others may reach keys and sockets",
            f"chmod 0700 {home}",
        )
    try:
        _touch(home / f".{surroundings.tag}")
    except OSError as error:
        return Outcome(
            False,
            f"nothing can be written to {home}: {error.strerror}",
            f"chmod u+rwx {home}" if mode & 0o700 != 0o700 else "mount that filesystem writable",
        )
    return Outcome(True, f"{home} is ours alone (mode {mode:04o}) and writable")


def _touch(path: Path) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    path.unlink()


def _remove(surroundings: Surroundings) -> None:
    if surroundings.home is not None:
        for name in (f".{surroundings.tag}", f".{surroundings.tag}.s"):
            (surroundings.home / name).unlink(missing_ok=True)


def _socket_path(surroundings: Surroundings) -> Outcome:
    home = surroundings.home
    if home is None:
        return _NO_HOME
    length = len(os.fsencode(home)) + 1 + SOCKET_TAIL_BYTES
    if length > SOCKET_PATH_BYTES_MAX:
        most = SOCKET_PATH_BYTES_MAX - 1 - SOCKET_TAIL_BYTES
        return Outcome(
            False,
            f"{home} has {length - 1 - SOCKET_TAIL_BYTES} bytes; sockets fit below {most}",
            "set HOLDFAST_HOME to a shorter path",
        )
    if not home.is_dir():
        return Outcome(True, f"{home} is short enough; it is not there yet, so no socket was tried")
    path = home / f".{surroundings.tag}.s"
    with socket.socket(socket.AF_UNIX) as trial:
        try:
            trial.bind(os.fspath(path))
        except OSError as error:
            return Outcome(
                False,
                f"no socket can be made in {home}: {error.strerror}",
                "set HOLDFAST_HOME to a local filesystem",
            )
        path.unlink()
    return Outcome(True, f"a socket was made in {home}; its path has room")


def filesystem_of(path: Path, mounts: str) -> str:
    """The kind of filesystem that holds `path`, by the text of /proc/self/mountinfo; later mounts cover."""
    kind = ""
    longest = -1
    for line in mounts.splitlines():
        left, dash, right = line.partition(" - ")
        field = left.split()
        if not dash or len(field) < 5:
            continue
        where = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), field[4]))
        if path.is_relative_to(where) and len(where.parts) >= longest:
            longest, kind = len(where.parts), right.split()[0]
    return kind


def _filesystem(surroundings: Surroundings) -> Outcome:
    if surroundings.home is None:
        return _NO_HOME
    place = _nearest(surroundings.home).resolve()
    kind = filesystem_of(place, Path("/proc/self/mountinfo").read_text(errors="replace"))
    if not kind:
        return Outcome(None, f"what filesystem {place} is on could not be found out")
    if kind in NETWORK_FILESYSTEMS:
        return Outcome(
            False,
            f"{place} is on {kind}: SQLite's log and locks are not safe over a network",
            "set HOLDFAST_HOME to a directory on a local disk",
        )
    note = ": what is kept there is lost at a reboot" if kind in FORGETFUL_FILESYSTEMS else ""
    return Outcome(True, f"{place} is on {kind}{note}")


def _space(surroundings: Surroundings) -> Outcome:
    if surroundings.home is None:
        return _NO_HOME
    place = _nearest(surroundings.home)
    about = os.statvfs(place)
    free = about.f_bavail * about.f_frsize
    said = f"{free // (1024 * 1024)} MiB free"
    if about.f_files:  # filesystems without a fixed number of inodes say 0
        said += f", {about.f_favail} inodes"
    if free < FREE_BYTES_MIN:
        return Outcome(
            False, f"{said} at {place}", f"free at least {FREE_BYTES_MIN // (1024 * 1024)} MiB"
        )
    if about.f_files and about.f_favail < FREE_INODES_MIN:
        return Outcome(
            False, f"{said} at {place}", f"remove files: {FREE_INODES_MIN} inodes are needed"
        )
    return Outcome(True, f"{said} at {place}")


CHECKS = (
    Check("home", "Home directory", "everything", _permissions, _remove),
    Check(
        "socket-path",
        "Sockets in the home",
        "every connection on this machine",
        _socket_path,
        _remove,
    ),
    Check("filesystem", "Filesystem of the home", "durable state", _filesystem),
    Check("disk", "Free space", "durable state", _space),
)
