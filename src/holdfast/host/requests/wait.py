"""`wait`: returns when the live state meets a condition, never by guessing from silence.

Of several conditions the first that holds ends the wait. Marks, exits and text come as events.
Facts that the kernel gives only on request (terminal modes, the reading process, listening ports)
are polled a few times a second, and only during a wait. All requests share the looks at what a
session waits for (host/requests/attention.py).

A condition that holds already is true at once. `command` means the next command that finishes. A
condition that cannot hold any more, because the session has ended, is answered at once with the way
the session ended, unless `exit` is a condition too.
"""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from holdfast.core.contract.output import CONDITIONS, CONDITIONS_MAX, Waited
from holdfast.core.contract.table import OPERATIONS
from holdfast.core.record.record import shown
from holdfast.core.screen.plain_text import plain
from holdfast.core.session.shell_marks import CommandFinished, Effect, RunDone
from holdfast.host.processes import graph, proc_scan
from holdfast.host.requests import attention
from holdfast.host.session.session import Session
from holdfast.host.storage.store import SessionRow
from holdfast.model.errors import Lost, NotFound, TimedOut, Usage
from holdfast.model.limits import OBSERVE_INTERVAL_S
from holdfast.model.references import parse_ref

if TYPE_CHECKING:
    from holdfast.host.requests.host import Host

SIMPLE = ("idle", "input", "secret")
TEXT_WINDOW_BYTES = 256 * 1024  # output is searched in pieces of this size ...
SEARCH_S = 0.25  # of processor time for a piece
TEXT_OVERLAP_BYTES = 4 * 1024  # ... that overlap this much, so any shorter text is found
NAMED_MAX: Final = 8  # processes in an error's words
OFFSET: Final = re.compile(r"\d{1,18}", re.ASCII)
ENTRIES: Final = 500  # newest entries of a record, searched for an act of `run`

Check = Callable[["Host", Session], Awaitable[Waited]]


def conditions(given: str | tuple[str, ...]) -> list[str]:
    words = [given] if isinstance(given, str) else list(dict.fromkeys(given))
    if not 0 < len(words) <= CONDITIONS_MAX:
        raise Usage(
            f"1 to {CONDITIONS_MAX} conditions can be waited for at once",
            "`for` is one, or a list of them",
        )
    for one in words:
        _parse(one)
    return words


def ended(session: Session | SessionRow) -> NotFound:
    record = session if isinstance(session, SessionRow) else session.record
    return NotFound(
        f"session {record.name} has ended ({record.reason}); that cannot happen any more",
        "`holdfast ls --all` shows how",
        state="ended",
        reason=record.reason,
        exit_code=record.exit_code,
    )


async def since(host: Host, session: Session, conditions: list[str], given: str) -> int:
    """The offset that `since` means: itself, the start of a range, or of the output of a run."""
    if not any(one.startswith("text:") for one in conditions):
        raise Usage("`--since` is about text", "add `--for text:REGEX`")
    ring = session.ring
    if OFFSET.fullmatch(given):
        start = int(given)
    else:
        ref = parse_ref(given)
        if ref.session != session.id:
            raise Usage(f"{ref} is not of the session {session.name}", f"its id is {session.id}")
        if ref.epoch is not None and ref.epoch != session.record.epoch:
            raise _lost(session, f"{ref} is of another incarnation")
        if ref.output is not None:
            start = ref.output[0]
        elif ref.act is not None:
            start = await _began(host, session, ref.act)
        else:
            raise Usage(f"{ref} names no place in the output", "give an offset, a range or a run")
    if start > ring.head:
        raise Usage(
            f"offset {start} is beyond the end {ring.head}",
            "offsets are absolute; see `holdfast ls --json`",
        )
    _refuse_lost(session, start)
    return start


async def _began(host: Host, session: Session, act: int) -> int:
    """The beginning of the output of an act of `run`.

    The shell's mark of the run has the offset. The record names a run of an earlier host.
    """
    journal, commands = host.engine.journal, session.commands
    await journal.settled()
    await session.marks_seen()
    if (known := commands.runs.get(commands.run_of_act.get(act, ""))) is not None:
        return known.start
    newest = await journal.read(session.id, limit=ENTRIES, newest=True)
    found = next(
        (
            entry
            for entry in map(shown, newest)
            if (entry["phase"], entry["epoch"]) == ("outcome", session.record.epoch)
            and entry["facts"].get("act") == act
        ),
        None,
    )
    if found is not None and found["kind"] != OPERATIONS["run"].kind:
        raise Usage(
            f"act {act} is no `run`: where its output begins is not known",
            "`send --json` gives the `offset` at which it typed",
        )
    run = (
        None
        if found is None
        else commands.runs.get(f"{int(found['client'], 16):x}-{found['number']}")
    )
    if run is None:
        raise _lost(session, f"the beginning of the output of act {act} is not known any more")
    return run.start


def _refuse_lost(session: Session, start: int) -> None:
    if start < session.ring.start:
        raise _lost(session, f"output {start} to {session.ring.start} has rolled off")


def _lost(session: Session, why: str) -> Lost:
    start, end = session.ring.start, session.ring.head
    return Lost(f"{why}; kept are {start} to {end}", range=[start, end])


async def wait(
    host: Host, session: Session, conditions: list[str], timeout: float, since: int | None
) -> Waited:
    try:
        async with asyncio.timeout(timeout or None):
            return await _first(host, session, conditions, since)
    except TimeoutError as e:
        kind, why, unseen, recover = "ended", "the session has ended", "", None
        if not session.ended.done():
            kind, why, _ = await session.attention()
            if any(one.startswith("port:") for one in conditions):
                unseen = await _unseen(host, session)
        if "input" in conditions and kind == "idle":
            recover = "a shell at its prompt is `--for idle`"
        elif kind == "halted":
            recover = f"`holdfast resume {session.name}` lets it go on"
        what = f"{' or '.join(conditions)} did not happen within {timeout:g} s"
        raise TimedOut(f"{what} (now: {kind}; {why}){unseen}", recover, state=kind) from e


async def _first(host: Host, session: Session, conditions: list[str], since: int | None) -> Waited:
    """The first that holds; of several at the same moment, the first that was named."""
    checks = {asyncio.ensure_future(_parse(one, since)(host, session)): one for one in conditions}
    try:
        left, refused = set(checks), None
        while left:
            done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            for check in [check for check in checks if check in done]:
                if (error := check.exception()) is None:
                    return replace(check.result(), for_=checks[check])
                if not isinstance(error, NotFound):
                    raise error
                refused = error  # the session has ended: another condition may be `exit`
        raise refused or ended(session)
    finally:
        for check in checks:
            check.cancel()
        await asyncio.gather(*checks, return_exceptions=True)


def _parse(condition: str, since: int | None = None) -> Check:
    kind, _, rest = condition.partition(":")
    if kind == "text" and rest:
        try:
            pattern = re.compile(rest, re.MULTILINE)
        except (re.error, OverflowError, RecursionError) as e:
            raise Usage(f"bad pattern {rest!a}: {e}", "it is a Python regular expression") from e
        return lambda host, session: _text(session, pattern, since)
    if kind == "port" and rest.isascii() and rest.isdigit() and 0 < int(rest) < 65536:
        return lambda host, session: _port(host, session, int(rest))
    if condition == "exit":
        return lambda host, session: _exit(session)
    if condition == "command":
        return lambda host, session: _command(session)
    if condition in SIMPLE:
        return lambda host, session: _attention(host, session, condition)
    raise Usage(f"cannot wait for {condition!a}", f"one of: {', '.join(CONDITIONS)}")


def _seen(session: Session, seen: str, **more: Any) -> Waited:
    return Waited(id=session.id, for_="", seen=seen, **more)


async def _exit(session: Session) -> Waited:
    await asyncio.shield(session.ended)
    return _seen(session, session.record.reason, exit_code=session.record.exit_code)


async def _command(session: Session) -> Waited:
    found: asyncio.Future[Waited] = session.loop.create_future()

    def watch(effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, CommandFinished | RunDone) and not found.done():
                said = f"a command finished with {effect.exit}"
                found.set_result(_seen(session, said, exit_code=effect.exit))

    session.commands.watchers.append(watch)
    try:
        if not await session.or_end(found):
            raise ended(session)
        return found.result()
    finally:
        session.commands.unwatch(watch)


async def _attention(host: Host, session: Session, wanted: str) -> Waited:
    try:
        notice = await attention.until(host.attention_watch, session, wanted)
    except NotFound:
        raise ended(session) from None
    return _seen(session, notice.why, foreground=notice.foreground, pid=notice.pid)


async def _port(host: Host, session: Session, port: int) -> Waited:
    while True:
        if session.ended.done():
            raise ended(session)
        found = next(
            (one for one in await asyncio.to_thread(_listening, host, session) if one.port == port),
            None,
        )
        if found is not None:
            cause = session.commands.lineage.of(found.pid)
            at = f"[{found.address}]" if ":" in found.address else found.address
            return _seen(
                session,
                f"process {found.pid} listens on {at}:{found.port}",
                pid=found.pid,
                actor=cause.actor,
                act=cause.ref(session.ref),
            )
        await asyncio.wait({session.ended}, timeout=OBSERVE_INTERVAL_S)


def _listening(host: Host, session: Session) -> list[proc_scan.Socket]:
    """The listening sockets of all processes of the session, daemons included."""
    return proc_scan.listening(graph.members(host.engine.halter.groups, session))


async def _unseen(host: Host, session: Session) -> str:
    """Names processes whose sockets the host cannot see."""
    closed = await asyncio.to_thread(
        lambda: proc_scan.unreadable(graph.members(host.engine.halter.groups, session))
    )
    named = ", ".join(map(str, closed[:NAMED_MAX])) + (" ..." if len(closed) > NAMED_MAX else "")
    if closed:
        return f"; what these listen on cannot be seen, because they run as somebody else: {named}"
    return ""


def search(pattern: re.Pattern[str], text: str, seen: int = 0) -> re.Match[str] | None:
    """Searches for a match that ends after the first `seen` characters.

    The search has a limit on processor time.

    A pattern like (a+)+$ may need longer than the universe lasts, and all keys would wait for it.
    The matcher checks for signals, so an alarm stops it. Only the time of this process counts,
    because on a busy machine any pattern takes long.
    """

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGVTALRM, stop)
    try:
        try:
            signal.setitimer(signal.ITIMER_VIRTUAL, SEARCH_S)
            match = pattern.search(text)
            while match is not None and seen and match.end() <= seen:
                match = pattern.search(text, match.start() + 1)
            return match
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    except TimeoutError as e:
        raise Usage(
            f"the pattern {pattern.pattern[:60]!a} takes too long to search for",
            "avoid repetitions inside repetitions",
        ) from e
    finally:
        signal.signal(signal.SIGVTALRM, before)


async def _text(session: Session, pattern: re.Pattern[str], since: int | None) -> Waited:
    """Waits for a text: first looks at the screen, then at all output after it.

    The text may begin on the screen and end in the output. With `since`, only the output from there
    on counts, and Lost says that a part of it rolled off before it was searched.
    """
    if since is None:
        offset, rows = await session.view.look(lambda screen: screen.text())
        for row in (*rows, "\n".join(rows)):
            if match := search(pattern, row):
                return _seen(session, match.group(0)[:500], where="screen")
    else:
        offset = since
    first, floor = offset, since or 0
    more = asyncio.Event()
    session.streams.append(more.set)
    try:
        while True:
            while offset < session.ring.head:
                if since is not None:
                    _refuse_lost(session, offset)
                start = max(session.ring.start, offset - TEXT_OVERLAP_BYTES, floor)
                end = min(session.ring.head, start + TEXT_WINDOW_BYTES)
                if (data := session.ring.copy(start, end)) is not None:
                    seen = len(plain(data[: max(0, first - start)]))
                    if match := search(pattern, plain(data), seen):
                        return _seen(session, match.group(0)[:500], where="output")
                elif since is not None:
                    continue  # overwritten meanwhile: the next round says so
                offset = end
                # lets other tasks run: under a flood there is always more output
                await asyncio.sleep(0)
            if session.ended.done():
                raise ended(session)
            arrived = asyncio.ensure_future(more.wait())
            await session.or_end(arrived)
            arrived.cancel()
            more.clear()
    finally:
        session.streams.remove(more.set)
