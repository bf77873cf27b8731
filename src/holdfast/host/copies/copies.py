"""Copies on other machines: the schedule, the takeover, and the end of a session that went away.

A session has one home. Another machine takes it over by a move, in which this machine has let go
first, or because an operator there states that this machine is lost. In the second case this
machine ends its incarnation as soon as it hears of it: it asks the machines that have copies
(asking.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from holdfast.core.checkpoint import copies
from holdfast.core.checkpoint.copies import SHARED, Copy
from holdfast.host.checkpoints.incarnations import Restored
from holdfast.host.copies import arrive, trees, trusted
from holdfast.host.copies.arrive import COPIED, MOVED
from holdfast.host.copies.asking import ASK_S, Asking
from holdfast.host.copies.moving import WITHDRAW_S, Moving
from holdfast.host.copies.outgoing import Outgoing
from holdfast.host.copies.received import Received
from holdfast.host.copies.sending import MOVE, Sending
from holdfast.host.leases.fences import Waiting, silent
from holdfast.host.processes.halt import execution
from holdfast.host.runtime.progress import Progress
from holdfast.host.runtime.tasks import to_the_end, wait_out
from holdfast.host.storage import store
from holdfast.host.storage.store import SessionRow
from holdfast.model import signing
from holdfast.model.errors import HoldfastError, NotFound, Refused, Saved, Unavailable

if TYPE_CHECKING:
    from holdfast.home.keys import Identity
    from holdfast.home.machines import Machine
    from holdfast.host.copies.engine import Engine
    from holdfast.host.session.session import Session

Json = dict[str, Any]
OFFERED_S: Final = 7 * 86400.0  # after this time an incomplete copy is forgotten
TOLD_S: Final = 2.0  # between two messages to a client that waits for a restore or a move


class Present(NamedTuple):
    """How an ended session is shown."""

    state: str
    reason: str


class Copies:
    def __init__(self, engine: Engine, identity: Identity, quota: int) -> None:
        self._engine = engine
        self.received = Received(engine.home.state, quota)
        self.sending = Sending(engine, engine.incarnations.checkpoints, identity)
        self._taking: dict[str, asyncio.Lock] = {}
        checkpoints, own = engine.incarnations.checkpoints, identity.public
        checkpoints.trusted = lambda maker: maker == own or maker in self._makers
        self._makers = set[bytes]()
        self.moving = Moving(engine, self.sending, self)
        self.asking = Asking(engine, self.sending, self)
        self.outgoing = Outgoing(engine, self.sending, self.ask)

    def trust_makers(self) -> None:
        """In a thread, before a session is adopted or restored: whose checkpoints count here.

        A session that was taken over has no copies any more, but a checkpoint of their sender.
        """
        headers = self._engine.incarnations.checkpoints.headers
        for session in self.received.sessions():
            self._makers.update(signing.read(one.sender) for one in self.received.of(session))
            if self.received.taken(session) is not None:
                self._makers.update(bytes.fromhex(one.maker) for one in headers(session))

    def begin(self) -> None:
        """After the sessions are known: list the copies, and go on with schedules and questions."""
        for session in self.received.sessions():
            known = self.received.of(session)
            if known and session not in self._engine.ended and not self._runs(session):
                self.list_copy(known[-1])
        self.outgoing.begin()
        for session, checkpoint, sender in self.received.expired(time.time() - OFFERED_S):
            why = f"it was offered {OFFERED_S / 86400:g} days ago, and never arrived completely"
            facts = {"machine": sender, "checkpoint": checkpoint, "reason": why}
            self._engine.events.note(session, "session.copy_failed", facts)
        for session in self.moving.unfinished():
            self._engine.tasks.spawn(self.moving.settle(session))
        self._engine.tasks.spawn(self.asking.watch())

    def _runs(self, session: str) -> bool:
        return session in self._engine.sessions or session in self._engine.unreachable

    # ------------------------------------------------------------ received here

    def list_copy(self, copy: Copy, taken: bool = False) -> None:
        """List a session of another machine as one that can be restored here."""
        found = self._engine.ended.get(copy.session)
        if self._runs(copy.session) or (found is not None and found.state not in (COPIED, MOVED)):
            return
        note = self.sending.noted(copy.session, MOVE) or {}
        if note.get("epoch") and note.get("key") != copy.sender and not taken:
            return  # the session went to another machine; clients find it there
        sender = self.received.sender(copy.session, copy.checkpoint)
        self._engine.ended[copy.session] = row = arrive.row_of(copy, sender)
        self._engine.store.post(store.save(row))

    def copy_of(self, row: SessionRow, word: str = "") -> Copy:
        """A received copy of that session: the newest, or by the beginning of its id."""
        found = [one for one in self.received.of(row.id) if one.checkpoint.startswith(word)]
        if not found:
            raise NotFound(f"{row.name} has no copy {word[:40]} here")
        return found[-1]

    async def give_back(self, session: str, sender: str) -> Json | None:
        """Forget the copies that a machine brought, unless the session was taken over; then say so.

        A machine that brought none changes nothing: the session cannot have been taken from it.
        """
        async with self._taking.setdefault(session, asyncio.Lock()):
            in_thread, row = self._engine.halter.in_thread, self._engine.ended.get(session)
            taken = await in_thread(self.received.taken_of, session, sender)
            if taken is not None and (self._runs(session) or row is None or row.state != COPIED):
                return taken
            if not await in_thread(self.received.withdrawn, session, sender):
                return None
            if self._runs(session):
                raise Refused("a session with that id runs here", "nothing was changed")
            try:
                await self._engine.leases.let_go(session)
            except Unavailable:
                if taken is not None:
                    raise
            await in_thread(self.received.drop, session)
            if taken is not None:
                await in_thread(self.received.untake, session, sender)
            if row is not None and row.state == COPIED:
                self._unlist(row)
            return None

    def _unlist(self, row: SessionRow) -> None:
        """List a session without copies as before the copies: as moved, or not at all."""
        note = self.sending.noted(row.id, MOVE) or {}
        if note.get("epoch"):
            row.state, row.reason = MOVED, _elsewhere(note["machine"], note["epoch"])
            self._engine.store.post(store.save(row))
        else:
            self._engine.ended.pop(row.id)
            self._engine.store.post(store.forget(row.id))

    def present(self, row: SessionRow) -> Present:
        """The state of an ended session, and the reason, also while it is restored or moved."""
        coming = self._engine.incarnations.coming.get(row.id)
        if coming is not None:
            what = f"from {coming.checkpoint}" if coming.checkpoint else "without its memory"
            return Present("restoring", f"{coming.operator} restores it {what}")
        if (to := self.moving.target(row.id)) is not None:
            return Present(row.state, f"it is being moved to {to.machine}")
        return Present(row.state, row.reason)

    async def settled(self, row: SessionRow, tell: Callable[[Json], None]) -> None:
        """Wait until no restore and no move of an ended session is under way."""
        while (over := self._over(row.id)) is not None:
            coming, to = self._engine.incarnations.coming.get(row.id), self.moving.target(row.id)
            away = {"machine": to.machine} if coming is None and to is not None else {}
            tell({"name": row.name, **away})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TOLD_S):
                    await over.wait()

    def _over(self, session: str) -> asyncio.Event | None:
        coming, to = self._engine.incarnations.coming.get(session), self.moving.target(session)
        return coming.over if coming is not None else to.over if to is not None else None

    def refuse(self, word: str) -> None:
        """Refuse a caller that needs a running session, with what brings it back."""
        self.refuse_elsewhere(word)
        for row in self._engine.ended.values():
            if word not in (row.id, row.name) or row.id in self._engine.incarnations.coming:
                continue
            if (went := self.elsewhere(row)) is not None and went["epoch"] is None:
                raise Saved(
                    f"session {row.name} is being moved to {went['machine']}",
                    f"wait until {went['machine']} has it, or gives it back",
                )
        self._engine.incarnations.refuse_if_saved(word)

    def refuse_elsewhere(self, word: str) -> None:
        """Refuse a caller that needs a session of another machine."""
        for row in self._engine.ended.values():
            if word in (row.id, row.name) and row.state in (MOVED, COPIED):
                where, went = row.reason.partition(": ")[2] or row.reason, self.elsewhere(row)
                machine = went["machine"] if went else "MACHINE"
                raise NotFound(
                    f"session {row.name} is not here: {where}",
                    f"name it as {machine}/{row.name}; `holdfast machines` lists the machines that "
                    "you can reach",
                    what="session",
                    word=word,
                    known_as=[row.id, row.name],
                    **({"elsewhere": went} if went else {}),
                )

    def elsewhere(self, row: SessionRow) -> Json | None:
        """The machine that has the session of this row, or takes it over: `epoch` is null then."""
        if row.id in self._engine.incarnations.coming:
            return None
        note, away = self.sending.noted(row.id, MOVE), row.state in (MOVED, COPIED)
        if note is not None and not note.get("epoch"):  # else it is to come back here
            away = away or bool(note.get("offered")) or self.moving.target(row.id) is not None
        if note is not None and away:
            return {"machine": note["machine"], "key": note["key"], "epoch": note.get("epoch")}
        if row.state == COPIED and (found := self.received.of(row.id)):
            newest = found[-1]
            return {"machine": newest.sender_name, "key": newest.sender, "epoch": newest.epoch}
        return None

    def is_copy(self, session: str) -> bool:
        """Whether the session is another machine's, and this machine has copies of it."""
        row = self._engine.ended.get(session)
        return row is not None and row.state == COPIED

    async def refuse_gone(
        self, session: str, lost: bool = False, tell: Progress | None = None
    ) -> None:
        """Refuse to bring a session back that goes on at another machine."""
        tell = tell or Progress()
        self.moving.refuse_under_way(session, session)
        note = self.sending.noted(session, MOVE)
        if note is not None and not note.get("epoch"):
            if lost or not note.get("offered"):
                self.sending.note(session, MOVE, None)
                if lost:
                    return
            else:
                tell.until(f"asks {note['machine']}", 0, time.time() + WITHDRAW_S)
                if not await self.moving.settled(session, note):
                    raise Refused(
                        f"{note['machine']} may have taken the session over, and does not answer",
                        f"try again, or state that {note['machine']} is gone: --lost",
                    )
        if asked := self.asking.machines(session):
            tell.until(f"asks {', '.join(asked)}", 0, time.time() + ASK_S)
        if await self.ask(session):
            found = self.sending.noted(session, MOVE) or {}
            raise Refused(
                f"the session goes on at {found.get('machine')} as incarnation "
                f"{found.get('epoch')}",
                "`holdfast attach SESSION` goes there; `holdfast forget SESSION` removes what is "
                "left of it here",
            )

    async def may_wake(self, session: str) -> None:
        """Refuse to wake an evicted session that was taken over while this host was away."""
        if session not in self.asking.heard:
            await self.refuse_gone(session)

    def received_copies(self, session: str) -> list[Copy]:
        """The copies that other machines have brought; of one session, or all."""
        chosen = [session] if session else self.received.sessions()
        return [copy for one in chosen for copy in self.received.of(one)]

    def refuse_second(self, session: str, epoch: float = math.inf) -> None:
        """Refuse to receive a session that runs here, or whose last incarnation ended here.

        A session that went to another machine comes back with that incarnation or a later one.
        """
        if self._runs(session):
            # The sender asks then whether the session was taken over (_not_sent).
            why = "a session with that id runs here"
            raise Refused(why, "it cannot be kept as a copy", taken=True)
        row = self._engine.ended.get(session)
        if row is not None and row.state not in (COPIED, MOVED):
            raise Refused(
                "a session with that id is on the disk of this machine",
                "`holdfast forget` there removes it",
            )
        went = int((self.sending.noted(session, MOVE) or {}).get("epoch") or 0)
        if epoch < went:
            raise Refused(
                f"the session went on as incarnation {went}",
                "the incarnation there has to end",
                taken=went,
            )

    async def take_over(
        self,
        copy: Copy,
        operator: str,
        lost: bool,
        stated: bool = False,
        waiting: Waiting = silent,
        begins: Callable[[], None] = lambda: None,
    ) -> Restored:
        """Begin the next incarnation of another machine's session here.

        `lost`: that machine has not let go. `stated`: an operator says that the machine is gone.
        `begins`: called when the caller cannot cancel it any more.
        """
        async with self._taking.setdefault(copy.session, asyncio.Lock()):
            engine, session = self._engine, copy.session
            in_thread = engine.halter.in_thread
            if self._runs(session):
                raise Refused(f"session {copy.name} is running here", "nothing was changed")
            self._makers.add(signing.read(copy.sender))
            if not (sender := self.received.sender(session, copy.checkpoint)):
                raise NotFound("the copy was withdrawn")
            self.list_copy(copy, taken=True)
            listed = engine.ended.get(session) or arrive.row_of(copy, sender)
            went = self.sending.noted(session, MOVE)
            changed = await in_thread(self._changed, copy)
            taken = await in_thread(self.received.taken_of, session, sender)
            epoch = taken["epoch"] if taken else copies.next_epoch(copy.epoch, lost)
            try:
                work = self._begin(copy, epoch, sender, operator, lost, stated, waiting, begins)
                with engine.incarnations.restoring(listed, copy.checkpoint, operator):
                    made = await to_the_end(work, lambda: True)
            except BaseException:
                if went is not None and not self._runs(session):
                    self.sending.note(session, MOVE, went)
                raise
            files = self._arrived(made.session, changed)
            facts = _facts(copy, made.session.record.epoch, lost)
            made.session.event("session.taken_over", **facts, files=[*files])
            await to_the_end(in_thread(self.received.drop, session), lambda: False)
            return made._replace(files=files)

    def _arrived(self, session: Session, changed: Mapping[str, int | None]) -> tuple[Json, ...]:
        """Where the shared places of the session are now, as the contract's ArrivedFiles."""
        found = arrive.places(self._engine.home, session.id, session.label)
        return tuple({"path": p, "place": own, "changed": changed.get(p)} for p, own in found)

    def _changed(self, copy: Copy) -> dict[str, int | None]:
        """How far the original places here differ from what the session took along."""
        state, tops = self._engine.home.state, [r.target for r in copy.roots if r.role == SHARED]
        return {top: trees.changed(state, copy.session, top) for top in tops}

    async def _begin(
        self,
        copy: Copy,
        epoch: int,
        sender: str,
        operator: str,
        lost: bool,
        stated: bool,
        waiting: Waiting,
        begins: Callable[[], None],
    ) -> Restored:
        engine, session, in_thread = self._engine, copy.session, self._engine.halter.in_thread
        await self._clear(session)
        manifest = await arrive.lay_out(
            engine, engine.incarnations.checkpoints, self.received, copy
        )
        await engine.journal.once.arrive(session, manifest.once)
        row = arrive.row_of(copy, operator)
        row.epoch, row.name = epoch - 1, self._free(copy.name)
        if not lost:
            row.output_end = manifest.head
        try:
            # Take the epoch first: `taken.json` must never name an epoch that the store did not
            # give us.
            await engine.leases.take_over(row, stated, waiting)
            self.sending.note(session, MOVE, None)  # it comes back to this machine
            claim = self.received.take, session, row.epoch + 1, time.time(), sender
            try:
                await wait_out(in_thread(*claim))
                return await engine.incarnations.restore(
                    row,
                    manifest,
                    operator,
                    take=_taken,
                    how="move",
                    begins=begins,
                    taken_over=self._record(copy, row.epoch + 1, lost, manifest.label),
                )
            except BaseException:
                if not self._runs(session):
                    await in_thread(self.received.untake, session, sender)
                raise
        except BaseException:
            await engine.leases.give_up(session)  # ends the renewals, also without the store
            with contextlib.suppress(HoldfastError):
                await engine.leases.let_go(session)
            raise

    async def _clear(self, session: str) -> None:
        """Remove what an earlier life of the session left here: the copy replaces all of it."""
        in_thread = self._engine.halter.in_thread
        await in_thread(self._engine.incarnations.checkpoints.remove, session)
        await in_thread(self.sending.forget, session)

    def _free(self, name: str) -> str:
        taken = {one.name for one in self._engine.sessions.values()}
        return next(n for n in (name, *(f"{name}-{i}" for i in range(2, 2000))) if n not in taken)

    def _record(self, copy: Copy, epoch: int, lost: bool, label: Json) -> Json:
        """Facts with which the record of a session begins here; its times are whole numbers."""
        facts = _facts(copy, epoch, lost)
        at_ms = int(facts.pop("at") * 1000)
        found = arrive.places(self._engine.home, copy.session, label)
        files = [{"path": path, "place": own} for path, own in found]
        return {**facts, "at_ms": at_ms, "files": files}

    async def finish(self, session: Session, facts: Json) -> None:
        """Do what the last host left to do of a takeover. `facts`: of `_record`."""
        told = {name: value for name, value in facts.items() if name != "at_ms"}
        session.event("session.taken_over", **told, at=facts["at_ms"] / 1000)
        await self._engine.halter.in_thread(self.received.drop, session.id)

    # ------------------------------------------------------------ sent from here

    def trusted(self, word: str) -> Machine:
        return trusted.find(self._engine.home, word)

    # ------------------------------------------------------------ gone elsewhere

    async def ask(self, session: str) -> bool:
        """Whether the session went to another machine; ends what is left of it here if so."""
        return session in await self.asking.about([session])

    async def gone(self, session_id: str, name: str, key: str, epoch: int) -> None:
        """The session goes on at another machine: end its incarnation here, whatever it does."""
        engine, session = self._engine, self._engine.sessions.get(session_id)
        reason = _elsewhere(name, epoch, "moved" if session is None else "fenced")
        facts = {"machine": name, "key": key, "epoch": epoch, "reason": reason}
        self.sending.note(session_id, MOVE, {"machine": name, "key": key, "epoch": epoch})
        if session is not None:
            session.event("session.moved", **facts)
            session.end_of.gone = reason
            await engine.halter.end(execution(session))
            await asyncio.shield(session.ended)
        else:
            engine.events.note(session_id, "session.moved", facts)
        row = engine.ended.get(session_id)
        if row is not None:
            row.state, row.reason = MOVED, reason
            row.ended = row.ended or time.time()
            engine.store.post(store.save(row))
        self.outgoing.end_schedule(session_id)
        await engine.halter.in_thread(self.received.drop, session_id)

    async def still_here(self, record: SessionRow) -> bool:
        """Asked before a lost session is started anew: whether it is still this machine's."""
        if not self.sending.away(record.id):
            return True
        if not await self.ask(record.id):
            return True
        found = self.sending.noted(record.id, MOVE) or {}
        machine, record.ended = found.get("machine", "another machine"), time.time()
        if found.get("epoch"):
            record.state, record.reason = MOVED, _elsewhere(machine, found["epoch"])
        else:  # the next answer decides
            record.state, record.reason = "ended", f"lost: its move to {machine} is not over"
        self._engine.ended[record.id] = record
        self._engine.store.post(store.save(record))
        return False

    async def forget(self, session: str) -> None:
        """Remove copies that were received, and the notes about copies that were sent.

        The files of a session that was taken over stay: no other place has them.
        """
        in_thread = self._engine.halter.in_thread
        await in_thread(self.received.drop, session)
        await in_thread(self.sending.forget, session)


def _facts(copy: Copy, epoch: int, lost: bool) -> Json:
    number, head = copy.record
    return {
        "from": copy.sender_name,
        "machine": copy.sender,
        "at": copy.at,
        "epoch": epoch,
        "was": copy.epoch,
        "act": number,
        "head": head,
        "lost": lost,
    }


def _elsewhere(machine: str, epoch: object, how: str = "moved") -> str:
    return f"{how}: it goes on at {machine} as incarnation {epoch}"


async def _taken(row: SessionRow) -> None:
    """The epoch was taken before."""
