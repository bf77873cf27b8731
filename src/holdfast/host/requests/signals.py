"""Signals to one process of a session, or to it and all below it (P5): an act like any other, on a process that is named by more than its number.

A pid is reused. Who was meant is (pid, start): looked up when it is asked, shown to the policy with its command, and looked for again after a decision that took time; the signal goes through
a handle (pidfd) that cannot come to mean another process. A tree that forks meanwhile is walked again; below a process is also what it started and what has another parent by now.
"""

from __future__ import annotations

import asyncio
import os
import signal as signals
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.core.graph import Process, subtree
from holdfast.host import observe
from holdfast.host.connection import Connection
from holdfast.host.graph import of_session
from holdfast.host.process import read_stat
from holdfast.host.session import Session
from holdfast.host.words import words
from holdfast.model.errors import NotFound, Refused, Usage
from holdfast.model.limits import SIGNAL_ROUNDS

if TYPE_CHECKING:
    from holdfast.host.ops import Ops

COMMAND_CHARS = 200  # of the process, for whoever decides
PIDS_TOLD = 256


class Delivered(NamedTuple):
    sent: list[int]
    refused: list[int]  # of another account: not allowed


async def signal(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    session = ops.engine.find(q["session"])
    what = signal_named(q["signal"])
    target = await _member(ops, session, q["pid"])
    command = (await words(session, [target.pid])).get(target.pid, target.comm)[:COMMAND_CHARS]
    details = {
        "signal": what.name.removeprefix("SIG"),
        "pid": str(target.pid),
        "start": str(target.start),
        "command": command,
        "tree": str(q["tree"]),
    }
    act = q["act!"]
    _stands_still(session, what)
    await ops.engine.door.clear(act, number, "signal", details=details, wait_s=q["hold"])
    await act.intend()
    ops.may(conn, "signal", session.id)  # asked again: that took time
    _stands_still(session, what)
    done = await asyncio.to_thread(
        deliver,
        target,
        what,
        q["tree"],
        lambda: _processes(ops, session),
        session.commands.lineage.parent_of,
    )
    if not done.sent and not done.refused:
        raise NotFound(
            f"process {target.pid} is gone", "`holdfast graph SESSION` shows what is there"
        )
    if not done.sent:
        raise Refused(
            f"process {target.pid} runs as somebody else", "only root or that account may signal it"
        )
    facts = {
        "pid": target.pid,
        "command": command,
        "signal": details["signal"],
        "count": len(done.sent),
        "sent": done.sent[:PIDS_TOLD],
        "refused": done.refused[:PIDS_TOLD],
    }
    return {"id": session.id, "name": session.name, **facts, "outcome": facts}


def _stands_still(session: Session, what: signals.Signals) -> None:
    """Where a halt is a stop of every process, one that is continued would run; to end the halt is another right."""
    if session.state == "halted" and what is signals.SIGCONT:
        raise Refused(
            f"session {session.name} is halted", f"`holdfast resume {session.name}` goes on"
        )


def signal_named(name: str) -> signals.Signals:
    """By name, with or without SIG, or by number."""
    try:
        return (
            signals.Signals(int(name))
            if name.isascii() and name.isdigit()
            else signals.Signals[f"SIG{name.upper().removeprefix('SIG')}"]
        )
    except (KeyError, ValueError):
        raise Usage(
            f"there is no signal {name[:20]!a}",
            "for example TERM, KILL, INT, HUP, STOP, CONT, USR1; `kill -l` lists them",
        ) from None


async def _member(ops: Ops, session: Session, pid: int) -> Process:
    """By its pid on this machine, or in a contained session by the one that programs inside see."""
    processes = await asyncio.to_thread(_processes, ops, session)
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


def _processes(ops: Ops, session: Session) -> tuple[Process, ...]:
    """All of them, however many."""
    return of_session(
        ops.engine.halter.groups, session, files=False, most=observe.PROCESSES_MAX, words=False
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
    """Whether it was allowed; None: it is gone, or its pid is another's."""
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        return None
    try:
        found = read_stat(process.pid)  # after the handle: what it names cannot change any more
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
