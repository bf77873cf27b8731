"""`wait`: returns when the live state says so, never by guessing from silence. Of several conditions the first that holds ends it.

Marks, exits and text come as events. What the kernel tells only when asked (terminal modes, who reads the terminal, listening
ports) is looked at a few times a second, and only while somebody waits for it; what the session waits for by the same looks for all who ask (host/noticing.py).

A condition that holds already is true at once. `command` is not a state: it is the next one that finishes. One that can never hold any more, because the session has ended, is answered so
at once, with how it ended; unless its end is what is waited for as well.
"""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from holdfast.core.commands import CommandFinished, Effect, RunDone
from holdfast.core.plain import plain
from holdfast.host import graph, noticing, observe
from holdfast.host.session import Session
from holdfast.host.store import Record
from holdfast.model.errors import NotFound, TimedOut, Usage
from holdfast.model.limits import OBSERVE_INTERVAL_S

if TYPE_CHECKING:
    from holdfast.host.ops import Ops

SIMPLE = ("idle", "input", "secret")
CONDITIONS_MAX: Final = 16  # of one wait
TEXT_WINDOW_BYTES = 256 * 1024  # text is searched in pieces of this size ...
SEARCH_S = 0.25  # of processor time for one such piece
TEXT_OVERLAP_BYTES = (
    4 * 1024
)  # ... that overlap by this much: the longest text that is surely found
NAMED_MAX: Final = 8  # processes in an error's words

Check = Callable[["Ops", Session], Awaitable[dict[str, Any]]]


def conditions(given: str | list[Any]) -> list[str]:
    words = (
        [given]
        if isinstance(given, str)
        else list(dict.fromkeys(given))
        if all(isinstance(one, str) for one in given)
        else []
    )
    if not 0 < len(words) <= CONDITIONS_MAX:
        raise Usage(
            f"1 to {CONDITIONS_MAX} conditions can be waited for at once",
            "`for` is one, or a list of them",
        )
    for one in words:
        _parse(one)
    return words


def ended(session: Session | Record) -> NotFound:
    record = session if isinstance(session, Record) else session.record
    return NotFound(
        f"session {record.name} has ended ({record.reason}); that cannot happen any more",
        "`holdfast ls --all` shows how",
        state="ended",
        reason=record.reason,
        exit_code=record.exit_code,
    )


async def wait(ops: Ops, session: Session, conditions: list[str], timeout: float) -> dict[str, Any]:
    try:
        async with asyncio.timeout(timeout or None):
            return await _first(ops, session, conditions)
    except TimeoutError as e:
        kind, why, _ = (
            await session.attention()
            if not session.ended.done()
            else ("ended", "the session has ended", "")
        )
        recover = (
            "a shell at its prompt is `--for idle`"
            if "input" in conditions and kind == "idle"
            else f"`holdfast resume {session.name}` lets it go on"
            if kind == "halted"
            else None
        )
        unseen = (
            await _unseen(ops, session)
            if any(one.startswith("port:") for one in conditions) and not session.ended.done()
            else ""
        )
        what = " or ".join(conditions)
        raise TimedOut(
            f"{what} did not happen within {timeout:g} s (now: {kind}; {why}){unseen}",
            recover,
            state=kind,
        ) from e


async def _first(ops: Ops, session: Session, conditions: list[str]) -> dict[str, Any]:
    """The first that holds; of several at the same moment, the first that was named."""
    checks = {asyncio.ensure_future(_parse(one)(ops, session)): one for one in conditions}
    try:
        left, refused = set(checks), None
        while left:
            done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            for check in [check for check in checks if check in done]:
                if (error := check.exception()) is None:
                    return {"for": checks[check], **check.result()}
                if not isinstance(error, NotFound):
                    raise error
                refused = error  # the session has ended: that may be what another waits for
        raise refused or ended(session)
    finally:
        for check in checks:
            check.cancel()
        await asyncio.gather(*checks, return_exceptions=True)


def _parse(condition: str) -> Check:
    kind, _, rest = condition.partition(":")
    if kind == "text" and rest:
        try:
            pattern = re.compile(rest)
        except (re.error, OverflowError, RecursionError) as e:
            raise Usage(f"bad pattern {rest!a}: {e}", "it is a Python regular expression") from e
        return lambda ops, session: _text(session, pattern)
    if kind == "port" and rest.isascii() and rest.isdigit() and 0 < int(rest) < 65536:
        return lambda ops, session: _port(ops, session, int(rest))
    if condition == "exit":
        return lambda ops, session: _exit(session)
    if condition == "command":
        return lambda ops, session: _command(session)
    if condition in SIMPLE:
        return lambda ops, session: _attention(ops, session, condition)
    raise Usage(
        f"cannot wait for {condition!a}",
        "one of: idle, input, secret, exit, command, text:REGEX, port:NUMBER",
    )


async def _exit(session: Session) -> dict[str, Any]:
    await asyncio.shield(session.ended)
    r = session.record
    return {"seen": r.reason, "exit_code": r.exit_code}


async def _command(session: Session) -> dict[str, Any]:
    found: asyncio.Future[dict[str, Any]] = session.loop.create_future()

    def watch(effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, CommandFinished | RunDone) and not found.done():
                found.set_result(
                    {"seen": f"a command finished with {effect.exit}", "exit_code": effect.exit}
                )

    session.commands.watchers.append(watch)
    try:
        if not await session.or_end(found):
            raise ended(session)
        return found.result()
    finally:
        session.commands.unwatch(watch)


async def _attention(ops: Ops, session: Session, wanted: str) -> dict[str, Any]:
    try:
        notice = await noticing.until(ops.noticing, session, wanted)
    except NotFound:
        raise ended(session) from None
    return {"seen": notice.why, "foreground": notice.foreground, "pid": notice.pid}


async def _port(ops: Ops, session: Session, port: int) -> dict[str, Any]:
    while True:
        if session.ended.done():
            raise ended(session)
        found = next(
            (one for one in await asyncio.to_thread(_listening, ops, session) if one.port == port),
            None,
        )
        if found is not None:
            cause, at = (
                session.commands.lineage.of(found.pid),
                f"[{found.address}]" if ":" in found.address else found.address,
            )
            return {
                "seen": f"process {found.pid} listens on {at}:{found.port}",
                "pid": found.pid,
                "actor": cause.actor,
                "act": cause.ref(session.ref),
            }
        await asyncio.wait({session.ended}, timeout=OBSERVE_INTERVAL_S)


def _listening(ops: Ops, session: Session) -> list[observe.Socket]:
    """Of all its processes, daemons included, by any address."""
    return observe.listening(graph.members(ops.engine.halter.groups, session))


async def _unseen(ops: Ops, session: Session) -> str:
    """Who might listen without our knowing."""
    closed = await asyncio.to_thread(
        lambda: observe.unreadable(graph.members(ops.engine.halter.groups, session))
    )
    named = ", ".join(map(str, closed[:NAMED_MAX])) + (" ..." if len(closed) > NAMED_MAX else "")
    return (
        f"; what these listen on cannot be seen, because they run as somebody else: {named}"
        if closed
        else ""
    )


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
        raise Usage(
            f"the pattern {pattern.pattern[:60]!a} takes too long to search for",
            "avoid repetitions inside repetitions",
        ) from e
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
                await asyncio.sleep(0)  # others have their turn: under flood there is always more
            if session.ended.done():
                raise ended(session)
            arrived = asyncio.ensure_future(more.wait())
            await session.or_end(arrived)
            arrived.cancel()
            more.clear()
    finally:
        session.streams.remove(more.set)
