"""After an exec: checks that the judged program is the program that ran (P4).

The gate reads the arguments from the task's memory, and the kernel reads the same memory again when
the exec goes on. In between, a second task that shares this memory (a thread, the parent of a
vfork, a mapping) can change the arguments. The file behind the path can be replaced too. The gate
cannot prevent that. But the kernel reports when a process runs a new program. The file and
arguments are then compared with the allowed file and arguments. A difference is reported
(`exec.mismatch`) and judged. A program that the policy would have stopped is killed, but may have
run for a moment.

A script is judged by the script's path but runs as the interpreter, with the path among the
arguments. That is no mismatch if the interpreter was judged with the script, or if the policy
allows that interpreter. Where the kernel does not report execs
(host/processes/process_events.py), no program is compared.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import time
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from holdfast.core.originators.lineage import Cause
from holdfast.core.policy import command_limit
from holdfast.core.policy.command_limit import Limit
from holdfast.core.policy.conditions import Actor, Request
from holdfast.core.policy.execution import Program
from holdfast.core.policy.policy import Verdict
from holdfast.host.exec_gate import exec_request, file_view, path_lookup, surroundings
from holdfast.host.processes import process
from holdfast.host.session.session import Session

if TYPE_CHECKING:
    from holdfast.host.exec_gate.gate import ExecGate

ALLOWED_MAX: Final = 8192
LINKS_MAX, LINKS_S = 1024, 60.0
READ_S: Final = 2.0  # for a file system to answer


class AllowedExec(NamedTuple):
    """An exec that the gate let through."""

    session: Session
    pid: int
    program: Program
    actor: Actor
    cause: Cause
    asks_originators: bool = False  # a rule asks for the originators of the used state
    script: path_lookup.Script | None = None  # the interpreter, if that was looked up
    limits: tuple[Limit, ...] = ()  # of the envelopes of the operators behind the exec
    actors: tuple[Actor, ...] = ()  # all operators behind the exec, with `actor`


class ExecVerifier:
    """One per host."""

    def __init__(self, host: ExecGate) -> None:
        self._host = host
        self._allowed: OrderedDict[int, AllowedExec] = OrderedDict()
        # (judged path, file behind that path) -> until when the pair is believed
        self._links: OrderedDict[tuple[str, str], float] = OrderedDict()

    def expect(self, allowed: AllowedExec) -> None:
        """Called before the kernel is told to let the exec go on."""
        self._allowed[allowed.pid] = allowed
        if len(self._allowed) > ALLOWED_MAX:
            self._allowed.popitem(last=False)

    def forget(self, pid: int) -> None:
        self._allowed.pop(pid, None)

    def judged(self, pid: int) -> str | None:
        """The path of the program that the gate let this process execute; before `executed`."""
        return allowed.program.path if (allowed := self._allowed.get(pid)) is not None else None

    def executed(self, pid: int) -> None:
        """The kernel reports that this process runs a new program now."""
        if (allowed := self._allowed.pop(pid, None)) is None:
            return
        if self._host.held_up.slow(allowed.session):
            allowed.session.spawn(self._read_in_thread(allowed, pid))
            return
        with self._host.held_up.reads(allowed.session):
            now = exec_request.running_program(pid)
        self._compare(allowed, pid, now)

    async def _read_in_thread(self, allowed: AllowedExec, pid: int) -> None:
        """For a session that once blocked a host. A program that cannot be read is a mismatch."""
        read = allowed.session.in_thread(exec_request.running_program, pid)
        try:
            now = await asyncio.wait_for(read, READ_S)
        except TimeoutError:
            now = Program("?", (), "its memory cannot be read")
        self._compare(allowed, pid, now)

    def _compare(self, allowed: AllowedExec, pid: int, now: Program | None) -> None:
        if now is None:
            return
        how: str = difference(allowed.program, now)
        if allowed.limits and not self._sees_own_files(allowed, pid):
            how = "root"  # another thread changed the root directory after the look
        if how == "script" and self._is_allowed_interpreter(allowed, now):
            return
        link = allowed.program.path, now.path
        if how == "file" and self._links.get(link, 0.0) > time.monotonic():
            return
        if how and (found := process.read_stat(pid)) is not None:
            allowed.session.spawn(self._judge(allowed, now, how, found.start))

    def _is_allowed_interpreter(self, allowed: AllowedExec, now: Program) -> bool:
        script, index = allowed.script, self._host.gate.index
        if script is not None and (now.argv[: len(script.by)], now.path) == script:
            return True
        return (
            index is not None
            and not allowed.asks_originators
            and not allowed.limits
            and all(index.silent(each, now.path, now.argv) for each in allowed.actors)
        )

    def _sees_own_files(self, allowed: AllowedExec, pid: int) -> bool:
        execs = self._host.session_execs(allowed.session)
        return execs is None or file_view.sees(pid, execs.files)

    async def _judge(self, allowed: AllowedExec, now: Program, how: str, start: int) -> None:
        """Judge the running program, and kill the process if the policy does not allow that."""
        session, judged = allowed.session, allowed.program.path
        of_system = how == "file" and judged.startswith(command_limit.SYSTEM)
        if of_system and await _realpath(session, judged) == now.path:
            # A link of the system itself: both names were judged.
            self._links[judged, now.path] = time.monotonic() + LINKS_S
            if len(self._links) > LINKS_MAX:
                self._links.popitem(last=False)
            return
        cwd = process.cwd_of(allowed.pid)
        request = replace(
            self._host.request(session, allowed.actor, allowed.cause, now, cwd, allowed.limits),
            names=command_limit.names(command_limit.Program(now.path, False, now.argv0, now.path)),
            other_files=how == "root",
        )
        leads_there = False
        known = await self._host.compared_with(session)

        def prepare() -> Request:
            """Runs in a thread of the gate, because a file system of the session may hang."""
            nonlocal leads_there
            if how == "file":
                leads_there = path_lookup.resolved(
                    allowed.pid, judged, f"/proc/{allowed.pid}/root{judged}"
                ) in (now.path, judged, errno.ENOENT, errno.ENOTDIR)
            found = surroundings.with_directory(request, allowed.pid, known.root)
            now_has = exec_request.running_environment(allowed.pid)
            return surroundings.with_environment(found, now_has, now.path, known)

        approved = self._host.cleared(session, allowed.cause, allowed.pid)
        _, decision = await self._host.gate.judge_exec(
            prepare, approved, allowed.actors, session.id
        )
        if decision.verdict is Verdict.ALLOW and (how == "script" or leads_there):
            return
        killed = decision.verdict is not Verdict.ALLOW
        found = process.read_stat(allowed.pid) if killed else None
        if found is not None and found.start == start:
            try:
                os.kill(allowed.pid, signal.SIGKILL)
            except OSError:
                killed = False
        if (execs := self._host.session_execs(session)) is not None:
            execs.report(
                "exec.mismatch",
                allowed._replace(program=now),
                decision,
                "" if killed else "the program that ran is not the one shown to the gate",
                shown=judged[:1000],
                killed=killed,
            )


async def _realpath(session: Session, path: str) -> str | None:
    with contextlib.suppress(TimeoutError, OSError):
        return await asyncio.wait_for(session.in_thread(os.path.realpath, path), READ_S)
    return None


def difference(judged: Program, now: Program) -> Literal["", "file", "script", "words"]:
    """How the running program differs from the judged program.

    "file": a different file, or the same file by a link; "script": the running program is the
    interpreter of the judged script; "words": different arguments; "": no difference, or the
    program was allowed unread.
    """
    if judged.unread:
        return ""
    path = now.path.removesuffix(" (deleted)")
    if now.argv == judged.argv:
        return "" if path == judged.path.removesuffix(" (deleted)") else "file"
    # Before a script's own arguments come the interpreter, perhaps an option, and the path.
    before = len(now.argv) - len(judged.argv)
    script = (
        before > 0
        and path != judged.path
        and now.argv[before + 1 :] == judged.argv[1:]
        and os.path.basename(now.argv[before]) == os.path.basename(judged.path)
    )
    return "script" if script else "words"
