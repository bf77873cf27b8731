"""The effects of acts: programs started, files written, ports opened (G2). Pure.

Each report of the kernel names a process, and the lineage names the act behind the process. This
module adds the reports up, per act, within bounds. host/originators/act_effects.py feeds it.

Only acts of agents and services have an entry here: the act of a person costs one lookup per
report. `unknown` lists the kinds of which there may be more than was seen.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any, Final

from holdfast.model.printable import printable

NAMES_MAX: Final = 32  # programs, files or ports that one entry of the record names
NAME_CHARS: Final = 160  # of one name: with all names an entry stays below 64 KiB
FILES_KEPT: Final = 16_384  # counted files of all open acts of a session
PROGRAMS_KEPT: Final = 1024  # different programs of one act
ACTS_OPEN: Final = 64  # acts of a session with effects that are still collected
CLOSED_KEPT: Final = 256  # closed acts: later reports about them are ignored
TRACED: Final = ("agent", "service")  # the kinds of operators whose acts have effects here
PROGRAMS, FILES, PORTS = KINDS = ("programs", "files", "ports")

Shown = dict[str, Any]  # as the record has it


class Effects:
    """The effects of one act so far."""

    def __init__(self, actor: str, gaps: tuple[int, int]) -> None:
        self.actor, self.gaps = actor, gaps  # the gaps in the kernel's reports before
        self.command = False  # a `run`: its effects are recorded also if there are none
        self.awaited = False  # the outcome of the act is not recorded yet
        self.recorded: Shown | None = None
        self.started = 0
        self.programs: dict[str, None] = {}
        self.files: dict[bytes, None] = {}
        self.ports: dict[str, None] = {}
        self.unknown: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self.started or self.files or self.ports)

    def executed(self, program: str) -> None:
        self.started += 1
        if len(self.programs) < PROGRAMS_KEPT:
            self.programs[program] = None

    def listens(self, ports: list[str]) -> bool:
        """Note listening ports; return whether one is new."""
        before = len(self.ports)
        self.ports |= dict.fromkeys(ports)
        return len(self.ports) > before

    def show(self, files: list[str], unknown: set[str]) -> Shown:
        """`files`: the names of files. `unknown`: further kinds that are not all known."""
        found = (
            (PROGRAMS, self.started, [*self.programs]),
            (FILES, len(self.files), files),
            (PORTS, len(self.ports), [*self.ports]),
        )
        every = self.unknown | unknown
        return {
            **{
                kind: {"count": count, "names": [_cut(one) for one in names[:NAMES_MAX]]}
                for kind, count, names in found
            },
            "unknown": [kind for kind in KINDS if kind in every],
        }


class EffectsOfActs:
    """The effects of the acts of a session."""

    def __init__(self) -> None:
        self.newest = 0  # act of which anything is known
        # How often the kernel's reports of processes and of files had gaps.
        self.gaps: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self._open: OrderedDict[int, Effects] = OrderedDict()
        self._closed: deque[int] = deque(maxlen=CLOSED_KEPT)
        self._counted = 0
        self.ignored: set[bytes] = set()  # devices, and the shell's own files

    def __iter__(self) -> Iterator[tuple[int, Effects]]:
        return iter([*self._open.items()])

    def __len__(self) -> int:
        return len(self._open)

    def get(self, act: int | None) -> Effects | None:
        return self._open.get(act) if act is not None else None

    def of(self, act: int, actor: str) -> Effects | None:
        """Return the effects of an act, for a report; None if the act is closed."""
        if (known := self._open.get(act)) is not None:
            return known
        if act in self._closed:
            return None
        made = self._open[act] = Effects(actor, self.gaps())
        if act <= self.newest:  # of the last host's time, or dropped: a part was not collected
            made.unknown.update(KINDS)
        self.newest = max(self.newest, act)
        if len(self._open) > ACTS_OPEN:
            self._counted -= len(self._open.popitem(last=False)[1].files)
        return made

    def expect(self, act: int, before: int | None, actor: str, command: bool) -> None:
        """Note an act of which the outcome follows; `before`: the number of its earlier piece."""
        if (piece := self.get(before)) is not None:
            piece.awaited = False
        if (one := self.of(act, actor)) is not None:
            one.awaited, one.command = True, command

    def wrote(self, one: Effects, key: bytes) -> None:
        if key in one.files or key in self.ignored:
            return
        if self._counted >= FILES_KEPT:
            one.unknown.add(FILES)
            return
        one.files[key] = None
        self._counted += 1

    def gone(self, key: bytes) -> None:
        """Note that a file does not exist any more, or does not count."""
        for one in self._open.values() if self._counted else ():
            if key in one.files:
                del one.files[key]
                self._counted -= 1

    def ignore(self, key: bytes) -> None:
        if len(self.ignored) < CLOSED_KEPT:
            self.ignored.add(key)
        self.gone(key)

    def close(self, act: int) -> None:
        if (one := self._open.pop(act, None)) is not None:
            self._counted -= len(one.files)
            self._closed.append(act)


def _cut(name: str) -> str:
    text = printable(name)
    return text if len(text) <= NAME_CHARS else f"...{text[3 - NAME_CHARS :]}"
