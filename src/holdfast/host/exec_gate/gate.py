"""The gate at exec depth, as the host runs it (P4): every exec of a session waits in the kernel until it is answered here.

    the kernel holds the task ── read: file, words, directory ── by whom: lineage ── the policy
        └── allow: it goes on      refuse: EACCES, told and recorded      ask: it waits, and is a question like any other

A filter on the session's program shows its execs by a descriptor that the keeper holds (keeper/gate.py) and lends to this host. Rules:

1. What no rule can speak of is let go at once, on the loop (`execution.Index`); so is what needs neither file system, parser nor plug-ins. The rest is judged in threads, a bounded number at a
   time; while that many are judged no more are read: they wait in the kernel, in order. A bounded number is read per turn of the loop, so that a storm of execs holds up nobody else.
2. An error, a judgement that takes too long and too many questions mean refuse.
3. Whoever asks about an exec is asked once for the act that caused it: a rule that was approved for that act does not ask about what it starts.
4. A task that gives up (killed, interrupted) withdraws its question; one that was interrupted and asks again finds the same question.
5. The kernel tells of an exec once. What a host that died had read and not answered is made to ask again by the next one, before it reads anything: by freezing and thawing the session's
   group, which programs do not see, or else by stopping and continuing the tasks that wait.
6. The actor of what nobody is known to have caused is "unknown", of what the shell does by itself "shell". Both count as an agent's where anybody but people has acted in the session (or may
   have, if that is not known), except what a shell does by its start files, before it asks for the first line.

What is judged is what the task's memory says. host/compared.py compares with what ran.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from holdfast.core import execution
from holdfast.core.conditions import Actor, Request
from holdfast.core.execution import Program
from holdfast.core.lineage import SHELL, Cause
from holdfast.host.compared import Compared
from holdfast.host.gated import Gated, guard, typed_by
from holdfast.host.rekindle import rekindle
from holdfast.host.session import Session
from holdfast.host.situation import attached, fingerprint, home_of, look_for_home
from holdfast.model.probe import probe
from holdfast.wire import keeper as keeper_wire

if TYPE_CHECKING:
    from holdfast.host.approvals import Desk
    from holdfast.host.authority import Authority
    from holdfast.host.gate import Gate
    from holdfast.host.halt import Halter
    from holdfast.host.journal import Journal
    from holdfast.host.lineage import Kin

LISTENER_S: Final = 5.0  # for the keeper to hand it over
COMPANY_S: Final = 5.0  # how long it is believed who may act in a session
OF_AGENTS: Final = "agent"


class ExecGate:
    """One per host."""

    def __init__(
        self,
        gate: Gate,
        desk: Desk,
        authority: Authority,
        journal: Journal,
        kin: Kin,
        halter: Halter,
        kinds: Callable[[Session, str], frozenset[str]],
    ) -> None:
        """`kinds`: of which kinds others may have shaped something there."""
        self.gate, self.desk, self.authority, self.journal, self.kin, self.halter, self.kinds = (
            gate,
            desk,
            authority,
            journal,
            kin,
            halter,
            kinds,
        )
        self.compared = Compared(self)
        self.held_up = kin.held_up
        self._gated: dict[str, Gated] = {}
        self._company: dict[str, tuple[float, bool]] = {}
        kin.on_exec = self.compared.executed
        kin.on_change.append(self._process)
        authority.on_change.append(self._company.clear)

    async def look(self, session: Session, adopted: bool) -> dict[str, str]:
        """What is said of it in the session's layout; gates it from now on."""
        gated = says(*await self.open(session, adopted))
        return {**gated, "says": f"{session.layout['says']}; {gated['gate_says']}"}

    async def open(self, session: Session, adopted: bool) -> tuple[str, str]:
        """At which depth it is gated, and why; gates it from now on."""
        asked, why = session.label.get("gate"), str(session.label.get("gate_why", ""))
        if asked != "exec":
            return "input", why or "it was made by a release that had no other"
        guard()
        answer: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
        session.link.on_gate = lambda listener, error: _answer(answer, listener, error)
        session.link.send(keeper_wire.gate())
        try:
            listener, error = await asyncio.wait_for(answer, LISTENER_S)
        except TimeoutError:
            return "input", "its keeper did not say"
        if listener < 0:
            return "input", refused(error) if error > 0 else "all its programs have ended"
        probe("host.gate.listener")
        if adopted:
            await rekindle(self.halter, session)
        await look_for_home(session)
        if session.link.closed or session.ended.done():
            os.close(listener)
            return "input", "its keeper is gone"
        self._gated[session.id] = Gated(self, session, listener)
        return "exec", ""

    def gated(self, session: Session) -> Gated | None:
        return self._gated.get(session.id)

    def end(self, session: Session) -> None:
        """Of a session that has ended, or whose keeper is claimed anew."""
        if (gated := self._gated.pop(session.id, None)) is not None:
            gated.close()
        self._company.pop(session.id, None)

    def close(self) -> None:
        for gated in self._gated.values():
            gated.close()
        self._gated.clear()

    def _process(
        self, session: Session, what: str, pid: int, status: int | None, was: object
    ) -> None:
        if what == "exited":
            self.compared.forget(pid)
            if (gated := self._gated.get(session.id)) is not None and gated.held:
                gated.look()

    # ------------------------------------------------------------ who

    def actor(self, session: Session, cause: Cause) -> Actor:
        kind = self.authority.kind_of(cause.actor) or (
            "human" if self._peoples(session, cause) else OF_AGENTS
        )
        return Actor(cause.actor, "", kind, attached(session, cause.actor))

    def _peoples(self, session: Session, cause: Cause) -> bool:
        """Of what nobody is known to have caused: whether nobody but people can have had a hand in it. What a shell does before it asks for the first line is in files of the machine."""
        lineage = session.commands.lineage
        if cause.actor == SHELL.actor and not lineage.opened:
            return True
        if lineage.typists is None:
            return self._only_people(session)
        return all(
            self.authority.kind_of(name) == "human"
            for name in (*lineage.typists, str(session.label.get("by")))
        )

    def _only_people(self, session: Session) -> bool:
        at, known = self._company.get(session.id, (-COMPANY_S, False))
        if time.monotonic() - at >= COMPANY_S:
            known = self.authority.only_people(session.id, time.time())
            self._company[session.id] = (time.monotonic(), known)
        return known

    def request(
        self, session: Session, actor: Actor, cause: Cause, program: Program, cwd: str | None
    ) -> Request:
        kind = session.commands.kind
        return Request(
            execution.ACT,
            actor,
            session.id,
            session.name,
            session.record.epoch,
            program.content,
            cwd,
            session.record.cwd or None,
            home_of(session),
            "sh" if kind == "posix" else kind or "bash",
            "",
            session.layout.get("layout") == "contained",
            fingerprint(session.record.boot, cause.act),
            details=program.details,
            shaped=typed_by(cause),
        )


def refused(error: int) -> str:
    """Why the kernel did not allow it, for people."""
    if error == errno.EBUSY:
        return "the kernel allows one gate above a program, and there is one already: this host itself runs in a gated session"
    return f"the kernel refused it: {os.strerror(error)}"


def mode(asked: str | None, configured: str, contained: bool) -> tuple[int, dict[str, str]]:
    """What is asked of the launcher, and what the session's label says of it. `asked`: exec, input or nothing; `configured`: auto, exec or input."""
    wanted = asked or configured
    if wanted == "input":
        return keeper_wire.GATE_NONE, {
            "gate": "input",
            "gate_why": "as was asked" if asked else "as is configured",
        }
    if wanted == "exec":
        return keeper_wire.GATE_REQUIRED, {"gate": "exec"}
    if contained or os.geteuid() == 0:
        return keeper_wire.GATE_WANTED, {"gate": "exec"}
    return keeper_wire.GATE_NONE, {
        "gate": "input",
        "gate_why": "in an ordinary user's plain session the kernel allows more only at the price of sudo; `--contained` or `--gate exec` has it",
    }


def says(depth: str, why: str) -> dict[str, str]:
    """For ls, view and whoever attaches."""
    return {
        "gate": depth,
        "gate_says": "every program that starts in it is shown to the policy first"
        if depth == "exec"
        else f"the policy sees what is typed and run, not what programs start in turn: {why}",
    }


def _answer(answer: asyncio.Future[tuple[int, int]], listener: int, error: int) -> None:
    if answer.done():
        with contextlib.suppress(OSError):
            os.close(listener)
    else:
        answer.set_result((listener, error))
