"""Signals to one process of a session, or to it and all below it (P5).

A pid can be reused, so the target is (pid, start time). It is looked up when the request comes,
shown to the policy with its command, and checked again after the decision, which may take time. The
signal goes through a pidfd, which cannot come to mean another process. A tree that forks meanwhile
is walked again. Processes that the target started count as below it, also if they have another
parent by now.
"""

from __future__ import annotations

import asyncio
import os
import signal as signals
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from holdfast.core.contract.input import Signal, Signalled
from holdfast.core.session.graph import Process, subtree
from holdfast.host.acts.act_context import ProposedAct
from holdfast.host.processes import proc_scan
from holdfast.host.processes.argv import words
from holdfast.host.processes.graph import of_session
from holdfast.host.processes.process import read_stat
from holdfast.host.requests.host import Context, Host
from holdfast.host.session.session import Session
from holdfast.model.errors import NotFound, Refused, Usage
from holdfast.model.limits import SIGNAL_ROUNDS

if TYPE_CHECKING:
    from holdfast.model.canonical import Canonical

COMMAND_CHARS = 200  # of the process, for an approver
PIDS_TOLD = 256


class Delivered(NamedTuple):
    sent: list[int]
    refused: list[int]  # of another account


async def signal(host: Host, ctx: Context, q: Signal) -> Signalled:
    session = host.engine.find(q.session)
    what = signal_named(q.signal)
    target = await _member(host, session, q.pid)
    command = (await words(session, [target.pid])).get(target.pid, target.comm)[:COMMAND_CHARS]
    name = what.name.removeprefix("SIG")
    details = {
        "signal": name,
        "pid": str(target.pid),
        "start": str(target.start),
        "command": command,
        "tree": str(q.tree),
    }
    _stands_still(session, what)
    await host.engine.door.enter(ctx.act, ProposedAct("signal", details=details, wait_s=q.hold))
    _stands_still(session, what)
    if target.pid == session.record.root_pid:
        session.end_of.signalled(ctx.conn.operator, what)
    look, parent_of = partial(_processes, host, session), session.commands.lineage.parent_of
    done = await asyncio.to_thread(deliver, target, what, q.tree, look, parent_of)
    if not done.sent and not done.refused:
        raise NotFound(
            f"process {target.pid} is gone", "`holdfast graph SESSION` shows what is there"
        )
    if not done.sent:
        raise Refused(
            f"process {target.pid} runs as another account",
            "only root or that account may signal it",
        )
    facts: dict[str, Canonical] = {
        "pid": target.pid,
        "command": command,
        "signal": name,
        "count": len(done.sent),
        "sent": done.sent[:PIDS_TOLD],
        "refused": done.refused[:PIDS_TOLD],
    }
    ctx.act.outcome = facts
    return Signalled(
        id=session.id,
        name=session.name,
        pid=target.pid,
        command=command,
        signal=name,
        count=len(done.sent),
        sent=tuple(done.sent[:PIDS_TOLD]),
        refused=tuple(done.refused[:PIDS_TOLD]),
    )


def _stands_still(session: Session, what: signals.Signals) -> None:
    """SIGCONT would let a process of a halted session run; to resume it takes another right."""
    if what is signals.SIGCONT:
        session.refuse_if_halted()


def signal_named(name: str) -> signals.Signals:
    """By name, with or without SIG, or by number."""
    try:
        if name.isascii() and name.isdigit():
            return signals.Signals(int(name))
        return signals.Signals[f"SIG{name.upper().removeprefix('SIG')}"]
    except (KeyError, ValueError):
        raise Usage(
            f"there is no signal {name[:20]!a}",
            "for example TERM, KILL, INT, HUP, STOP, CONT, USR1; `kill -l` lists them",
        ) from None


async def _member(host: Host, session: Session, pid: int) -> Process:
    """A process by its pid on this machine, or by its pid inside a contained session."""
    processes = await asyncio.to_thread(_processes, host, session)
    found = next((p for p in processes if p.pid == pid), None) or next(
        (p for p in processes if p.inside == pid), None
    )
    if found is None:
        raise NotFound(
            f"session {session.name} has no process {pid}",
            f"`holdfast graph {session.name}` shows those it has",
        )
    if found.inside == 1:
        raise Refused(
            "this is the session's own init", f"`holdfast end {session.name}` ends everything in it"
        )
    return found


def _processes(host: Host, session: Session) -> tuple[Process, ...]:
    """All processes of a session, however many."""
    return of_session(
        host.engine.halter.groups, session, files=False, most=proc_scan.PROCESSES_MAX, words=False
    ).processes


def deliver(
    target: Process,
    what: signals.Signals,
    tree: bool,
    look: Callable[[], tuple[Process, ...]],
    started_by: Callable[[int], int | None],
) -> Delivered:
    found, tried = Delivered([], []), dict[int, int]()  # pid -> start
    for _ in range(SIGNAL_ROUNDS if tree else 1):
        below = (
            subtree(look(), {target.pid: target.start} | tried, started_by) if tree else [target]
        )
        fresh = [p for p in below if tried.get(p.pid) != p.start and p.inside != 1]
        if not fresh:
            break
        for one in fresh:
            tried[one.pid] = one.start
            if (allowed := _send(one, what)) is not None:
                (found.sent if allowed else found.refused).append(one.pid)
    return found


def _send(process: Process, what: signals.Signals) -> bool | None:
    """Whether the signal was allowed; None: the process is gone, or the pid was reused."""
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        return None
    try:
        found = read_stat(process.pid)  # after the pidfd, which keeps its process
        if found is None or found.start != process.start:
            return None
        signals.pidfd_send_signal(handle, what)
        return True
    except ProcessLookupError:
        return None
    except PermissionError:
        return False
    finally:
        os.close(handle)
