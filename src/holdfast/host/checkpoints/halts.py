"""Halts of a session that is saved, and of a restored session (A4, A8).

A halted session stands still in one of three ways (host/processes/halt.py). CRIU cannot save a
process in a frozen control group, and cannot seize one that process 1 holds by ptrace:
- Frozen groups, also those of stopped operators: CRIU seizes all threads. Then the checkpointer
  thaws the groups, and CRIU's library freezes them again before CRIU lets a process go.
- Process 1: the host orders the release first. All processes stay stopped by SIGSTOP. Afterwards
  process 1 holds them again. A program that continues itself by a timer may run in between.
- SIGSTOP alone: nothing is to do.

A restored session begins stopped (wire/checkpointing.HALTED_FILE, keeper/thaw.py). Then the host
halts it in the way that this machine has.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from holdfast.core.session.halt import (
    BEST_EFFORT,
    FREEZE,
    MARKS,
    SIGSTOP_BIT,
    How,
    Member,
    to_continue,
)
from holdfast.host.processes import stop_some
from holdfast.host.processes.halt import (
    PAUSE_S,
    RELEASE_WAIT_S,
    Execution,
    Halter,
    execution,
    look,
)
from holdfast.host.processes.init_orders import order, send
from holdfast.host.processes.proc_scan import of_session
from holdfast.host.processes.process import read_proc, read_stat
from holdfast.model.errors import Impossible
from holdfast.wire.checkpointing import FREEZERS_MAX, HALTED_FILE, Halted, pack
from holdfast.wire.spawning import HALTED_NAME

if TYPE_CHECKING:
    from holdfast.host.session.session import Session


class Standing(NamedTuple):
    """`freezers`: open files `cgroup.freeze`, outermost first. `held`: process 1 holds the rest."""

    how: How
    freezers: tuple[int, ...]
    held: bool
    init: int

    def close(self) -> None:
        for fd in self.freezers:
            os.close(fd)


def standing(halter: Halter, where: Execution) -> Standing:
    how, group, init = halter.way(where)
    frozen = [one for one, _, _ in os.walk(group) if halter.groups.frozen(one)] if group else []
    if len(frozen) > FREEZERS_MAX:
        raise Impossible(f"{len(frozen)} of its control groups are frozen", "resume operators")
    held = False
    if init and not group:
        with contextlib.suppress(OSError):
            held = read_proc(f"/proc/{init}/comm").strip() == HALTED_NAME
    opened = tuple(os.open(f"{one}/cgroup.freeze", os.O_RDWR | os.O_CLOEXEC) for one in frozen)
    return Standing(how, opened, held, init)


def release(where: Execution, found: Standing) -> None:
    """Let CRIU seize the processes that process 1 holds; they stay stopped.

    CRIU cannot cope with a stopped process that has a second SIGSTOP pending. SIGCONT discards
    it, also the mark of a process that was stopped before, and the next SIGSTOP discards SIGCONT.
    Held processes notice none of that.
    """
    if not found.held:
        return
    for one in _members(where, found.init):
        if one.pending & SIGSTOP_BIT:
            marks = [number for number in MARKS if one.pending >> (number - 1) & 1]
            for number in (signal.SIGCONT, signal.SIGSTOP, *marks):
                send(one.pid, number)
    order(where.keeper_pid, found.init, False)
    deadline = time.monotonic() + RELEASE_WAIT_S
    while any(one.running for one in _members(where, found.init)) and time.monotonic() < deadline:
        time.sleep(PAUSE_S)


def _members(where: Execution, init: int) -> list[Member]:
    return [one for one in look(p.pid for p in of_session(where.keeper_pid)) if one.pid != init]


def freeze(found: Standing) -> None:
    """Freeze the groups again, before a CRIU that hangs is killed."""
    for fd in found.freezers:
        with contextlib.suppress(OSError):  # the group is gone with its processes
            os.pwrite(fd, b"1", 0)


def hold(where: Execution, found: Standing) -> None:
    """Undo `release`, after the dump."""
    if found.held and os.path.exists(f"/proc/{found.init}"):
        order(where.keeper_pid, found.init, True)


def stops(halter: Halter, session: Session) -> tuple[dict[str, Any], ...]:
    """The stopped operators, with their processes as the session numbers them."""
    return tuple(
        {
            "operator": one.operator,
            "by": one.by,
            "how": one.how,
            "pids": sorted(
                member.namespaced[-1]
                for member in look(
                    {pid for pid, start in one.processes if _started(pid) == start}
                    | (halter.groups.pids(one.group) if one.group else set())
                )
                if member.namespaced
            ),
        }
        for one in session.stopped
    )


def _started(pid: int) -> int:
    found = read_stat(pid)
    return found.start if found is not None else -1


# ---------------------------------------------------------------- restore


class Moment(Protocol):
    """Of a checkpoint or a fork."""

    @property
    def halted(self) -> str: ...

    @property
    def stops(self) -> tuple[dict[str, Any], ...]: ...


def write(place: Path, moment: Moment) -> None:
    """Tell the launcher which processes begin stopped."""
    pids = tuple({pid for one in moment.stops for pid in one["pids"]})
    if moment.halted or pids:
        # Where a signal stopped all, the halt marked the processes that were stopped before.
        frozen = FREEZE in (moment.halted, *(one["how"] for one in moment.stops))
        marks = MARKS if frozen else ()
        said = Halted(bool(moment.halted), pids, marks)
        (place / HALTED_FILE).write_bytes(pack(said._asdict()))


async def again(halter: Halter, session: Session, moment: Moment, operator: str) -> None:
    """Halt a restored session, and stop its stopped operators, as at the checkpoint."""
    await halter.in_thread(_stop_operators, halter, session, moment)
    if not moment.halted:
        return
    began = time.monotonic()
    how = await halter.in_thread(halter.keep_halted, execution(session))
    took = round((time.monotonic() - began) * 1000, 3)
    if session.state == "fenced":  # it stays halted when the fence ends
        session.record.halted = True
        return
    session.change(
        "halted",
        operator=operator,
        how=how,
        took_ms=took,
        complete=True,
        act=session.ring.accepted,
    )
    because = "it was halted when it was saved"
    session.viewers.tell("halted", operator=operator, how=how, because=because)


def _stop_operators(halter: Halter, session: Session, moment: Moment) -> None:
    """The processes begin stopped by a signal; those that were stopped before are marked."""
    inside = {
        one.namespaced[-1]: one
        for one in look(one.pid for one in of_session(session.keeper_pid))
        if one.namespaced
    }
    for stop in moment.stops:
        known = session.stopped.get(stop["operator"])
        if known is not None and any(_started(pid) == start for pid, start in known.processes):
            continue  # the last host has done it, and died then
        members = [inside[pid] for pid in stop["pids"] if pid in inside]
        group = stop_some.new_group(halter, execution(session))
        for one in members if group else ():
            halter.groups.fetch(group, one.pid)
        for pid in to_continue(members) if group else ():  # frozen, not stopped
            send(pid, signal.SIGCONT)
        found = stop_some.identified(one.pid for one in members)
        suspended = stop_some.identified(one.pid for one in members if one.stopped_before)
        session.stopped.begin(stop["operator"], stop["by"], FREEZE if group else BEST_EFFORT, group)
        session.stopped.found(stop["operator"], found, suspended if group else found)
