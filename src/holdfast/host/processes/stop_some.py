"""Stops some processes of a session while the others work on, and resumes them (A8).

There are two ways; a session with a control group uses the first:
- "cgroup freeze": the processes move into a group of their own below the session's group, which is
  frozen before the first arrives. A process freezes on arrival, and its later children are born in
  that group. Children from before the arrival are found by looking again.
- "best effort": SIGSTOP to each process, again until none runs. Every process of the same account
  can continue a process that was stopped this way.

A foreground job is first stopped by SIGSTOP, so that its shell takes the terminal back and shows a
prompt. A frozen job alone would leave the shell waiting.

A group is used for a single stop: after the resume the processes return to the session's group.
Otherwise a later stop of the same operator could freeze processes that another operator started.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.core.session.halt import BEST_EFFORT, FREEZE, How
from holdfast.host.processes.halt import (
    FETCH_ROUNDS,
    HALT_WAIT_S,
    PAUSE_MAX_S,
    PAUSE_S,
    PROCESSES_MAX,
    Execution,
    Halter,
    children,
    look,
    stop_threads,
)
from holdfast.host.processes.init_orders import send
from holdfast.host.processes.process import read_stat

SUSPEND_WAIT_S: Final = 0.5  # for the foreground job to take SIGSTOP, before it is frozen anyway
STOPS_MAX: Final = 1024  # groups of earlier stops that still have a process

Identified = tuple[tuple[int, int], ...]  # pid and start time of processes


@dataclass(frozen=True, slots=True)
class Some:
    """The processes to stop by pid, with the start time if known, and those to leave alone."""

    chosen: Mapping[int, int]
    others: frozenset[int]
    foreground: int = 0  # the process group that has the terminal


@dataclass(frozen=True, slots=True)
class StoppedSome:
    how: How
    processes: Identified
    missed: tuple[int, ...]
    suspended: Identified = ()  # processes of the foreground job, stopped before the freeze


def new_group(halter: Halter, execution: Execution) -> str:
    """Makes a frozen group below the session's group; empty if there can be none."""
    above = halter.groups.find(execution.session, execution.root_pid)
    for number in range(STOPS_MAX if above else 0):
        try:
            os.mkdir(path := f"{above}/stopped-{number}")
            halter.groups.order(path)
            return path
        except FileExistsError:
            continue
        except OSError:
            break
    return ""


def stop(halter: Halter, group: str, some: Some) -> StoppedSome:
    if group and os.path.isdir(group):  # a restore of the session makes a new group for all
        return _freeze(halter, group, some)
    return _signal_all(halter, some)


def _freeze(halter: Halter, group: str, some: Some) -> StoppedSome:
    groups, refused = halter.groups, set[int]()
    suspended = _suspend(_below(halter, some), some.foreground)
    inside = groups.pids(group)
    frozen = False
    for _ in range(FETCH_ROUNDS):
        strays = [pid for pid in _below(halter, some) if pid not in inside | refused]
        strays = [one.pid for one in look(strays) if one.state not in "ZX"]
        if frozen and not strays:
            break
        refused |= {pid for pid in strays if not groups.fetch(group, pid)}
        frozen = groups.freeze(group, True, HALT_WAIT_S)
        inside = groups.pids(group)
    late = set() if frozen else {one.pid for one in look(inside) if one.running}
    missed = tuple(sorted(refused | late))
    return StoppedSome(FREEZE, identified(inside - late), missed, suspended)


def _suspend(pids: list[int], foreground: int) -> Identified:
    """Stops the processes of the foreground job; returns when they stand still, or later."""
    job = [one.pid for one in look(pids) if one.running and one.group == foreground]
    suspended = identified(pid for pid in job if send(pid, signal.SIGSTOP))
    deadline = time.monotonic() + SUSPEND_WAIT_S
    while any(one.running for one in look(job)) and time.monotonic() < deadline:
        time.sleep(PAUSE_S)
    return suspended


def _signal_all(halter: Halter, some: Some) -> StoppedSome:
    stopped, refused, pause = dict[int, int](), set[int](), PAUSE_S
    deadline = time.monotonic() + HALT_WAIT_S
    while True:
        running = [one.pid for one in look(_below(halter, some)) if one.running]
        left = [pid for pid in running if pid not in refused]
        if not left or time.monotonic() > deadline:
            # The walk reads a parent before its children: none of them ran, so none can fork.
            return StoppedSome(BEST_EFFORT, tuple(stopped.items()), tuple(sorted(running)))
        for pid in left:
            stopped |= identified((pid,))
            if not stop_threads(pid):
                refused.add(pid)
        time.sleep(pause)
        pause = min(2 * pause, PAUSE_MAX_S)


def resume(halter: Halter, group: str, signalled: Identified) -> None:
    """Lets the processes go on: the frozen group, and processes that were stopped by a signal."""
    if group:
        with contextlib.suppress(OSError):
            halter.groups.freeze(group, False, HALT_WAIT_S)
        for _ in range(FETCH_ROUNDS):
            left = halter.groups.pids(group)
            for pid in left:
                halter.groups.fetch(os.path.dirname(group), pid)
            if not left:
                break
        with contextlib.suppress(OSError):
            os.rmdir(group)
    for one in reversed(signalled):  # children first: a shell notices nothing
        if one in identified((one[0],)):
            send(one[0], signal.SIGCONT)


def _below(halter: Halter, some: Some) -> list[int]:
    """The chosen processes and their descendants, parents first."""
    todo = [
        pid
        for pid, start in some.chosen.items()
        if (found := read_stat(pid)) is not None and start in (0, found.start)
    ]
    seen = {*todo, *some.others, *halter.spared()}
    todo = [pid for pid in todo if pid not in some.others and pid not in halter.spared()]
    for pid in todo:  # the list grows during the loop
        fresh = [child for child in children(pid) if child not in seen]
        todo += fresh[: max(0, PROCESSES_MAX - len(todo))]
        seen.update(fresh)
    return todo


def identified(pids: Iterable[int]) -> Identified:
    return tuple(
        (pid, found.start) for pid in sorted(pids) if (found := read_stat(pid)) is not None
    )
