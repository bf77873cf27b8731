"""What the host knows of the shell in a session: its marks, whether it is at a prompt, its runs.

The marks come with the output, so a new host restores what the last one knew from the notes beside the screen's snapshot
and reads on. What was typed leaves no mark: that is written down apart (host/halfline.py). A session that runs something
other than a known shell has no marks; then nothing here ever changes.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from holdfast.core.commands import (
    CommandFinished,
    CommandStarted,
    Effect,
    Mark,
    MarkKind,
    MarkScanner,
    PromptShown,
    RunDone,
    RunStarted,
    Shell,
)
from holdfast.core.lineage import Cause, Lineage
from holdfast.core.originators import UNSEEN
from holdfast.host.halfline import HalfLine, Note
from holdfast.host.shaping import Shaping
from holdfast.host.shell.run import TRIGGER
from holdfast.host.telling import tell

RUNS_KEPT = 64
CLEARED_KEPT = (
    256  # acts that were approved: what they start is not asked about again for the same reason
)


class Run(NamedTuple):
    """Where the output of a `run` lies, and how it ended if it has."""

    start: int
    end: int | None
    exit_code: int | None


class Commands:
    def __init__(
        self, label: dict[str, Any], directory: str, notes: dict[str, Any], root: int
    ) -> None:
        self.kind: Literal["bash", "zsh", "posix"] | None = label.get("shell")
        self.lineage = Lineage(
            root, Cause(str(label.get("by") or "unknown"), None), self.kind is not None
        )
        self.shell = Shell(marks_start=self.kind != "posix")
        self.runs: OrderedDict[str, Run] = (
            OrderedDict()
        )  # newest last: a client that lost its host asks again
        self.prompted_at = 0  # where the last prompt stands in the output
        self.prompted = time.monotonic()  # and when it came
        self.watchers: list[
            Callable[[list[Effect]], None]
        ] = []  # who waits for a mark: what is put out is hurried for them
        self.listeners: list[
            Callable[[list[Effect]], None]
        ] = []  # who is told of the same, whenever it comes
        self.followed: set[str] = (
            set()
        )  # runs whose end will be in their outcome: who gave them waits for it
        self.on_alone: Callable[[RunDone], None] = lambda run: (
            None
        )  # one has finished that nobody waits for
        self.before_marks: Callable[[], None] = lambda: None
        self._cleared: OrderedDict[tuple[int, int], frozenset[str]] = (
            OrderedDict()
        )  # by client and its number: not typed yet
        self._approved: OrderedDict[int, frozenset[str]] = OrderedDict()  # by the session's number
        self._scanner = MarkScanner(label["nonce"]) if self.kind else None
        self._half = HalfLine(directory)
        self.shaping = Shaping(directory, self.kind, label)
        if self._scanner is not None and "scanner" in notes:
            self.shell = Shell.restore(notes["shell"])
            self._scanner = MarkScanner.restore(label["nonce"], notes["scanner"])
            self.runs = OrderedDict((run, Run(*info)) for run, info in notes["runs"])
            self.prompted_at = int(notes.get("prompted", 0))

    def save(self) -> dict[str, Any]:
        """What the next host must know."""
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
        """Bytes of output seen that may be the beginning of a mark."""
        return self._scanner.pending if self._scanner is not None else 0

    def unwatch(self, watcher: Callable[[list[Effect]], None]) -> None:
        if watcher in self.watchers:
            self.watchers.remove(watcher)

    def feed(self, offset: int, piece: memoryview) -> None:
        marks = self._scanner.feed(offset, piece) if self._scanner is not None else ()
        if not marks:
            return
        tell((self.before_marks,))
        now = time.time()
        effects = list[Effect]()
        for mark in marks:
            handled = self.shell.handle(mark, now)
            effects += handled
            self.lineage.marked(mark.seq)
            if mark.kind in (MarkKind.PROMPT, MarkKind.DONE):
                self.shaping.mark(mark.seq, mark.kind is MarkKind.PROMPT)
            self._take(handled, mark)
        tell((*self.listeners, *self.watchers), effects)

    def _take(self, effects: list[Effect], mark: Mark) -> None:
        for e in effects:
            if isinstance(e, RunStarted):
                self.runs[e.run] = Run(e.output_start, None, None)
                if len(self.runs) > RUNS_KEPT:
                    self.runs.popitem(last=False)
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
                self.shaping.began(self.lineage.begun(), mark.seq, mark.kind is MarkKind.PROMPT)

    def cleared(self, which: tuple[int, int], rules: frozenset[str]) -> None:
        """An act of a client was approved, though these rules ask about it."""
        self._cleared[which] = rules
        if len(self._cleared) > CLEARED_KEPT:
            self._cleared.popitem(last=False)

    def approved(self, act: int | None) -> frozenset[str]:
        """Rules that ask, and were answered for this act."""
        return self._approved.get(act, frozenset()) if act is not None else frozenset()

    def typed(
        self,
        operator: str,
        data: bytes,
        act: int,
        scanned: int,
        which: tuple[int, int] | None = None,
        writers: Sequence[str] = UNSEEN,
    ) -> None:
        """Before it is sent as act `act`: the next host must know that somebody is in the middle of a line."""
        if which is not None and (rules := self._cleared.pop(which, None)) is not None:
            self._approved[act] = rules
            if len(self._approved) > CLEARED_KEPT:
                self._approved.popitem(last=False)
        self.lineage.typed(operator, act, data)
        if (b"\r" in data or b"\n" in data) and data != TRIGGER:
            self.shaping.typed(data, writers)
        if self._scanner is None or self.shell.goes_on(data):
            return
        before = self.shell.line_open, self.shell.typeahead
        self.shell.typed(data, time.time())
        if (now := (self.shell.line_open, self.shell.typeahead)) != before:
            self._half.write(Note(act, scanned, *now))

    def recall(self, accepted: int) -> None:
        """What the last host knew of a line that somebody has begun, once the marks since then have been seen."""
        note = self._half.last(accepted)
        if (
            self._scanner is not None
            and note is not None
            and (note.ahead or (note.dirty and self.prompted_at <= note.scanned))
        ):
            self.shell.typed(b"?", time.time())

    def close(self) -> None:
        self._half.close()
