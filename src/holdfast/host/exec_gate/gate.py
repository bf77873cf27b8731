"""The exec gate (P4): every exec of a session waits in the kernel until this host answers.

    the kernel holds the task ── read file, arguments, directory ── find cause: lineage ── policy
      └── allow: goes on    refuse: EACCES, reported and recorded    ask: waits, as a question

A seccomp filter on the session's program reports execs through a descriptor that the keeper holds
(keeper/gate.py) and lends to this host. Rules:

1. An exec that no rule can concern is allowed at once, on the loop (`execution.Index`). An exec
   that can be judged without file system, parser and plug-ins is decided there too. The rest is
   judged in threads, a bounded number at a time; meanwhile further execs wait in the kernel, in
   order. Each turn of the loop reads a bounded number, so that a storm of execs does not delay
   other work.
2. An error, a judgement that takes too long, and too many questions mean refuse.
3. A question is asked once per act: a rule that was approved for a text does not ask again about
   the commands of that text, in their directories, once each and while the run lasts, and about the
   programs that they start (core/policy/approved_commands.py). Other programs of the act are asked
   about. A program that was denied to an act is refused to that act for a minute, also by another
   path: a search along PATH tries each directory.
4. When a task gives up (killed, interrupted), the host withdraws the question. A task that was
   interrupted and starts the same exec again joins the same question.
5. The kernel reports an exec once. After a host has died, the next host makes unanswered execs
   report again, before reading any (host/exec_gate/renotify.py).
6. The actor of an exec without a known cause is "unknown". The actor of an exec that the shell
   starts by itself is "shell". Both count as an agent's if any operator that is not a person has
   acted in the session (or may have, if that is not known). Programs that a shell runs from the
   start files, before the first prompt, count as the doing of the author of these files
   (host/exec_gate/start_files.py).
7. An exec must be on the list of programs of every operator behind it whose envelope has such a
   list (`commands`; core/policy/command_limit.py). Behind an exec are its actor and all operators
   that had a part in the order. Behind the session's own program is the operator that made the
   session; behind programs of start files also the author of these files. An exec of unknown cause
   may be of every operator that acted in the session, so it must be on all their lists. So must the
   programs that the shell's own programs start, since files may make them do so. The shell itself
   is free: an operator with a list cannot change the state of a shell, because no text that does
   so is within a list.
8. The policy judges an exec for every operator behind it, and the strictest decision counts. The
   question, the refusal and the record are about the operator with that decision, and name the
   others. So a person's key does not lend the person's rights to a line of an agent on which an
   inner interpreter still works.

The judgement is about the program in the task's memory. host/exec_gate/verify_exec.py compares that
program with the program that ran.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import itertools
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from holdfast.core.originators.lineage import SHELL, UNKNOWN, Cause, Member
from holdfast.core.originators.shell_state import environment_digest
from holdfast.core.policy import execution
from holdfast.core.policy.approved_commands import NOTHING, Cleared
from holdfast.core.policy.command_limit import Limit
from holdfast.core.policy.conditions import Actor, Request
from holdfast.core.policy.execution import Program
from holdfast.core.policy.policy import Decision
from holdfast.core.session.halt import TYPES_PAST_HOST
from holdfast.host.acts.act_context import (
    attached,
    fingerprinted,
    first_process,
    home_of,
    look_for_home,
    walls_of,
)
from holdfast.host.exec_gate import exec_request, read_guard, surroundings
from holdfast.host.exec_gate.renotify import renotify
from holdfast.host.exec_gate.session_execs import SessionExecs, typed_by
from holdfast.host.exec_gate.start_files import FileAuthors, author_of
from holdfast.host.exec_gate.verify_exec import AllowedExec, ExecVerifier
from holdfast.host.processes import process
from holdfast.host.session.session import Session
from holdfast.model.probe import probe
from holdfast.wire import keeper as keeper_wire

if TYPE_CHECKING:
    from holdfast.host.acts.approvals import HeldActs
    from holdfast.host.originators.lineage import Lineages
    from holdfast.host.people.authority import Authority
    from holdfast.host.policy.gate import Gate
    from holdfast.host.processes.halt import Halter
    from holdfast.host.storage.journal import Journal

LISTENER_S: Final = 5.0  # for the keeper to hand over the descriptor
ONLY_PEOPLE_S: Final = 5.0  # how long the answer of `only_people` is believed
STARTER_S: Final = 5.0  # how long the author of start files is believed
AGENT: Final = "agent"
PSEUDO: Final = (SHELL.actor, UNKNOWN.actor)
SUBSHELLS_MAX: Final = 16  # nested subshells between the shell and an exec of its own


class ExecGate:
    """One per host."""

    def __init__(
        self,
        gate: Gate,
        held_acts: HeldActs,
        authority: Authority,
        journal: Journal,
        lineages: Lineages,
        halter: Halter,
        kinds: Callable[[Session, str], frozenset[str]],
        file_authors: FileAuthors,
    ) -> None:
        """`kinds`: the kinds of state in a session that other operators may have shaped."""
        self.gate, self.held_acts, self.authority, self.journal = (
            gate,
            held_acts,
            authority,
            journal,
        )
        self.lineages, self.halter, self.kinds = lineages, halter, kinds
        self._file_authors = file_authors
        self.verifier = ExecVerifier(self)
        self.held_up = lineages.held_up
        self._sessions: dict[str, SessionExecs] = {}
        self._only_people: dict[str, tuple[float, bool]] = {}
        self._started_by_people: dict[str, tuple[float, bool]] = {}  # the start files
        authority.on_change.append(self._only_people.clear)

    async def gate_session(self, session: Session, adopted: bool) -> dict[str, str]:
        """Gate a session from now on. Returns the gate's part of the session's layout.

        If the keeper does not hand over the listener in time, the session is not kept waiting. Its
        execs wait in the kernel, and the layout changes when the listener comes.
        """
        asked, why = session.label.get("gate"), str(session.label.get("gate_why", ""))
        layout = dict(session.layout)
        if asked != "exec":
            why = why or "it was made by a release without an exec gate"
            return says("input", why, layout)
        read_guard.install()
        answer: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
        session.link.on_gate = lambda listener, error: _answer(answer, listener, error)
        session.link.send(keeper_wire.gate())
        if (await asyncio.wait({answer}, timeout=LISTENER_S))[0]:
            return says(*await self._begin(session, *answer.result(), adopted), layout)

        async def begin_late() -> None:
            depth, why = await self._begin(session, *answer.result(), adopted)
            session.layout |= says(depth, why, layout)

        answer.add_done_callback(lambda _: session.spawn(begin_late()))
        return says("input", "its keeper has not answered yet, and programs wait", layout)

    async def _begin(
        self, session: Session, listener: int, error: int, adopted: bool
    ) -> tuple[str, str]:
        """Use the keeper's answer. Returns the depth, and why the depth is not "exec"."""
        if listener < 0:
            return "input", refused(error) if error > 0 else "all its programs have ended"
        probe("host.gate.listener")
        if adopted:
            await renotify(self.halter, session)
        await look_for_home(session)
        if session.link.closed or session.ended.done():
            os.close(listener)
            return "input", "its keeper is gone"
        self._sessions[session.id] = SessionExecs(self, session, listener)
        return "exec", ""

    def session_execs(self, session: Session) -> SessionExecs | None:
        return self._sessions.get(session.id)

    def end(self, session: Session) -> None:
        """Called when a session has ended, or when a new host claims the session's keeper."""
        if (execs := self._sessions.pop(session.id, None)) is not None:
            execs.close()
        self._only_people.pop(session.id, None)
        self._started_by_people.pop(session.id, None)

    def close(self) -> None:
        for execs in self._sessions.values():
            execs.close()
        self._sessions.clear()

    def process_changed(
        self, session: Session, what: str, pid: int, status: int | None, was: Member | None
    ) -> None:
        if what == "exited":
            self.verifier.forget(pid)
            if (execs := self._sessions.get(session.id)) is not None and execs.held:
                execs.drop_abandoned()

    # ------------------------------------------------------------ actors

    def from_start_files(self, session: Session, cause: Cause) -> bool:
        """Whether the shell reads its start files and this exec comes from there.

        The shell may start programs before the host observes forks. Then the cause is unknown, but
        as long as no operator has typed, there is nothing but the start files.
        """
        lineage = session.commands.lineage
        if lineage.opened or not pseudo(cause):
            return False
        return cause.actor == SHELL.actor or (
            session.commands.kind is not None and lineage.typists == {}
        )

    async def starter(self, session: Session) -> Actor:
        """The actor of programs that the shell runs from its start files."""
        by = await author_of(session, self._file_authors, self.authority.kind_of)
        if by is None:
            return Actor(SHELL.actor, "", "human", False)
        return Actor(by, "", self.authority.kind_of(by) or AGENT, attached(session, by))

    def actors(self, session: Session, cause: Cause) -> tuple[Actor, ...]:
        """All operators behind an exec, the one that gave the order first: rule 8."""
        return (
            self._actor(session, cause.actor, pseudo(cause)),
            *(self._actor(session, name, name in PSEUDO) for name in cause.others),
        )

    def _actor(self, session: Session, name: str, pseudo: bool) -> Actor:
        # never the kind of an operator with the name of a pseudo actor
        known = None if pseudo else self.authority.kind_of(name)
        kind = known or ("human" if self._by_people(session) else AGENT)
        return Actor(name, "", kind, attached(session, name))

    def _by_people(self, session: Session) -> bool:
        """For an unknown actor: whether only people can be behind the exec."""
        lineage = session.commands.lineage
        if lineage.typists is None:
            return self._only_people_may_act(session)
        return all(
            self.authority.kind_of(name) == "human"
            for name in (*lineage.typists, str(session.label.get("by")))
        )

    def _only_people_may_act(self, session: Session) -> bool:
        at, known = self._only_people.get(session.id, (-ONLY_PEOPLE_S, False))
        if time.monotonic() - at >= ONLY_PEOPLE_S:
            known = self.authority.only_people(session.id, time.time())
            self._only_people[session.id] = (time.monotonic(), known)
        return known

    # ------------------------------------------------------------ approved texts

    def cleared(self, session: Session, cause: Cause, pid: int) -> Cleared:
        """What the approval of the causing act still answers for an exec of this process.

        The process itself does not count as one above: it may exec something else a moment later.
        An operator that may no longer act in the session is not covered.
        """
        act, cover, now = cause.act, session.commands.cover(cause.act), process.read_stat(pid)
        if (
            cover is None
            or act is None
            or now is None
            or not self.authority.may_act(cause.actor, session.id, time.time())
        ):
            return NOTHING
        below = any(
            (found := process.read_stat(one)) is not None
            and session.commands.is_covered(act, one, found.start)
            for one in itertools.islice(process.ancestors(pid), 1, None)
        )
        return cover.left((pid, now.start), below, time.monotonic())

    def use_cover(self, allowed: AllowedExec, decision: Decision) -> bool:
        """Use up the commands of the approved text that allowed this exec.

        False if they are no longer left. The process is remembered: programs below it are covered.
        """
        if not decision.uses and not decision.covered:
            return True
        act, commands = allowed.cause.act, allowed.session.commands
        cover, found = commands.cover(act), process.read_stat(allowed.pid)
        if cover is None or act is None or found is None:
            return found is None  # the task is gone, and the kernel rejects the answer
        if not cover.use(decision.uses, (allowed.pid, found.start)):
            return False
        if decision.covered:
            commands.covered(act, allowed.pid, found.start)
        return True

    async def compared_with(self, session: Session) -> surroundings.Baseline:
        """The state of the session with which the surroundings of an exec are compared.

        Variables that start files or the maker of the session set count only if people did.
        """
        state, label = session.commands.shell_state, session.label
        at, by_people = self._started_by_people.get(session.id, (-STARTER_S, False))
        if time.monotonic() - at >= STARTER_S:
            by_people = (await self.starter(session)).kind == "human"
            self._started_by_people[session.id] = time.monotonic(), by_people
        by_agent = self.authority.kind_of(str(label.get("by"))) != "human"
        return surroundings.Baseline(
            session.record.root_pid,
            state.view.environment if by_people else {},
            functools.partial(environment_digest, key=state.key),
            frozenset(map(str, label.get("given") or ()) if by_agent else ()),
        )

    # ------------------------------------------------------------ limits of envelopes

    def limits(
        self, session: Session, cause: Cause, actor: Actor, thread: int
    ) -> tuple[Limit, ...]:
        """The lists of programs that this exec must be on: rule 7.

        `actor` is that of the cause or, for a program of start files, the author of these files.
        """
        if not self.authority.has_commands:
            return ()
        lineage, maker = session.commands.lineage, str(session.label.get("by"))
        behind = (cause.actor, *cause.others)
        made = cause.act is None and cause.actor == maker  # the session's own program
        names: Iterable[str] = behind
        if cause.actor == SHELL.actor and pseudo(cause):
            made = True
            if not lineage.opened or direct(lineage.root, thread):
                names = (actor.operator,)
            else:
                names = self._all_typists(session)
        elif UNKNOWN.actor in behind or SHELL.actor in behind:
            made = True
            names = (*behind, *self._all_typists(session))
        now, found = time.time(), dict[Limit, None]()
        for name in names:
            if not (made and name == cause.actor == maker):
                found |= self._limit(name, session.id, now)
        if made:
            found |= self._limit(maker, None, now)
        return tuple(found)

    def _limit(self, name: str, session: str | None, now: float) -> dict[Limit, None]:
        commands = self.authority.commands_of(name, session, now)
        return {} if commands is None else {Limit(name, commands): None}

    def _all_typists(self, session: Session) -> Iterable[str]:
        typists = session.commands.lineage.typists
        return self.authority.names() if typists is None else typists

    def request(
        self,
        session: Session,
        actor: Actor,
        cause: Cause,
        program: Program,
        cwd: str | None,
        limits: tuple[Limit, ...] = (),
    ) -> Request:
        kind = session.commands.kind
        return Request(
            execution.ACT,
            actor,
            session=session.id,
            name=session.name,
            epoch=session.record.epoch,
            content=program.content,
            cwd=cwd,
            shell_cwd=process.cwd_of(session.record.root_pid),
            project=session.record.cwd or None,
            home=home_of(session),
            shell="sh" if kind == "posix" else kind or "bash",
            contained=session.layout.get("layout") == "contained",
            **fingerprinted(session.record.boot, cause.act),
            details=program.details,
            shaped=typed_by(cause),
            limits=limits,
            walls=walls_of(session),
            gate="exec",
            first=first_process(session),
        )


def pseudo(cause: Cause) -> bool:
    """Whether no operator is behind this cause: it has no act, and the name of a pseudo actor."""
    return cause.act is None and cause.actor in PSEUDO


def direct(root: int, thread: int) -> bool:
    """Whether the session's shell itself, or a subshell of it, does this exec.

    No process on the way from the shell has executed a program: each still runs the shell's file,
    and the kernel says that it was forked without an exec. A process that is gone says nothing.
    """
    found = exec_request.process_of(thread)
    pid = found[0] if found is not None else 0
    shell = _file_of(root)
    for _ in range(SUBSHELLS_MAX):
        if pid == root:
            return True
        if pid <= 1 or shell is None or _file_of(pid) != shell:
            return False
        stat = process.read_stat(pid)
        if stat is None or not stat.flags & process.FORKED_WITHOUT_EXEC:
            return False
        pid = stat.ppid
    return False


def _file_of(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/exe")  # the name only: the file system is not asked
    except OSError:
        return None


def refused(error: int) -> str:
    """Why the kernel did not allow the gate, for people."""
    if error == errno.EBUSY:
        return (
            "the kernel allows one gate above a program, and there is one already: "
            "this host itself runs in a gated session"
        )
    return f"the kernel refused it: {os.strerror(error)}"


def mode(asked: str | None, configured: str, contained: bool) -> tuple[int, dict[str, str]]:
    """The mode of the gate for the launcher, and the facts about the gate for the session's label.

    `asked`: exec, input or None; `configured`: auto, exec or input.
    """
    wanted = asked or configured
    if wanted == "input":
        why = "as was asked" if asked else "as is configured"
        return keeper_wire.GATE_NONE, {"gate": "input", "gate_why": why}
    if wanted == "exec":
        return keeper_wire.GATE_REQUIRED, {"gate": "exec"}
    if contained or os.geteuid() == 0:
        return keeper_wire.GATE_WANTED, {"gate": "exec"}
    why = (
        "an exec gate would disable sudo in an ordinary user's plain session; "
        "`--contained` or `--gate exec` turns it on"
    )
    return keeper_wire.GATE_NONE, {"gate": "input", "gate_why": why}


def says(depth: str, why: str, layout: Mapping[str, str]) -> dict[str, str]:
    """The facts that ls, who and attach show about the gate, after those about the layout."""
    gate = (
        "every program that starts in it is shown to the policy first"
        if depth == "exec"
        else f"the policy sees what is typed and run, not what programs start in turn: {why}"
    )
    if types_past_host({**layout, "gate": depth}):
        gate += f"; {TYPES_PAST_HOST}"
    return {"gate": depth, "gate_says": gate, "says": f"{layout['says']}; {gate}"}


def types_past_host(layout: Mapping[str, str]) -> bool:
    """Whether a program of a session may put input into its terminal.

    The filters of contained sessions and of exec depth forbid the call; elsewhere the kernel
    decides, and never forbids the call to root.
    """
    if layout["layout"] == "contained" or layout["gate"] == "exec":
        return False
    try:
        with open("/proc/sys/dev/tty/legacy_tiocsti", "rb") as setting:
            return setting.read().strip() != b"0" or os.geteuid() == 0
    except OSError:  # before Linux 6.2
        return True


def _answer(answer: asyncio.Future[tuple[int, int]], listener: int, error: int) -> None:
    if answer.done():
        with contextlib.suppress(OSError):
            os.close(listener)
    else:
        answer.set_result((listener, error))
