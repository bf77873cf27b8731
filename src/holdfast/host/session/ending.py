"""Ends a session: everything in it, daemons that left its terminal and ignore what they are told included.

HUP to all, after a while TERM, after a while KILL: who can put things in order is given the time. The shell is usually gone at once; its session is not over before all of it is, because its keeper is what
everybody who leaves their parent becomes a child of. A keeper that was let go with the shell would leave a daemon that ignores HUP behind, where nobody finds it.

Once begun it is done, whether or not whoever asked still waits. What cannot be reached is named: processes of another account (after `sudo`, where the host is not root's), and what the kernel does
not let die. What a program had somebody else start for it (cron, `at`, systemd, a container engine) is not in the session, and is not ended with it.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from holdfast.host import observe
from holdfast.host.keeperlink import stuck
from holdfast.model.errors import Impossible, Unavailable
from holdfast.model.limits import END_HUP_WAIT_S, END_TERM_WAIT_S, EXIT_DRAIN_S

if TYPE_CHECKING:
    from holdfast.host.session import Session

KILL_WAIT_S: Final = 30.0
LOOK_S: Final = 0.02
NAMED_MAX: Final = 8  # processes in an error's words

Kill = Callable[[], Awaitable[bool]]


async def end_all(session: Session, operator: str, kill: Kill | None = None) -> str:
    """Gives the signal that did it. `kill`: kills all of them, as the kernel best can; without, one by one."""
    if not session.answers:
        raise stuck(session.name, session.keeper_pid)
    session.pace.wait_no_more()
    session.event("session.end_asked", operator=operator)
    held: asyncio.Future[None] = session.loop.create_future()
    session.ends.add(held)
    return await asyncio.shield(session.spawn(_end(session, kill, held)))


async def _end(session: Session, kill: Kill | None, held: asyncio.Future[None]) -> str:
    try:
        by = await _all(session, kill)
    finally:
        session.ends.discard(held)
        held.set_result(None)
    await asyncio.wait_for(asyncio.shield(session.ended), EXIT_DRAIN_S + KILL_WAIT_S)
    return by


async def _all(session: Session, kill: Kill | None) -> str:
    for number, wait in (
        (signal.SIGHUP, END_HUP_WAIT_S),
        (signal.SIGTERM, END_TERM_WAIT_S),
        (signal.SIGKILL, KILL_WAIT_S),
    ):
        if number == signal.SIGKILL and kill is not None:
            await kill()
        session.signal_all(number)
        if number == signal.SIGHUP:
            session.signal_all(signal.SIGCONT)  # a stopped process must see it
        if await _gone(session, wait, final=number == signal.SIGKILL):
            return number.name
    left = await asyncio.to_thread(_left, session)
    named = ", ".join(map(str, left[:NAMED_MAX])) + (" ..." if len(left) > NAMED_MAX else "")
    if left and not any(map(_ours, left)):
        raise Impossible(
            f"still running, because they run as somebody else: {named}",
            "end them as that account (`sudo kill PID`)",
            pids=left[:NAMED_MAX],
        )
    if not session.answers or session.lane.unanswered:
        raise stuck(session.name, session.keeper_pid)
    raise Unavailable(
        f"some processes do not die (uninterruptible?): {named}",
        "look at them with ps; the kernel holds them",
    )


async def _gone(session: Session, wait: float, final: bool) -> bool:
    deadline = session.loop.time() + wait
    while left := await asyncio.to_thread(_left, session):
        rest = deadline - session.loop.time()
        if rest <= 0 or not session.answers or (final and not any(map(_ours, left))):
            return False
        await asyncio.sleep(min(LOOK_S, rest))
    return True


def _left(session: Session) -> list[int]:
    """In a thread: there may be very many. A zombie of a parent that is not ours is that one's business, which is here itself."""
    return [one.pid for one in observe.descendants(session.keeper_pid, with_argv=False)]


def _ours(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return False
    except ProcessLookupError:
        pass
    return True
