"""The parts of a session that a fork copies: its writable directories, and facts about it."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from holdfast.core.branch import preflight
from holdfast.core.branch.preflight import Wish
from holdfast.core.checkpoint.preflight import Process
from holdfast.core.session.graph import Socket
from holdfast.home import Home
from holdfast.host.branches.snapshot import measure
from holdfast.host.branches.store import FILES, PRIVATE, Tree
from holdfast.host.checkpoints import look
from holdfast.host.lifecycle.contained.own_directories import CONTAINED, KEPT
from holdfast.host.processes import sockets
from holdfast.host.processes.process import read_proc
from holdfast.wire import spawning as wire

_LOOPBACK = ("127.", "[::1]")
_MAPS_INODE = 4  # the field of /proc/PID/maps


class Source(NamedTuple):
    """A writable directory to copy. `path`: the directory; of a layer the upper one.

    `below`: the directories under a layer. `inside`: the index of the source that has this one
    within, whose copy serves for both.
    """

    target: str
    path: str
    role: str
    below: tuple[str, ...] = ()
    inside: int = -1


class Parts(NamedTuple):
    """`private`: directories of the session that each branch gets as copies, by their paths.

    `written`: the same for files that the host wrote for the session, such as its resolv.conf.
    """

    sources: tuple[Source, ...]
    private: tuple[str, ...]
    single: tuple[str, ...]
    written: tuple[str, ...]


def of(home: Home, session: str, mounts: Iterable[wire.Mount], private: Iterable[str]) -> Parts:
    """`private`: the session's directories in the run directory."""
    found, single, own = list[Source](), list[str](), tuple(private)
    written = list[str]()
    mine = (f"{home.state}/{CONTAINED}/", f"{home.state}/{KEPT}/")
    for mount in mounts:
        target, source = os.fsdecode(mount.target), os.fsdecode(mount.source)
        if mount.kind == wire.MOUNT_LAYERED:
            top, *below = source.split("\n")
            role = FILES if "/files-" in top else PRIVATE
            found.append(Source(target, f"{top}/upper", role, tuple(below)))
        elif mount.kind == wire.MOUNT_WRITE and source not in own:
            try:
                mode = os.stat(source).st_mode
            except OSError:
                continue
            if stat.S_ISREG(mode):
                single.append(source)
            if stat.S_ISDIR(mode):
                role = PRIVATE if source.startswith(mine) else FILES
                found.append(Source(target, source, role, inside=_around(found, source)))
        elif source.startswith(mine[0]) and os.path.isfile(source):
            written.append(source)
    return Parts(tuple(found), own, tuple(single), tuple(written))


def _around(found: list[Source], path: str) -> int:
    around = [n for n, one in enumerate(found) if not one.below and path.startswith(f"{one.path}/")]
    return next((n for n in around if found[n].inside < 0), -1)


def size(parts: Parts) -> tuple[int, int]:
    """Bytes and entries of all files to copy."""
    count = entries = 0
    for one in parts.sources:
        if one.inside < 0:
            more = measure(one.path, preflight.SNAPSHOT_BYTES_MAX, preflight.SNAPSHOT_ENTRIES_MAX)
            count, entries = count + more.bytes, entries + more.entries
    return count, entries


def held(root: int, processes: Iterable[Process]) -> list[Socket]:
    """The sockets that the processes hold."""
    mine = {target for one in processes for target in look.targets(one.pid)}
    return [one for i, one in sockets.table(root).items() if f"socket:[{i}]" in mine]


def names(processes: Iterable[Process]) -> dict[str, str]:
    """Names by the numbers inside, which a fork does not change."""
    return {str(look.pid_inside(one.pid)): one.name for one in processes}


def listening(found: Iterable[Socket]) -> tuple[str, ...]:
    """Sockets that a copy of the session could not have too, on one network."""
    return tuple(
        sorted(
            f"{one.kind} {one.local}"
            for one in found
            if (one.kind.startswith(("tcp", "udp")) and one.state in ("listen", "bound"))
            or (one.kind == "unix" and one.state == "listen" and one.local.startswith("@"))
        )
    )


def outside(found: Iterable[Socket], own_network: bool) -> tuple[str, ...]:
    """Connections that a branch does not have; an own network keeps its inner ones."""
    return tuple(
        sorted(
            f"{one.local} -> {one.remote}"
            for one in found
            if one.kind.startswith("tcp")
            and one.state == "established"
            and not (own_network and one.remote.startswith(_LOOPBACK))
        )
    )


def servers(mounts: Iterable[wire.Mount]) -> list[str]:
    """Sockets of the machine's servers that the session sees: its doors, by their places inside."""
    found = list[str]()
    for one in mounts:
        with contextlib.suppress(OSError):
            if one.source and stat.S_ISSOCK(os.stat(one.source).st_mode):
                found.append(os.fsdecode(one.target))
    return found


def ports(found: Iterable[Socket]) -> list[int]:
    return sorted(
        {one.port or 0 for one in found if one.kind.startswith("tcp") and one.state == "listen"}
    )


def wish(
    home: Home, parts: Parts, count: int, room: int, found: list[Socket], own_network: bool
) -> Wish:
    copied, entries = size(parts)
    disk = os.statvfs(home.state)
    return Wish(
        count,
        copied,
        entries,
        max((len(one.below) for one in parts.sources), default=0) + 1,
        disk.f_bavail * disk.f_frsize,
        _available(),
        room,
        () if own_network else listening(found),
        outside(found, own_network),
        parts.single,
        next((p for p in (home.state, *(s.path for s in parts.sources)) if "\n" in p), ""),
    )


def _available() -> int:
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return int(next(one for one in lines if one.startswith("MemAvailable:")).split()[1]) << 10
    return 1 << 62


def mapped(pids: Iterable[int]) -> set[int]:
    """Inodes of files that processes have mapped for writing, shared with the file."""
    found = set[int]()
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in read_proc(f"/proc/{pid}/maps", look.MAPS_BYTES).splitlines():
                words = line.split(maxsplit=5)
                if words[1][1:2] == b"w" and words[1][3:4] == b"s":
                    found.add(int(words[_MAPS_INODE]))
    return found


# ---------------------------------------------------------------- what a branch gets


def trees(parts: Parts, place: str) -> list[Tree]:
    """`place`: the directory of the fork."""
    made = list[Tree]()
    for number, one in enumerate(parts.sources):
        below = f"{place}/base/{number}"
        if one.inside >= 0:
            outer = parts.sources[one.inside]
            below = f"{place}/base/{one.inside}{one.path.removeprefix(outer.path)}"
        source = "" if one.below else one.path
        made.append(Tree(number, one.target, source, one.role, (below, *one.below)))
    return made


def mounts(
    planned: Iterable[wire.Mount], made: list[Tree], layers: str, moved: dict[str, str]
) -> tuple[wire.Mount, ...]:
    """The file tree of a branch. `layers`: its own. `moved`: private directories and copies."""
    by_target = {tree.target: tree for tree in made}
    return tuple(_mount(one, by_target, layers, moved) for one in planned)


def _mount(
    one: wire.Mount, by_target: dict[str, Tree], layers: str, moved: dict[str, str]
) -> wire.Mount:
    source = os.fsdecode(one.source)
    if source in moved:
        return one._replace(source=os.fsencode(moved[source]))
    tree = by_target.get(os.fsdecode(one.target))
    if tree is not None and one.kind in (wire.MOUNT_WRITE, wire.MOUNT_LAYERED):
        paths = (own_layer(layers, tree), *tree.below)
        return wire.Mount(wire.MOUNT_LAYERED, one.target, os.fsencode("\n".join(paths)))
    if one.kind in (wire.MOUNT_READ, wire.MOUNT_FIXED):
        within = [t for t in by_target.values() if t.source and source.startswith(f"{t.source}/")]
        if within:
            near = max(within, key=lambda t: len(t.source))
            return one._replace(
                source=os.fsencode(near.below[0] + source.removeprefix(near.source))
            )
    return one


def own_layer(layers: str, tree: Tree) -> str:
    return f"{layers}/{tree.role}-{tree.number}"
