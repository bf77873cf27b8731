"""Judges a history of commands that one program ran: each outcome is true, each effect is single.

Pure: gets the runs and the effects, returns the faults. An effect is the number of a run that its
command wrote into a file.

    done       the command had one effect; exit code and output are those of this command
    refused    the command had no effect
    unknown    the command had one effect or none
    cancelled  the command had one effect or none
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple


class End(StrEnum):
    DONE = "done"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    CANCELLED = "cancelled"


class Ran(NamedTuple):
    """A run as its program saw it."""

    number: int
    end: End
    detail: str = ""
    exit_code: int | None = None
    output: str = ""


EFFECTS = {
    End.DONE: (1,),
    End.REFUSED: (0,),
    End.UNKNOWN: (0, 1),
    End.CANCELLED: (0, 1),
}


def check_runs(runs: Iterable[Ran], effects: Iterable[int], codes: dict[int, int]) -> list[str]:
    """The faults of a history. `codes`: the exit code of each command; it prints its number."""
    found, seen = Counter(effects), set[int]()
    faults = []
    for ran in runs:
        seen.add(ran.number)
        count = found[ran.number]
        if count not in EFFECTS[ran.end]:
            faults.append(f"{count} effects of {ran}")
        if ran.end is End.DONE and ran.exit_code != codes[ran.number]:
            faults.append(f"the exit code should be {codes[ran.number]}: {ran}")
        if ran.end is End.DONE and ran.output != f"{ran.number}\n":
            faults.append(f"the output belongs to another command: {ran}")
    faults += [f"run {number} has no outcome" for number in sorted(codes.keys() - seen)]
    faults += [f"an effect of no run: {number}" for number in sorted(found.keys() - codes.keys())]
    return faults
