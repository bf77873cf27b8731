"""`wait`: returns when the live state says so, never by guessing from silence.

Marks, exits and text come as events. What the kernel tells only when asked (terminal modes, who reads the terminal, listening
ports) is looked at a few times a second, and only while somebody waits for it.
"""

from __future__ import annotations

import asyncio
import re
import signal
from typing import Any

from holdfast.core.commands import CommandFinished, Effect, RunDone
from holdfast.core.plain import plain
from holdfast.host import observe
from holdfast.host.session import Session
from holdfast.model.errors import NotFound, TimedOut, Usage
from holdfast.model.limits import OBSERVE_INTERVAL_S

SIMPLE = ("idle", "input", "secret", "exit", "command")
TEXT_WINDOW_BYTES = 256 * 1024     # text is searched in pieces of this size ...
SEARCH_S = 0.25                    # of processor time for one such piece
TEXT_OVERLAP_BYTES = 4 * 1024      # ... that overlap by this much: the longest text that is surely found


async def wait(session: Session, condition: str, timeout: float) -> dict[str, Any]:
    check = _parse(condition)
    try:
        async with asyncio.timeout(timeout or None):
            return {"for": condition, **await check(session)}
    except TimeoutError as e:
        kind, why, _ = await session.attention() if not session.ended.done() else ("ended", "the session has ended", "")
        recover = "a shell at its prompt is `--for idle`" if condition == "input" and kind == "idle" else None
        raise TimedOut(f"{condition} did not happen within {timeout:g} s (now: {kind}; {why})", recover, state=kind) from e


def _parse(condition: str) -> Any:
    kind, _, rest = condition.partition(":")
    if kind == "text" and rest:
        try:
            pattern = re.compile(rest)
        except (re.error, OverflowError, RecursionError) as e:
            raise Usage(f"bad pattern {rest!a}: {e}", "it is a Python regular expression") from e
        return lambda session: _text(session, pattern)
    if kind == "port" and rest.isascii() and rest.isdigit() and 0 < int(rest) < 65536:
        return lambda session: _port(session, int(rest))
    if condition == "exit":
        return _exit
    if condition == "command":
        return _command
    if condition in SIMPLE:
        return lambda session: _attention(session, condition)
    raise Usage(f"cannot wait for {condition!a}", "one of: idle, input, secret, exit, command, text:REGEX, port:NUMBER")


def _ended(session: Session) -> NotFound:
    return NotFound(f"session {session.name} ended ({session.record.reason}) before that happened", "`holdfast ls --all`")


async def _exit(session: Session) -> dict[str, Any]:
    await asyncio.shield(session.ended)
    r = session.record
    return {"seen": r.reason, "exit_code": r.exit_code}


async def _command(session: Session) -> dict[str, Any]:
    found: asyncio.Future[dict[str, Any]] = session.loop.create_future()

    def watch(effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, CommandFinished | RunDone) and not found.done():
                found.set_result({"seen": f"a command finished with {effect.exit}", "exit_code": effect.exit})

    session.commands.watchers.append(watch)
    try:
        if not await session.or_end(found):
            raise _ended(session)
        return found.result()
    finally:
        session.commands.unwatch(watch)


async def _attention(session: Session, wanted: str) -> dict[str, Any]:
    while True:
        if session.ended.done():
            raise _ended(session)
        kind, why, foreground = await session.attention()
        if kind == wanted:
            return {"seen": why, "foreground": foreground}
        await asyncio.wait({session.ended}, timeout=OBSERVE_INTERVAL_S)


async def _port(session: Session, port: int) -> dict[str, Any]:
    while True:
        if session.ended.done():
            raise _ended(session)
        found = await asyncio.to_thread(observe.port_listening, session.keeper_pid, port)
        if found is not None:
            return {"seen": f"process {found.pid} listens on {found.address}:{found.port}", "pid": found.pid}
        await asyncio.wait({session.ended}, timeout=OBSERVE_INTERVAL_S)


def search(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """Bounded in time: a pattern like (a+)+$ may need longer than the universe lasts, and everybody's keys would wait for it. The
    matcher looks for signals as it goes; an alarm stops it. It counts this process's time: on a busy machine any pattern takes long."""
    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGVTALRM, stop)
    try:
        try:
            signal.setitimer(signal.ITIMER_VIRTUAL, SEARCH_S)
            return pattern.search(text)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    except TimeoutError as e:
        raise Usage(f"the pattern {pattern.pattern[:60]!a} takes too long to search for", "avoid repetitions inside repetitions") from e
    finally:
        signal.signal(signal.SIGVTALRM, before)


async def _text(session: Session, pattern: re.Pattern[str]) -> dict[str, Any]:
    """On the screen already, or in the output from there on."""
    offset, rows = await session.view.look(lambda screen: screen.text())
    for row in (*rows, "\n".join(rows)):
        if match := search(pattern, row):
            return {"seen": match.group(0)[:500], "where": "screen"}
    first = offset
    more = asyncio.Event()
    session.streams.append(more.set)
    try:
        while True:
            while offset < session.ring.head:
                start = max(session.ring.start, first, offset - TEXT_OVERLAP_BYTES)
                end = min(session.ring.head, start + TEXT_WINDOW_BYTES)
                data = session.ring.copy(start, end)
                if data is not None and (match := search(pattern, plain(data))):
                    return {"seen": match.group(0)[:500], "where": "output"}
                offset = end
                await asyncio.sleep(0)                # others have their turn: under flood there is always more
            if session.ended.done():
                raise _ended(session)
            arrived = asyncio.ensure_future(more.wait())
            await session.or_end(arrived)
            arrived.cancel()
            more.clear()
    finally:
        session.streams.remove(more.set)
