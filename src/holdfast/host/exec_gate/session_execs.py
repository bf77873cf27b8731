"""The execs of one session: read from the kernel, judged, held, answered and reported.

The numbers in brackets refer to the rules in host/exec_gate/gate.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import select
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from holdfast.core.originators import originators
from holdfast.core.originators.lineage import Cause
from holdfast.core.originators.originators import Shaped
from holdfast.core.people.rate import Bucket, take
from holdfast.core.policy import command_limit, execution
from holdfast.core.policy.approved_commands import Cleared
from holdfast.core.policy.conditions import Actor, Request
from holdfast.core.policy.execution import Program
from holdfast.core.policy.policy import Decision, Verdict, explain
from holdfast.core.record import record
from holdfast.core.record.record import Draft
from holdfast.host.exec_gate import (
    exec_request,
    file_view,
    path_lookup,
    program_facts,
    read_guard,
    surroundings,
)
from holdfast.host.exec_gate.denials import Denials
from holdfast.host.exec_gate.exec_request import Notification, ProgramReader
from holdfast.host.exec_gate.path_lookup import Script
from holdfast.host.exec_gate.surroundings import Baseline
from holdfast.host.exec_gate.verify_exec import AllowedExec
from holdfast.host.processes.process import cwd_of
from holdfast.host.runtime.connection import GAVE_UP
from holdfast.host.runtime.hot_loop import add_hot, remove_hot
from holdfast.host.runtime.threads import Stuck
from holdfast.host.session.session import Session
from holdfast.model.errors import GateRefused, HoldfastError
from holdfast.model.probe import probe
from holdfast.wire import notification as wire

if TYPE_CHECKING:
    from holdfast.host.exec_gate.gate import ExecGate

PER_TURN: Final = 16  # read before the loop goes on with other work [1]
JUDGING_MAX: Final = 64  # judged in threads at a time [1]
HELD_MAX: Final = 64  # waiting until their questions are answered [2]
STILL_S: Final = 1.0  # between checks that held tasks still wait [4]
# (count, seconds): so many refusals are reported singly; further refusals are only counted.
REPORTED: Final = (16, 1)
PROGRAM_CHARS: Final = 200
WORDS_SHOWN: Final = 1000
REFUSED: Final = -errno.EACCES


def typed_by(cause: Cause) -> tuple[Shaped, ...]:
    """The operators that had a part in the order that caused an exec, if it is more than one."""
    names = (cause.actor, *cause.others) if cause.others else ()
    return tuple(Shaped("line", "", name, cause.act) for name in names)


@dataclass(slots=True)
class _Found:
    """The result of a thread's lookup of the path of an exec."""

    error: int = 0  # the errno, if the file does not exist
    script: Script | None = None


class SessionExecs:
    def __init__(self, host: ExecGate, session: Session, listener: int) -> None:
        """`listener`: the descriptor through which the kernel reports execs."""
        self.host, self.session, self.listener = host, session, listener
        self.held: dict[int, tuple[Notification, asyncio.Task[None]]] = {}
        self.files = file_view.of_session(session)
        self._denials = Denials()
        self._judging = 0
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)
        self._loop = session.loop
        self._reading = False
        self._buckets: dict[str, Bucket] = {}
        self._unreported: Counter[str] = Counter()
        self._reporting = False
        self._next_check: asyncio.TimerHandle | None = None
        self._slow = host.held_up.slow(session)
        self._resume_reading()

    def close(self) -> None:
        if self.listener >= 0:
            self._pause_reading()
            if self._next_check is not None:
                self._next_check.cancel()
            os.close(self.listener)
            self.listener = -1

    def _resume_reading(self) -> None:
        if not self._reading and self.listener >= 0:
            self._reading = True
            add_hot(self._loop, self.listener, self._readable)

    def _pause_reading(self) -> None:
        if self._reading:
            self._reading = False
            remove_hot(self._loop, self.listener)

    # ------------------------------------------------------------ reading

    def _readable(self) -> None:
        held_up = self.host.held_up
        held_up.reading = self.session
        held_up.turn += 1
        read_guard.start()
        try:
            for _ in range(PER_TURN):
                if self._judging >= JUDGING_MAX:
                    return self._pause_reading()
                ready = self._poll.poll(0)
                if not ready:
                    return None
                if not ready[0][1] & select.POLLIN:
                    return self.close()  # the last process of the session is gone
                data = bytearray(wire.NOTIFICATION.size)
                try:
                    fcntl.ioctl(self.listener, wire.RECV, data)
                except OSError as e:
                    if e.errno not in (errno.ENOENT, errno.EINTR):
                        return self.close()
                    continue  # the task died, or a second reader of the descriptor was faster
                self._received(exec_request.parse(data))
        finally:
            held_up.reading = None
            read_guard.stop()
        return None

    def _received(self, exec: Notification, starter: Actor | None = None) -> None:
        """Answer an exec now if that needs no waiting; else judge the exec in a thread.

        `starter`: the actor, for a program of the shell's start files.
        """
        probe("host.exec.read")
        host, session = self.host, self.session
        try:
            program = Program("?", (), exec_request.UNFINISHED)
            if not self._slow:
                with ProgramReader(exec, only_present=True) as reader:
                    if error := path_lookup.absent_now(exec.thread, reader.proc_path):
                        return self._answer_absent(exec, error)
                    program = reader.program(brief=True)
            host.lineages.catch_up()
            pid, cause = exec.thread, host.lineages.behind(session, exec.thread)
            if cause.act is None and (found := exec_request.process_of(exec.thread)) is not None:
                pid, cause = found[0], host.lineages.cause(session, *found)
            if starter is None and host.from_start_files(session, cause):
                self._judging += 1
                session.spawn(self._find_starter(exec))
                return None
            actors = (starter,) if starter is not None else host.actors(session, cause)
            actor, index = actors[0], host.gate.index
            asks_originators = index is None or any(
                index.looks(
                    each, host.kinds(session, each.operator) | ({"line"} if cause.others else set())
                )
                for each in actors
            )
            limits = host.limits(session, cause, actor, exec.thread)
            allowed = AllowedExec(
                session, pid, program, actor, cause, asks_originators, limits=limits, actors=actors
            )
            of_system = program.path.startswith(command_limit.SYSTEM) and path_lookup.is_literal(
                exec.thread, program.path, program.way
            )
            if (
                index is not None
                and not limits
                and not asks_originators
                and not program.unread
                and of_system
                and all(index.silent(each, program.path, program.argv) for each in actors)
            ):
                return self._allow(exec, allowed)
            request = host.request(session, actor, cause, program, cwd_of(exec.thread), limits)
            approved = host.cleared(session, cause, pid)
            if (
                not limits
                and not asks_originators
                and program.unread is not exec_request.UNFINISHED
                and request.contained
                and of_system
                # A thread looks at the directory before a command of an approved text is allowed.
                and (approved.below or not approved.rules)
            ):
                quick = host.gate.quick_exec(request, approved, actors)
                # Before a question is asked, a thread looks up the file and the interpreter.
                if quick is not None and quick[1].verdict is not Verdict.ASK:
                    return self._decided(exec, allowed, *quick)
        except Exception as e:
            self._loop.call_exception_handler(
                {"message": f"the exec gate of {session.id}", "exception": e}
            )
            self._send(exec, REFUSED)
            return None
        self._judging += 1
        session.spawn(self._judge(exec, allowed, request, approved))
        return None

    @contextlib.contextmanager
    def _answering(self, exec: Notification) -> Iterator[None]:
        """The work of a task that answers an exec and that `_judging` counts.

        An error refuses the exec, so that its program does not wait for ever.
        """
        try:
            yield
        except BaseException:
            self._send(exec, REFUSED)
            raise
        finally:
            self._judging -= 1
            self._resume_reading()

    async def _find_starter(self, exec: Notification) -> None:
        with self._answering(exec):
            starter = await self.host.starter(self.session)
        self._received(exec, starter)

    async def _judge(
        self, exec: Notification, allowed: AllowedExec, request: Request, approved: Cleared
    ) -> None:
        found = _Found()

        def prepare() -> Request | Decision:
            """Runs in a thread of the gate: the memory may be mapped from a slow file system."""
            nonlocal allowed, request
            if allowed.program.unread is exec_request.UNFINISHED:
                allowed = allowed._replace(program=exec_request.read_program(exec))
                request = self.host.request(
                    self.session,
                    allowed.actor,
                    allowed.cause,
                    allowed.program,
                    request.cwd,
                    allowed.limits,
                )
            return self._look_up(exec, allowed, request, found, baseline)

        with self._answering(exec):
            baseline = await self.host.compared_with(self.session)
            judged, decision = await self.host.gate.judge_exec(
                prepare, approved, allowed.actors, self.session.id
            )
            if found.error:
                return self._answer_absent(exec, found.error)
            self._decided(exec, allowed._replace(script=found.script), judged or request, decision)

    def _look_up(
        self,
        exec: Notification,
        allowed: AllowedExec,
        request: Request,
        found: _Found,
        baseline: Baseline,
    ) -> Request | Decision:
        """In a thread: add the file behind links and the interpreter of a script to the request.

        Done anew for each exec: a link may lead elsewhere by now. A missing file needs no
        judgement.
        """
        path, proc_path = allowed.program.path, allowed.program.way
        file = path_lookup.resolved(exec.thread, path, proc_path)
        if isinstance(file, int):
            found.error = file
            return Decision(Verdict.REFUSE, "", "there is no such file")
        found.script = path_lookup.script(exec.thread, proc_path)
        if self._waits(exec) and self._no_rule_speaks(allowed, file, found.script):
            return Decision(Verdict.ALLOW, "", execution.ALLOWED)
        request = program_facts.with_file(request, path, file, found.script)
        request = surroundings.added(request, exec, path, baseline)
        return program_facts.with_names(
            request, exec, allowed.program, found.script, self.session, self.files
        )

    def _no_rule_speaks(self, allowed: AllowedExec, file: str, script: Script | None) -> bool:
        """Whether no rule concerns the program, by either name.

        False if the kernel does not report execs: then nothing can be verified afterwards.
        """
        program, index = allowed.program, self.host.gate.index
        return (
            self.host.lineages.told
            and index is not None
            and not allowed.limits
            and not allowed.asks_originators
            and not program.unread
            and all(
                index.silent(actor, each, program.argv)
                and (script is None or index.silent_on_script(actor, *script))
                for actor in allowed.actors
                for each in (program.path, file)
            )
        )

    # ------------------------------------------------------------ answering

    def _decided(
        self, exec: Notification, allowed: AllowedExec, request: Request, decision: Decision
    ) -> None:
        """Act on the decision. `request` is that of the operator whom the decision concerns."""
        allowed = allowed._replace(actor=request.actor)
        if decision.verdict is Verdict.ALLOW:
            if self.host.use_cover(allowed, decision):
                return self._allow(exec, allowed)
            # Meanwhile another process used up the command of the approved text.
            approved = self.host.cleared(self.session, allowed.cause, allowed.pid)
            self._judging += 1
            self.session.spawn(self._judge(exec, allowed, request, approved))
        elif decision.verdict is Verdict.ASK and (why := self._denials.why(allowed, decision)):
            self._refuse(exec, allowed, decision, why)
        elif decision.verdict is Verdict.ASK and len(self.held) < HELD_MAX:
            self.host.gate.decisions[execution.ACT, "ask"] += 1
            holding = self.session.spawn(self._hold(exec, allowed, request, decision))
            self.held[exec.id] = exec, holding
            self._check_held_later()
        else:
            asked = decision.verdict is not Verdict.REFUSE
            why = "too many execs wait for approval" if asked else ""
            self._refuse(exec, allowed, decision, why)

    async def _hold(
        self, exec: Notification, allowed: AllowedExec, request: Request, decision: Decision
    ) -> None:
        """Keep an exec waiting until the question about the exec is answered."""

        async def observe() -> Request:
            if not self._waits(exec):
                raise GateRefused("the program no longer waits", how="gone")
            nonlocal allowed
            program = await self.session.in_thread(exec_request.read_program, exec)
            limits = self.host.limits(self.session, allowed.cause, allowed.actor, exec.thread)
            now = self.host.request(
                self.session, allowed.actor, allowed.cause, program, cwd_of(exec.thread), limits
            )
            baseline = await self.host.compared_with(self.session)
            now, script = await self.session.in_thread(
                program_facts.resolved, exec, now, program, self.session, self.files
            )
            now = await self.session.in_thread(
                surroundings.added, now, exec, program.path, baseline
            )
            allowed = allowed._replace(program=program, script=script, limits=limits)
            return now

        async def judge(now: Request) -> Decision:
            approved = self.host.cleared(self.session, allowed.cause, allowed.pid)
            _, decision = await self.host.gate.judge_exec(
                lambda: now, approved, allowed.actors, self.session.id
            )
            return decision

        try:
            # If this host dies, the next host must know the same actor.
            await self.host.lineages.saved(self.session)
            while True:
                try:
                    await self.host.held_acts.hold(request, decision, observe, judge)
                    return self._allow(exec, allowed)
                except GateRefused as e:
                    if e.facts.get("how") not in ("used", "void") or not self._waits(exec):
                        if e.facts.get("how") == "denied":
                            self._denials.add(allowed, decision, e.message)
                        return self._refuse(exec, allowed, decision, e.message)
                    # "used": a different exec of the same program used the approval. Ask again.
                    if e.facts["how"] == "void":
                        # The policy or the program changed: judge the exec like a new exec.
                        request = await observe()
                        decision = await judge(request)
                        while decision.verdict is Verdict.ALLOW:
                            if self.host.use_cover(allowed, decision):
                                return self._allow(exec, allowed)
                            decision = await judge(request)
                        if decision.verdict is Verdict.REFUSE:
                            return self._refuse(exec, allowed, decision)
        except HoldfastError as e:
            self._refuse(exec, allowed, decision, e.message)
        except Stuck:
            self._refuse(exec, allowed, decision, "the memory of the program cannot be read")
        except BaseException:
            self._send(exec, REFUSED)
            raise
        finally:
            self.held.pop(exec.id, None)

    def _allow(self, exec: Notification, allowed: AllowedExec) -> None:
        self.host.gate.decisions[execution.ACT, "allow"] += 1
        self.host.verifier.expect(allowed)
        self._send(exec, 0, wire.CONTINUE)

    def _answer_absent(self, exec: Notification, error: int) -> None:
        """Answer with the kernel's own error.

        If the task went on instead, the file could exist by the time the kernel looks, unjudged.
        """
        self._send(exec, -error)

    def _refuse(
        self, exec: Notification, allowed: AllowedExec, decision: Decision, why: str = ""
    ) -> None:
        if self._send(exec, REFUSED):
            self.host.gate.decisions[execution.ACT, "refuse"] += 1
            self.report("exec.refused", allowed, decision, why)

    def _send(self, exec: Notification, error: int, flags: int = 0) -> bool:
        """Answer the kernel. Returns whether the task still waited."""
        probe("host.exec.answer")
        return self._told_kernel(wire.SEND, wire.ANSWER.pack(exec.id, 0, error, flags))

    def _waits(self, exec: Notification) -> bool:
        return self._told_kernel(wire.ID_VALID, wire.ID.pack(exec.id))

    def _told_kernel(self, call: int, data: bytes) -> bool:
        if self.listener < 0:  # all processes of the session are gone
            return False
        try:
            fcntl.ioctl(self.listener, call, data)
            return True
        except OSError:
            return False

    # ------------------------------------------------------------ held tasks

    def drop_abandoned(self) -> None:
        """Withdraw the questions of tasks that no longer wait."""
        for exec, holding in tuple(self.held.values()):
            if not self._waits(exec):
                holding.cancel(GAVE_UP)

    def _check_held_later(self) -> None:
        if self._next_check is None:
            self._next_check = self._loop.call_later(STILL_S, self._check_held)

    def _check_held(self) -> None:
        self._next_check = None
        if self.held and self.listener >= 0:
            # Reading the version reloads a changed policy file, so the new policy takes effect now.
            _ = self.host.gate.version
            self.host.held_acts.void_ended()
            self.drop_abandoned()
            self._check_held_later()

    # ------------------------------------------------------------ reporting

    def report(
        self, event: str, allowed: AllowedExec, decision: Decision, why: str = "", **more: Any
    ) -> None:
        """An event, a notice to viewers and an entry in the record. If too many, only a count."""
        now = time.monotonic()
        if take([self._buckets.setdefault(event, Bucket(*REPORTED, now))], now) > 0:
            self._unreported[event] += 1
            if not self._reporting:
                self._reporting = True
                self._loop.call_later(REPORTED[1], self._report_count)
            return
        session, cause, program = self.session, allowed.cause, allowed.program
        actor = allowed.actor.operator
        facts = {
            "program": program.path[:PROGRAM_CHARS],
            "pid": allowed.pid,
            "rule": decision.rule,
            "caused_by": cause.ref(session.ref),
            **more,
        }
        shapers = originators.names((*(decision.shaped or ()), *typed_by(cause)), actor)
        because = why or decision.because
        session.event(event, operator=actor, originators=list(shapers), because=because, **facts)
        session.viewers.tell(
            "not_started" if event == "exec.refused" else "not_as_shown",
            operator=actor,
            program=execution.legible(facts["program"]),
            because=because,
        )
        words = execution.show(program.content, program.details)[:WORDS_SHOWN]
        self._record(
            actor,
            shapers,
            why or explain(decision),
            {"event": event, **facts, "words": words},
        )

    def _report_count(self) -> None:
        self._reporting, unreported, self._unreported = False, self._unreported, Counter()
        for event, count in unreported.items():
            self.session.event(event, count=count, because="so many more in a short time")
            self._record(
                "unknown",
                ("unknown",),
                f"{count} more execs in a short time",
                {"event": event, "count": count},
            )

    def _record(
        self, actor: str, originators: tuple[str, ...], reason: str, facts: dict[str, Any]
    ) -> None:
        if not self.host.journal.failing:
            clean = {
                key: _escaped(value) if isinstance(value, str) else value
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
                    reason=_escaped(reason),
                    facts=clean,
                )
            )


def _escaped(text: str) -> str:
    """Bytes that are no UTF-8, as `\\xff`."""
    return text.encode("utf-8", "backslashreplace").decode()
