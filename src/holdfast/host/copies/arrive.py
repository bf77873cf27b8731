"""Lays out a received copy, so that it can be restored here like a checkpoint of this machine.

The file tree of the session is decided by this machine: only the places that travel with the
session come from the copy, and their files lie below <state>/arrived. So no path of the sender
leads to a file of this machine.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from holdfast.core.checkpoint import copies
from holdfast.core.checkpoint import manifest as forms
from holdfast.core.checkpoint.copies import KEY, SHARED, Copy, Need, within
from holdfast.core.checkpoint.manifest import Manifest, Unreadable
from holdfast.host.checkpoints.copies import Copies as CheckpointCopies
from holdfast.host.checkpoints.objects import write_whole
from holdfast.host.checkpoints.store import PLAN, Checkpoints, read_plan
from holdfast.host.copies import facts, trees
from holdfast.host.copies.received import SPARE_BYTES, Received
from holdfast.host.lifecycle import prepare
from holdfast.host.lifecycle.contained import own_directories, plan, removal
from holdfast.host.storage.store import SessionRow
from holdfast.model import signing
from holdfast.model.contained import HOST
from holdfast.model.errors import Impossible, Refused
from holdfast.wire import keeper as wire
from holdfast.wire.spawning import GATE_NONE, MOUNT_FIXED, MOUNT_READ, MOUNT_WRITE, Mount

if TYPE_CHECKING:
    from holdfast.home import Home

ARRIVED: Final = "arrived"
COPIED, MOVED = "copied", "moved"  # states of rows: a copy of a session, a moved session


class Maker(prepare.Maker, Protocol):
    """The parts of a host that lay out a copy."""

    @property
    def home(self) -> Home: ...


def row_of(copy: Copy, received_from: str) -> SessionRow:
    """How a copy is listed: an ended session that can be restored."""
    return SessionRow(
        copy.session,
        copy.name,
        COPIED,
        copy.epoch,
        copy.at,
        [],
        "",
        "",
        ended=copy.at,
        reason=f"a copy of {copy.sender_name}, brought by {received_from}",
    )


async def check(maker: Maker, criu: str, machine: copies.Machine, needed: tuple[Need, ...]) -> None:
    """Impossible, with all reasons, if processes of that machine cannot go on here."""
    here = await maker.threads.of("copies", facts.machine, maker.environment, criu)
    found = copies.differences(machine, here)
    found += await maker.threads.of("copies", facts.changed, needed)
    if found:
        more = f", and {len(found) - 5} more" if len(found) > 5 else ""
        raise Impossible(
            f"it cannot go on at this machine: {'; '.join(found[:5])}{more}",
            "install the same versions here, or use another machine",
            reasons=list(found[:50]),
        )


async def lay_out(
    maker: Maker, checkpoints: Checkpoints, received: Received, copy: Copy
) -> Manifest:
    """Make a checkpoint, and the session's directories, from a copy. Repeatable."""
    await check(maker, checkpoints.criu, copy.machine, copy.needs)
    await maker.threads.of(copy.session, received.verify, copy)
    shared = await maker.threads.of(copy.session, _files, maker.home, received, copy)
    decision = await prepare.decide(
        maker,
        plan.Wanted(
            "/tmp",
            {"PATH": maker.environment.get("PATH", "")},
            True,
            (),
            (),
            copy.net or HOST,
            chosen=False,
        ),
    )
    directories = prepare.session_directories(maker.home, copy.session, prepare.MOUNTED)
    machine = plan.Machine(maker.home, maker.environment)
    built = await maker.threads.of(
        copy.session, plan.build, machine, decision, copy.session, "", directories
    )
    manifest = await maker.threads.of(copy.session, _accept, checkpoints, received, copy)
    saved = await maker.threads.of(copy.session, checkpoints.content, manifest, forms.PLAN)
    made = read_plan(saved)
    if maker.settings.gate == "exec" and made.gate == GATE_NONE:
        raise Impossible(
            "it was made without the exec gate, which this machine's configuration demands",
            "set session.gate here to auto, or make the session with --gate exec there",
        )
    spawn = _spawn(made, copy, built, shared)
    await maker.threads.of(copy.session, _keep_plan, maker.home, checkpoints, spawn)
    return manifest


def _files(home: Home, received: Received, copy: Copy) -> dict[str, str]:
    """Lay out the trees; return where each shared place is now."""

    def content(sha: str) -> Path:
        return received.content(copy.session, sha)

    disk, wanted = os.statvfs(home.state), copies.laid_out_bytes(copy)
    if wanted > disk.f_bavail * disk.f_frsize - SPARE_BYTES:
        raise Refused(f"the session needs {wanted / 1e6:.1f} MB of this machine's disk")
    arrived = f"{home.state}/{ARRIVED}/{copy.session}"
    removal.remove(arrived)
    places = {
        copies.PRIVATE: own_directories.own(home, copy.session).base,
        copies.READABLE: f"{home.run}/{prepare.SESSION_READABLE}/{copy.session}",
        copies.WRITABLE: f"{home.run}/{prepare.SESSION_WRITABLE}/{copy.session}",
        copies.NOTES: f"{home.run}/{prepare.HOST_ONLY}/{copy.session}",
    }
    for place in places.values():
        removal.remove(place)
        os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
    os.makedirs(arrived, mode=0o700)
    os.chmod(os.path.dirname(arrived), 0o700)
    shared = dict[str, str]()
    for number, root in enumerate(copy.roots):
        if root.role == SHARED:
            places[SHARED] = shared[root.target] = f"{arrived}/{number}"
        trees.lay_out(root.entries, places[root.role], content)
    return shared


def _spawn(
    saved: wire.Spawn, copy: Copy, built: plan.Built, shared: Mapping[str, str]
) -> wire.Spawn:
    """The request to the nursery, with the file tree that this machine decided."""
    if saved.session != copy.session:
        raise Impossible("the copy is of another session")
    mounts = list[Mount]()
    for kind, target, source in copy.mounts:
        top = max((top for top in shared if within(source, top)), key=len)
        here = shared[top] + source[len(top) :]
        if kind in (MOUNT_READ, MOUNT_WRITE, MOUNT_FIXED) and os.path.lexists(here):
            mounts.append(Mount(kind, os.fsencode(target), os.fsencode(here)))
    own = [m for m in built.containment.mounts if m.target.startswith(b"/.holdfast/")]
    system = [m for m in built.containment.mounts if m not in own]
    _check_visible(copy, system)
    return saved._replace(
        containment=built.containment._replace(mounts=(*system, *mounts, *own)),
        connect=built.connect,
        socket=copy.session + prepare.KEEPER_SUFFIX,
        adopt_pid=0,
        cgroup=b"",
        limits=(),
    )


def _check_visible(copy: Copy, system: list[Mount]) -> None:
    """Refuse a session with programs at places that sessions of this machine do not see."""
    seen = [os.fsdecode(m.target) for m in system if m.target == m.source]
    for one in copy.needs:
        if not any(within(one.path, top) for top in seen):
            raise Impossible(
                f"{one.path} is not visible to contained sessions of this machine",
                "put its directory on the PATH of this host, or into contain.share",
            )


def _accept(checkpoints: Checkpoints, received: Received, copy: Copy) -> Manifest:
    """Make the stored files a checkpoint of this machine. Its key is sealed to this machine."""
    stored = CheckpointCopies(checkpoints, copy.session)

    def content(name: str) -> bytes:
        return received.content(copy.session, copy.parts[name][1]).read_bytes()

    try:
        expected = stored.expect(content(forms.NAME))
        if expected.maker != signing.read(copy.sender).hex() or expected.id != copy.checkpoint:
            raise Impossible("the checkpoint in the copy is another one")
        checkpoints.keys(copy.session).add(expected.key, checkpoints.public, content(KEY))
        for path in stored.missing(expected):
            stored.write(expected, {path: content(path)})
        stored.commit(expected)
        return checkpoints.read(copy.session, copy.checkpoint)
    except (Unreadable, KeyError, OSError, ValueError) as e:
        raise Impossible(f"the checkpoint in the copy cannot be used: {e}") from e


def _keep_plan(home: Home, checkpoints: Checkpoints, spawn: wire.Spawn) -> None:
    """For this restore and for later checkpoints here."""
    session = os.fsdecode(spawn.session)
    packed = wire.spawn(spawn)
    write_whole(checkpoints.files, str(checkpoints.top / session), PLAN, packed)
    Path(prepare.host_only_directory(home, session), PLAN).write_bytes(packed)


def files(home: Home, session: str) -> str:
    """The directory with the files that came with a session; empty if none came."""
    place = f"{home.state}/{ARRIVED}/{session}"
    with contextlib.suppress(OSError):
        os.rmdir(place)  # a session without a workspace
    return place if os.path.isdir(place) else ""


def travelling(home: Home, session: str, label: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The trees that travel with a session: role, target and directory.

    The label of a session that arrived is that of another machine, whose paths mean nothing here.
    """
    bounds = label.get("bounds") or {}
    places = [str(bounds.get("workspace") or ""), *map(str, bounds.get("shares") or ())]
    arrived = f"{home.state}/{ARRIVED}/{session}"
    came = os.path.isdir(arrived)
    kept = "" if came else str(label.get("kept") or "")
    roots = [
        (copies.PRIVATE, "", kept or own_directories.own(home, session).base),
        (copies.READABLE, "", f"{home.run}/{prepare.SESSION_READABLE}/{session}"),
        (copies.WRITABLE, "", f"{home.run}/{prepare.SESSION_WRITABLE}/{session}"),
        (copies.NOTES, "", f"{home.run}/{prepare.HOST_ONLY}/{session}"),
    ]
    tops = [p for p in dict.fromkeys(places) if p and not _inside_another(p, places)]
    shared = [(copies.SHARED, top, _source(home, session, top, arrived)) for top in tops]
    return [*roots, *(one for one in shared if not came or one[2] != one[1])]


def came(home: Home, session: str) -> bool:
    return os.path.isdir(f"{home.state}/{ARRIVED}/{session}")


def places(home: Home, session: str, label: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Of a session that arrived: its shared places, and where their files are on this machine."""
    if not came(home, session):
        return []
    return [(top, own) for role, top, own in travelling(home, session, label) if role == SHARED]


def _inside_another(path: str, places: list[str]) -> bool:
    return any(path != top and within(path, top) for top in places if top)


def _source(home: Home, session: str, target: str, arrived: str) -> str:
    """Where a shared place is on this machine: a session that arrived has it in its own place."""
    with contextlib.suppress(OSError, Impossible):
        data = Path(prepare.host_only_directory(home, session), PLAN).read_bytes()
        containment = read_plan(data).containment
        for mount in containment.mounts if containment is not None else ():
            source = os.fsdecode(mount.source)
            if os.fsdecode(mount.target) == target and source.startswith(f"{arrived}/"):
                return source
    return target


def mounts(home: Home, session: str, roots: list[tuple[str, str, str]]) -> tuple[Any, ...]:
    """The mounts within shared places, by the paths inside the session."""
    data = Path(prepare.host_only_directory(home, session), PLAN).read_bytes()
    containment = read_plan(data).containment
    if containment is None:
        raise Impossible("a plain session cannot travel")
    tops = [(target, place) for role, target, place in roots if role == SHARED]
    found = []
    for mount in containment.mounts:
        target, source = os.fsdecode(mount.target), os.fsdecode(mount.source)
        for top, place in tops:
            if within(target, top) and within(source, place):
                found.append((mount.kind, target, top + source[len(place) :]))
                break
    return tuple(found)
