"""Marks in the output of a session's shell, and the resulting state of the shell.

    MARK ::= ESC "]7717;" TAG ";" SEQ ";" KIND { ";" ARG } BEL

    kind  args        the shell says
    P     exit        a prompt is about to be shown; exit status of the command before it
    C                 a typed line begins to execute (bash, zsh; a POSIX shell cannot say it)
    R     run         a `run` begins: its output starts right after this mark
    D     run exit    that run is done: its output ended right before this mark

A mark is accepted if and only if it is complete within MARK_BYTES_MAX, its SEQ is above that of
every earlier mark, kind and args are as above, and TAG is the tag of SEQ, KIND and exit
(`mark_tags.py`). Any other sequence is ordinary output. Every observer sees the marks, so a mark
must not help to make another: the tag of the next number cannot be computed without the key. A mark
that was printed once cannot be used again, because its number is then old; that also holds for a
played-back recording and a redrawn prompt, which raise no alarm. A mark with a new number and a
wrong tag was not written by this shell: it is counted as forged. `host/shell/launch.py` says which
code can learn the key.

A program may print forged marks in a flood, so checking them has a bound. A chunk with more than
FEW marks is searched for the tags of the next number only. Otherwise tags of the next
SEQ_AHEAD numbers are kept once computed. A number beyond (output was lost, or a mark went into a
file) costs one of CHECKS, and every CHECK_BYTES of output give one more. Without a check left such
a mark counts as forged.

Sessions that were started before tags existed have a fixed nonce in place of the tag
(`UntaggedMarkScanner`). Whoever has seen one of these marks can forge the next.

`MarkScanner` finds marks in a stream by absolute offset; `Shell` is the state that they drive. Both
know nothing about terminals, files or processes: the same bytes, typed input and times always give
the same state. Both can be saved and restored. Rules of `Shell`:

1. P closes an open run. bash abandons a script on Ctrl-C, dash on a syntax error, and a POSIX shell
   has no hook to report it; but a shell that prompts is not running a command. The exit status is
   that of P.
2. The editor's line is clean from P until a byte is typed, and only another P makes it clean again.
   Ctrl-C and Ctrl-U usually empty a line, but a program, a key binding or vi mode may differ.
3. Bytes typed ahead, while a command ran, outlive the next P: the program may have read them, or
   the editor will. Input is read in order, so a trigger typed now is a line of its own if and only
   if the last byte before it ended a line. If it did not (`q` to a pager, half a command),
   `typeahead` is true and `ready` is false: a trigger after half of `rm -rf` would complete that
   command. The next line end clears `typeahead`. So does the caller by `settled`, after it looked
   at the live terminal (no unread input, cursor where the prompt ended).
4. Without C (`marks_start` is false), a line submitted by CR or LF counts as the start of a
   command.
"""

from __future__ import annotations

import enum
import re
from dataclasses import asdict, dataclass
from typing import Any, Final

from holdfast.core.session.mark_tags import SEQ_MAX, MarkKey

TAGGED: Final = 2  # `marks` in the label of a session: the version of its marks
MARK_INTRODUCER = b"\x1b]7717;"
MARK_BYTES_MAX = 256  # the longest mark has 175 bytes; this also bounds the held bytes
SEQ_AHEAD: Final = 8
STATUSES: Final = 256  # zsh has a few others
FEW: Final = 32  # marks that a chunk may have without being a flood
CHECKS: Final = 64  # of numbers beyond SEQ_AHEAD and other statuses
CHECK_BYTES: Final = 4096
NONCE = re.compile(r"[0-9A-Za-z]{16,64}")
RUN_ID = re.compile(r"[0-9A-Za-z._-]{1,64}")
Saved = dict[str, Any]  # JSON for the next host

_BODY = re.compile(
    rb"([0-9]{1,18});(?:(C)|(P);(-?[0-9]{1,11})|(R);([0-9A-Za-z._-]{1,64})"
    rb"|(D);([0-9A-Za-z._-]{1,64});(-?[0-9]{1,11}))"
)
_TAGGED_MARK = re.compile(
    rb"\x1b\]7717;([0-9A-Za-z._-]{0,64});([0-9]{1,10});[PCRD][0-9A-Za-z;._-]{0,90}\x07"
)
_INSIDE = re.compile(rb"[0-9A-Za-z;._-]*")  # between introducer and BEL


class MarkKind(enum.StrEnum):
    PROMPT = "P"
    COMMAND = "C"
    RUN = "R"
    DONE = "D"


@dataclass(frozen=True, slots=True)
class Mark:
    """An accepted mark; `start` and `end` are the absolute offsets of its first and next byte."""

    start: int
    end: int
    seq: int
    kind: MarkKind
    run: str = ""  # R, D
    exit: int = 0  # P, D


class MarkScanner:
    """Finds marks in output chunks of any size, with one search per chunk if there is no mark."""

    __slots__ = (
        "_checked_at",
        "_checks",
        "_end",
        "_held",
        "_key",
        "_next",
        "_prefix",
        "_tags",
        "forged",
        "seq",
    )
    tagged = True

    def __init__(self, nonce: str, seq: int = 0) -> None:
        self._prefix = MARK_INTRODUCER
        self._key = MarkKey(nonce)
        self._held = b""  # the last bytes fed, if they may begin a mark
        self._end = 0  # offset of the byte after the input
        self._tags: dict[tuple[int, int, int], bytes] = {}  # at most SEQ_AHEAD * 4 * STATUSES
        self._next = 0, frozenset[bytes]()  # a number, and all its tags
        self._checks, self._checked_at = float(CHECKS), 0
        self.seq = seq  # of the last accepted mark
        self.forged = 0  # marks that this shell has not written

    def feed(self, offset: int, chunk: bytes | bytearray | memoryview) -> list[Mark]:
        """Return the marks that this chunk completes. A gap in the offsets starts afresh."""
        data = bytes(chunk)
        if self._held and offset == self._end:
            data = self._held + data
            offset -= len(self._held)
        elif offset != self._end:
            self._checks = float(CHECKS)  # marks may be missing: the next number may be far ahead
        self._end = offset + len(data)
        self._held = b""
        if self.tagged and data.count(self._prefix) > FEW:
            return self._feed_flood(offset, data)
        marks: list[Mark] = []
        at = data.find(self._prefix)
        while at >= 0:
            body = at + len(self._prefix)
            inside = _INSIDE.match(data, body, at + MARK_BYTES_MAX)
            stop = inside.end() if inside is not None else body
            if stop == len(data) and stop - at < MARK_BYTES_MAX:
                self._held = data[at:]
                return marks
            if data[stop : stop + 1] == b"\x07" and stop - at < MARK_BYTES_MAX:
                mark = self._accept(offset + at, offset + stop + 1, data[body:stop])
                if mark is not None:
                    marks.append(mark)
            at = data.find(self._prefix, stop)
        self._hold_back(data)
        return marks

    def _feed_flood(self, offset: int, data: bytes) -> list[Mark]:
        """Return the marks of a chunk with many beginnings of marks.

        Each is compared with all tags that the next mark may have, which costs less than a
        microsecond. Numbers further ahead are not accepted here.
        """
        marks: list[Mark] = []
        possible = self._next_tags()
        for found in _TAGGED_MARK.finditer(data):
            if found[1] in possible:
                start, end = found.span()
                inside = data[start + len(self._prefix) : end - 1]
                if (mark := self._accept(offset + start, offset + end, inside)) is not None:
                    marks.append(mark)
                    possible = self._next_tags()
            elif int(found[2]) > self.seq:
                self.forged += 1
        at = data.rfind(self._prefix)
        if _INSIDE.fullmatch(data, at + len(self._prefix)) and len(data) - at < MARK_BYTES_MAX:
            self._held = data[at:]
        else:
            self._hold_back(data)
        return marks

    def _next_tags(self) -> frozenset[bytes]:
        """All tags that the next mark may have; computing them takes milliseconds."""
        seq, statuses = self.seq + 1, range(STATUSES)
        if self._next[0] != seq:
            kinds = [("C", 0), ("R", 0)]
            kinds += [(kind, status) for kind in ("P", "D") for status in statuses]
            tags = frozenset(b"%d" % self._key.tag(seq, ord(kind), n) for kind, n in kinds)
            self._next = seq, tags
        return self._next[1]

    @property
    def pending(self) -> int:
        """How many of the last bytes may be the beginning of a mark."""
        return len(self._held)

    def take_forged(self) -> int:
        """How many marks this shell has not written, since the last call."""
        count, self.forged = self.forged, 0
        return count

    def _hold_back(self, data: bytes) -> None:
        """Hold a tail that is a proper beginning of the prefix; ESC is only its first byte."""
        at = data.rfind(b"\x1b", max(0, len(data) - len(self._prefix) + 1))
        if at >= 0 and self._prefix.startswith(data[at:]):
            self._held = data[at:]

    def _accept(self, start: int, end: int, inside: bytes) -> Mark | None:
        tag, body = self._parts(inside)
        match = _BODY.fullmatch(body)
        if match is None:
            return None
        seq = int(match[1])
        if not self.seq < seq <= SEQ_MAX:
            return None
        kind = MarkKind((match[2] or match[3] or match[5] or match[7]).decode())
        status = int(match[4] or match[9] or 0)
        if not self._genuine(tag, start, seq, ord(kind), status):
            self.forged += 1
            return None
        self.seq = seq
        self._tags.clear()
        return Mark(
            start, end, seq, kind, (match[6] or match[8] or b"").decode(), _exit_code(status)
        )

    def _parts(self, inside: bytes) -> tuple[bytes, bytes]:
        """The tag and the rest of a mark."""
        tag, _, body = inside.partition(b";")
        return tag, body

    def _genuine(self, tag: bytes, at: int, seq: int, kind: int, status: int) -> bool:
        if seq > self.seq + SEQ_AHEAD or not 0 <= status < STATUSES:
            self._checks = min(CHECKS, self._checks + max(0, at - self._checked_at) / CHECK_BYTES)
            self._checked_at = at
            if self._checks < 1:
                return False
            self._checks -= 1
            return tag == b"%d" % self._key.tag(seq, kind, status)
        which = seq, kind, status
        expected = self._tags.get(which)
        if expected is None:
            expected = self._tags[which] = b"%d" % self._key.tag(seq, kind, status)
        return tag == expected

    def save(self) -> Saved:
        return {"seq": self.seq, "end": self._end, "held": self._held.hex()}

    @classmethod
    def restore(cls, nonce: str, saved: Saved) -> MarkScanner:
        scanner = cls(nonce, int(saved["seq"]))
        scanner._end = int(saved["end"])
        scanner._held = bytes.fromhex(saved["held"])
        return scanner


class UntaggedMarkScanner(MarkScanner):
    """Finds the marks of a session that was started before tags existed."""

    __slots__ = ()
    tagged = False

    def __init__(self, nonce: str, seq: int = 0) -> None:
        super().__init__(nonce, seq)
        self._prefix = MARK_INTRODUCER + nonce.encode("ascii") + b";"

    def _parts(self, inside: bytes) -> tuple[bytes, bytes]:
        return b"", inside

    def _genuine(self, tag: bytes, at: int, seq: int, kind: int, status: int) -> bool:
        return True


def scanner_of(version: int) -> type[MarkScanner]:
    """The scanner for the marks of a session; `version` is `marks` in the session's label."""
    return MarkScanner if version >= TAGGED else UntaggedMarkScanner


def _exit_code(value: int) -> int:
    """Return a possible exit code. zsh has statuses such as -1 and 256; none may become 0."""
    return value if 0 <= value <= 255 else value & 255 or 255


class Phase(enum.StrEnum):
    UNKNOWN = "unknown"  # no mark yet: the shell is starting, or has no integration
    PROMPT = "prompt"
    RUNNING = "running"


@dataclass(frozen=True, slots=True)
class PromptShown:
    offset: int  # of the byte after the mark, where the prompt begins
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
    """The state of `Shell`, as plain values."""

    marks_start: bool = True  # the shell has mark C
    phase: str = Phase.UNKNOWN.value
    line_dirty: bool = False  # a byte was typed since the last prompt
    submitted: bool = False  # a typed line was ended, so the shell is about to act on it
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
    """The activity of the session's shell, from its marks and the typed bytes."""

    __slots__ = ("_state",)

    def __init__(self, *, marks_start: bool = True, state: ShellState | None = None) -> None:
        self._state = state if state is not None else ShellState(marks_start=marks_start)

    @property
    def phase(self) -> Phase:
        return Phase(self._state.phase)

    @property
    def at_prompt(self) -> bool:
        """The last mark was a prompt. A POSIX shell stays here during a command: it has no C."""
        return self._state.phase == Phase.PROMPT

    @property
    def line_dirty(self) -> bool:
        return self._state.line_dirty

    @property
    def line_open(self) -> bool:
        """The prompt's line has text that was not entered."""
        return self._state.line_dirty and not self._state.submitted

    @property
    def submitted(self) -> bool:
        """The line was entered: the shell is about to act on it."""
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
        """Say whether these bytes only continue an open line at the prompt, without effect here."""
        state = self._state
        return (
            state.line_dirty
            and not state.submitted
            and state.phase == Phase.PROMPT
            and b"\r" not in data
            and b"\n" not in data
        )

    def typed(self, data: bytes, now: float) -> None:
        """Note input bytes written to the terminal, the host's own trigger included."""
        state = self._state
        if state.phase == Phase.PROMPT and not state.submitted:
            state.line_dirty = state.line_dirty or bool(data)
            _, end, data = data.replace(b"\r", b"\n").partition(b"\n")
            if not end:
                return
            state.submitted, state.submitted_at, state.ahead = True, now, False
        state.ahead = _unfinished(data, state.ahead)

    def settled(self) -> None:
        """Note that the live terminal was checked: the line is empty and no input is unread."""
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

    def save(self) -> Saved:
        return asdict(self._state)

    @classmethod
    def restore(cls, saved: Saved) -> Shell:
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
    """Say whether bytes typed ahead leave part of a line.

    A line end completes the line, Ctrl-C flushes the line, and a single Ctrl-D has no effect.
    """
    data = data.translate(None, b"\x11\x13")  # Ctrl-S and Ctrl-Q belong to the terminal
    rest = data[max(data.rfind(end) for end in (b"\r", b"\n", b"\x03")) + 1 :]
    carried = before and len(rest) == len(data)
    return carried or bool(rest.strip(b"\x04"))
