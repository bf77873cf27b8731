"""Marks that a session's shell puts into its output, and what they say about the shell.

    MARK ::= ESC "]7717;" NONCE ";" SEQ ";" KIND { ";" ARG } BEL

    kind  args        the shell says
    P     exit        a prompt is about to be shown; exit status of what ran before it
    C                 a typed line begins to execute (bash, zsh; a POSIX shell cannot say it)
    R     run         a `run` begins: its output starts right after this mark
    D     run exit    that run is done: its output ended right before this mark

A mark is accepted if and only if it is complete within MARK_BYTES_MAX, carries the session's nonce, its
SEQ is above that of every mark before it, and kind and args are as above. Everything else is output that
looks odd: what `cat evil.txt` prints does not know the nonce, and a recording of the session played back
in it has old numbers. Code that runs as the same user can know both (`host/shell/launch.py` says what the
nonce stops). A redrawn prompt repeats its bytes: that is why an old number is ignored rather than an
alarm.

`MarkScanner` finds marks in a stream by absolute offset; `Shell` is the state they drive. The two know
nothing of terminals, files or processes: the same bytes, typed input and times always give the same
state, and both can be saved and restored. Rules of `Shell`:

1. P closes an open run. bash abandons a script on Ctrl-C, dash on a syntax error, and a POSIX shell has
   no hook that could say so; but a shell that prompts is not running anything. The exit status is P's.
2. The editor's line is clean from P until a byte is typed, and only another P makes it clean again.
   Ctrl-C and Ctrl-U usually empty a line, but a program, a key binding or vi mode may say otherwise.
3. Bytes typed ahead, while something ran, outlive the P that follows: the program may have read them, or
   the editor is about to. Input is read in order, so a trigger typed now is a line of its own if and only
   if the last byte before it ended one. If it did not (`q` to a pager, half a command), `typeahead` is
   true and `ready` is not: a trigger typed after half of somebody's `rm -rf` would complete it. The next
   line end clears that, or the caller, who can look at the live terminal (nothing unread, cursor where
   the prompt ended), by `settled`.
4. Where no C exists (`marks_start` is false), a line submitted by CR or LF counts as the start of a
   command.
"""

from __future__ import annotations

import enum
import re
from dataclasses import asdict, dataclass
from typing import Any

MARK_INTRODUCER = b"\x1b]7717;"
MARK_BYTES_MAX = 256  # the longest mark has 175 bytes; this also bounds what is held back
NONCE = re.compile(r"[0-9A-Za-z]{16,64}")
RUN_ID = re.compile(r"[0-9A-Za-z._-]{1,64}")

_BODY = re.compile(
    rb"([0-9]{1,18});(?:(C)|(P);(-?[0-9]{1,11})|(R);([0-9A-Za-z._-]{1,64})"
    rb"|(D);([0-9A-Za-z._-]{1,64});(-?[0-9]{1,11}))"
)


class MarkKind(enum.StrEnum):
    PROMPT = "P"
    COMMAND = "C"
    RUN = "R"
    DONE = "D"


@dataclass(frozen=True, slots=True)
class Mark:
    """One accepted mark; `start` and `end` are absolute offsets, of its first byte and behind its last."""

    start: int
    end: int
    seq: int
    kind: MarkKind
    run: str = ""  # R, D
    exit: int = 0  # P, D


class MarkScanner:
    """Finds marks in output that arrives in chunks of any size. Without a mark, one search per chunk."""

    __slots__ = ("_end", "_held", "_prefix", "seq")

    def __init__(self, nonce: str, seq: int = 0) -> None:
        self._prefix = MARK_INTRODUCER + nonce.encode("ascii") + b";"
        self._held = b""  # the end of what was fed, if it may be the beginning of a mark
        self._end = 0  # offset of the byte after the last one fed
        self.seq = seq  # of the last mark accepted

    def feed(self, offset: int, chunk: bytes | bytearray | memoryview) -> list[Mark]:
        """The marks completed by this chunk. One that does not follow on starts afresh: bytes were lost."""
        data = bytes(chunk)
        if self._held and offset == self._end:
            data = self._held + data
            offset -= len(self._held)
        self._end = offset + len(data)
        self._held = b""
        marks: list[Mark] = []
        at = data.find(self._prefix)
        while at >= 0:
            body = at + len(self._prefix)
            stop = data.find(b"\x07", body, at + MARK_BYTES_MAX)
            if stop < 0 and len(data) - at < MARK_BYTES_MAX:
                self._held = data[at:]
                return marks
            if stop >= 0:
                mark = self._accept(offset + at, offset + stop + 1, data[body:stop])
                if mark is not None:
                    marks.append(mark)
                    body = stop + 1
            at = data.find(self._prefix, body)
        self._hold_back(data)
        return marks

    @property
    def pending(self) -> int:
        """How many of the last bytes fed may be the beginning of a mark."""
        return len(self._held)

    def _hold_back(self, data: bytes) -> None:
        """Keeps a tail that is a proper beginning of the prefix, whose only escape is its first byte."""
        at = data.rfind(b"\x1b", max(0, len(data) - len(self._prefix) + 1))
        if at >= 0 and self._prefix.startswith(data[at:]):
            self._held = data[at:]

    def _accept(self, start: int, end: int, body: bytes) -> Mark | None:
        match = _BODY.fullmatch(body)
        if match is None:
            return None
        seq = int(match[1])
        if seq <= self.seq:
            return None
        self.seq = seq
        if match[2]:
            return Mark(start, end, seq, MarkKind.COMMAND)
        if match[3]:
            return Mark(start, end, seq, MarkKind.PROMPT, exit=_exit_code(match[4]))
        if match[5]:
            return Mark(start, end, seq, MarkKind.RUN, run=match[6].decode())
        return Mark(
            start, end, seq, MarkKind.DONE, run=match[8].decode(), exit=_exit_code(match[9])
        )

    def save(self) -> dict[str, Any]:
        return {"seq": self.seq, "end": self._end, "held": self._held.hex()}

    @classmethod
    def restore(cls, nonce: str, saved: dict[str, Any]) -> MarkScanner:
        scanner = cls(nonce, int(saved["seq"]))
        scanner._end = int(saved["end"])
        scanner._held = bytes.fromhex(saved["held"])
        return scanner


def _exit_code(digits: bytes) -> int:
    """As a process could exit with it. zsh has statuses such as -1 and 256; none may turn into success."""
    value = int(digits)
    return value if 0 <= value <= 255 else value & 255 or 255


class Phase(enum.StrEnum):
    UNKNOWN = "unknown"  # no mark yet: the shell is starting, or is not one of ours
    PROMPT = "prompt"
    RUNNING = "running"


@dataclass(frozen=True, slots=True)
class PromptShown:
    offset: int  # of the byte after the mark: the prompt itself begins here
    exit: int


@dataclass(frozen=True, slots=True)
class CommandStarted:
    number: int
    started: float


@dataclass(frozen=True, slots=True)
class CommandFinished:
    number: int
    exit: int
    started: float
    ended: float


@dataclass(frozen=True, slots=True)
class RunStarted:
    run: str
    output_start: int
    started: float


@dataclass(frozen=True, slots=True)
class RunDone:
    run: str
    exit: int
    output_start: int
    output_end: int
    started: float
    ended: float
    cut_short: bool  # closed by a prompt: the text did not run to its end


Effect = PromptShown | CommandStarted | CommandFinished | RunStarted | RunDone


@dataclass(slots=True)
class ShellState:
    """All that `Shell` remembers, as plain values."""

    marks_start: bool = True  # the shell has mark C
    phase: str = Phase.UNKNOWN.value
    line_dirty: bool = False  # something was typed since the last prompt
    submitted: bool = False  # and it ended a line, so the shell is about to act on it
    ahead: bool = False  # the last byte typed ahead of a prompt did not end a line
    last_exit: int | None = None
    commands: int = 0  # commands started so far
    command_open: bool = False
    command_started: float = 0.0
    submitted_at: float = 0.0
    run: str = ""
    run_output_start: int = 0
    run_started: float = 0.0


class Shell:
    """What the session's shell is doing, as far as its marks and the typed bytes say."""

    __slots__ = ("_state",)

    def __init__(self, *, marks_start: bool = True, state: ShellState | None = None) -> None:
        self._state = state if state is not None else ShellState(marks_start=marks_start)

    @property
    def phase(self) -> Phase:
        return Phase(self._state.phase)

    @property
    def at_prompt(self) -> bool:
        """The last mark was a prompt. A POSIX shell stays here while a typed command runs: it has no C."""
        return self._state.phase == Phase.PROMPT

    @property
    def line_dirty(self) -> bool:
        return self._state.line_dirty

    @property
    def line_open(self) -> bool:
        """Something stands on the prompt's line that was not entered."""
        return self._state.line_dirty and not self._state.submitted

    @property
    def submitted(self) -> bool:
        """It was entered: the shell is about to act on it."""
        return self._state.submitted

    @property
    def typeahead(self) -> bool:
        """Part of a line was typed before this prompt and may still be unread."""
        return self._state.ahead

    @property
    def ready(self) -> bool:
        """A trigger typed now would be the whole of a line at the prompt."""
        return (
            self.at_prompt
            and not self._state.line_dirty
            and not self.typeahead
            and not self._state.run
        )

    @property
    def open_run(self) -> str | None:
        return self._state.run or None

    @property
    def run_output_start(self) -> int | None:
        return self._state.run_output_start if self._state.run else None

    @property
    def last_exit(self) -> int | None:
        return self._state.last_exit

    @property
    def commands(self) -> int:
        return self._state.commands

    def goes_on(self, data: bytes) -> bool:
        """Whether these bytes only go on with a line that is open at the prompt: nothing changes then."""
        state = self._state
        return (
            state.line_dirty
            and not state.submitted
            and state.phase == Phase.PROMPT
            and b"\r" not in data
            and b"\n" not in data
        )

    def typed(self, data: bytes, now: float) -> None:
        """Bytes that were written to the terminal as input, by anybody, the host's own trigger included."""
        state = self._state
        if state.phase == Phase.PROMPT and not state.submitted:
            state.line_dirty = state.line_dirty or bool(data)
            _, end, data = data.replace(b"\r", b"\n").partition(b"\n")
            if not end:
                return
            state.submitted, state.submitted_at, state.ahead = True, now, False
        state.ahead = _unfinished(data, state.ahead)

    def settled(self) -> None:
        """The caller has looked at the live terminal: the prompt's line is empty and no input is unread."""
        if self.at_prompt:
            self._state.line_dirty = self._state.submitted = self._state.ahead = False

    def handle(self, mark: Mark, now: float) -> list[Effect]:
        if mark.kind is MarkKind.PROMPT:
            return self._prompt(mark, now)
        if mark.kind is MarkKind.COMMAND:
            return self._start(now)
        if mark.kind is MarkKind.RUN:
            return self._run(mark, now)
        return self._done(mark, now)

    def save(self) -> dict[str, Any]:
        return asdict(self._state)

    @classmethod
    def restore(cls, saved: dict[str, Any]) -> Shell:
        return cls(state=ShellState(**saved))

    def _prompt(self, mark: Mark, now: float) -> list[Effect]:
        state = self._state
        effects = self._close_run(mark.exit, mark.start, now, cut_short=True)
        if not state.marks_start and state.submitted and not state.command_open:
            effects += self._open_command(state.submitted_at)
        effects += self._close_command(mark.exit, now)
        state.phase, state.last_exit = Phase.PROMPT.value, mark.exit
        state.line_dirty = state.submitted = False
        effects.append(PromptShown(mark.end, mark.exit))
        return effects

    def _start(self, now: float) -> list[Effect]:
        effects = self._close_command(self._state.last_exit or 0, now)
        self._state.phase = Phase.RUNNING.value
        return [*effects, *self._open_command(now)]

    def _run(self, mark: Mark, now: float) -> list[Effect]:
        state = self._state
        effects = self._close_run(state.last_exit or 0, mark.start, now, cut_short=True)
        if not state.command_open:
            effects += self._open_command(now)
        state.phase = Phase.RUNNING.value
        state.run, state.run_output_start, state.run_started = mark.run, mark.end, now
        effects.append(RunStarted(mark.run, mark.end, now))
        return effects

    def _done(self, mark: Mark, now: float) -> list[Effect]:
        if mark.run != self._state.run:
            return []
        self._state.last_exit = mark.exit
        return self._close_run(mark.exit, mark.start, now, cut_short=False)

    def _close_run(
        self, exit_code: int, output_end: int, now: float, *, cut_short: bool
    ) -> list[Effect]:
        state = self._state
        if not state.run:
            return []
        done = RunDone(
            state.run,
            exit_code,
            state.run_output_start,
            output_end,
            state.run_started,
            now,
            cut_short,
        )
        state.run = ""
        return [done]

    def _open_command(self, started: float) -> list[Effect]:
        state = self._state
        state.commands += 1
        state.command_open, state.command_started = True, started
        return [CommandStarted(state.commands, started)]

    def _close_command(self, exit_code: int, now: float) -> list[Effect]:
        state = self._state
        if not state.command_open:
            return []
        state.command_open = False
        return [CommandFinished(state.commands, exit_code, state.command_started, now)]


def _unfinished(data: bytes, before: bool) -> bool:
    """Whether bytes typed ahead leave part of a line: not after a line end, nor after Ctrl-C, which flushes
    them; Ctrl-D alone adds nothing."""
    data = data.translate(None, b"\x11\x13")  # Ctrl-S and Ctrl-Q are the terminal's own
    rest = data[max(data.rfind(end) for end in (b"\r", b"\n", b"\x03")) + 1 :]
    carried = before and len(rest) == len(data)
    return carried or bool(rest.strip(b"\x04"))
