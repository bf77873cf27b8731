"""Checks that the home (the directory with state and sockets) is private and has room.

No directory is created for a check. If the home does not exist yet, the nearest existing parent is
checked.
"""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

from holdfast.host.doctor.check import Check, Outcome, Surroundings, failed
from holdfast.host.runtime import filesystems

SOCKET_PATH_BYTES_MAX = 107  # sun_path without the closing zero
SOCKET_TAIL_BYTES = 40  # room kept below the home for a directory and a session's name
FREE_BYTES_MIN = 256 * 1024 * 1024
FREE_INODES_MIN = 1000
NETWORK_FILESYSTEMS = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "coda", "gfs2"),
        *("fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.rclone", "lustre"),
    )
)
FORGETFUL_FILESYSTEMS = frozenset({"tmpfs", "ramfs"})

_NO_HOME = Outcome(None, "no home is set, so it was not checked", "set HOLDFAST_HOME")


def _nearest(path: Path) -> Path:
    """The path, or the nearest existing directory above the path."""
    return next(one for one in (path, *path.parents) if os.path.exists(one))  # Path.exists raises


def _permissions(surroundings: Surroundings) -> Outcome:
    home = surroundings.home
    if home is None:
        return _NO_HOME
    found = _nearest(home)
    if found != home:
        if os.access(found, os.W_OK | os.X_OK):
            return Outcome(True, f"{home} does not exist yet and can be made")
        return failed(
            f"{home} does not exist and this account cannot write {found}",
            f"set HOLDFAST_HOME to a directory of yours, or as root: "
            f"install -d -m 0700 -o {surroundings.uid} {home}",
        )
    about = home.stat()
    if not stat.S_ISDIR(about.st_mode):
        return failed(f"{home} is not a directory", f"move it away: mv {home} {home}.old")
    if about.st_uid != surroundings.uid:
        return failed(
            f"{home} belongs to uid {about.st_uid}, not to this account ({surroundings.uid})",
            f"chown -R {surroundings.uid} {home}, or set HOLDFAST_HOME to a directory of yours",
        )
    mode = stat.S_IMODE(about.st_mode)
    if mode & 0o077:
        return failed(
            f"{home} has mode {mode:04o}: other accounts can reach keys and sockets",
            f"chmod 0700 {home}",
        )
    try:
        _touch(home / f".{surroundings.tag}")
    except OSError as error:
        return failed(
            f"nothing can be written to {home}: {error.strerror}",
            f"chmod u+rwx {home}" if mode & 0o700 != 0o700 else "mount that filesystem writable",
        )
    return Outcome(True, f"{home} is private (mode {mode:04o}) and writable")


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
        return failed(
            f"{home} has {length - 1 - SOCKET_TAIL_BYTES} bytes; sockets fit below {most}",
            "set HOLDFAST_HOME to a shorter path",
        )
    if not home.is_dir():
        return Outcome(
            True, f"{home} is short enough; it does not exist yet, so no socket was tried"
        )
    path = home / f".{surroundings.tag}.s"
    with socket.socket(socket.AF_UNIX) as trial:
        try:
            trial.bind(os.fspath(path))
        except OSError as error:
            return failed(
                f"no socket can be made in {home}: {error.strerror}",
                "set HOLDFAST_HOME to a local filesystem",
            )
        path.unlink()
    return Outcome(True, f"a socket was made in {home}; its path is short enough")


def filesystem_of(path: Path, mounts: str) -> str:
    """The kind of filesystem that holds `path`; `mounts` is the text of /proc/self/mountinfo."""
    kind = ""
    longest = -1
    for mount in filesystems.mounts(mounts.splitlines()):
        where = Path(mount.point)
        if path.is_relative_to(where) and len(where.parts) >= longest:
            longest, kind = len(where.parts), mount.kind
    return kind


def _filesystem(surroundings: Surroundings) -> Outcome:
    if surroundings.home is None:
        return _NO_HOME
    place = _nearest(surroundings.home).resolve()
    kind = filesystem_of(place, Path("/proc/self/mountinfo").read_text(errors="replace"))
    if not kind:
        return Outcome(None, f"the filesystem of {place} could not be found out")
    if kind in NETWORK_FILESYSTEMS:
        return failed(
            f"{place} is on {kind}: SQLite's log and locks are not safe over a network",
            "set HOLDFAST_HOME to a directory on a local disk",
        )
    note = ": its content is lost at a reboot" if kind in FORGETFUL_FILESYSTEMS else ""
    return Outcome(True, f"{place} is on {kind}{note}")


def _space(surroundings: Surroundings) -> Outcome:
    if surroundings.home is None:
        return _NO_HOME
    place = _nearest(surroundings.home)
    about = os.statvfs(place)
    free = about.f_bavail * about.f_frsize
    said = f"{free // (1024 * 1024)} MiB free"
    if about.f_files:  # 0: a filesystem without a fixed number of inodes
        said += f", {about.f_favail} inodes"
    if free < FREE_BYTES_MIN:
        return failed(f"{said} at {place}", f"free at least {FREE_BYTES_MIN // (1024 * 1024)} MiB")
    if about.f_files and about.f_favail < FREE_INODES_MIN:
        return failed(f"{said} at {place}", f"remove files: {FREE_INODES_MIN} inodes are needed")
    return Outcome(True, f"{said} at {place}")


def _operator_names(surroundings: Surroundings) -> Outcome:
    if surroundings.home is None:
        return _NO_HOME
    try:
        names = (surroundings.home / "run/reserved-names").read_text().split()
    except FileNotFoundError:
        return Outcome(True, "no operator has a name that records and policies use otherwise")
    one = names[0]
    return failed(
        f"operators of an earlier build have names with another meaning: {', '.join(names)}",
        f"add each under a new name (`holdfast operator add {one}-1`, `holdfast grant {one}-1`), "
        f"then `holdfast operator revoke {one}`",
    )


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
    Check("operator-names", "Names of operators", "reading the record", _operator_names),
)
