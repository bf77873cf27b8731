"""Chooses the limits of a new session and the way in which each is kept.

core/session/limits.py has the ways and the reasons. The control group must exist before the ways
are known, and the nursery must run before the group is made (host/lifecycle/nursery.py). So the
request to the nursery is completed last (`complete`).
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from holdfast.core.session import limits as rules
from holdfast.core.session.limits import EACH, NICE, RLIMIT, Limits, Whole
from holdfast.model.errors import Usage
from holdfast.wire import keeper as wire

if TYPE_CHECKING:
    from holdfast.home.settings import Settings
    from holdfast.host.processes.halt import Halter

# Programs go before keepers and host when memory runs out. A program of a contained session goes
# first; if the host itself could not be lowered, all programs are raised instead.
OOM_CONTAINED: Final = 300
OOM_PLAIN: Final = 200


class Wanted(NamedTuple):
    """Limits to keep. `given`: the resources that a person chose, in a file or a request."""

    limits: Limits = Limits()
    given: frozenset[str] = frozenset()


NO_LIMITS: Final = Wanted()


def wanted(settings: Settings, state: str, contained: bool, asked: str, may_raise: bool) -> Wanted:
    """The limits of a new session; `may_raise`: the request may go above the configuration."""
    whole = _whole(state)
    base = rules.resolved(settings.limits, whole) if contained else Limits()
    given = settings.limits_set if contained else frozenset[str]()
    if asked:
        texts = rules.parsed(asked)
        if "disk" in texts and not contained:
            raise Usage(
                "a plain session has no directories of its own whose size could be limited",
                "add --contained, or leave out disk=",
            )
        values = rules.resolved(texts, whole)
        if may_raise:
            base = rules.replaced(base, values, texts)
        else:
            base = rules.narrowed(base, values)
        given |= frozenset(texts)
    return Wanted(base, given)


async def complete(
    halter: Halter, spawn: wire.Spawn, label: dict[str, Any], kept: Wanted
) -> wire.Spawn:
    """The request with its control group and limits; the label says how each limit is kept."""
    group = await halter.in_thread(halter.groups.make, spawn.session)
    contained = spawn.containment is not None
    files = rules.group_files(kept.limits, _whole("/").memory, _swap())
    grouped = await halter.in_thread(halter.groups.limit, group, files)
    mapped = contained and os.geteuid() != 0
    if mapped and "processes" not in grouped:
        kept = kept._replace(limits=_leave_processes(kept.limits))
    ways = rules.ways(kept.limits, grouped, kept.given, mapped, contained)
    if ways:
        label["limits"] = {
            name: {"limit": getattr(kept.limits, name), "by": way} for name, way in ways.items()
        }
    return spawn._replace(
        cgroup=os.fsencode(group),
        label=json.dumps(label).encode(),
        limits=_of_process(kept.limits, ways, contained),
    )


def _leave_processes(limits: Limits) -> Limits:
    """At most half of the account's processes: the kernel counts a session's among them too.

    Otherwise the host of a small machine could start no process.
    """
    account = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if limits.processes is None or account == resource.RLIM_INFINITY:
        return limits
    return limits._replace(processes=min(limits.processes, account // 2))


def _of_process(
    limits: Limits, ways: Mapping[str, rules.Way], contained: bool
) -> tuple[tuple[int, int], ...]:
    found = [(wire.LIMIT_OOM, OOM_CONTAINED if contained else 0 if _is_lowered() else OOM_PLAIN)]
    if ways.get("processes") == RLIMIT and limits.processes is not None:
        found.append((resource.RLIMIT_NPROC, limits.processes))
    if ways.get("memory") == EACH and limits.memory is not None:
        found.append((resource.RLIMIT_DATA, limits.memory))
    if ways.get("cpu") == NICE and limits.cpu is not None and (value := rules.nice(limits.cpu)):
        found.append((wire.LIMIT_NICE, value))
    if limits.disk is not None:
        found.append((resource.RLIMIT_FSIZE, limits.disk))
    return tuple(found)


def of_label(label: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The limits that a session was made with, as `complete` wrote them to the label."""
    found = label.get("limits")
    if not isinstance(found, dict):
        return {}
    return {
        name: one
        for name, one in found.items()
        if name in rules.RESOURCES and isinstance(one, dict) and isinstance(one.get("limit"), int)
    }


def _whole(path: str) -> Whole:
    disk = os.statvfs(path)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Whole(memory, disk.f_blocks * disk.f_frsize)


def _swap() -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("SwapTotal:"):
                return int(line.split()[1]) << 10
    return 0


def _is_lowered() -> bool:
    try:
        return int(Path("/proc/self/oom_score_adj").read_text()) < 0
    except (OSError, ValueError):
        return False
