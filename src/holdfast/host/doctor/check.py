"""The form of a check of `holdfast doctor`: a function per question, answered by really trying.

host/doctor/report.py forks a process for each check, which ends with the check. So a check may
unshare, drop the uid, install a filter or hang without harm to the caller, and need not undo that.
A check must remove only the objects that outlive a process (a control group, a file); `cleanup`
removes these objects if the check was killed before. A check may raise: the report then says
"unknown" with the reason. A check must not print, read the environment or write outside the given
home.

A new check goes into the `CHECKS` of the check's module. The id of a check is public
(`doctor --json`): never rename an id.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

CHECK_LIMIT_S = 10.0  # per check; all checks run at the same time


@dataclass(frozen=True, slots=True)
class Surroundings:
    home: Path | None
    uid: int
    tag: str  # unique to this run: part of every name that a check creates in a shared place
    criu: str = ""  # the value of HOLDFAST_CRIU
    config: str = ""  # the configuration file; empty: in the home


@dataclass(frozen=True, slots=True)
class Outcome:
    ok: bool | None
    detail: str  # the measured result, or why there is none
    fix: str = ""


def failed(detail: str, fix: str = "") -> Outcome:
    return Outcome(False, detail, fix)


def judged(ok: bool, detail: str, fix: str) -> Outcome:
    """An outcome that needs a fix only if it is bad."""
    return Outcome(ok, detail, "" if ok else fix)


def _no_cleanup(surroundings: Surroundings) -> None:
    return


@dataclass(frozen=True, slots=True)
class Check:
    id: str
    title: str
    needed_for: str
    run: Callable[[Surroundings], Outcome]
    cleanup: Callable[[Surroundings], None] = _no_cleanup
    limit_s: float = CHECK_LIMIT_S


@dataclass(frozen=True, slots=True)
class Derived:
    """A question that other checks answer; `derive` gets the outcomes of all checks by id."""

    id: str
    title: str
    needed_for: str
    derive: Callable[[Mapping[str, Outcome]], Outcome]


def sysctl(name: str, top: str = "/proc/sys") -> str | None:
    """The value of a kernel setting; None if this kernel does not have the setting."""
    try:
        return Path(top, *name.split(".")).read_text().strip()
    except OSError:
        return None


def readable(fd: int, wait_s: float) -> bool:
    """Whether `fd` becomes readable in time. (select() fails for descriptors above 1023.)"""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(wait_s * 1000))
