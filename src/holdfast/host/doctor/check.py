"""What `holdfast doctor` looks at: one function per question, each answered by really trying.

A check runs in a process of its own, forked by `host/doctor.py`, which ends with it. So it may unshare,
drop its uid, install a filter or hang without harm to the caller, and it needs no undoing of such things;
only what outlives a process (a control group, a file) is its to remove, with `cleanup` for the case that it
was killed before. A check may raise: the doctor makes "unknown" of it, with the reason. It must not print,
read the environment or write outside the home it was given.

When you add a check: put it into the `CHECKS` of its module; its id is public (`doctor --json`), so never
rename it.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

CHECK_LIMIT_S = 10.0  # for one check; all of them run at the same time


@dataclass(frozen=True, slots=True)
class Surroundings:
    home: Path | None
    uid: int
    tag: str  # unique to this run: names what a check puts into a shared place for a moment


@dataclass(frozen=True, slots=True)
class Outcome:
    ok: bool | None
    detail: str  # what was measured, or why not
    fix: str = ""


def _nothing(surroundings: Surroundings) -> None:
    return


@dataclass(frozen=True, slots=True)
class Check:
    id: str
    title: str
    needed_for: str
    run: Callable[[Surroundings], Outcome]
    cleanup: Callable[[Surroundings], None] = _nothing
    limit_s: float = CHECK_LIMIT_S


@dataclass(frozen=True, slots=True)
class Derived:
    """A question whose answer follows from others; `derive` gets their outcomes by id."""

    id: str
    title: str
    needed_for: str
    derive: Callable[[Mapping[str, Outcome]], Outcome]


def sysctl(name: str) -> str | None:
    """The value of a kernel setting, None where this kernel has no such setting."""
    try:
        return Path("/proc/sys", *name.split(".")).read_text().strip()
    except OSError:
        return None


def readable(fd: int, wait_s: float) -> bool:
    """Whether there is something to read within that time. Not select(), which knows no descriptor above 1023."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(wait_s * 1000))
