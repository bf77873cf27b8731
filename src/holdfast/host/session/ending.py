"""The end of a session: on request, when the program exits, or when the keeper dies.

A request ends all processes of the session, including daemons that left the terminal. All get HUP,
after a while TERM, after a while KILL, so that each can clean up. The shell is usually gone at
once, but the session is not over before all processes are gone: the keeper is the process that
inherits every orphan. If the keeper exited with the shell, a daemon that ignores HUP would be left
where no command finds it.

Once begun, a request is carried out even if the caller no longer waits. Processes that cannot be
ended are named: processes of a different account (after `sudo`, if the host is not root's) and
processes that the kernel does not let die. Jobs that a program gave to a service (cron, `at`,
systemd, a container engine) are not in the session and are not ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from holdfast.core.originators.lineage import UNKNOWN, Cause
from holdfast.core.session import interruption
from holdfast.host.processes import proc_scan
from holdfast.host.runtime.notify import log_errors, tell
from holdfast.host.session.keeper_link import stuck
from holdfast.model.errors import Impossible, Unavailable
from holdfast.model.limits import END_HUP_WAIT_S, END_TERM_WAIT_S, EXIT_DRAIN_S
from holdfast.model.probe import probe

if TYPE_CHECKING:
    from holdfast.host.session.session import Session

KILL_WAIT_S: Final = 30.0
SAVED_WAIT_S: Final = 5.0  # for processes that were killed after the save to be gone
LOOK_S: Final = 0.02
NAMED_MAX: Final = 8  # processes named in an error
DRAIN_MAX_S: Final = 10.0  # for background jobs that go on printing after the program's exit
UNKNOWN_STATUS: Final = 0xFF00  # the keeper cannot learn the status of a process it did not start

Kill = Callable[[], Awaitable[bool]]
"""Kills all processes of a session as well as the kernel can (a cgroup)."""


class Ending:
    """Carries a session from the program's exit, or the keeper's death, to `ended`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._task: asyncio.Task[None] | None = None
        self._eof: asyncio.Future[None] | None = None  # of the terminal; set once the program ended
        self._requests: set[asyncio.Future[None]] = set()  # to end it; being carried out
        self.cause = UNKNOWN  # of the end, once the session has ended
        self.memory_lost = False  # the keeper died: no exit code
        self._asked_by = ""  # the operator of the first request
        self.saved_as = ""  # the checkpoint with which the processes end
        self.saved_by = UNKNOWN.actor  # the operator of that checkpoint, or "host"
        self.bound_for = ""  # the machine to which it is moved with that checkpoint
        self.gone = ""  # why the session ends here: it goes on at another machine
        # The same as `saved_as`, as a host learns it that finds the session already killed.
        self.find_saved: Callable[[], str] = lambda: ""
        self._by: dict[int, str] = {}  # the operator that last sent a signal to the first program

    @property
    def begun(self) -> bool:
        return self._task is not None

    @property
    def asked(self) -> bool:
        """Whether an operator asked for the end."""
        return bool(self._asked_by)

    def asked_for(self, operator: str) -> None:
        """An operator, or the host itself, ends the session: the end is no interruption."""
        self._asked_by = self._asked_by or operator

    @property
    def perhaps(self) -> tuple[str, ...]:
        """Other operators who may have had a part in the end."""
        mine = (self.cause.actor, UNKNOWN.actor)
        return tuple(one for one in self.cause.others if one not in mine)

    @property
    def draining(self) -> bool:
        """Whether the last output is awaited: the host must hear every bell."""
        return self._eof is not None

    def output_over(self) -> None:
        """The keeper has read the terminal to its end."""
        if self._eof is not None and not self._eof.done():
            self._eof.set_result(None)

    # ------------------------------------------------------------ by itself

    def exited(self, status: int) -> None:
        if self._task is None:
            self._task = self._session.spawn(self._finish(status))

    def lost(self) -> None:
        """The keeper died: the terminal and the programs on it are gone."""
        if not self._session.ended.done() and self._task is None:
            self._task = self._session.spawn(self._close(None, "lost: its keeper died", -1))

    async def _finish(self, status: int) -> None:
        """Takes the remaining output, keeps the exit code and the last screen."""
        session = self._session
        probe("host.exit.seen")
        await session.pace.returned.wait()  # clients on their way back get the end of the output
        with log_errors(f"the last output of {session.id}"):
            self._eof = session.loop.create_future()
            session.link.unmute()
            session.look_at_ring()
            await self._drained(self._eof)
        while self._requests:  # the remaining processes need the keeper to the end
            await asyncio.wait(self._requests)
        cause = session.commands.lineage.ending()
        code: int | None = None
        reason, ended = "exited", 0
        if status != UNKNOWN_STATUS or session.link.welcome.root_pid == 0:
            code = ended = os.waitstatus_to_exitcode(status)
            if code < 0:
                cause = Cause(
                    self._by.get(-code, UNKNOWN.actor), None, (cause.actor, *cause.others)
                )
                reason, code = f"killed by {_signal_name(-code)}", 128 - code
        if self._asked_by:
            cause = Cause(self._asked_by, None)
        known = cause.actor != UNKNOWN.actor
        session.record.interrupted = interruption.perhaps(ended, session.commands.kind, known)
        await self._close(code, reason, status, cause)

    async def _drained(self, eof: asyncio.Future[None]) -> None:
        """Waits until the terminal is empty, but not for a silent process that keeps it open.

        While the ring is full of output that viewers still take, the keeper reads nothing, and a
        pause means nothing.
        """
        session = self._session
        deadline, head = session.loop.time() + DRAIN_MAX_S, -1
        while not eof.done() and session.loop.time() < deadline:
            if session.ring.head == head and not session.pace.full:
                return
            head = session.ring.head
            await asyncio.wait({eof}, timeout=EXIT_DRAIN_S)

    async def _close(
        self, code: int | None, reason: str, status: int, cause: Cause = UNKNOWN
    ) -> None:
        """Sets `ended` even if a step fails: every caller that waits for the end must learn it."""
        session, what = self._session, f"the end of {self._session.id}"
        r = session.record
        r.output_start, r.output_end = session.ring.start, session.ring.head
        if status == signal.SIGKILL:  # a wait status: killed, without a core
            self.saved_as = self.saved_as or self.find_saved()
        if self.saved_as:
            cause = Cause(self.saved_by, None)
            with log_errors(what):  # the kernel ends the others after the first program
                await self._gone(SAVED_WAIT_S, final=False)
        with log_errors(what):
            r.survivors = len(await asyncio.to_thread(proc_scan.of_session, session.keeper_pid))
        with log_errors(what), contextlib.suppress(OSError, ValueError):
            _, (r.screen, r.ansi) = await session.view.look(
                lambda s: (s.text(), s.ansi().decode("utf-8", "replace"))
            )
        tell((*(viewer.pump for viewer in session.viewers), *session.streams))
        self.cause, self.memory_lost = cause, status < 0
        r.ended, r.exit_code, r.reason, r.ended_by = time.time(), code, reason, cause.actor
        r.interrupted = r.interrupted or (self.memory_lost and not self.asked)
        if self.saved_as:
            r.reason, r.exit_code, code = f"saved as {self.saved_as}", None, None
            r.interrupted = False
        if self.gone:
            r.reason = self.gone
        with log_errors(what):
            session.change(
                "checkpointed" if self.saved_as else "exited" if status >= 0 else "lost",
                exit_code=code,
                reason=r.reason,
                survivors=r.survivors,
                ended_by=cause.actor,
                perhaps=[*self.perhaps],
                act=cause.ref(session.ref),
                asked=self.asked,
            )
        r.state = "checkpointed" if self.saved_as else "ended"
        with log_errors(what):
            session.lane.close()
        if not session.ended.done():
            session.ended.set_result(None)

    # ------------------------------------------------------------ on request

    def signalled(self, operator: str, number: int) -> None:
        """Notes a signal of an operator to the first program: the signal may end it."""
        self._by[number] = operator

    async def request(self, operator: str, kill: Kill | None) -> str:
        """Ends all processes of the session; returns the name of the last signal needed.

        Without `kill`, the last step kills each process by itself.
        """
        session = self._session
        if not session.answers:
            raise stuck(session.name, session.keeper_pid)
        session.pace.wait_no_more()
        session.event("session.end_asked", operator=operator)
        self.asked_for(operator)
        held: asyncio.Future[None] = session.loop.create_future()
        self._requests.add(held)
        return await asyncio.shield(session.spawn(self._carry_out(kill, held)))

    async def _carry_out(self, kill: Kill | None, held: asyncio.Future[None]) -> str:
        try:
            by = await self._signal_all(kill)
        finally:
            self._requests.discard(held)
            held.set_result(None)
        await asyncio.wait_for(asyncio.shield(self._session.ended), EXIT_DRAIN_S + KILL_WAIT_S)
        return by

    async def _signal_all(self, kill: Kill | None) -> str:
        session = self._session
        for number, wait in (
            (signal.SIGHUP, END_HUP_WAIT_S),
            (signal.SIGTERM, END_TERM_WAIT_S),
            (signal.SIGKILL, KILL_WAIT_S),
        ):
            if number == signal.SIGKILL and kill is not None:
                await kill()
            session.signal_all(number)
            if number == signal.SIGHUP:
                session.signal_all(signal.SIGCONT)  # a stopped process must see it
            if await self._gone(wait, final=number == signal.SIGKILL):
                return number.name
        left = await asyncio.to_thread(self._left)
        named = ", ".join(map(str, left[:NAMED_MAX])) + (" ..." if len(left) > NAMED_MAX else "")
        if left and not any(map(_may_signal, left)):
            raise Impossible(
                f"still running, because they run as somebody else: {named}",
                "end them as that account (`sudo kill PID`)",
                pids=left[:NAMED_MAX],
            )
        if not session.answers or session.lane.unanswered:
            raise stuck(session.name, session.keeper_pid)
        raise Unavailable(
            f"some processes do not die (uninterruptible?): {named}",
            "look at them with ps; the kernel holds them",
        )

    async def _gone(self, wait: float, final: bool) -> bool:
        """Whether all processes are gone within the time."""
        session = self._session
        deadline = session.loop.time() + wait
        while left := await asyncio.to_thread(self._left):
            rest = deadline - session.loop.time()
            if rest <= 0 or not session.answers or (final and not any(map(_may_signal, left))):
                return False
            await asyncio.sleep(min(LOOK_S, rest))
        return True

    def _left(self) -> list[int]:
        """The session's processes. Called in a thread: there may be very many.

        A zombie is included until its parent has collected it.
        """
        return [one.pid for one in proc_scan.of_session(self._session.keeper_pid)]


def _may_signal(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return False
    except ProcessLookupError:
        pass
    return True


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
