"""Operations that type: `run`, one command with its exact output and exit code, and `send`.

The text of a `run` goes to a private file; only a short trigger is typed, as an act like any other.
The shell's marks in the output say where the command's output begins and ends and how it exited.
A run is known by its client and number: a request that is repeated after a crash of the host finds
the same run, still going or just done, and never runs it twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import termios
from dataclasses import replace

from holdfast.core.contract.input import Ran, Run, RunOutput, Send, Sent
from holdfast.core.contract.message import ABSENT
from holdfast.core.record.record import Terminal
from holdfast.core.screen.onlcr import OnlcrInverse, in_force
from holdfast.core.screen.unfinished_output import LOOK_BYTES, unfinished_columns
from holdfast.core.session.keys import encode, paste
from holdfast.core.session.shell_marks import MARK_INTRODUCER, Effect, Phase, RunDone, RunStarted
from holdfast.host.acts.act_context import ProposedAct
from holdfast.host.acts.door import SHOWN, Act
from holdfast.host.requests.host import Context, Host
from holdfast.host.requests.stream import Stream
from holdfast.host.session.commands import Run as KnownRun
from holdfast.host.session.run_input import Stdin
from holdfast.host.session.session import Session
from holdfast.host.shell.run import clear_run, clear_stdin, rows_of_trigger, write_run
from holdfast.host.terminal.screen import Screen
from holdfast.model.errors import (
    Busy,
    Impossible,
    NotFound,
    OutcomeUnknown,
    Refused,
    TimedOut,
    TurnHeld,
    Unavailable,
    Usage,
)
from holdfast.model.limits import (
    CANON_LINE_BYTES,
    INPUT_CHUNK_BYTES,
    RUN_PACE_WINDOW_S,
    RUN_TEXT_BYTES,
    RUN_TRIGGER_WAIT_S,
)
from holdfast.model.probe import probe
from holdfast.wire.keeper import State

STARTING_WAIT_S = 10.0  # for the first prompt of a new session: rc files may take a while
# for the prompt after a command, or for an entered line to be taken, while the shell itself has the
# terminal
BETWEEN_WAIT_S = 5.0
TYPED_WAIT_S = 1.0  # for a line that an operator has begun
LOOK_AGAIN_S = 0.03
# Bound into an approval: the approver knows that the command reads input that is not shown.
WITH_STDIN = {"stdin": "of the client"}
SHOWN_S = 0.15  # after a prompt: for the editor to show text that was typed before


async def run(host: Host, ctx: Context, q: Run) -> Ran:
    """Streams the output as parts of the answer; gives the result."""
    text = to_bytes(q.text)
    if len(text) > RUN_TEXT_BYTES:
        raise Usage(f"a command may have {RUN_TEXT_BYTES} bytes", "put it into a file and run that")
    if not q.text.strip() or "\0" in q.text:
        raise Usage("nothing to run" if not q.text.strip() else "a command cannot contain NUL")
    door, session, conn, act = host.engine.door, host.engine.find(q.session), ctx.conn, ctx.act
    command = None
    if not act.repeat:
        # first: a busy shell would use up an approval for nothing
        await _ready_or_held(session, conn.operator)
        proposed = ProposedAct("run", text, WITH_STDIN if q.stdin else {}, wait_s=q.hold)
        command = await host.permitted(ctx, "run", session, proposed)
        await door.judge(act, proposed)
    client, number = act.which
    runid = f"{client:x}-{number}"
    known = session.commands.runs.get(runid)
    watch = _Watch(session, runid, known is None and not act.repeat)
    holds, before, stdin, unaware = False, None, None, False
    try:
        if known is None and act.repeat and session.lane.before(client, number):
            raise OutcomeUnknown(
                f"this run went to an earlier incarnation of {session.name}, which is lost",
                f"`holdfast log {session.name}` has it; look first, then run it again",
            )
        if known is None and act.repeat:
            # Typed a moment ago, the shell may not have begun it yet.
            if not await session.or_end(watch.started, RUN_TRIGGER_WAIT_S):
                raise OutcomeUnknown(
                    "this run was typed, but no trace of it is left",
                    "look at the screen: `holdfast view`",
                )
        elif known is None:
            before = (await _ready_or_held(session, conn.operator)).oflag
            session.turn.check(conn.operator, take=False)
            await door.commit(act, command=command)
            unaware = session.turn.unaware(conn.operator)
            session.turn.begin_long(conn.operator, conn.key)
            holds = True
            await _start(session, act, runid, q)
            await _began(session, watch.started)
            tell_began(ctx, session)
            stdin = Stdin(session, conn, ctx.number) if q.stdin else None
        elif known is not None and known.end is None:
            # after a restart of the host another operator may have taken the turn: follow anyway
            with contextlib.suppress(TurnHeld):
                session.turn.begin_long(conn.operator, conn.key)
                holds = True
        if act.repeat:
            _tell_began_again(ctx, session, runid)
        done = await _follow(ctx, q, session, watch, before)
        if unaware and (news := await session.turn.note(conn.operator)) is not None:
            done = replace(done, inherits=news)
        if stdin is None:
            return done
        stdin.close()
        act.outcome |= stdin.facts()
        return replace(done, stdin=stdin.read)
    finally:
        if stdin is not None:  # also if the client left: the command reads the end
            stdin.close()
            act.part = stdin.facts()
        if holds:
            if q.stdin:
                clear_stdin(session.directories)
            session.turn.end_long(conn.operator)
        watch.close()


def tell_began(ctx: Context, session: Session) -> None:
    """Tells the client the reference of its act, which outlives this request (S8)."""
    taken = ctx.act.taken
    ctx.conn.event("began", request=ctx.number, act=taken, ref=f"{session.ref}#{taken}")


def _tell_began_again(ctx: Context, session: Session, runid: str) -> None:
    """Tells the reference of a run that is followed again, if this host has typed the run."""
    numbers = (taken for taken, run in session.commands.run_of_act.items() if run == runid)
    if (taken := ctx.act.taken or next(numbers, None)) is not None:
        ctx.act.taken = taken
        tell_began(ctx, session)


async def send(host: Host, ctx: Context, q: Send) -> Sent:
    """Types text and keys, in pieces that each have a number of the client."""
    door, session, conn, act = host.engine.door, host.engine.find(q.session), ctx.conn, ctx.act
    data, (client, number) = await _keystrokes(session, q), act.which
    last = number + (len(data) - 1) // INPUT_CHUNK_BYTES
    if act.repeat != session.lane.known(client, last):
        raise Refused(
            f"numbers {number} to {last} of this client were used in part",
            "number every act anew, one number for each piece",
        )
    terminal = await session.terminal()
    if not act.repeat:
        # the turn first: an approver is not asked about an act that would be refused anyway
        await session.turn.settle_and_check(conn.operator, take=False)
        what = "paste" if q.paste else "line" if b"\r" in data or b"\n" in data else "keys"
        hidden = shown_to(session, terminal) == (False, True)
        await door.judge(act, ProposedAct(what, data, wait_s=q.hold, hidden=hidden, on_line=True))
    refuse_long_line(data, bool(terminal.lflag & termios.ICANON))
    shown = shown_to(session, terminal)
    if not act.repeat and not session.lane.known(client, number):
        await session.turn.settle_and_check(conn.operator, take=False)
        await door.commit(act, terminal=shown)
    offset = ABSENT if act.repeat else session.ring.head
    unaware = not act.repeat and session.turn.unaware(conn.operator)
    for i, at in enumerate(range(0, len(data), INPUT_CHUNK_BYTES)):
        piece = data[at : at + INPUT_CHUNK_BYTES]
        act.taken = await session.type(
            conn.operator, client, number + i, piece, act.repeat, conn.key, act.writers
        )
        act.part = {"bytes": at + len(piece), "of": len(data)}
    act.part = {}
    assert act.taken is not None
    ref = f"{session.ref}#{act.taken}"
    news = await session.turn.note(conn.operator) if unaware else None
    inherits = ABSENT if news is None else news
    return Sent(
        id=session.id,
        bytes=len(data),
        act=act.taken,
        ref=ref,
        offset=offset,
        inherits=inherits,
    )


async def _keystrokes(session: Session, q: Send) -> bytes:
    """The bytes that the text and the keys stand for, in the modes that the program has set."""
    data = to_bytes(q.text)
    if q.paste or q.keys:
        modes = (await session.view.look(lambda s: s.modes()))[1]
        if q.paste:
            data = paste(data, modes.get("bracketed_paste", False))
        data += b"".join(encode(key, modes.get("application_cursor", False)) for key in q.keys)
    if not data:
        raise Usage("nothing to send", "give TEXT, --enter or --key NAME")
    return data


def refuse_long_line(data: bytes, in_line_mode: bool) -> None:
    """Refuses a line that the terminal in canonical mode would silently cut."""
    longest = max(len(line) for line in data.replace(b"\r", b"\n").split(b"\n"))
    if in_line_mode and longest > CANON_LINE_BYTES:
        raise Impossible(
            f"a line of {longest} bytes: the terminal is in line mode and drops all beyond "
            f"{CANON_LINE_BYTES}",
            "split the line, or use `holdfast run`, which passes its text beside the terminal",
        )


def shown_to(session: Session, terminal: State) -> Terminal:
    """Whether the terminal shows typed text now, and whether the terminal is in line mode.

    Text is shown by the kernel's echo, or by a shell that says it is at its prompt and has the
    terminal. All other input may be a secret (docs/reference/record.md).
    """
    if session.edits_line(terminal):
        return SHOWN
    return bool(terminal.lflag & termios.ECHO), bool(terminal.lflag & termios.ICANON)


def to_bytes(text: str) -> bytes:
    """The client's own bytes: bytes that are not UTF-8 travel as lone surrogates."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as e:
        raise Usage("the text has characters that no bytes stand for", "send UTF-8") from e


class _Watch:
    """Waits for the marks of a run.

    The stream learns the end in the same step, before it sends the output that follows.
    """

    def __init__(self, session: Session, runid: str, first: bool) -> None:
        """`first`: this request starts the run.

        For a run that is followed again, host/originators/background_exits.py records the end.
        """
        self.session, self.runid, self.first = session, runid, first
        self.started: asyncio.Future[RunStarted] = session.loop.create_future()
        self.done: asyncio.Future[RunDone] = session.loop.create_future()
        self.stream: Stream | None = None
        session.commands.watchers.append(self._look)
        if first:
            session.commands.followed.add(runid)
        session.streams.append(self._here)

    def _here(self) -> None:
        """A reader from the beginning: a session that ends keeps its output for this run."""

    def _look(self, effects: list[Effect]) -> None:
        for effect in effects:
            if (
                isinstance(effect, RunStarted)
                and effect.run == self.runid
                and not self.started.done()
            ):
                self.started.set_result(effect)
            elif isinstance(effect, RunDone) and effect.run == self.runid and not self.done.done():
                self.done.set_result(effect)
                if self.stream is not None:
                    self.stream.end = effect.output_end

    def close(self) -> None:
        self.session.commands.watchers.remove(self._look)
        if self.first:
            self.session.commands.followed.discard(self.runid)
        self.session.streams.remove(self._here)
        self.started.cancel()
        self.done.cancel()


def _looked_at(session: Session) -> int:
    """The offset up to which all marks have been seen, also partial ones."""
    return session.scanned - session.commands.pending


async def ready(session: Session, operator: str) -> State:
    """The state of the terminal, when the shell shows its prompt with an empty line.

    Waits for a shell that is starting or between two commands. If a program is in the foreground,
    the error names it.
    """
    if session.commands.kind is None:
        raise Impossible(
            f"session {session.name} runs {' '.join(session.record.argv)[:60]!a}, "
            "not a shell that holdfast started",
            "use `holdfast send`, or make a session with bash, zsh or sh as its program",
        )
    begun = since = session.loop.time()
    patience = STARTING_WAIT_S
    while True:
        session.refuse_if_halted()
        state = await session.terminal()
        shell = session.commands.shell
        own = state.foreground == session.record.root_pid
        if own and shell.ready:
            return state
        if own and shell.at_prompt and not shell.submitted and session.turn.took_back:
            shell.settled()
            continue
        if (
            own
            and shell.at_prompt
            and shell.typeahead
            and not shell.line_dirty
            and await _was_read(session)
        ):
            shell.settled()
            continue
        before, now = patience, session.loop.time()
        if shell.phase is Phase.UNKNOWN:
            patience = STARTING_WAIT_S
        elif own:
            patience = TYPED_WAIT_S if shell.at_prompt and not shell.submitted else BETWEEN_WAIT_S
        else:
            patience = 0.0
        if patience != before:
            since = now  # a new reason to wait has a patience of its own
        if now - since >= patience or now - begun >= STARTING_WAIT_S:
            raise await _busy(session, own, operator)
        await asyncio.wait({session.ended}, timeout=LOOK_AGAIN_S)
        if session.ended.done():
            raise NotFound(f"session {session.name} has ended", "`holdfast ls --all` shows how")


async def _ready_or_held(session: Session, operator: str) -> State:
    """As `ready`; a shell that is busy for the turn's holder means that the turn is held."""
    try:
        return await ready(session, operator)
    except Busy:
        session.turn.check(operator, take=False)
        raise


async def _was_read(session: Session) -> bool:
    """Whether input from before the prompt went to the program of that time (`q` to a pager).

    Otherwise the shell's editor would show the text on the line by now. Of control keys alone
    nothing is known.
    """
    text = session.turn.unfinished.text
    end = text[len(text.rstrip(bytes(range(0x21, 0x7F)))) :].decode()
    if not end or session.loop.time() - session.commands.prompted < SHOWN_S:
        return False

    def line(screen: Screen) -> str:
        x, y, _ = screen.cursor
        return screen.text()[y][:x]

    return not (await session.view.look(line))[1].endswith(end)


async def _busy(session: Session, own: bool, operator: str) -> Busy:
    shell = session.commands.shell
    _, why, foreground = await session.attention()
    if not own or not shell.at_prompt:
        what = foreground or why
        return Busy(f"the shell is not at its prompt: {what} is in the foreground", foreground=what)
    if shell.line_dirty:
        turn = session.turn
        authors = turn.begun_by() or ((turn.unfinished.by,) if turn.unfinished.by else ())
        who, clear = " and ".join(authors) or "somebody", "`holdfast send SESSION --key C-u`"
        mine = authors == (operator,) or turn.holder == operator
        return Busy(
            f"{who} has typed on the command line without entering it",
            f"{clear} clears the line, `holdfast send SESSION --enter` enters it"
            if mine
            else f"wait until it is entered or cleared, or ask {who}; "
            "`holdfast seize SESSION` takes over with what is there",
            by=authors[0] if authors else who,
        )
    return Busy(
        "the shell has not taken what was typed before"
        if shell.open_run is None
        else "another run is under way"
    )


async def _start(session: Session, act: Act, runid: str, q: Run) -> None:
    conn, text = act.conn, q.text
    if session.commands.kind is None or not session.commands.shell.ready:  # taken meanwhile
        raise await _busy(session, True, conn.operator)
    try:
        trigger = write_run(
            session.directories,
            session.commands.kind,
            runid,
            text,
            *_to_erase(session),
            stdin=q.stdin,
        )
    except OSError as e:
        raise Unavailable(
            f"cannot write the command's text: {e.strerror}", "free disk space"
        ) from e
    probe("host.run.written")
    session.commands.runs_one_program(runid, text)
    session.commands.shell_state.entered(text, act.writers)
    taken = await session.type(conn.operator, conn.client, act.number, trigger, key=conn.key)
    act.taken = taken
    session.commands.run_of_act[taken] = runid
    probe("host.run.typed")


def _to_erase(session: Session) -> tuple[int, int]:
    """The rows that the trigger will take after the prompt, and the columns to keep in front of it.

    One row if the screen is not at hand; none if it cannot be told how much output is in front.
    """
    seen, cols = session.view.glance(lambda screen: screen.cursor[0]), session.size[0]
    rows = rows_of_trigger(seen[1], cols) if seen is not None else 1
    at, ring = session.commands.prompted_at, session.ring
    prompt = ring.copy(at, min(ring.head, at + LOOK_BYTES)) or b""
    if session.commands.kind == "zsh" or b"\n" in prompt:  # the trigger has a line without output
        return rows, 0
    before = ring.copy(max(ring.start, at - LOOK_BYTES), at) or b""
    mark = before.rfind(MARK_INTRODUCER)
    kept = unfinished_columns(before[:mark], cols) if mark >= 0 else None
    if kept is None:
        return 0, 0
    wrapped = seen is not None and seen[1] < kept
    return rows, 0 if wrapped else kept


async def _began(session: Session, started: asyncio.Future[RunStarted]) -> None:
    if not await session.or_end(started, RUN_TRIGGER_WAIT_S) and not session.ended.done():
        raise OutcomeUnknown(
            "the shell has not said that it began the command; it may still do so",
            "look at the screen (`holdfast view`) before trying again; "
            "the shell's hooks may be gone",
        )


async def _follow(ctx: Context, q: Run, session: Session, watch: _Watch, before: int | None) -> Ran:
    """Streams the output until the run ends. `before`: the terminal's output flags at the start."""
    onlcr = in_force(before, await _output_flags(session))
    begin = session.commands.runs.get(watch.runid)
    if begin is None:
        raise OutcomeUnknown(
            "the session ended before the run could be followed",
            "look at the screen: `holdfast view`",
        )
    start = max(begin.start, q.resume or 0)
    watch.stream = stream = Stream(
        session,
        ctx.conn,
        ctx.number,
        start,
        begin.end,
        RUN_PACE_WINDOW_S,
        OnlcrInverse() if onlcr else None,
        raw=not q.for_terminal,
        known=lambda: _looked_at(session),
    )
    try:
        stream.pump()
        end, code = await _end_of(session, watch, begin, q.timeout)
        if begin.end is None:
            stream.until(end)
        if not stream.done.done():
            await stream.done
        if begin.end is None and session.ended.done() and not watch.done.done():
            _refuse_if_it_goes_on(session)
    finally:
        stream.close()
        if watch.done.done() and not watch.done.cancelled():
            clear_run(session.directories)
    kernel = session.commands.kernel_exits.get(watch.runid)
    said = session.commands.contradicted.get(watch.runid)
    ctx.act.outcome = {
        **({} if code is None else {"exit_code": code}),
        **({} if kernel is None else {"kernel_exit": kernel}),
        **({} if said is None else {"shell_exit": said.shell}),
    }
    taken = ctx.act.taken
    return Ran(
        exit_code=code,
        output=RunOutput(start=start, end=end, ref=f"{session.ref}:{start}-{end}"),
        lost=stream.lost,
        session=session.id,
        ended=session.ended.done(),
        act=taken,
        ref=f"{session.ref}#{taken}" if taken is not None else None,
        kernel_exit=ABSENT if kernel is None else kernel,
        shell_exit=ABSENT if said is None else said.shell,
    )


async def _end_of(
    session: Session, watch: _Watch, begin: KnownRun, timeout: float
) -> tuple[int, int | None]:
    """The end of the output, and the exit code."""
    if begin.end is not None:
        return begin.end, begin.exit_code
    if await session.or_end(watch.done, timeout or None):
        return watch.done.result().output_end, watch.done.result().exit
    if session.ended.done():  # `exit` or `exec`: the session's own end is the command's
        return session.record.output_end, session.record.exit_code
    error = TimedOut(
        f"the command still runs after {timeout:g} s; it was not stopped",
        "`holdfast wait SESSION --for command`, "
        "or interrupt it with `holdfast send SESSION --key C-c`",
    )
    error.retry_safe = False  # a retry would be a second run
    raise error


def _refuse_if_it_goes_on(session: Session) -> None:
    """The incarnation ended, but not its programs: they are on the disk, or at another machine."""
    end = session.end_of
    if end.saved_as or end.gone:
        why = f"moves it to {end.bound_for}" if end.bound_for else "saved it to the disk"
        what = end.gone or f"{end.saved_by} {why}"
        raise OutcomeUnknown(
            f"the command had not ended when session {session.name} stopped here: {what}",
            "the command goes on with the session: `holdfast log SESSION` has its exit code then; "
            "or repeat it with the same --once KEY, which follows it. Without a key, a retry is a "
            "second act",
        )


async def _output_flags(session: Session) -> int | None:
    """The output flags, which say whether newlines become CR LF: the stream undoes that."""
    asked = session.loop.create_task(session.terminal())
    if not await session.or_end(asked) or asked.exception() is not None:
        asked.cancel()
        return None
    return asked.result().oflag
