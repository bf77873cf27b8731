"""Edits of CRIU's images between dump and restore.

A file has two magic numbers of 32 bits, then entries: a length of 32 bits and a message.
"""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Callable
from pathlib import Path

from holdfast.checkpointer.criu import Terminal
from holdfast.wire import checkpointing as wire
from holdfast.wire import protobuf_fields as pb

_LENGTH = struct.Struct("<I")
_MAGIC_BYTES = 8
_OVERFLOW_ID = 65534  # an id that the user namespace does not map
_SESSION, _FOREGROUND, _PTY, _UID, _GID = 6, 7, 12, 14, 15  # of tty_info_entry
_REGULAR, _NAME = 3, 6  # of file_entry; of reg_file_entry
_INDEX = 1  # of tty_pty_entry
_FD = 4  # of fdinfo_entry
_FREE_DESCRIPTORS = 64  # above the program's, for CRIU's own
_TASK, _THREAD = 3, 5  # of core_entry
_SECCOMP_MODE, _SECCOMP_FILTER = 11, 12  # of both
_SHARED, _OWN = 10, 9  # queues of signals: of task_core_entry, and of thread_core_entry
_SIGINFO = 1  # of siginfo_entry
_PID, _GROUP, _KERNEL_SESSION, _THREADS = 1, 3, 4, 5  # of pstree_entry
_STATE, _STOPPED = 1, 3  # of task_core_entry
_TIMER = 12  # of file_entry
_LEFT_S, _LEFT_NS, _PERIOD_S, _PERIOD_NS = 7, 8, 9, 10  # of timerfd_entry

Edit = Callable[[list[pb.Field]], list[pb.Field]]


def prepare(directory: Path) -> None:
    """Make the images ready for a restore."""
    drop_filters(directory)
    drop_continues(directory)
    drop_owners(directory)
    name_leader(directory)
    drop_ended_groups(directory)
    revive_timers(directory)


def highest_pid(directory: Path) -> int:
    """Return the highest process or thread number in the images."""
    return max(int(path.stem.partition("-")[2]) for path in directory.glob("core-*.img"))


def tasks(directory: Path) -> dict[int, list[int]]:
    """Return the threads of each process in the images."""
    found = dict[int, list[int]]()
    for fields in _entries(directory / "pstree.img"):
        if pid := pb.number_of(fields, _PID):
            found[pid] = [n for number, _, n in fields if number == _THREADS and isinstance(n, int)]
            for number, _, packed in fields:
                if number == _THREADS and isinstance(packed, bytes):
                    found[pid] += pb.varints(packed)
    return found


def top(directory: Path) -> int:
    """Return the process above all others: hf-root."""
    return pb.number_of(_entries(directory / "pstree.img")[0], _PID)


def terminal(directory: Path) -> Terminal:
    """Return what the shim needs for the program's terminal."""
    program = _program(directory)
    path = directory / "tty-info.img"
    for one in _entries(path) if path.exists() else []:
        if pb.number_of(one, _SESSION) == program.pid and _number(one) == program.terminal:
            opened = (e for path in directory.glob("fdinfo-*.img") for e in _entries(path))
            free = max((pb.number_of(e, _FD) for e in opened), default=0) + _FREE_DESCRIPTORS
            front = program.foreground or pb.number_of(one, _FOREGROUND)
            front = _living(_groups(directory), program.pid, front)
            return Terminal(program.pid, free, front, number=program.terminal)
    return Terminal(program.pid, number=program.terminal)


def _program(directory: Path) -> wire.Program:
    try:
        return wire.read_program((directory / wire.PROGRAM_FILE).read_bytes())
    except FileNotFoundError:
        return wire.Program()


def _number(terminal: list[pb.Field]) -> int:
    """Return the number of a terminal; 0 of one that has none, as /dev/tty."""
    return pb.number_of(pb.decode(pb.bytes_of(terminal, _PTY)), _INDEX)


def name_leader(directory: Path) -> None:
    """Make the program the leader of its terminal.

    CRIU asks the kernel in the first process that has the terminal open. If that is a daemon in
    another kernel session, the answer is that there is no leader.
    """
    program, path = _program(directory), directory / "tty-info.img"

    def edit(fields: list[pb.Field]) -> list[pb.Field]:
        pty = pb.bytes_of(fields, _PTY)
        if not pty or _number(fields) != program.terminal or pb.number_of(fields, _SESSION):
            return fields
        named = {_SESSION: program.pid, _FOREGROUND: program.foreground}
        kept = [one for one in fields if one[0] not in named]
        return kept + [pb.field(number, value) for number, value in named.items()]

    if path.exists():
        _rewrite(path, edit)


def drop_ended_groups(directory: Path) -> None:
    """Put the leader in the foreground of each terminal whose foreground group has ended.

    The kernel keeps the number of such a group until a shell puts another group there, for example
    between the end of a job and the prompt. CRIU cannot put a group without processes there.
    """
    path, groups = directory / "tty-info.img", _groups(directory)

    def edit(fields: list[pb.Field]) -> list[pb.Field]:
        session, front = pb.number_of(fields, _SESSION), pb.number_of(fields, _FOREGROUND)
        if not session or _living(groups, session, front) == front:
            return fields
        kept = [one for one in fields if one[0] != _FOREGROUND]
        return [*kept, pb.field(_FOREGROUND, session)]

    if path.exists():
        _rewrite(path, edit)


def _groups(directory: Path) -> set[tuple[int, int]]:
    """Return the kernel session and the group of each process in the images."""
    return {
        (pb.number_of(fields, _KERNEL_SESSION), pb.number_of(fields, _GROUP))
        for fields in _entries(directory / "pstree.img")
    }


def _living(groups: set[tuple[int, int]], leader: int, front: int) -> int:
    """Return the group `front`, or the leader's if no process of the kernel session is in it."""
    return front if (leader, front) in groups else leader


def terminals(directory: Path) -> set[int]:
    """Return the numbers of all terminals in the images."""
    path = directory / "tty-info.img"
    found = (pb.bytes_of(one, _PTY) for one in _entries(path)) if path.exists() else ()
    return {pb.number_of(pb.decode(pty), _INDEX) for pty in found if pty}


def renumber_terminals(directory: Path, fresh: dict[int, int]) -> None:
    """Give terminals other numbers, and so other names below /dev/pts."""

    def number(fields: list[pb.Field]) -> list[pb.Field]:
        old = pb.number_of(fields, _INDEX)
        return [one for one in fields if one[0] != _INDEX] + [pb.field(_INDEX, fresh.get(old, old))]

    names = {b"/dev/pts/%d" % old: b"/dev/pts/%d" % new for old, new in fresh.items()}

    def name(fields: list[pb.Field]) -> list[pb.Field]:
        return [
            (n, kind, names.get(value, value) if n == _NAME and isinstance(value, bytes) else value)
            for n, kind, value in fields
        ]

    if fresh:
        _rewrite(directory / "tty-info.img", _inside(_PTY, number))
        _rewrite(directory / "files.img", _inside(_REGULAR, name))


def stopped(directory: Path) -> list[int]:
    """Return the processes that a signal had stopped."""
    found = []
    for path in directory.glob("core-*.img"):
        task = pb.decode(pb.bytes_of(_entries(path)[0], _TASK))
        if pb.number_of(task, _STATE) == _STOPPED:
            found.append(int(path.stem.partition("-")[2]))
    return found


def _entries(path: Path) -> list[list[pb.Field]]:
    data, found, at = path.read_bytes(), list[list[pb.Field]](), _MAGIC_BYTES
    while at < len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size + length
        found.append(pb.decode(data[at - length : at]))
    return found


def drop_filters(directory: Path) -> None:
    """Remove the session's seccomp filter from every thread.

    CRIU would restore it without its listener. The process that starts CRIU installs a new one,
    which the restored processes inherit. The dump has checked that there is no other filter.
    """

    def forget(fields: list[pb.Field]) -> list[pb.Field]:
        return [one for one in fields if one[0] not in (_SECCOMP_MODE, _SECCOMP_FILTER)]

    for path in directory.glob("core-*.img"):
        _rewrite(path, _inside(_TASK, forget))
        _rewrite(path, _inside(_THREAD, forget))
    (directory / "seccomp.img").unlink(missing_ok=True)


def drop_continues(directory: Path) -> None:
    """Forget SIGCONT where it is blocked and pending, as in hf-root after each resume.

    To queue it for a restored process would stop that process for CRIU, which then gives up.
    """

    def other(field: pb.Field) -> bool:
        return isinstance(field[2], int) or _signal(field[2]) != signal.SIGCONT

    def keep(fields: list[pb.Field]) -> list[pb.Field]:
        return [one for one in fields if other(one)]

    for path in directory.glob("core-*.img"):
        _rewrite(path, _inside(_TASK, _inside(_SHARED, keep)))
        _rewrite(path, _inside(_THREAD, _inside(_OWN, keep)))


def _signal(entry: bytes) -> int:
    return int.from_bytes(pb.bytes_of(pb.decode(entry), _SIGINFO)[:4], "little")


def _inside(part: int, change: Edit) -> Edit:
    """Change the messages in a field."""

    def edit(fields: list[pb.Field]) -> list[pb.Field]:
        return [
            (number, kind, _edited(value, change))
            if number == part and isinstance(value, bytes)
            else (number, kind, value)
            for number, kind, value in fields
        ]

    return edit


def drop_owners(directory: Path) -> None:
    """Forget owners of terminals that a restore need not, or cannot, set.

    /dev/tty is the machine's own device, which a contained session has read-only. In the user
    namespace of an ordinary user its owner is not mapped.
    """

    def edit(fields: list[pb.Field]) -> list[pb.Field]:
        own = pb.bytes_of(fields, _PTY)
        if own and _OVERFLOW_ID not in (pb.number_of(fields, _UID), pb.number_of(fields, _GID)):
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

    _rewrite(directory / "files.img", _inside(_TIMER, revive))


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
