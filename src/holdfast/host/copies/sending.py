"""Sends copies of this machine's sessions to the machines that an operator trusts.

What is known about a session's copies is in <state>/outbox/SESSION:

    away.json       by the key of a machine: its name, and the newest copy that it has
    every.json      the schedule: the period, the machine, the operator
    again.json      a checkpoint that could not be sent, and the machine
    move.json       a move to that machine has begun; `offered`: the machine may have taken over
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from holdfast.core.checkpoint import copies
from holdfast.core.checkpoint import manifest as forms
from holdfast.core.checkpoint.copies import KEY, Copy, Need
from holdfast.core.checkpoint.manifest import Manifest
from holdfast.host.checkpoints.copies import Copies as CheckpointCopies
from holdfast.host.checkpoints.dumping import plan_of
from holdfast.host.checkpoints.objects import write_whole
from holdfast.host.checkpoints.store import Checkpoints
from holdfast.host.copies import arrive, errands, facts, trees
from holdfast.host.copies.errands import Told, untold
from holdfast.host.copies.trees import OUTBOX, Outbox
from holdfast.host.lifecycle import prepare
from holdfast.host.runtime.tasks import wait_out
from holdfast.model import signing
from holdfast.model.errors import HoldfastError, Impossible, PeerFault
from holdfast.model.ids import is_session_id
from holdfast.wire.spawning import MOUNT_LAYERED, Spawn

if TYPE_CHECKING:
    from holdfast.home import Home
    from holdfast.home.keys import Identity
    from holdfast.home.machines import Machine
    from holdfast.host.session.session import Session
    from holdfast.host.storage.journal import Journal

Json = dict[str, Any]
AWAY, EVERY, AGAIN, MOVE = "away.json", "every.json", "again.json", "move.json"
NODE: Final = os.uname().nodename


class Maker(prepare.Maker, Protocol):
    """The parts of a host that send copies."""

    @property
    def journal(self) -> Journal: ...


class Known(NamedTuple):
    """The facts about this machine and session, and the key to which the other opens images."""

    machine: copies.Machine
    needs: tuple[Need, ...]
    images: bytes
    free: int  # bytes that copies may still take there


BRANCH: Final = "it is a branch, whose files are a layer above those of its parent"
PLAIN: Final = "it is a plain session, whose programs use files and process numbers of this machine"


class Sent(NamedTuple):
    """A copy that another machine has. `bytes`: all of it; `sent`: what had to travel."""

    machine: str
    checkpoint: str
    at: float
    bytes: int
    sent: int
    took_ms: float

    def shown(self) -> Json:
        return self._asdict()


class Sending:
    def __init__(self, maker: Maker, checkpoints: Checkpoints, identity: Identity) -> None:
        self._maker, self._checkpoints, self._identity = maker, checkpoints, identity
        self._locks: dict[str, asyncio.Lock] = {}

    # ------------------------------------------------------------ before anything stops

    async def _look(self, session: Session) -> tuple[copies.Machine, tuple[Need, ...]]:
        """What another machine must have for this session."""
        maker = self._maker
        own = [place for _, target, place in self._roots(session) for place in (target, place)]
        inside = (*own, "/tmp", "/var/tmp", "/run", "/.holdfast", "/dev/shm", "/memfd:")
        return await maker.threads.of(
            session.id, self._facts, session.keeper_pid, (*filter(None, inside),)
        )

    def _facts(self, keeper: int, inside: tuple[str, ...]) -> Any:
        machine = facts.machine(self._maker.environment, self._checkpoints.criu)
        return machine, facts.needs(keeper, (*inside, machine.home))

    def _roots(self, session: Session) -> list[tuple[str, str, str]]:
        return arrive.travelling(self._maker.home, session.id, session.label)

    async def ask_whether(self, session: Session, machine: Machine, size: int = 0) -> Known:
        """Ask the other machine whether the session could go on there; Impossible if not."""
        if session.layout.get("layout") != "contained":
            raise Impossible(
                f"{session.name} stays on this machine: {PLAIN}",
                "contained sessions (`new --contained`) can go to other machines",
            )
        plan = await asyncio.to_thread(plan_of, session)
        if plan is not None and _is_branch(plan):
            raise Impossible(
                f"{session.name} stays on this machine: {BRANCH}",
                f"`holdfast keep {session.name}` puts its files into the parent, which can go",
            )
        here, needs = await self._look(session)
        said = await errands.ask(
            machine,
            "copies.check",
            facts=[*here],
            needs=[[*one] for one in needs],
            bytes=size,
        )
        try:
            return Known(here, needs, bytes.fromhex(said["images"]), int(said["free"]))
        except (KeyError, ValueError, TypeError) as e:
            raise PeerFault(f"{machine.name} names no key for images") from e

    # ------------------------------------------------------------ sending

    async def send(
        self,
        session: str,
        label: Mapping[str, Any],
        manifest: Manifest,
        machine: Machine,
        known: Known,
        told: Told = untold,
    ) -> Sent:
        """Deliver a checkpoint with its files. A failure leaves what has arrived for later."""
        async with self._locks.setdefault(session, asyncio.Lock()):
            for attempt in range(2):
                packing = self._maker.threads.of(
                    session, self._pack, session, label, manifest, machine, known
                )
                packed = await wait_out(packing)
                try:
                    done = await errands.run(machine, packed.errand, told)
                    break
                except HoldfastError as e:
                    if not e.facts.get("lost") or attempt:
                        raise
                    await self._maker.threads.of(session, packed.outbox.undelivered)
            sent = Sent(
                machine.name,
                manifest.id,
                manifest.at,
                packed.bytes,
                int(done["sent"]),
                round(float(done["took_ms"]), 1),
            )
            filing = self._maker.threads.of(
                session, self._delivered, session, machine, packed, sent
            )
            await wait_out(filing)
            return sent

    def _pack(
        self,
        session: str,
        label: Mapping[str, Any],
        manifest: Manifest,
        machine: Machine,
        known: Known,
    ) -> Packed:
        home = self._maker.home
        outbox = Outbox(home.state, session)
        key = signing.show(machine.key)
        sent = outbox.sent(key)
        stored = CheckpointCopies(self._checkpoints, session)
        header = stored.header(manifest.id)
        for path, (_, sha) in header.files.items():
            if sha not in sent:
                outbox.link(self._checkpoints.top / session / path, sha)
        # The operator's trust in that machine: it may open the checkpoints of this session.
        keys = self._checkpoints.keys(session)
        wrapped = keys.wrap(header.key, known.images)
        keys.add(header.key, known.images, wrapped)
        parts = {
            **header.files,
            forms.NAME: outbox.keep(stored.manifest(manifest.id)),
            KEY: outbox.keep(wrapped),
        }
        roots = arrive.travelling(home, session, label)
        copy = Copy(
            session,
            manifest.name,
            manifest.id,
            manifest.epoch,
            manifest.at,
            time.time(),
            manifest.ended,
            signing.show(self._identity.public),
            NODE,
            known.machine,
            known.needs,
            parts,
            tuple(outbox.tree(role, target, base, sent) for role, target, base in roots),
            arrive.mounts(home, session, roots),
            str((label.get("bounds") or {}).get("net") or ""),
            (max(manifest.sequence, 0), self._maker.journal.seen(session) or ""),
        )
        data = copies.encode(copy)
        if len(data) > copies.BYTES_MAX:
            raise Impossible("the session has too many files to describe", "remove some")
        description = outbox.objects / outbox.keep(data)[1]
        outbox.looked()
        errand = {
            "session": session,
            "name": manifest.name,
            "checkpoint": manifest.id,
            "epoch": manifest.epoch,
            "description": str(description),
            "size": len(data),
            "objects": str(outbox.objects),
        }
        wanted = copies.objects(copy)
        return Packed(outbox, errand, sum(wanted.values()), tuple(wanted))

    def _delivered(self, session: str, machine: Machine, packed: Packed, sent: Sent) -> None:
        packed.outbox.delivered(signing.show(machine.key), packed.hashes)
        away = self.away(session)
        away[signing.show(machine.key)] = {
            **sent.shown(),
            "epoch": packed.errand["epoch"],
            "sent_at": time.time(),
        }
        self.note(session, AWAY, away)

    # ------------------------------------------------------------ notes

    def away(self, session: str) -> dict[str, Json]:
        """The machines that have copies of a session, by key."""
        return self.noted(session, AWAY) or {}

    def noted(self, session: str, name: str) -> Json | None:
        with contextlib.suppress(OSError, ValueError):
            found: Json = json.loads(self._note(session, name).read_text())
            return found
        return None

    def note(self, session: str, name: str, value: Json | None) -> None:
        """Write a note durably, or remove it."""
        path, files = self._note(session, name), self._checkpoints.files
        if value is None:
            path.unlink(missing_ok=True)
            with contextlib.suppress(FileNotFoundError):
                files.sync_path(str(path.parent))
        else:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(files, str(path.parent), name, json.dumps(value).encode())

    def sessions(self) -> list[str]:
        """Sessions with notes."""
        with contextlib.suppress(OSError):
            return sorted(filter(is_session_id, os.listdir(Path(self._home.state) / OUTBOX)))
        return []

    def forget(self, session: str) -> None:
        trees.remove(self._home.state, session)

    @property
    def _home(self) -> Home:
        return self._maker.home

    def _note(self, session: str, name: str) -> Path:
        return trees.place(self._home.state, session) / name


class Packed(NamedTuple):
    outbox: Outbox
    errand: Json
    bytes: int
    hashes: tuple[str, ...]


def _is_branch(plan: Spawn) -> bool:
    mounts = plan.containment.mounts if plan.containment is not None else ()
    return any(one.kind == MOUNT_LAYERED for one in mounts)
