"""The execs of one session: read from the kernel, judged, held while somebody is asked, answered, told. The rules are in host/execgate.py; the numbers in brackets are theirs."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import select
import shlex
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from holdfast.core import execution, originators, record
from holdfast.core.conditions import Request
from holdfast.core.execution import Program
from holdfast.core.lineage import Cause
from holdfast.core.originators import Shaped
from holdfast.core.policy import Decision, Verdict, explain
from holdfast.core.rate import Bucket, take
from holdfast.core.record import Draft
from holdfast.host import lookup, notified
from holdfast.host.compared import Expected
from holdfast.host.connection import GAVE_UP
from holdfast.host.lookup import Script
from holdfast.host.notified import Notified
from holdfast.host.selector import add_hot, remove_hot
from holdfast.host.session import Session
from holdfast.host.threads import Stuck
from holdfast.model.errors import GateRefused, HoldfastError
from holdfast.model.probe import probe
from holdfast.wire import notification as wire

if TYPE_CHECKING:
    from holdfast.host.execgate import ExecGate

PER_TURN: Final = 16  # read before the loop goes on with other things [1]
JUDGING_MAX: Final = 64  # of one session, in threads [1]
HELD_MAX: Final = 64  # of one session, that wait for an answer [2]
STILL_S: Final = 1.0  # between looks whether who is held still waits [4]
TOLD: Final = (16, 1)  # refusals told one by one, in so many seconds; of more, how many
PROGRAM_CHARS: Final = 200
WORDS_SHOWN: Final = 1000
REFUSED: Final = -errno.EACCES


def typed_by(cause: Cause) -> tuple[Shaped, ...]:
    """Who else had a hand in the line that caused it."""
    return tuple(Shaped("line", "", name, cause.act) for name in cause.others)


@dataclass(slots=True)
class _Look:
    """What was found behind a path."""

    absent: int = 0  # nothing: the error
    script: Script | None = None


class Gated:
    def __init__(self, host: ExecGate, session: Session, listener: int) -> None:
        self.host, self.session, self.listener = host, session, listener
        self.held: dict[int, tuple[Notified, asyncio.Task[None]]] = {}
        self._judging = 0
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)
        self._loop = session.loop
        self._reading = False
        self._buckets: dict[str, Bucket] = {}
        self._untold: Counter[str] = Counter()
        self._telling = False
        self._looking: asyncio.TimerHandle | None = None
        self._slow = host.held_up.slow(session)
        self._read_on()

    def close(self) -> None:
        if self.listener >= 0:
            self._pause()
            if self._looking is not None:
                self._looking.cancel()
            os.close(self.listener)
            self.listener = -1

    def _read_on(self) -> None:
        if not self._reading and self.listener >= 0:
            self._reading = True
            add_hot(self._loop, self.listener, self._readable)

    def _pause(self) -> None:
        if self._reading:
            self._reading = False
            remove_hot(self._loop, self.listener)

    # ------------------------------------------------------------ reading

    def _readable(self) -> None:
        held_up = self.host.held_up
        held_up.reading = self.session
        held_up.turn += 1
        if _guarded:
            signal.setitimer(signal.ITIMER_REAL, wire.GUARD_S, wire.GUARD_S)
        try:
            for _ in range(PER_TURN):
                if self._judging >= JUDGING_MAX:
                    return self._pause()
                ready = self._poll.poll(0)
                if not ready:
                    return None
                if not ready[0][1] & select.POLLIN:
                    return self.close()  # the last of its processes is gone
                data = bytearray(wire.NOTIFICATION.size)
                try:
                    fcntl.ioctl(self.listener, wire.RECV, data)
                except OSError as e:
                    if e.errno not in (errno.ENOENT, errno.EINTR):
                        return self.close()
                    continue  # it died meanwhile, or somebody else was quicker
                self._came(notified.parse(data))
        finally:
            held_up.reading = None
            if _guarded:
                signal.setitimer(signal.ITIMER_REAL, 0)
        return None

    def _came(self, one: Notified) -> None:
        probe("host.exec.read")
        host, session = self.host, self.session
        try:
            program = Program("?", (), notified.LATER)
            if not self._slow:
                with notified.Reading(one, soon=True) as reading:
                    if error := lookup.absent_now(one.thread, reading.way):
                        return self._absent(one, error)
                    program = reading.program(soon=True)
            host.kin.catch_up()
            pid, cause = one.thread, session.commands.lineage.of(one.thread)
            if cause.act is None and (found := notified.process_of(one.thread)) is not None:
                pid, cause = found[0], host.kin.cause(session, *found)
            actor = host.actor(session, cause)
            index = host.gate.index
            looks = index is None or index.looks(
                actor, host.kinds(session, actor.operator) | ({"line"} if cause.others else set())
            )
            expected = Expected(session, pid, program, actor, cause, looks)
            known = program.path.startswith(execution.SYSTEM) and lookup.plain(
                one.thread, program.path, program.way
            )
            if (
                index is not None
                and not looks
                and not program.unread
                and known
                and index.silent(actor, program.path, program.argv)
            ):
                return self._allow(one, expected)
            request = host.request(session, actor, cause, program, notified.cwd_of(one.thread))
            passed = session.commands.approved(cause.act)
            decision = (
                host.gate.quick_exec(request, passed)
                if not looks
                and program.unread is not notified.LATER
                and request.contained
                and known
                else None
            )
            if (
                decision is not None and decision.verdict is not Verdict.ASK
            ):  # what is asked about is looked at as closely as can be
                return self._decided(one, expected, request, decision)
        except Exception as e:
            self._loop.call_exception_handler(
                {"message": f"the exec gate of {session.id}", "exception": e}
            )
            self._send(one, REFUSED)
            return None
        self._judging += 1
        session.spawn(self._judge(one, expected, request, passed))
        return None

    async def _judge(
        self, one: Notified, expected: Expected, request: Request, passed: frozenset[str]
    ) -> None:
        look = _Look()

        def prepare() -> Request | Decision:
            """In a thread of the gate's: reading may have to wait for a file system, too."""
            nonlocal expected, request
            if expected.program.unread is notified.LATER:
                expected = expected._replace(program=notified.read(one))
                request = self.host.request(
                    self.session, expected.actor, expected.cause, expected.program, request.cwd
                )
            return self._looked_at(one, expected, request, look)

        try:
            judged, decision = await self.host.gate.judge_exec(
                prepare, passed, request.actor.operator, self.session.id
            )
            if look.absent:
                return self._absent(one, look.absent)
            self._decided(one, expected._replace(script=look.script), judged or request, decision)
        except BaseException:
            self._send(one, REFUSED)
            raise
        finally:
            self._judging -= 1
            self._read_on()

    def _looked_at(
        self, one: Notified, expected: Expected, request: Request, look: _Look
    ) -> Request | Decision:
        """In a thread, each time: what was found a moment ago may be a link to something else by now. What is not there needs no judgement."""
        path, way = expected.program.path, expected.program.way
        file = lookup.resolved(one.thread, path, way)
        if isinstance(file, int):
            look.absent = file
            return Decision(Verdict.REFUSE, "", "there is no such file")
        look.script = lookup.script(one.thread, way)
        if self._waits(one) and self._silent(expected, file, look.script):
            return Decision(Verdict.ALLOW, "", execution.ALLOWED)
        return _behind(request, path, file, look.script)

    def _silent(self, expected: Expected, file: str, script: Script | None) -> bool:
        """No rule speaks of it, by either name. If that could not be compared afterwards it is judged all the same."""
        program, index = expected.program, self.host.gate.index
        return (
            self.host.kin.told
            and index is not None
            and not expected.looks
            and not program.unread
            and all(
                index.silent(expected.actor, each, program.argv) for each in (program.path, file)
            )
            and (script is None or index.silent_on_script(expected.actor, *script))
        )

    # ------------------------------------------------------------ answering

    def _decided(
        self, one: Notified, expected: Expected, request: Request, decision: Decision
    ) -> None:
        if decision.verdict is Verdict.ALLOW:
            self._allow(one, expected)
        elif decision.verdict is Verdict.ASK and len(self.held) < HELD_MAX:
            self.host.gate.decisions[execution.ACT, "ask"] += 1
            self.held[one.id] = (
                one,
                self.session.spawn(self._hold(one, expected, request, decision)),
            )
            self._look_again()
        else:
            self._refuse(
                one,
                expected,
                decision,
                "" if decision.verdict is Verdict.REFUSE else "too many execs wait for approval",
            )

    async def _hold(
        self, one: Notified, expected: Expected, request: Request, decision: Decision
    ) -> None:
        async def observe() -> Request:
            if not self._waits(one):
                raise GateRefused("it does not wait any more", how="gone")
            nonlocal expected
            program = await self.session.in_thread(notified.read, one)
            again = self.host.request(
                self.session, expected.actor, expected.cause, program, notified.cwd_of(one.thread)
            )
            again, script = await self.session.in_thread(_resolved, one, again, program)
            expected = expected._replace(program=program, script=script)
            return again

        async def judge(again: Request) -> Decision:
            passed = self.session.commands.approved(expected.cause.act)
            return (
                await self.host.gate.judge_exec(
                    lambda: again, passed, again.actor.operator, self.session.id
                )
            )[1]

        try:
            await self.host.kin.saved(
                self.session
            )  # after a death of this host it is still the same who asks
            while True:
                try:
                    await self.host.desk.hold(request, decision, observe, judge)
                    return self._allow(one, expected)
                except GateRefused as e:
                    if e.facts.get("how") not in ("used", "void") or not self._waits(one):
                        return self._refuse(one, expected, decision, e.message)
                    if (
                        e.facts["how"] == "void"
                    ):  # another policy, or it is another program by now: it is judged as if it came just now
                        request = await observe()
                        decision = await judge(request)
                        if decision.verdict is Verdict.ALLOW:
                            return self._allow(one, expected)
                        if decision.verdict is Verdict.REFUSE:
                            return self._refuse(one, expected, decision)
                    # else another exec of the same had it: this is a question of its own
        except HoldfastError as e:
            self._refuse(one, expected, decision, e.message)
        except Stuck:
            self._refuse(one, expected, decision, "what it is cannot be read")
        except BaseException:
            self._send(one, REFUSED)
            raise
        finally:
            self.held.pop(one.id, None)

    def _allow(self, one: Notified, expected: Expected) -> None:
        self.host.gate.decisions[execution.ACT, "allow"] += 1
        self.host.compared.expect(expected)
        self._send(one, 0, wire.CONTINUE)

    def _absent(self, one: Notified, error: int) -> None:
        """Answered as the kernel would: it could be there when the kernel looks, and nobody would have judged it."""
        self._send(one, -error)

    def _refuse(self, one: Notified, expected: Expected, decision: Decision, why: str = "") -> None:
        if self._send(one, REFUSED):
            self.host.gate.decisions[execution.ACT, "refuse"] += 1
            self.tell("exec.refused", expected, decision, why)

    def _send(self, one: Notified, error: int, flags: int = 0) -> bool:
        """Whether it still waited for it."""
        probe("host.exec.answer")
        if self.listener < 0:
            return False
        try:
            fcntl.ioctl(self.listener, wire.SEND, wire.ANSWER.pack(one.id, 0, error, flags))
            return True
        except OSError:
            return False

    # ------------------------------------------------------------ who is held

    def _waits(self, one: Notified) -> bool:
        if self.listener < 0:  # all its processes are gone
            return False
        try:
            fcntl.ioctl(self.listener, wire.ID_VALID, wire.ID.pack(one.id))
            return True
        except OSError:
            return False

    def look(self) -> None:
        for one, task in tuple(self.held.values()):
            if not self._waits(one):
                task.cancel(GAVE_UP)

    def _look_again(self) -> None:
        """Now and then, while somebody is held."""
        if self._looking is None:
            self._looking = self._loop.call_later(STILL_S, self._looked)

    def _looked(self) -> None:
        self._looking = None
        if self.held and self.listener >= 0:
            _ = self.host.gate.version  # who changes the policy is not to have to do anything else
            self.look()
            self._look_again()

    # ------------------------------------------------------------ telling

    def tell(
        self, event: str, expected: Expected, decision: Decision, why: str = "", **more: Any
    ) -> None:
        """An event and an entry of the record; of very many, how many."""
        now = time.monotonic()
        if take([self._buckets.setdefault(event, Bucket(*TOLD, now))], now) > 0:
            self._untold[event] += 1
            if not self._telling:
                self._telling = True
                self._loop.call_later(TOLD[1], self._tell_rest)
            return
        session, cause, program = self.session, expected.cause, expected.program
        facts = {
            "program": program.path[:PROGRAM_CHARS],
            "pid": expected.pid,
            "rule": decision.rule,
            "caused_by": cause.ref(session.ref),
            **more,
        }
        shapers = originators.names((*(decision.shaped or ()), *typed_by(cause)), cause.actor)
        session.event(
            event,
            operator=cause.actor,
            originators=list(shapers),
            because=why or decision.because,
            **facts,
        )
        session.tell_viewers(
            "not_started" if event == "exec.refused" else "not_as_shown",
            operator=cause.actor,
            program=execution.legible(facts["program"]),
            because=why or decision.because,
        )
        self._post(
            cause.actor,
            shapers,
            why or explain(decision),
            {
                "event": event,
                **facts,
                "words": execution.show(program.content, program.details)[:WORDS_SHOWN],
            },
        )

    def _tell_rest(self) -> None:
        self._telling, untold, self._untold = False, self._untold, Counter()
        for event, count in untold.items():
            self.session.event(event, count=count, because="and so many more, in a short time")
            self._post(
                "unknown",
                ("unknown",),
                f"{count} more execs in a short time",
                {"event": event, "count": count},
            )

    def _post(
        self, actor: str, originators: tuple[str, ...], reason: str, facts: dict[str, Any]
    ) -> None:
        if not self.host.journal.failing:
            clean = {
                key: value.encode("utf-8", "backslashreplace").decode()
                if isinstance(value, str)
                else value
                for key, value in facts.items()
                if value is not None
            }
            self.host.journal.post(
                Draft(
                    self.session.id,
                    self.session.record.epoch,
                    "fact",
                    execution.ACT,
                    actor,
                    "exec",
                    record.HOST,
                    originators=originators,
                    verdict="refuse",
                    reason=reason.encode("utf-8", "backslashreplace").decode(),
                    facts=clean,
                )
            )


def _resolved(one: Notified, request: Request, program: Program) -> tuple[Request, Script | None]:
    script = lookup.script(one.thread, program.way)
    return _behind(
        request, program.path, lookup.resolved(one.thread, program.path, program.way), script
    ), script


def _behind(request: Request, path: str, file: str | int, script: Script | None) -> Request:
    more = {execution.FILE: file} if isinstance(file, str) and file not in (path, "?") else {}
    more |= (
        {execution.SCRIPT: shlex.join(script.by), execution.SCRIPT_FILE: script.file}
        if script is not None
        else {}
    )
    return (
        replace(
            request,
            details={
                **request.details,
                **{name: execution.legible(value) for name, value in more.items()},
            },
        )
        if more
        else request
    )


_guarded = False


def guard() -> None:
    """RECV is interrupted by a signal if it waits after all. Only the first thread can see to that."""
    global _guarded
    if not _guarded and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGALRM, _interrupted)
        _guarded = True


def _interrupted(number: int, frame: object) -> None:
    """That the call returns is all that is wanted."""
