"""`run`: one discrete command in the session's live shell, with its exact output and exit code.

The text goes to a private file; only a short trigger is typed, as an act like any other. The shell's marks in the output say
where the command's output begins and ends and how it exited. Run ids are (client, number): asking again after a crash of
the host finds the same run, still going or just done, and never runs it twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

from holdfast.core.commands import Effect, Phase, RunDone, RunStarted
from holdfast.core.onlcr import OnlcrInverse, in_force
from holdfast.host.commands import Run
from holdfast.host.connection import Connection
from holdfast.host.door import Act
from holdfast.host.screen import Screen
from holdfast.host.session import Commit, Session
from holdfast.host.shell.run import clear_run, rows_of_trigger, write_run
from holdfast.host.stream import Stream
from holdfast.model.errors import (
    Busy,
    Impossible,
    Lost,
    NotFound,
    Refused,
    TimedOut,
    TurnHeld,
    Unavailable,
)
from holdfast.model.limits import RUN_PACE_WINDOW_S, RUN_TRIGGER_WAIT_S
from holdfast.model.probe import probe
from holdfast.wire.keeper import State

STARTING_WAIT_S = 10.0  # for the first prompt of a new session: its rc files may take a while
BETWEEN_WAIT_S = 5.0  # for the prompt after a command, or for a line that was entered to be taken, while the shell itself has the terminal
TYPED_WAIT_S = 1.0  # for a line that somebody has begun
LOOK_AGAIN_S = 0.03
SHOWN_S = 0.15  # after a prompt: for the editor to show what was typed before it


async def run(
    session: Session,
    conn: Connection,
    number: int,
    request: dict[str, Any],
    act: Act,
    commit: Commit,
) -> dict[str, Any]:
    """Streams the output to `conn` as answers to request `number`; gives the result."""
    runid = f"{conn.client:x}-{act.number}"
    known = session.commands.runs.get(runid)
    watch = _Watch(session, runid, known is None)
    started, done = watch.started, watch.done
    holds, before = False, None
    try:
        if known is None:
            if act.repeat:
                raise Lost(
                    "this run was typed, but no trace of it is left",
                    "look at the screen: `holdfast view`",
                )
            before = (await ready(session)).oflag
            session.may_write(conn.operator, take=False)
            await commit()
            session.turn.begin_long(conn.operator, conn.key)
            holds = True
            await _start(session, conn, act, runid, request["text"])
            await _began(session, started)
        elif known.end is None:
            with contextlib.suppress(
                TurnHeld
            ):  # the host is new, and somebody was quicker: it is followed all the same
                session.turn.begin_long(conn.operator, conn.key)
                holds = True
        onlcr = in_force(before, await _output_flags(session))
        begin = session.commands.runs.get(runid)
        if begin is None:
            raise Lost(
                "the session ended before the run could be followed",
                "look at the screen: `holdfast view`",
            )
        start = max(begin.start, int(request.get("resume") or 0))
        watch.stream = Stream(
            session,
            conn,
            number,
            start,
            begin.end,
            RUN_PACE_WINDOW_S,
            OnlcrInverse() if onlcr else None,
            raw=not request["for_terminal"],
            known=lambda: _looked_at(session),
        )
        result = await _follow(
            session, watch.stream, begin, start, done, float(request["timeout"] or 0)
        )
        return {
            **result,
            "act": act.taken,
            "ref": f"{session.ref}#{act.taken}" if act.taken is not None else None,
        }
    finally:
        if holds:
            session.turn.end_long(conn.operator)
        watch.close()


class _Watch:
    """Waits for the marks of one run. The stream learns its end in the same step, before it sends on what follows."""

    def __init__(self, session: Session, runid: str, first: bool) -> None:
        """`first`: not one that is followed again. Of that the outcome is written already, without its end (host/aftermath.py writes it)."""
        self.session, self.runid, self.first = session, runid, first
        self.started: asyncio.Future[RunStarted] = session.loop.create_future()
        self.done: asyncio.Future[RunDone] = session.loop.create_future()
        self.stream: Stream | None = None
        session.commands.watchers.append(self._look)
        if first:
            session.commands.followed.add(runid)
        session.streams.append(self._here)

    def _here(self) -> None:
        """Among the readers from the beginning: a session that ends meanwhile keeps its output until this one has it."""

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
    """Up to here there is no mark, nor the beginning of one, that has not been seen."""
    return session.scanned - session.commands.pending


async def ready(session: Session) -> State:
    """The terminal, when the shell shows its prompt and nobody has typed on it. A shell that is starting, or between two commands, is
    waited for; a program in the foreground is not: it is named."""
    if session.commands.kind is None:
        raise Impossible(
            f"session {session.name} runs {' '.join(session.record.argv)[:60]!a}, not a shell that holdfast started",
            "use `holdfast send`, or make a session with bash, zsh or sh as its program",
        )
    begun = since = session.loop.time()
    patience = STARTING_WAIT_S
    while True:
        if session.state == "halted":
            raise Refused(
                f"session {session.name} is halted", f"`holdfast resume {session.name}` goes on"
            )
        state = await session.terminal()
        shell = session.commands.shell
        own = state.foreground == session.record.root_pid
        if own and shell.ready:
            return state
        if own and shell.at_prompt and shell.line_open and session.turn.took_back:
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
            since = now  # what is waited for now has not been waited for before
        if now - since >= patience or now - begun >= STARTING_WAIT_S:
            raise await _busy(session, own)
        await asyncio.wait({session.ended}, timeout=LOOK_AGAIN_S)
        if session.ended.done():
            raise NotFound(f"session {session.name} has ended", "`holdfast ls --all` shows how")


async def _was_read(session: Session) -> bool:
    """Whether what was typed before the prompt came went to the program that ran then (`q` to a pager): else the shell's editor would have it on
    the line by now. Only text can be seen there; of keys alone nothing is known."""
    text = b"".join(piece.data for piece in session.turn.staged.pieces)
    end = text[len(text.rstrip(bytes(range(0x21, 0x7F)))) :].decode()
    if not end or session.loop.time() - session.commands.prompted < SHOWN_S:
        return False

    def line(screen: Screen) -> str:
        x, y, _ = screen.cursor
        return screen.text()[y][:x]

    return not (await session.view.look(line))[1].endswith(end)


async def _busy(session: Session, own: bool) -> Busy:
    shell = session.commands.shell
    _, why, foreground = await session.attention()
    if not own or not shell.at_prompt:
        what = foreground or why
        return Busy(f"the shell is not at its prompt: {what} is in the foreground", foreground=what)
    if shell.line_dirty:
        who = session.turn.staged.by or "somebody"
        return Busy(
            f"{who} has typed on the command line without entering it",
            f"wait until it is entered or cleared, or ask {who}; `holdfast seize` takes over with what is there",
            by=who,
        )
    return Busy(
        "the shell has not taken what was typed before"
        if shell.open_run is None
        else "another run is under way"
    )


async def _start(session: Session, conn: Connection, act: Act, runid: str, text: str) -> None:
    if session.commands.kind is None or not session.commands.shell.ready:  # somebody was quicker
        raise await _busy(session, own=True)
    try:
        trigger = write_run(
            Path(session.directory), session.commands.kind, runid, text, _rows(session)
        )
    except OSError as e:
        raise Unavailable(
            f"cannot write the command's text: {e.strerror}", "free disk space"
        ) from e
    probe("host.run.written")
    session.commands.shaping.entered(text, act.writers)
    act.taken = await session.type(conn.operator, conn.client, act.number, trigger, key=conn.key)
    probe("host.run.typed")


def _rows(session: Session) -> int:
    """Of the trigger, after the prompt as the screen has it; one line if that is not at hand."""
    seen = session.view.glance(lambda screen: screen.cursor[0])
    return rows_of_trigger(seen[1], session.size[0]) if seen is not None else 1


async def _began(session: Session, started: asyncio.Future[RunStarted]) -> None:
    await _or_end(session, started, RUN_TRIGGER_WAIT_S)
    if not started.done() and not session.ended.done():
        raise Lost(
            "the shell has not said that it began the command; it may still do so",
            "look at the screen (`holdfast view`) before trying again; the shell's hooks may be gone",
        )


async def _follow(
    session: Session,
    stream: Stream,
    begin: Run,
    start: int,
    done: asyncio.Future[RunDone],
    timeout: float,
) -> dict[str, Any]:
    end, code = begin.end, begin.exit_code
    try:
        stream.pump()
        if end is None:
            await _or_end(session, done, timeout or None)
            if done.done():
                end, code = done.result().output_end, done.result().exit
            elif session.ended.done():  # `exit` or `exec`: the session's own end is the command's
                end, code = session.record.output_end, session.record.exit_code
            else:
                raise TimedOut(
                    f"the command still runs after {timeout:g} s; it was not stopped",
                    "`holdfast wait SESSION --for command`, or interrupt it with `holdfast send SESSION --key C-c`",
                )
            stream.until(end)
        if not stream.done.done():
            await stream.done
        ref = f"{session.ref}:{start}-{end}"
        return {
            "exit_code": code,
            "output": {"start": start, "end": end, "ref": ref},
            "lost": stream.lost,
            "session": session.id,
            "ended": session.ended.done(),
            "outcome": {} if code is None else {"exit_code": code},
        }
    finally:
        stream.close()
        if done.done() and not done.cancelled():
            clear_run(Path(session.directory))


async def _or_end(session: Session, future: asyncio.Future[Any], limit_s: float | None) -> None:
    """Until it is done, the session has ended, or the time is over."""
    both: set[asyncio.Future[Any]] = {future, session.ended}
    await asyncio.wait(both, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)


async def _output_flags(session: Session) -> int | None:
    """Whether the terminal turns every newline into CR LF is among them, so that this can be undone exactly."""
    asked = session.loop.create_task(session.terminal())
    await _or_end(session, asked, None)
    if not asked.done() or asked.exception() is not None:
        asked.cancel()
        return None
    return asked.result().oflag
