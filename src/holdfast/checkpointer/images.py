"""Edits of CRIU's images between dump and restore.

A file has two magic numbers of 32 bits, then entries: a length of 32 bits and a message.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

from holdfast.checkpointer import protobuf as pb

_LENGTH = struct.Struct("<I")
_MAGIC_BYTES = 8
_OVERFLOW_ID = 65534  # an id that the user namespace does not map
_UID, _GID = 14, 15  # of tty_info_entry
_TASK, _THREAD = 3, 5  # of core_entry
_SECCOMP_MODE, _SECCOMP_FILTER = 11, 12  # of both
_TIMER = 12  # of file_entry
_LEFT_S, _LEFT_NS, _PERIOD_S, _PERIOD_NS = 7, 8, 9, 10  # of timerfd_entry

Edit = Callable[[list[pb.Field]], list[pb.Field]]


def prepare(directory: Path) -> None:
    """Make the images of a contained session ready for a restore."""
    drop_filters(directory)
    drop_foreign_owners(directory)
    revive_timers(directory)


def highest_pid(directory: Path) -> int:
    """Return the highest process or thread number in the images."""
    return max(int(path.stem.partition("-")[2]) for path in directory.glob("core-*.img"))


def drop_filters(directory: Path) -> None:
    """Remove the session's seccomp filter from every thread.

    CRIU would restore it without its listener. The process that starts CRIU installs a new one,
    which the restored processes inherit. The dump has checked that there is no other filter.
    """

    def without(part: int) -> Edit:
        def edit(fields: list[pb.Field]) -> list[pb.Field]:
            return [
                (number, kind, _edited(value, forget))
                if number == part and isinstance(value, bytes)
                else (number, kind, value)
                for number, kind, value in fields
            ]

        return edit

    def forget(fields: list[pb.Field]) -> list[pb.Field]:
        return [one for one in fields if one[0] not in (_SECCOMP_MODE, _SECCOMP_FILTER)]

    for path in directory.glob("core-*.img"):
        _rewrite(path, without(_TASK))
        _rewrite(path, without(_THREAD))
    (directory / "seccomp.img").unlink(missing_ok=True)


def drop_foreign_owners(directory: Path) -> None:
    """Forget owners of terminals that the user namespace does not map.

    In an ordinary user's session that is the owner of /dev/tty; CRIU's chown fails with EINVAL.
    """

    def edit(fields: list[pb.Field]) -> list[pb.Field]:
        if _OVERFLOW_ID not in (pb.number_of(fields, _UID), pb.number_of(fields, _GID)):
            return fields
        return [one for one in fields if one[0] not in (_UID, _GID)]

    path = directory / "tty-info.img"
    if path.exists():
        _rewrite(path, edit)


def revive_timers(directory: Path) -> None:
    """Let periodic timers fire that had expired and were not read yet.

    CRIU saves such a timer with no time left, which would stop the timer: the edit leaves one
    nanosecond.
    """

    def revive(fields: list[pb.Field]) -> list[pb.Field]:
        left, left_ns, period, period_ns = (
            pb.number_of(fields, number) for number in (_LEFT_S, _LEFT_NS, _PERIOD_S, _PERIOD_NS)
        )
        if left or left_ns or not (period or period_ns):
            return fields
        return [one for one in fields if one[0] != _LEFT_NS] + [pb.field(_LEFT_NS, 1)]

    def edit(fields: list[pb.Field]) -> list[pb.Field]:
        return [
            (number, kind, _edited(value, revive))
            if number == _TIMER and isinstance(value, bytes)
            else (number, kind, value)
            for number, kind, value in fields
        ]

    _rewrite(directory / "files.img", edit)


def _edited(message: bytes, edit: Edit) -> bytes:
    return pb.encode(edit(pb.decode(message)))


def _rewrite(path: Path, edit: Edit) -> None:
    data = path.read_bytes()
    out = data[:_MAGIC_BYTES]
    at = _MAGIC_BYTES
    while at < len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        message = _edited(data[at : at + length], edit)
        out += _LENGTH.pack(len(message)) + message
        at += length
    fresh = path.with_suffix(".new")
    fresh.write_bytes(out)
    os.replace(fresh, path)
