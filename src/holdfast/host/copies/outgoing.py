"""Copies that leave this machine: on request, in a period, and again after a failure.

A copy that could not be sent, and a schedule, are notes on the disk (sending.py). The next host
goes on with them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from holdfast.core.checkpoint import copies
from holdfast.core.checkpoint.manifest import Manifest
from holdfast.host.checkpoints.save import save
from holdfast.host.copies import errands, trusted
from holdfast.host.copies.sending import AGAIN, EVERY, Known, Sending, Sent
from holdfast.host.runtime.notify import log_error
from holdfast.host.runtime.progress import Progress, given_up
from holdfast.model import signing
from holdfast.model.errors import HoldfastError, Refused, TimedOut, Unavailable

if TYPE_CHECKING:
    from holdfast.home.machines import Machine
    from holdfast.host.copies.engine import Engine
    from holdfast.host.session.session import Session

Json = dict[str, Any]
LOOK_S: Final = 1.0  # between two looks at a session that cannot be saved now
GIVEN_UP: Final = "the caller gave the sending up"
ENDED_LOOK_S: Final = 10.0  # between two looks at a session that may be restored


class Outgoing:
    def __init__(
        self, engine: Engine, sending: Sending, ask: Callable[[str], Awaitable[bool]]
    ) -> None:
        """`ask`: asks the other machines whether they have taken a session over."""
        self._engine, self._sending, self._ask = engine, sending, ask
        self._schedules: dict[str, asyncio.Task[None]] = {}
        self._again: dict[str, asyncio.Task[None]] = {}

    def begin(self) -> None:
        """Go on where the last host was."""
        for session in self._sending.sessions():
            if self._sending.noted(session, EVERY) is not None:
                self._schedule(session)
            if self._sending.noted(session, AGAIN) is not None:
                self._again[session] = self._engine.tasks.spawn(self._try_again(session))

    async def save_and_send(
        self,
        session: Session,
        machine: Machine,
        operator: str,
        stop: bool = False,
        tell: Progress | None = None,
    ) -> tuple[Manifest, Sent | HoldfastError]:
        """A checkpoint that also goes to another machine. A failure to send keeps it here.

        So does a caller that gives up while it is sent, if it has given `tell`.
        """
        known: Known | HoldfastError
        asked, tell = tell is not None, tell or Progress()
        tell.until(f"asks {machine.name}", 0, time.time() + errands.ASK_S)
        try:
            known = await self._sending.ask_whether(session, machine)
        except (Unavailable, TimedOut) as e:
            known = e
        engine = self._engine
        checkpoints, halter = engine.incarnations.checkpoints, engine.halter
        made = await save(checkpoints, session, operator, stop, tell, halter, engine.journal)

        def told(done: int, of: int, until: float) -> None:
            tell.until(f"{machine.name} does not answer" if until else "sent", done, until)

        try:
            if isinstance(known, HoldfastError):
                raise known
            if given_up():
                raise asyncio.CancelledError
            tell("sent", 0)
            sent = await self._sending.send(session.id, session.label, made, machine, known, told)
        except (HoldfastError, asyncio.CancelledError) as e:
            if isinstance(e, asyncio.CancelledError) and not asked:
                raise  # a schedule ends
            failed = e if isinstance(e, HoldfastError) else Refused(GIVEN_UP)
            self._not_sent(session.id, machine.name, made.id, failed)
            return made, failed
        self._sent(session, machine, sent)
        return made, sent

    # ------------------------------------------------------------ again

    def try_again(self, session: Session, machine: Machine, made: Manifest) -> None:
        """Send that checkpoint later, until it arrives or a newer one has."""
        if (task := self._again.pop(session.id, None)) is not None:
            task.cancel()
        note = {
            "to": signing.show(machine.key),
            "machine": machine.name,
            "checkpoint": made.id,
            "at": made.at,
        }
        self._sending.note(session.id, AGAIN, note)
        self._again[session.id] = self._engine.tasks.spawn(self._try_again(session.id))

    async def _try_again(self, session_id: str) -> None:
        failures = 0
        while (note := self._sending.noted(session_id, AGAIN)) is not None:
            await asyncio.sleep(copies.retry_s(failures))
            session = self._engine.sessions.get(session_id)
            away = self._sending.away(session_id).get(note["to"], {})
            if away.get("at", 0) >= note["at"]:
                break
            try:
                if session is not None and not session.ending:
                    await self._once_more(session, note)
                    break
                if session_id in self._engine.ended:
                    raise Unavailable("the session has ended; its checkpoint stays here")
            except (Unavailable, TimedOut) as e:
                if session_id in self._engine.ended:
                    self._not_sent(session_id, note["machine"], note["checkpoint"], e)
                    break
                failures += 1
            except HoldfastError as e:
                self._not_sent(session_id, note["machine"], note["checkpoint"], e)
                break
        self._sending.note(session_id, AGAIN, None)

    async def _once_more(self, session: Session, note: Json) -> None:
        checkpoints = self._engine.incarnations.checkpoints
        machine = trusted.find(self._engine.home, note["to"])
        known = await self._sending.ask_whether(session, machine)
        find = checkpoints.chosen
        made = await self._engine.halter.in_thread(find, session.id, note["checkpoint"])
        sent = await self._sending.send(session.id, session.label, made, machine, known)
        self._sent(session, machine, sent)

    # ------------------------------------------------------------ the schedule

    def set_schedule(self, session: str, every_s: float, machine: Machine, operator: str) -> None:
        """Send a copy in that period."""
        self.end_schedule(session)
        kept = {
            "every_s": every_s,
            "to": signing.show(machine.key),
            "machine": machine.name,
            "by": operator,
        }
        self._sending.note(session, EVERY, kept)
        self._schedule(session)

    def send_as_scheduled(self, session: Session, made: Manifest) -> None:
        """Send a checkpoint to the machine of the session's schedule, if it has one."""
        if (kept := self._sending.noted(session.id, EVERY)) is None:
            return
        try:
            self.try_again(session, trusted.find(self._engine.home, kept["to"]), made)
        except HoldfastError as e:  # the machine is not trusted any more
            self._not_sent(session.id, kept["machine"], made.id, e)

    def end_schedule(self, session: str) -> None:
        if (task := self._schedules.pop(session, None)) is not None:
            task.cancel()
        self._sending.note(session, EVERY, None)

    def schedule_of(self, session: str) -> Json | None:
        return self._sending.noted(session, EVERY)

    def _schedule(self, session: str) -> None:
        self._schedules[session] = self._engine.tasks.spawn(self._run_schedule(session))

    async def _run_schedule(self, session: str) -> None:
        """One copy after another. A session that has ended may be restored: the schedule waits."""
        failures, wait_s = 0, 0.0
        if (kept := self._sending.noted(session, EVERY)) is not None:
            last = self._sending.away(session).get(kept["to"], {}).get("at", 0.0)
            wait_s = copies.due_s(last, float(kept["every_s"]), time.time())
        while True:
            await asyncio.sleep(wait_s)
            if (kept := self._sending.noted(session, EVERY)) is None:
                return
            running, every_s = self._engine.sessions.get(session), float(kept["every_s"])
            if running is None or running.ending or not running.answers:
                wait_s = ENDED_LOOK_S if session in self._engine.ended else LOOK_S
                continue
            try:
                machine = trusted.find(self._engine.home, kept["to"])
                made, sent = await self.save_and_send(running, machine, kept["by"])
                if isinstance(sent, HoldfastError):
                    raise sent
                failures, wait_s = 0, copies.due_s(made.at, every_s, time.time())
            except Exception as e:
                if not isinstance(e, HoldfastError):
                    log_error("a schedule of copies", e)
                if failures == 0:
                    self._not_sent(session, kept["machine"], "", e)
                wait_s = min(copies.retry_s(failures), every_s)
                failures += 1

    # ------------------------------------------------------------ events

    def _sent(self, session: Session, machine: Machine, sent: Sent) -> None:
        session.event(
            "session.copied",
            machine=machine.name,
            checkpoint=sent.checkpoint,
            bytes=sent.bytes,
            sent=sent.sent,
            took_ms=sent.took_ms,
        )

    def _not_sent(self, session: str, machine: str, checkpoint: str, error: Exception) -> None:
        why = error.message if isinstance(error, HoldfastError) else f"{error}"
        facts = {"machine": machine, "checkpoint": checkpoint, "reason": why}
        self._engine.events.note(session, "session.copy_failed", facts)
        if isinstance(error, HoldfastError) and "taken" in error.facts:
            self._engine.tasks.spawn(self._asked(session))

    async def _asked(self, session: str) -> None:
        await self._ask(session)
