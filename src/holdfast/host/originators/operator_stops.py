"""Stops one operator in a session: exactly the processes that its acts started (A8).

The lineage knows which processes these are. Their descendants are included, unless another operator
ordered them. The shared shell is left out, because it works for all operators. If the shell
executes a line of that operator, it gets SIGINT, as from Ctrl-C. The rest of the line is then given
up, and other operators get a prompt. A process that the shell starts later on an order of a stopped
operator is stopped as soon as the kernel reports it.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from dataclasses import dataclass
from typing import Final

from holdfast.core.originators.lineage import Member
from holdfast.core.session.halt import BEST_EFFORT, FREEZE
from holdfast.core.shellcode.interpreters import reads_orders
from holdfast.host.originators.lineage import Lineages, living
from holdfast.host.processes import process, stop_some
from holdfast.host.processes.halt import Halter, execution
from holdfast.host.processes.init_orders import send
from holdfast.host.processes.stop_some import Some, StoppedSome
from holdfast.host.session.session import Session
from holdfast.host.session.stopped import Stop
from holdfast.model.errors import Unavailable

MARKS_WAIT_S: Final = 0.5  # for the shell's marks, before the second look
LEFT_OUT_SHOWN: Final = 16


@dataclass(frozen=True, slots=True)
class OperatorStop:
    how: str
    processes: tuple[int, ...]
    missed: tuple[int, ...]
    took_ms: float
    left_out: tuple[dict[str, object], ...]  # {pid, why}


class OperatorStops:
    def __init__(self, halter: Halter, lineages: Lineages) -> None:
        self._halter, self._lineages = halter, lineages
        self._again: set[tuple[str, str]] = set()  # sessions and operators that are looked at

    # ------------------------------------------------------------ stop, resume

    async def stop(self, session: Session, operator: str, by: str) -> OperatorStop:
        """Stops the operator's processes. From now on its acts in this session are refused."""
        began = time.monotonic()
        await self._halter.quiet(session.id)
        if session.stopped.get(operator) is None:
            where = execution(session)
            group = await self._halter.in_thread(stop_some.new_group, self._halter, where)
            session.stopped.begin(operator, by, FREEZE if group else BEST_EFFORT, group)
        session.keyboard.recheck()
        discarding = session.discard_input_of(operator)
        now = session.commands.lineage.now
        if session.commands.kind is not None and now is not None and now.actor == operator:
            send(session.record.root_pid, signal.SIGINT)
        await self._look(session, operator)
        if discarding is not None:
            await discarding
        with contextlib.suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(MARKS_WAIT_S):
                await session.marks_seen()
        found = await self._look(session, operator)
        stop = session.stopped.get(operator)
        return OperatorStop(
            found.how,
            tuple(pid for pid, _ in stop.processes) if stop is not None else (),
            found.missed,
            (time.monotonic() - began) * 1000,
            self._left_out(session, operator),
        )

    async def resume(self, session: Session, operator: str | None) -> list[Stop]:
        """Lets the processes of this operator go on, or of all stopped operators."""
        await self._halter.quiet(session.id)
        resumed = [one for one in session.stopped if operator in (None, one.operator)]
        for one in resumed:
            session.stopped.remove(one.operator)
            await self._halter.in_thread(stop_some.resume, self._halter, one.group, one.signalled)
        await self._halter.keep_fenced(execution(session))
        session.keyboard.recheck()
        return resumed

    async def _look(self, session: Session, operator: str) -> StoppedSome:
        """Stops all processes of the operator that run now."""
        lineage, lineages = session.commands.lineage, self._lineages
        if lineages.told:
            lineages.catch_up()
        else:
            before = lineages.looking(session)
            lineages.seen(session, await self._halter.in_thread(living, session), before)
        mine = {
            pid: member.start
            for pid in lineage.started_by(operator)
            if (member := lineage.member(pid)) is not None
        }
        if await self._halter.in_thread(_is_shared_shell, session):
            mine.pop(lineage.root, None)
        root = process.read_stat(lineage.root)
        foreground = root.tpgid if root is not None else 0
        some = Some(mine, frozenset({*lineage.members} - {*mine}), foreground)
        stop = session.stopped.get(operator)
        group = stop.group if stop is not None else ""
        found = await self._halter.in_thread(stop_some.stop, self._halter, group, some)
        signalled = found.suspended if group else found.processes
        session.stopped.found(operator, found.processes, signalled)
        return found

    def _left_out(self, session: Session, operator: str) -> tuple[dict[str, object], ...]:
        lineage = session.commands.lineage
        found: list[dict[str, object]] = []
        stop = session.stopped.get(operator)
        stopped = {pid for pid, _ in stop.processes} if stop is not None else set()
        if lineage.root not in stopped:
            now = lineage.now
            runs = now is not None and now.actor == operator
            why = "the shared shell" + (f", which executes a line of {operator}" if runs else "")
            found.append({"pid": lineage.root, "why": why})
        for pid in [*lineage.members]:
            if lineage.parent_of(pid) in stopped and pid not in stopped:
                found.append({"pid": pid, "why": f"started by {lineage.of(pid).actor}"})
        return tuple(found[:LEFT_OUT_SHOWN])

    # ------------------------------------------------------------ what appears later

    def begin(self, session: Session) -> None:
        """A host found the session again: it may have died in the middle of a stop."""
        for one in session.stopped:
            self._look_again(session, one.operator)

    def end(self, session: Session) -> None:
        pass

    def process_changed(
        self, session: Session, what: str, pid: int, status: int | None, was: Member | None
    ) -> None:
        if what == "started" and session.stopped:
            actor = session.commands.lineage.of(pid).actor
            if session.stopped.get(actor) is not None:
                self._look_again(session, actor)

    def _look_again(self, session: Session, operator: str) -> None:
        if (session.id, operator) not in self._again:
            self._again.add((session.id, operator))
            session.spawn(self._stop_again(session, operator))

    async def _stop_again(self, session: Session, operator: str) -> None:
        self._again.discard((session.id, operator))
        if session.stopped.get(operator) is not None and not session.ended.done():
            await self._look(session, operator)


def _is_shared_shell(session: Session) -> bool:
    """Whether the session's first process takes orders of every operator that types."""
    root = session.record.root_pid
    if session.commands.kind is not None:
        return True
    found = process.read_stat(root)
    return found is not None and reads_orders(found.comm, lambda: process.read_argv(root))
