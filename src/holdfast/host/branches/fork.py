"""Forks a live session: the parent goes on, and its branches begin with its memory and files.

    1. Copy the writable directories, while the programs run.
    2. Acts wait in the lane. CRIU freezes the programs and writes the images.
    3. While they stand still: copy the files that changed since, note the screen and the keys.
    4. The parent goes on. Each branch is restored, as a session with an id of its own.
    5. Once all branches run, the fork is complete. A failure before ends the branches again.

A branch has epoch 1. Its record begins with a reference to the record of its parent. It has the
idempotency keys of the parent, so that a retry is not done again; and no grant of the parent,
because a grant names a session.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from holdfast.core.branch import preflight as rules
from holdfast.core.branch.preflight import Promise
from holdfast.core.checkpoint.preflight import NOTHING, Preflight
from holdfast.core.record.record import host_fact
from holdfast.core.session import connections
from holdfast.core.session.limits import Limits
from holdfast.home import Home
from holdfast.host.branches import parts
from holdfast.host.branches.parts import Parts
from holdfast.host.branches.snapshot import Snapshot, describe
from holdfast.host.branches.store import Branch, Fork, Forks
from holdfast.host.checkpoints import halts, look, restore
from holdfast.host.checkpoints.dumping import Moment, Tell, dump, plan_of
from holdfast.host.checkpoints.incarnations import Incarnations
from holdfast.host.checkpoints.save import examine
from holdfast.host.connections.closed import tell_closed
from holdfast.host.lifecycle import limits, names, token_file
from holdfast.host.lifecycle.adoption import keeper_pid
from holdfast.host.lifecycle.beginning import Beginning
from holdfast.host.lifecycle.contained import own_directories
from holdfast.host.lifecycle.last_seen import Description, Descriptions
from holdfast.host.lifecycle.limits import Wanted
from holdfast.host.lifecycle.nursery import TreeChanged
from holdfast.host.lifecycle.prepare import (
    KEEPER_SUFFIX,
    SESSION_READABLE,
    SESSION_WRITABLE,
)
from holdfast.host.processes import process
from holdfast.host.processes.halt import execution
from holdfast.host.runtime import criu
from holdfast.host.runtime.tasks import to_the_end, wait_out
from holdfast.host.storage.record_table import Key
from holdfast.host.storage.store import SessionRow
from holdfast.host.terminal import view
from holdfast.model import references
from holdfast.model.errors import HoldfastError, Impossible
from holdfast.model.limits import SESSIONS_MAX
from holdfast.model.probe import probe
from holdfast.wire import keeper as wire
from holdfast.wire.spawning import NET_HOST

if TYPE_CHECKING:
    from holdfast.host.lifecycle.contained.own_directories import OwnDirectories
    from holdfast.host.processes.halt import Halter
    from holdfast.host.session.session import Session
    from holdfast.host.storage.events import Events
    from holdfast.host.storage.journal import Journal
    from holdfast.host.storage.store import Store

BRANCHED: Final = "branched"  # the kind of the first entry in the record of a branch


class Engine(Protocol):
    """The parts of the engine that this room needs."""

    @property
    def home(self) -> Home: ...

    @property
    def halter(self) -> Halter: ...

    @property
    def journal(self) -> Journal: ...

    @property
    def store(self) -> Store: ...

    @property
    def descriptions(self) -> Descriptions: ...

    @property
    def events(self) -> Events: ...

    @property
    def own_directories(self) -> OwnDirectories: ...

    @property
    def incarnations(self) -> Incarnations: ...

    @property
    def sessions(self) -> Mapping[str, Session]: ...

    @property
    def ended(self) -> Mapping[str, SessionRow]: ...

    def session_names(self) -> dict[str, str]: ...

    def forget(self, record: SessionRow) -> str: ...

    async def revive(self, asked: Beginning) -> Session: ...


PLAIN: Final = (
    "it is a plain session, whose processes have numbers of the machine: no branch could have the "
    "same numbers beside it; contained sessions (`new --contained`) can be forked"
)


class Dumped(NamedTuple):
    """The moment of the fork, and the output up to then."""

    moment: Moment
    output: bytes


class Made(NamedTuple):
    fork: Fork
    sessions: tuple[Session, ...]
    losses: tuple[str, ...]
    copied_again: int  # files that were copied while the programs stood still


async def examine_fork(
    engine: Engine, session: Session, count: int, promised: Collection[Promise]
) -> tuple[Preflight, Promise]:
    """Run the preflight; nothing stops and no file is written.

    `promised`: what other forks will use. The second result: what this fork would use.
    """
    found = await examine(engine.incarnations.checkpoints, session, NOTHING)
    plan = plan_of(session)
    if plan is None or plan.containment is None:
        if found.possible:
            found = found._replace(blockers=(PLAIN,))
        return found, Promise(count, 0, 0)
    own_network = plan.containment.net != NET_HOST
    got = parts.of(engine.home, session.id, plan.containment.mounts, _private(engine, session.id))

    def facts() -> rules.Wish:
        root = session.record.root_pid
        processes = look.processes(session.keeper_pid, root)
        held = parts.held(root, processes)
        room = SESSIONS_MAX - len(engine.sessions)
        made = parts.wish(engine.home, got, count, room, held, own_network)
        return made._replace(state=session.state)

    wish = await session.looked(facts)  # what is promised from here on counts too
    uses = Promise(count, found.bytes * count, found.bytes + wish.bytes)
    return rules.judge(found, rules.beside(wish, promised)), uses


def _private(engine: Engine, session: str) -> list[str]:
    """The directories of a session that only this session uses, for its shell and the host."""
    return [f"{engine.home.run}/{one}/{session}" for one in (SESSION_READABLE, SESSION_WRITABLE)]


async def fork(
    engine: Engine,
    forks: Forks,
    session: Session,
    wanted: list[str],
    by: str,
    tell: Tell,
    promises: dict[str, Promise],
) -> Made:
    """`wanted`: the names of the branches. `promises`: of all forks under way, by session."""
    with engine.incarnations.checkpoints.using(session.id, session.name):
        try:
            found, uses = await examine_fork(engine, session, len(wanted), promises.values())
            if not found.possible:
                raise Impossible(
                    f"{session.name} cannot be forked: {'; '.join(found.blockers)}",
                    "the session goes on as it was; docs/reference/branches.md has the limits",
                )
            promises[session.id] = uses
            forking = _Forking(engine, forks, session, wanted, by, tell, found, uses.memory)
            return await forking.run()
        finally:
            promises.pop(session.id, None)


class _Forking:
    def __init__(
        self,
        engine: Engine,
        forks: Forks,
        session: Session,
        wanted: list[str],
        by: str,
        tell: Tell,
        found: Preflight,
        memory: int,
    ) -> None:
        """`memory`: of all branches together."""
        plan = plan_of(session)
        assert plan is not None and plan.containment is not None
        self.engine, self.forks, self.session, self.by = engine, forks, session, by
        self.tell, self.found, self.plan, self.containment = tell, found, plan, plan.containment
        self.memory = memory
        self.parts: Parts = parts.of(
            engine.home, session.id, self.containment.mounts, _private(engine, session.id)
        )
        fork_id = forks.begin()
        self.place = forks.place(fork_id)
        taken = {*engine.session_names().values(), *(row.name for row in engine.ended.values())}
        branches = list[Branch]()
        for name in wanted:
            branches.append(Branch(names.new_id({*taken, *(one.id for one in branches)}), name))
        self.fork = Fork(
            fork_id,
            time.time(),
            by,
            session.id,
            session.name,
            session.record.epoch,
            0,
            "",
            parts.trees(self.parts, str(self.place)),
            branches,
        )
        self.fork.servers = parts.servers(self.containment.mounts)
        self.copies = dict[int, Snapshot]()
        self.made: list[Session] = []
        self.keys: list[Key] = []
        self.images = Path()  # plain, until the branches run

    async def run(self) -> Made:
        try:
            await asyncio.to_thread(self.forks.write, self.fork)
            self.tell("examined", self.found.bytes)
            await wait_out(asyncio.to_thread(self._first_copies))
            self.tell("copied", sum(one.bytes for one in self.copies.values()))
            probe("host.fork.copied")
            dumped = await self._dumped()
            probe("host.fork.dumped")
            await wait_out(asyncio.to_thread(self._finish_copies))
            await self._describe()
            ids = [one.id for one in self.fork.branches]
            await self.engine.journal.once.inherit(self.keys, ids)
            begun = (self._begin(one, dumped) for one in self.fork.branches)
            for error in await asyncio.gather(*begun, return_exceptions=True):
                if error is not None:  # no branch is being restored any more
                    raise error
            probe("host.fork.restored")
            for session in self.made:
                closed, journal = self.fork.closed, self.engine.journal
                tell_closed(session, journal, closed, "fork", self.fork.id)
            await self.engine.journal.settled()
            await wait_out(asyncio.to_thread(self.forks.commit, self.fork))
            probe("host.fork.complete")
        except BaseException:
            await to_the_end(self._undo(), lambda: False)
            raise
        finally:
            if self.images.name:
                scratch = self.engine.incarnations.checkpoints.scratch
                await asyncio.to_thread(scratch.clear, self.images)
        unreadable = [path for one in self.copies.values() for path in one.unreadable]
        losses = [f"{path} cannot be read, so no branch has it" for path in unreadable[:5]]
        again = sum(one.copied_again for one in self.copies.values())
        losses += lacking(self.copies.values())
        return Made(self.fork, tuple(self.made), (*self.found.losses, *losses), again)

    # ------------------------------------------------------------ files

    def _first_copies(self) -> None:
        for number, one in enumerate(self.parts.sources):
            if one.inside < 0:
                target = f"{self.place}/base/{number}"
                self.copies[number] = Snapshot(one.path, target, bool(one.below))
                self.copies[number].first()

    def _copy_changed(self) -> None:
        """While the programs stand still."""
        root = self.session.record.root_pid
        processes = look.processes(self.session.keeper_pid, root)
        mapped = parts.mapped(one.pid for one in processes)
        for one in self.copies.values():
            one.again(mapped)
        for path in self.parts.private:
            for branch in self.fork.branches:
                target = f"{os.path.dirname(path)}/{branch.id}"
                copy = Snapshot(path, target)
                copy.first()
                copy.finish()
        held = parts.held(root, processes)
        self.fork.ports = parts.ports(held)
        self.fork.processes = parts.names(processes)

    def _finish_copies(self) -> None:
        for one in self.copies.values():
            one.finish()
        self.fork.attributes = not any(one.lacks for one in self.copies.values())
        for branch in self.fork.branches:
            for path, copy in self._written(branch).items():
                os.makedirs(os.path.dirname(copy), mode=0o700, exist_ok=True)
                shutil.copy2(path, copy)
            layers = self.forks.layers(self.fork.id, branch.id)
            layers.mkdir(mode=0o700)
            for tree in self.fork.trees:
                own = Path(parts.own_layer(str(layers), tree))
                own.mkdir(mode=0o700)
                (own / "upper").mkdir(mode=0o700)
                (own / "work").mkdir(mode=0o700)
                describe(tree.below[0], str(own / "upper"))

    def _written(self, branch: Branch) -> dict[str, str]:
        """Where the branch has its own copies of files that the host wrote for the parent."""
        own = own_directories.own(self.engine.home, branch.id).base
        return {path: f"{own}/{os.path.basename(path)}" for path in self.parts.written}

    # ------------------------------------------------------------ processes

    async def _describe(self) -> None:
        """Store how a branch is made anew if its memory is lost. It publishes no port then."""
        known, descriptions = (
            self.engine.descriptions.known(self.session.id),
            self.engine.descriptions,
        )
        if known is None:
            return  # an older release made the parent
        tree = known.request["tree"] and {
            **known.request["tree"],
            "keep_home": False,
            "publish": [],
        }
        request = {**known.request, "tree": tree, "branch": self._origin()}
        for one in self.fork.branches:
            fresh = Description(request, self.by, known.last, known.shortened)
            await self.engine.store.run(descriptions.job(one.id, fresh))

    def _origin(self) -> dict[str, str]:
        """Facts about a branch in its label."""
        base = self.session.label.get(token_file.BASE, self.session.id)
        return {token_file.PARENT: self.session.id, token_file.BASE: base}

    async def _dumped(self) -> Dumped:
        session = self.session
        await self.engine.journal.settled()
        tool = await asyncio.to_thread(criu.find, self.engine.incarnations.checkpoints.criu)
        scratch = self.engine.incarnations.checkpoints.scratch
        images = self.memory // len(self.fork.branches)
        size = (images + self.memory) // 2  # each branch needs memory too, not only one restore
        self.images = await asyncio.to_thread(scratch.make, self.fork.id, size)
        made = await dump(
            session, self.engine.halter, tool, self.images, self.tell, still=self._still
        )
        self.fork.frozen_ms = made.outcome.frozen_ms
        self.fork.closed = [*connections.rows(made.moment.connections)]
        ring, moment = session.ring, made.moment
        return Dumped(moment, ring.copy(ring.start, moment.head) or b"")

    async def _still(self) -> None:
        copying = asyncio.ensure_future(asyncio.to_thread(self._copy_changed))
        try:
            end, self.keys = await self.engine.journal.once.of(self.session.id)
        finally:  # no thread copies any more when the fork is undone
            await wait_out(copying)
        self.fork.seq, self.fork.hash = end

    async def _begin(self, branch: Branch, dumped: Dumped) -> None:
        """Restore a branch; once more if a file of the machine was replaced meanwhile."""
        try:
            session = await self._restored(branch, dumped)
        except TreeChanged:
            session = await self._restored(branch, dumped)
        self.made.append(session)
        await halts.again(self.engine.halter, session, dumped.moment, self.by)

    async def _restored(self, branch: Branch, dumped: Dumped) -> Session:
        label, row, request, kept = await wait_out(asyncio.to_thread(self._request, branch, dumped))
        halter, incarnations = self.engine.halter, self.engine.incarnations
        most_s = self.found.bytes * len(self.fork.branches) / restore.BYTES_PER_S
        return await self.engine.revive(
            Beginning(
                row,
                label,
                request,
                incarnations.planned(lambda asked: limits.complete(halter, asked, label, kept)),
                self.by,
                restore.PATIENCE_S + most_s,
                lambda link: self._claimed(branch, dumped, link.snapshot_fd),
            )
        )

    def _request(
        self, branch: Branch, dumped: Dumped
    ) -> tuple[dict[str, Any], SessionRow, wire.Spawn, Wanted]:
        session, moment = self.session, dumped.moment
        thaw = self.images / f".{branch.id}"
        shutil.rmtree(thaw, ignore_errors=True)
        thaw.mkdir(mode=0o700)
        for image in self.images.iterdir():
            if not image.name.startswith("."):
                os.link(image, thaw / image.name)
        halts.write(thaw, moment)
        (thaw / "output").write_bytes(dumped.output[-self.plan.ring_bytes :])
        label = {
            name: value for name, value in session.label.items() if name not in ("kept", "token")
        }
        label |= {"name": branch.name, "by": self.by, **self._origin()}
        row = SessionRow(**{**asdict(session.record), "id": branch.id, "name": branch.name})
        row.state, row.epoch, row.created, row.ended = "restoring", 1, time.time(), None
        row.boot, row.reason, row.viewers, row.ended_by = process.boot_id(), "", 0, ""
        row.screen, row.ansi, row.survivors = [], "", 0
        row.rehomable = row.halted = row.interrupted = False  # no lease, halt or end is inherited
        row.output_start = row.output_end = moment.head
        layers = str(self.forks.layers(self.fork.id, branch.id))
        moved = {path: f"{os.path.dirname(path)}/{branch.id}" for path in self.parts.private}
        moved |= self._written(branch)
        mounts = parts.mounts(self.containment.mounts, self.fork.trees, layers, moved)
        limited = limits.of_label(session.label)
        found = criu.find(self.engine.incarnations.checkpoints.criu)
        cols, rows = session.size
        request = self.plan._replace(
            session=branch.id,
            epoch=1,
            socket=branch.id + KEEPER_SUFFIX,
            argv=(),
            label=json.dumps(label).encode(),
            cols=cols,
            rows=rows,
            base=moment.head,
            accepted=max(moment.sequence, 0),
            origins=(),
            containment=self.containment._replace(mounts=mounts),
            thaw=os.fsencode(thaw),
            criu=tuple(map(os.fsencode, (found.program, found.loader, *found.libraries))),
        )
        wanted = Limits(**{name: one["limit"] for name, one in limited.items()})
        return label, row, request, Wanted(wanted, frozenset(limited))

    async def _claimed(self, branch: Branch, dumped: Dumped, snapshot_fd: int) -> None:
        """The branch is restored, and no operator can act in it yet."""
        fork = self.fork
        ref = references.entry(fork.parent, fork.epoch, fork.seq)
        facts = {"parent": ref, "hash": fork.hash, "fork": fork.id, "name": fork.parent_name}
        self.engine.journal.post(
            host_fact(branch.id, 1, BRANCHED, self.by, "host", facts={**facts})
        )
        offset, notes, blob = dumped.moment.screen
        notes = {**notes, "scanned": dumped.moment.head, "active": time.time()}
        view.store(snapshot_fd, offset, notes, blob)

    # ------------------------------------------------------------ failure

    async def _undo(self) -> None:
        """End the branches that run, and remove what was made."""
        for branch in self.fork.branches:
            session = self.engine.sessions.get(branch.id)
            with contextlib.suppress(HoldfastError):
                if session is not None:
                    session.end_of.asked_for("host")
                    await self.engine.halter.end(execution(session))
            await asyncio.to_thread(end_keeper, self.engine.home, branch.id)
            if session is not None:
                await asyncio.wait({session.ended}, timeout=restore.PATIENCE_S)
            if (row := self.engine.ended.get(branch.id)) is not None:
                self.engine.forget(row)
            self.engine.descriptions.forget(branch.id)
            await self.engine.halter.in_thread(self.engine.halter.groups.remove, branch.id)
            await self.engine.own_directories.remove(branch.id)
        ids = [one.id for one in self.fork.branches]
        with contextlib.suppress(HoldfastError):
            await self.engine.journal.once.disinherit(ids)
        await asyncio.to_thread(self.forks.abandon, self.fork.id)


def lacking(copies: Iterable[Snapshot]) -> list[str]:
    """What the branches lack of the attributes of files."""
    found = [(f"{one.source}/{path}", what) for one in copies for path, what in one.lacks.items()]
    if not found:
        return []
    path, what = found[0]
    others = f", and {len(found) - 1} more lack theirs" if found[1:] else ""
    return [f"in the branches {path} is {what}{others}: `keep` leaves the parent's as they are"]


def end_keeper(home: Home, session: str) -> None:
    """Kill the keeper of a session, and with it the session."""
    path = f"{home.run}/{session}{KEEPER_SUFFIX}"
    if pid := keeper_pid(path):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def sweep(home: Home, forks: Forks, descriptions: Descriptions) -> None:
    """End the branches of forks that the last host did not finish. Called before the adoptions."""
    for fork in forks.load():
        for branch in fork.branches:
            end_keeper(home, branch.id)
            descriptions.forget(branch.id)
        forks.abandon(fork.id)
    forks.sweep()


def branch_names(count: int, name: str, parent: str, taken: Iterable[str]) -> list[str]:
    """`name`: what the operator chose; for several branches a number is added."""
    known = {*taken}
    if name and count == 1:
        return [name]
    found = list[str]()
    number = 1
    while len(found) < count:
        one = f"{name or parent}-{number}"
        if one not in known or name:
            found.append(one)
        number += 1
    return found
