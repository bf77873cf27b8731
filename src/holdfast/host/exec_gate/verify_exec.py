"""After an exec: whether what ran is what was judged (P4).

The gate reads a task's words from its memory, and the kernel reads them again when the exec goes on. Between the two, whoever shares that memory (another thread, the parent of a vfork, a
mapping) can write others there, and the file behind the path can be replaced. Nothing prevents that; but the kernel tells when a process runs another program, and then what it is called and
which file it is can be compared with what was let through. What differs is told (`exec.mismatch`), judged anew, and killed if the policy would not have let it go: it may have run for a moment.

A script is shown by its own path and runs as its interpreter with the path among its words: that is no difference, if it is the interpreter that was judged with it, or one that the policy lets go. Where the kernel does not tell of execs (host/procevents.py) nothing is compared.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from holdfast.core import execution
from holdfast.core.conditions import Actor, Request
from holdfast.core.execution import Program
from holdfast.core.lineage import Cause
from holdfast.core.policy import Verdict
from holdfast.host import lookup, notified, process
from holdfast.host.session import Session

if TYPE_CHECKING:
    from holdfast.host.execgate import ExecGate

EXPECTED_MAX: Final = 8192
LINKS_MAX, LINKS_S = 1024, 60.0
BEHIND_S: Final = 2.0  # for a file system to say where a link leads


class Expected(NamedTuple):
    """An exec that was let through."""

    session: Session
    pid: int
    program: Program
    actor: Actor
    cause: Cause
    looks: bool = False  # a rule asks who shaped what it runs on
    script: lookup.Script | None = None  # what runs it, if it was looked at and is one


class Compared:
    def __init__(self, host: ExecGate) -> None:
        self._host = host
        self._expected: OrderedDict[int, Expected] = OrderedDict()
        self._links: OrderedDict[tuple[str, str], float] = (
            OrderedDict()
        )  # files by another name, and until when that is believed

    def expect(self, one: Expected) -> None:
        """Before it is let go."""
        self._expected[one.pid] = one
        if len(self._expected) > EXPECTED_MAX:
            self._expected.popitem(last=False)

    def forget(self, pid: int) -> None:
        self._expected.pop(pid, None)

    def executed(self, pid: int) -> None:
        """The kernel says that it runs another program now."""
        if (one := self._expected.pop(pid, None)) is None:
            return
        if self._host.held_up.slow(one.session):
            one.session.spawn(self._later(one, pid))
            return
        with self._host.held_up.reads(one.session):
            now = notified.ran(pid)
        self._ran(one, pid, now)

    async def _later(self, one: Expected, pid: int) -> None:
        """Of a session whose programs held up a host. What cannot be read is not what was judged."""
        try:
            now = await asyncio.wait_for(one.session.in_thread(notified.ran, pid), BEHIND_S)
        except TimeoutError:
            now = Program("?", (), "its memory cannot be read")
        self._ran(one, pid, now)

    def _ran(self, one: Expected, pid: int, now: Program | None) -> None:
        if now is None:
            return
        how = differs(one.program, now)
        if how == "script":
            index = self._host.gate.index
            judged = (
                one.script is not None
                and now.path == one.script.file
                and now.argv[: len(one.script.by)] == one.script.by
            )
            if judged or (
                index is not None and not one.looks and index.silent(one.actor, now.path, now.argv)
            ):
                return
        if how == "file" and self._links.get((one.program.path, now.path), 0.0) > time.monotonic():
            return
        if how and (found := process.read_stat(pid)) is not None:
            one.session.spawn(self._judge(one, now, how, found.start))

    async def _judge(self, one: Expected, now: Program, how: str, start: int) -> None:
        """It is what it is. If that is something the policy would have stopped, it is stopped now."""
        if (
            how == "file"
            and one.program.path.startswith(execution.SYSTEM)
            and await _behind(one.session, one.program.path) == now.path
        ):
            self._links[one.program.path, now.path] = (
                time.monotonic() + LINKS_S
            )  # a link of the machine's own: both names were judged
            if len(self._links) > LINKS_MAX:
                self._links.popitem(last=False)
            return
        request, leads_there = (
            self._host.request(one.session, one.actor, one.cause, now, notified.cwd_of(one.pid)),
            False,
        )

        def look() -> Request:
            """In the gate's threads, which nobody else waits for: the file system may be a program of the session, and not answer."""
            nonlocal leads_there
            if how == "file":
                leads_there = lookup.resolved(
                    one.pid, one.program.path, f"/proc/{one.pid}/root{one.program.path}"
                ) in (now.path, one.program.path, errno.ENOENT, errno.ENOTDIR)
            return request

        _, decision = await self._host.gate.judge_exec(
            look, one.session.commands.approved(one.cause.act), one.actor.operator, one.session.id
        )
        if decision.verdict is Verdict.ALLOW and (how == "script" or leads_there):
            return
        killed = decision.verdict is not Verdict.ALLOW
        if killed and (found := process.read_stat(one.pid)) is not None and found.start == start:
            try:
                os.kill(one.pid, signal.SIGKILL)
            except OSError:
                killed = False
        if (gated := self._host.gated(one.session)) is not None:
            gated.tell(
                "exec.mismatch",
                one._replace(program=now),
                decision,
                "" if killed else "what ran is not what was shown to the gate",
                shown=one.program.path[:1000],
                killed=killed,
            )


async def _behind(session: Session, path: str) -> str | None:
    with contextlib.suppress(TimeoutError):
        return await asyncio.wait_for(session.in_thread(os.path.realpath, path), BEHIND_S)
    return None


def differs(judged: Program, now: Program) -> Literal["", "file", "script", "words"]:
    """In what it is another one: the file (by a link, or another that took its place), what runs a script, or its words."""
    if judged.unread:
        return ""
    path = now.path.removesuffix(" (deleted)")
    if now.argv == judged.argv:
        return "" if path == judged.path.removesuffix(" (deleted)") else "file"
    before = len(now.argv) - len(
        judged.argv
    )  # of a script: its interpreter, perhaps an option, its path
    script = (
        before > 0
        and path != judged.path
        and now.argv[before + 1 :] == judged.argv[1:]
        and os.path.basename(now.argv[before]) == os.path.basename(judged.path)
    )
    return "script" if script else "words"
