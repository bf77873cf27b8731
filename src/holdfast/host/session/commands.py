"""The host's knowledge of the shell in a session: marks, prompt and runs.

The marks come with the output, so a new host restores the last host's knowledge from the notes
beside the screen's snapshot and reads on. Typed input leaves no mark and is saved separately
(host/session/unfinished_line_file.py). Only a known shell writes marks; in a session of any other
program this state never changes.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypeVar

from holdfast.core.originators.act_effects import EffectsOfActs, Shown
from holdfast.core.originators.included import Includes
from holdfast.core.originators.lineage import Cause, Lineage
from holdfast.core.originators.originators import UNSEEN
from holdfast.core.policy.approved_commands import Cleared, Cover, Phase
from holdfast.core.session.shell_marks import (
    CommandFinished,
    CommandStarted,
    Effect,
    Mark,
    MarkKind,
    PromptShown,
    RunDone,
    RunStarted,
    Shell,
    scanner_of,
)
from holdfast.core.shellcode.one_program import one_program
from holdfast.host.runtime.notify import tell
from holdfast.host.session.shell_state import ShellState
from holdfast.host.session.unfinished_line_file import Note, UnfinishedLineFile, remove_leftover
from holdfast.host.shell import SessionDirectories
from holdfast.host.shell.run import TRIGGER, clear_stdin
from holdfast.host.terminal.view import Notes

T = TypeVar("T")
RUNS_KEPT = 64
CLEARED_KEPT = 256  # approved acts: their commands need no approval again by the same rules
COVERED_KEPT = 1024  # programs of such acts


class Run(NamedTuple):
    """The range of a `run` in the output, and the exit code after the end."""

    start: int
    end: int | None
    exit_code: int | None


class ProgramExit(NamedTuple):
    """The kernel's report about the programs that the shell started for an act."""

    programs: int
    code: int | None  # of the last; None: it still runs, or its exit was not reported


class Contradiction(NamedTuple):
    """A run that succeeded by the shell's word and failed by the kernel's."""

    shell: int
    kernel: int


class Commands:
    def __init__(
        self,
        label: dict[str, Any],
        directories: SessionDirectories,
        host_only: str,
        notes: Notes,
        root: int,
    ) -> None:
        """`host_only`: a directory that programs of the session see as little as other sessions."""
        self.kind: Literal["bash", "zsh", "posix"] | None = label.get("shell")
        self.lineage = Lineage(
            root, Cause(str(label.get("by") or "unknown"), None), self.kind is not None
        )
        self.included = Includes()
        self.effects = EffectsOfActs()
        # The effects of an act for its outcome, which is recorded now; `ended`: so did the command.
        self.effects_now: Callable[[int, bool], Shown | None] = lambda act, ended: None
        self.shell = Shell(marks_start=self.kind != "posix")
        # Newest last. A client that lost the host asks for the run again.
        self.runs: OrderedDict[str, Run] = OrderedDict()
        self.run_of_act: dict[int, str] = {}  # runs that this host typed, by the number of the act
        self.prompted_at = 0  # where the last prompt stands in the output
        self.prompted = time.monotonic()  # and when it came
        self.entered = 0.0  # when the last line was typed, in seconds since boot
        # Callers that wait for a mark: while there is one, the host looks at output at once.
        self.watchers: list[Callable[[list[Effect]], None]] = []
        # Called with the same effects, whenever the host gets to them.
        self.listeners: list[Callable[[list[Effect]], None]] = []
        # Runs whose caller waits: their end will be in the outcome of the act.
        self.followed: set[str] = set()
        # Called when a run has finished for which no caller waits.
        self.on_alone: Callable[[RunDone], None] = lambda run: None
        self.before_marks: Callable[[], None] = lambda: None
        # Answers that acts got by an approval: before typing by (client, its number), ...
        self._cleared: OrderedDict[tuple[int, int], Cleared] = OrderedDict()
        # ... after it by the session's number of the act.
        self._approved: OrderedDict[int, Cover] = OrderedDict()
        # Processes that run a command of an approved text: pid -> act, start.
        self._covered: OrderedDict[int, tuple[int, int]] = OrderedDict()
        # The kernel's exit code of the last program of an act.
        self.program_exit: Callable[[int], ProgramExit | None] = lambda act: None
        # The same of runs that are done and were a single program.
        self.kernel_exits: OrderedDict[str, int] = OrderedDict()
        # Runs under way whose text calls a single program. True: its name is no alias or function.
        self._one_program: dict[str, bool] = {}
        self.contradicted: OrderedDict[str, Contradiction] = OrderedDict()
        self.on_contradicted: Callable[[Contradiction], None] = lambda codes: None
        self.on_forged: Callable[[int], None] = lambda count: None
        scanner = scanner_of(int(label.get("marks", 0)))
        self._scanner = scanner(label["nonce"]) if self.kind else None
        self._unfinished = UnfinishedLineFile(host_only)
        remove_leftover(str(directories.writable))
        clear_stdin(directories)
        self.shell_state = ShellState(directories, self.kind, label)
        if self._scanner is not None and "scanner" in notes:
            self.shell = Shell.restore(notes["shell"])
            self._scanner = scanner.restore(label["nonce"], notes["scanner"])
            self.runs = OrderedDict((run, Run(*info)) for run, info in notes["runs"])
            self.prompted_at = int(notes.get("prompted", 0))

    def save(self) -> Notes:
        """The notes for the next host."""
        if self._scanner is None:
            return {}
        return {
            "shell": self.shell.save(),
            "scanner": self._scanner.save(),
            "runs": list(self.runs.items()),
            "prompted": self.prompted_at,
        }

    @property
    def pending(self) -> int:
        """Bytes at the end of the output that may be the beginning of a mark."""
        return self._scanner.pending if self._scanner is not None else 0

    def unwatch(self, watcher: Callable[[list[Effect]], None]) -> None:
        if watcher in self.watchers:
            self.watchers.remove(watcher)

    def feed(self, offset: int, piece: memoryview) -> None:
        if self._scanner is None:
            return
        marks, forged = self._scanner.feed(offset, piece), self._scanner.take_forged()
        if forged:
            tell((self.on_forged,), forged)
        if not marks:
            return
        tell((self.before_marks,))
        now = time.time()
        effects = list[Effect]()
        for mark in marks:
            handled = [self._checked(e) for e in self.shell.handle(mark, now)]
            effects += handled
            self.lineage.marked(mark.seq)
            if mark.kind in (MarkKind.PROMPT, MarkKind.DONE):
                self.shell_state.mark(mark.seq, mark.kind is MarkKind.PROMPT)
            self._take(handled, mark)
            # Before the next mark: an order may begin and end in one piece of output.
            tell(self.listeners, handled)
        tell(self.watchers, effects)

    def _take(self, effects: list[Effect], mark: Mark) -> None:
        for e in effects:
            if isinstance(e, RunDone | CommandFinished | PromptShown):
                self._end_covers()
            if isinstance(e, RunStarted):
                self.runs[e.run] = Run(e.output_start, None, None)
                if len(self.runs) > RUNS_KEPT:
                    self.runs.popitem(last=False)
                    kept = {act: run for act, run in self.run_of_act.items() if run in self.runs}
                    self.run_of_act = kept
            elif isinstance(e, PromptShown):
                self.prompted_at, self.prompted = e.offset, time.monotonic()
                self.lineage.prompt()
            elif isinstance(e, RunDone):
                self.runs[e.run] = Run(e.output_start, e.output_end, e.exit)
                self.lineage.finished(e.exit)
                if e.run not in self.followed:
                    self.on_alone(e)
            elif isinstance(e, CommandFinished):
                self.lineage.finished(e.exit)
            elif isinstance(e, CommandStarted):
                cause = self.lineage.begun()
                self._end_covers()
                if cause.act is not None and (cover := self._approved.get(cause.act)) is not None:
                    cover.begin()
                self.shell_state.began(cause, mark.seq, mark.kind is MarkKind.PROMPT)

    def runs_one_program(self, run: str, text: str) -> None:
        """A run is about to start: notes whether its exit code is that of a single program."""
        if (name := one_program(text)) is None:
            return
        view = self.shell_state.view
        self._one_program[run] = (
            view.state is not None
            and view.functions
            and name not in view.state.aliases
            and ("function", name) not in view.state.values
            and not view.state.anywhere
        )

    def _checked(self, effect: Effect) -> Effect:
        """Compares the exit code of a run with the kernel's, if the run was a single program.

        A success that the kernel denies is replaced, and both codes are kept. A failure is not: if
        the first thread of a program ends before the others, the kernel's report may say 0. If the
        shell started more programs, one of them may be of its prompt, and no code is taken.
        """
        if not isinstance(effect, RunDone) or effect.run not in self._one_program:
            return effect
        sure, now = self._one_program.pop(effect.run), self.lineage.now
        program = self.program_exit(now.act) if now is not None and now.act is not None else None
        if program is None or program.code is None or program.programs != 1:
            return effect
        _keep(self.kernel_exits, effect.run, program.code)
        if effect.exit or not program.code or not sure:
            return effect
        codes = Contradiction(effect.exit, program.code)
        _keep(self.contradicted, effect.run, codes)
        tell((self.on_contradicted,), codes)
        return replace(effect, exit=program.code)

    def cleared(self, which: tuple[int, int], answer: Cleared) -> None:
        """An act of a client, `which` is (client, its number), was approved."""
        self._cleared[which] = answer
        if len(self._cleared) > CLEARED_KEPT:
            self._cleared.popitem(last=False)

    def covered(self, act: int, pid: int, start: int) -> None:
        """A process of an approved act runs a command of the approved text."""
        self._covered[pid] = act, start
        if len(self._covered) > COVERED_KEPT:
            self._covered.popitem(last=False)

    def is_covered(self, act: int, pid: int, start: int) -> bool:
        return self._covered.get(pid) == (act, start)

    def cover(self, act: int | None) -> Cover | None:
        """The cover of this act, if it was approved."""
        return self._approved.get(act) if act is not None else None

    def _end_covers(self) -> None:
        """The shell has ended the text that it ran."""
        for cover in self._approved.values():
            if cover.phase is Phase.RUNNING:
                cover.end(time.monotonic())

    def typed(
        self,
        operator: str,
        data: bytes,
        act: int,
        scanned: int,
        which: tuple[int, int] | None = None,
        writers: Sequence[str] = UNSEEN,
    ) -> None:
        """Typed input is about to be sent as act `act`.

        The next host must know if an operator is in the middle of a line.
        """
        if which is not None and (answer := self._cleared.pop(which, None)) is not None:
            self._approved[act] = Cover(answer, time.monotonic())
            if len(self._approved) > CLEARED_KEPT:
                self._approved.popitem(last=False)
        if b"\r" in data or b"\n" in data:
            self.entered = time.clock_gettime(time.CLOCK_BOOTTIME)
        self.lineage.typed(operator, act, data)
        if (b"\r" in data or b"\n" in data) and data != TRIGGER:
            self.shell_state.typed(data, writers)
        if self._scanner is None or self.shell.goes_on(data):
            return
        before = self.shell.line_open, self.shell.typeahead
        self.shell.typed(data, time.time())
        if (now := (self.shell.line_open, self.shell.typeahead)) != before:
            self._unfinished.write(Note(act, scanned, *now))

    def recall(self, accepted: int) -> None:
        """Restores that a line is unfinished, after the marks since the last host were seen."""
        note = self._unfinished.last(accepted)
        if (
            self._scanner is not None
            and note is not None
            and (note.ahead or (note.dirty and self.prompted_at <= note.scanned))
        ):
            self.shell.typed(b"?", time.time())

    def close(self) -> None:
        self._unfinished.close()


def _keep(kept: OrderedDict[str, T], run: str, value: T) -> None:
    kept[run] = value
    if len(kept) > RUNS_KEPT:
        kept.popitem(last=False)
