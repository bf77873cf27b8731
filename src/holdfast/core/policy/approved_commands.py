"""The programs that an approved text starts without a further question (P4). Pure.

An approval answers the rules that asked about a text. At exec depth these rules stay silent about
the commands of that text, and about programs that those commands start. Every other program
of the same act is asked about: the approver did not see that program. It runs because an alias, a
function, a trap, a hook or PATH gave the text a different meaning, or because code in the session
exchanged the text.

1. A word that the text leaves open (`$x`, `$(...)`) stands for any number of words, a pattern for
   words that it matches. All other words must be the same (`word_patterns.py`).
2. A program outside of the system's directories counts by its path: `/tmp/rm` is not `rm`.
3. Wrappers must be those of the text. They may be gone already: after `sudo rm x` comes `rm x`.
4. The program must run in a directory that the approver saw: the directory in the question, or a
   directory that a `cd` of the text names. If the text determines the directory of the command,
   no other counts. The directory in the question counts by device and inode too, because a
   different directory can take the same name.
5. A file that the text names must be behind the same links as when the text was judged.
6. Its variables must be those of the shell's first prompt, or set by the text. `environment.py`
   says which variables count.
7. A command covers one process each time it stands in the text, and any number only where the text
   can repeat it (a loop, a function, a trap, `xargs`). With wrappers it covers one process for each
   wrapper that is gone. The same process may try again: an interrupted exec is reported again.
8. The cover ends with the run. Until the shell reports that the run began, it lasts UNSTARTED_S.
   That is also the limit for text that the session's shell does not read itself, since the end of
   that is not known. After the run, a command that the text puts in the background may still start
   within BACKGROUND_S: its exec may be later than the shell's report of the end.
"""

from __future__ import annotations

import enum
import posixpath
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from holdfast.core.policy import environment, word_patterns
from holdfast.core.policy.conditions import Identity, Request, Unit
from holdfast.core.policy.environment import Changes
from holdfast.core.policy.word_patterns import Steps, WordPattern
from holdfast.core.shellcode.facts import Command, Facts

COMMANDS_MAX: Final = 256  # of one text; the programs of further commands are asked about
ANY_NUMBER: Final = 0
UNSTARTED_S: Final = 120.0
BACKGROUND_S: Final = 5.0


class Surroundings(NamedTuple):
    """The parts of an exec besides program and words that decide the effect."""

    cwd: str
    identity: Identity
    environment: Changes


def _surroundings(request: Request) -> Surroundings | None:
    """Return the surroundings of an exec; None if a part is not known."""
    if request.cwd is None or request.directory is None or request.environment is None:
        return None
    return Surroundings(request.cwd, request.directory, request.environment)


class Directory(NamedTuple):
    """The directory in the question."""

    path: str | None
    identity: Identity | None


class Pattern(NamedTuple):
    """A command of an approved text."""

    via: tuple[str, ...]
    name: str
    words: tuple[WordPattern, ...]
    asked: Directory
    directories: frozenset[str]  # in which the command may run
    assigned: frozenset[tuple[str, str | None]]  # variables that the text sets; None: to any value
    places: frozenset[str] = frozenset()  # that its words name, as spelled and behind links
    times: int = 1  # how often the text has the command; ANY_NUMBER: in a loop, for example
    background: bool = False

    def fits(self, command: Command, at: Surroundings, steps: Steps) -> int | None:
        """Return how many wrappers are gone; None if the program is not this command.

        A wrapper that is left may run the command in another directory: `sh -c 'cd x && rm y'`.
        """
        cwd = at.cwd
        gone = len(self.via) - len(command.via)
        runs_in = frozenset((cwd,)) if command.cwds is None else command.cwds
        if (
            gone >= 0
            and self.via[gone:] == command.via
            and _absolute(self.name, cwd) == _absolute(command.name, cwd)
            and runs_in <= self.directories
            and (cwd != self.asked.path or at.identity == self.asked.identity)
            and self._has_variables(command, gone, at.environment)
            and self._same_links(command)
            and word_patterns.matches(self.words, command.words, steps)
        ):
            return gone
        return None

    def _same_links(self, command: Command) -> bool:
        """Say whether no link on the way to a named file was exchanged since the judgement."""
        return all(
            one[0].path not in self.places or all(place.path in self.places for place in one)
            for one in (*command.paths, *command.writes)
            if one
        )

    def _has_variables(self, command: Command, gone: int, changes: Changes) -> bool:
        """Say whether the approver saw all variables that may redirect the program.

        A wrapper of the text that is gone may have removed some: `env -i`.
        """
        names = {name for name, _ in self.assigned}
        return all(
            (name in names or gone > 0)
            if value is None
            else not self.assigned.isdisjoint(((name, value), (name, None)))
            for name, value in environment.counted(changes, "" if command.via else command.name)
        )


class Use(NamedTuple):
    """A command of the text that a process runs; `gone`: the wrappers that are gone."""

    pattern: Pattern
    gone: int


class Covered(NamedTuple):
    """Whether the approved rules stay silent about each part of an exec, and what that uses up."""

    parts: list[bool]
    uses: tuple[Use, ...] = ()


class Cleared(NamedTuple):
    """The answer that an act got: the rules, and the commands that these rules asked about."""

    rules: frozenset[str] = frozenset()
    commands: tuple[Pattern, ...] = ()
    below: bool = False  # one of these commands started the program that is judged
    used: frozenset[Use] = frozenset()  # that other processes have used up

    def cover(self, units: Sequence[Unit], request: Request) -> Covered:
        """Say for each part of an exec whether the approved rules stay silent about it.

        The first part is the program as it was called. Other readings of the same words (the
        interpreter of a script, the file behind a link) follow the first.
        """
        if not self.rules or self.below:
            return Covered([self.below and bool(self.rules)] * len(units))
        at = _surroundings(request)
        steps = Steps()
        found = [self._use(one.command, at, steps) for one in units]
        fit = [
            one.command
            for use, one in zip(found, units, strict=True)
            if use is not None and one.command is not None
        ]
        parts = [
            use is not None
            or (
                found[0] is not None
                and one.command is not None
                and any(_same_program(known, one.command) for known in fit)
            )
            for use, one in zip(found, units, strict=True)
        ]
        return Covered(parts, tuple(dict.fromkeys(one for one in found if one is not None)))

    def _use(self, command: Command | None, at: Surroundings | None, steps: Steps) -> Use | None:
        if command is None or at is None:
            return None
        for pattern in self.commands:
            gone = pattern.fits(command, at, steps)
            if gone is not None and (use := Use(pattern, gone)) not in self.used:
                return use
        return None


NOTHING: Final = Cleared()


# ---------------------------------------------------------------- the commands of a text


def patterns(
    facts: Facts | None, cwd: str | None, identity: Identity | None = None
) -> tuple[Pattern, ...]:
    """Return the commands of a text that is approved in this directory."""
    if facts is None:
        return ()
    seen = {*facts.directories, *((cwd,) if cwd is not None else ())}
    found: dict[Pattern, int] = {}
    for one in facts.commands[:COMMANDS_MAX]:
        if not one.name:
            continue
        made = Pattern(
            one.via,
            one.name,
            word_patterns.pattern(one.words),
            Directory(cwd, identity),
            frozenset(seen) if one.cwds is None else one.cwds,
            frozenset(facts.settings) | {(name, None) for name in facts.opened},
            frozenset(place.path for each in (*one.paths, *one.writes) for place in each),
            background=one.background,
        )
        before = found.get(made, 0)
        once = not one.repeats and (made not in found or before != ANY_NUMBER)
        found[made] = before + 1 if once else ANY_NUMBER
    return tuple(one._replace(times=times) for one, times in found.items())


def _absolute(name: str, cwd: str) -> str:
    """Return the name, or the whole path."""
    return posixpath.normpath(posixpath.join(cwd, name)) if "/" in name else name


def _same_program(first: Command, other: Command) -> bool:
    """Say whether `other` is another name of the same call, or its interpreter.

    The called program may be the wrapper: `sh -c TEXT` is also `dash -c TEXT`.
    """
    if (
        len(other.via) != len(first.via)
        or other.via[1:] != first.via[1:]
        or (first.via and other.name != first.name)
        or len(other.words) < len(first.words)
    ):
        return False
    before = len(other.words) - len(first.words)
    return other.words[before:] == first.words and (
        not before or other.words[before - 1].text == first.name
    )


# ---------------------------------------------------------------- what is left of an approval


class Phase(enum.Enum):
    UNSTARTED = "unstarted"  # or read by another program than the session's shell
    RUNNING = "running"
    OVER = "over"


Process = tuple[int, int]  # pid and start time


@dataclass(slots=True)
class Cover:
    """The cover of an approved text, from entry to end: rules 7 and 8."""

    answer: Cleared
    since: float  # when the text was entered, or the run ended
    phase: Phase = Phase.UNSTARTED
    _users: dict[Use, set[Process]] = field(default_factory=dict)

    def begin(self) -> None:
        """Note that the session's shell runs the text now."""
        if self.phase is Phase.UNSTARTED:
            self.phase = Phase.RUNNING

    def end(self, now: float) -> None:
        """Note that the run is over."""
        if self.phase is not Phase.OVER:
            self.phase, self.since = Phase.OVER, now

    def left(self, process: Process, below: bool, now: float) -> Cleared:
        """Return what the approval still answers for an exec of this process.

        `below`: a process that uses this cover started it.
        """
        late = now - self.since > (UNSTARTED_S if self.phase is Phase.UNSTARTED else BACKGROUND_S)
        commands: Iterable[Pattern] = self.answer.commands
        if self.phase is Phase.OVER:
            below = False
            commands = (one for one in commands if one.background and one.times != ANY_NUMBER)
        if self.phase is not Phase.RUNNING and late:
            commands = ()
        kept = tuple(commands)
        if not kept and not below:
            return NOTHING
        return Cleared(self.answer.rules, kept, below, self._used_up(process))

    def _used_up(self, process: Process) -> frozenset[Use]:
        return frozenset(
            use
            for use, users in self._users.items()
            if use.pattern.times != ANY_NUMBER
            and process not in users
            and len(users) >= use.pattern.times
        )

    def use(self, uses: Sequence[Use], process: Process) -> bool:
        """Use up commands of the text for a process; False if another process was faster."""
        if not self._used_up(process).isdisjoint(uses):
            return False
        for one in uses:
            if one.pattern.times != ANY_NUMBER:
                self._users.setdefault(one, set()).add(process)
        return True
