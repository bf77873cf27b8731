"""All branches of an installation: makes, lists and discards them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from holdfast.core.branch.keeping import Conflict
from holdfast.core.branch.preflight import Promise
from holdfast.core.checkpoint.preflight import Preflight
from holdfast.core.session import connections
from holdfast.core.session.connections import Connection
from holdfast.core.session.lifecycle import STANDING
from holdfast.host.branches import apply as applying
from holdfast.host.branches import fork as forking
from holdfast.host.branches import keep as keeping
from holdfast.host.branches import parts, seen
from holdfast.host.branches.difference import Difference, difference
from holdfast.host.branches.fork import Engine, Made
from holdfast.host.branches.store import Branch, Fork, Forks
from holdfast.host.checkpoints import look, restore
from holdfast.host.checkpoints.dumping import plan_of
from holdfast.host.connections import held
from holdfast.host.lifecycle.names import check_new
from holdfast.host.processes import proc_scan
from holdfast.host.processes.halt import execution
from holdfast.host.runtime.progress import Progress
from holdfast.host.runtime.tasks import Tasks, to_the_end, wait_out
from holdfast.model.errors import Impossible, Refused
from holdfast.model.probe import probe
from holdfast.wire.spawning import NET_HOST, Mount

if TYPE_CHECKING:
    from holdfast.host.checkpoints.dumping import Tell
    from holdfast.host.session.session import Session


T = TypeVar("T")
Allowed = Callable[[], None]


class KeepWish(NamedTuple):
    """The operator's decisions. `check`: only say what would be done."""

    take: tuple[str, ...] = ()
    leave: tuple[str, ...] = ()
    check: bool = False


class Outcome(NamedTuple):
    """`done`: the files are written, beside those of `conflicts` that changed meanwhile.

    `resumed`: the steps of an interrupted keep were completed.
    """

    done: bool
    steps: int
    conflicts: list[Conflict]
    left: list[str]
    resumed: bool = False


class Branches:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.forks = Forks(engine.home.state)
        self._promises = dict[str, Promise]()  # to forks under way, by session
        self._names = set[str]()  # of branches that are being made
        self._keeping = set[str]()  # forks
        forking.sweep(engine.home, self.forks, engine.descriptions)
        self._notes = Tasks("a note of a branch's connection")

    async def examine(self, session: Session, count: int) -> Preflight:
        promised = self._promises.values()
        return (await forking.examine_fork(self._engine, session, count, promised))[0]

    async def fork(self, session: Session, count: int, name: str, by: str, tell: Tell) -> Made:
        taken = {*self._engine.session_names().values(), *self._names}
        wanted = forking.branch_names(count, name, session.name, taken)
        for one in wanted:
            check_new(one, (*self._engine.session_names(), *self._engine.ended))
        if clash := next((one for one in wanted if one in taken), ""):
            raise Refused(f"a session named {clash} runs already", "choose another --name")
        if any(one.parent == session.id and one.id in self._keeping for one in self.forks.all()):
            raise Refused(f"a keep writes to the files of {session.name}", "wait until it is over")
        self._names |= {*wanted}
        try:
            return await forking.fork(
                self._engine, self.forks, session, wanted, by, tell, self._promises
            )
        finally:
            self._names -= {*wanted}

    def of_branch(self, session: str, name: str) -> Fork:
        return self.forks.found(session, name)

    def mounts(self, session: str, planned: tuple[Mount, ...]) -> tuple[Mount, ...]:
        """The file tree of a branch that begins anew: its own layers, and the shared snapshot."""
        fork = self.forks.of_branch(session)
        if fork is None:
            raise Impossible("the files of this branch are gone", "fork the parent again")
        layers = str(self.forks.layers(fork.id, session))
        return parts.mounts(planned, fork.trees, layers, {})

    def all(self) -> Iterable[Fork]:
        return self.forks.all()

    # ------------------------------------------------------------ files

    async def difference(
        self, fork: Fork, session: str, path: str, every: bool, texts: bool
    ) -> Difference:
        layers = str(self.forks.layers(fork.id, session))
        return await asyncio.to_thread(difference, fork, layers, path, every, texts)

    async def present(self, session: Session) -> tuple[dict[str, str], list[int]]:
        """The processes by their numbers inside, and the ports that they listen on."""

        def found() -> tuple[dict[str, str], list[int]]:
            root = session.record.root_pid
            processes = look.processes(session.keeper_pid, root)
            return parts.names(processes), parts.ports(parts.held(root, processes))

        return await session.looked(found)

    async def keep(
        self, fork: Fork, session: str, wish: KeepWish, allowed: Allowed, tell: Progress
    ) -> Outcome:
        """Commit a branch's files. Its processes stand still while the files are read.

        The caller can cancel it while `tell.stops`. `allowed` raises if the caller may not commit
        any more.
        """
        if fork.id in self._keeping:
            raise Refused("another keep of this fork is under way", "wait until that is over")
        with self._engine.incarnations.checkpoints.using(fork.parent, fork.parent_name):
            pass  # refused while the parent is being saved or forked
        self._keeping.add(fork.id)
        try:
            work = self._keep_now(fork, session, wish, allowed, tell)
            return await to_the_end(work, lambda: tell.stops)
        finally:
            self._keeping.discard(fork.id)

    async def _keep_now(
        self, fork: Fork, session: str, wish: KeepWish, allowed: Allowed, tell: Progress
    ) -> Outcome:
        begun = await asyncio.to_thread(applying.pending, self.forks, fork)
        if begun and begun != session:
            other = fork.branch(begun).name
            raise Refused(
                f"the keep of {other} was interrupted",
                f"`holdfast keep {other}` completes it; `holdfast discard {other}` gives it up",
            )
        if begun and not wish.check:
            allowed()
            tell.goes_on("staged")
            done = await self._apply(fork, tell)
            return Outcome(True, done.steps, done.left, [], True)
        layers = str(self.forks.layers(fork.id, session))
        try:
            async with self._alone(fork.branch(session)), self._standing_still(fork, session):
                deciding = asyncio.to_thread(keeping.decide, fork, layers, wish.take, wish.leave)
                made = await wait_out(deciding)
                if made.conflicts or wish.check:
                    return Outcome(False, made.steps, made.conflicts, made.left)
                probe("host.keep.reads")
                staging = asyncio.to_thread(keeping.stage, self.forks, fork, session, made)
                await wait_out(staging)
            allowed()
        except BaseException:
            if not begun:
                await asyncio.to_thread(applying.give_up, self.forks, fork)
            raise
        tell.goes_on("staged")
        done = await self._apply(fork, tell)
        return Outcome(True, done.steps, done.left, made.left)

    async def _apply(self, fork: Fork, tell: Tell) -> applying.Applied:
        loop = asyncio.get_running_loop()

        def told(done: int) -> None:
            loop.call_soon_threadsafe(tell, "written", done)

        return await asyncio.to_thread(applying.apply, self.forks, fork, told)

    @contextlib.asynccontextmanager
    async def _standing_still(self, fork: Fork, session: str) -> AsyncIterator[None]:
        living = self._engine.sessions.get(session)
        if living is None or living.state in STANDING:
            yield
            if living is not None and living.state not in STANDING and not living.ended.done():
                raise Refused(f"{living.name} was resumed meanwhile", "try again")
            return
        halter, mark = self._engine.halter, self.forks.reading(fork.id, session)
        try:  # a thread that still halts, when this is given up, would undo the resume
            await wait_out(asyncio.to_thread(mark.touch))
            await wait_out(halter.halt(execution(living)))
            yield
        finally:
            # No operator has stopped it meanwhile.
            if living.state not in STANDING and not living.ended.done():
                await halter.resume(execution(living))
                if living.state in STANDING:
                    await halter.halt(execution(living))
            await asyncio.to_thread(mark.unlink, missing_ok=True)

    async def stands(self, session: Session, was: str) -> bool:
        """Whether a session that the last host left frozen stays so: an operator halted it.

        A host may have died while a keep read the files. `was`: the state of the session then.
        """
        fork = self.forks.of_branch(session.id)
        mark = self.forks.reading(fork.id, session.id) if fork is not None else None
        if mark is None or not mark.exists() or was in STANDING:
            return True
        await self._engine.halter.resume(execution(session))
        mark.unlink(missing_ok=True)
        return False

    # ------------------------------------------------------------ the end of a branch

    async def connections(self, session: Session) -> tuple[dict[str, Any], ...]:
        """Rows of the connections that leave the branch now."""
        plan = plan_of(session)
        inside = plan.containment if plan is not None else None
        own_network = inside is not None and inside.net != NET_HOST

        def found() -> tuple[dict[str, Any], ...]:
            pids = [one.pid for one in proc_scan.of_session(session.keeper_pid)]
            cause_of, root = session.commands.lineage.of, session.record.root_pid
            return connections.rows(held.of_session(root, pids, own_network, cause_of, session.ref))

        return await session.looked(found)

    def connected(self, session: Session, found: Connection) -> None:
        """The host saw a connection to the outside: it may be closed when the branch goes."""
        if (fork := self.forks.of_branch(session.id)) is not None:
            path = self.forks.seen(fork.id, session.id)
            self._notes.spawn(asyncio.to_thread(seen.note, path, found))

    async def earlier(self, session: str, still: tuple[dict[str, Any], ...]) -> seen.Earlier:
        """Connections that the branch had, without those that are still open."""
        if (fork := self.forks.of_branch(session)) is None:
            return seen.Earlier((), 0)
        return await asyncio.to_thread(seen.earlier, self.forks.seen(fork.id, session), still)

    async def discard(
        self, session: str, name: str, by: str, observe: Callable[[], Awaitable[T]]
    ) -> T:
        """End a branch and remove its files; return the result of `observe`, which comes before.

        The branch stands still meanwhile and is killed then, so that nothing more leaves it.
        """
        engine, fork = self._engine, self.of_branch(session, name)
        if fork.id in self._keeping:
            raise Refused("a keep of this fork is under way", "wait until that is over")
        async with self._alone(fork.branch(session)):
            async with self._standing_still(fork, session):
                found = await observe()
                living = engine.sessions.get(session)
                if living is not None:
                    await self._kill(living, by)
            await engine.incarnations.buried_by_now(session)
            await engine.incarnations.drop(session)
            if await asyncio.to_thread(applying.pending, self.forks, fork) == session:
                await asyncio.to_thread(applying.abandon, self.forks, fork)
            await asyncio.to_thread(self.forks.discard, fork, session)
            return found

    @contextlib.asynccontextmanager
    async def _alone(self, branch: Branch) -> AsyncIterator[None]:
        """No save, fork or restore of the branch begins meanwhile."""
        with self._engine.incarnations.checkpoints.using(branch.id, branch.name):
            yield

    async def _kill(self, living: Session, by: str) -> None:
        halter = self._engine.halter
        living.event("session.end_asked", operator=by)
        living.end_of.asked_for(by)
        await halter.end(execution(living))
        await asyncio.wait({living.ended}, timeout=restore.PATIENCE_S)
        if not living.ended.done():
            await living.end(by, lambda: halter.end(execution(living)))
