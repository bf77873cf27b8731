"""What a session waits for now: its terminal as the keeper has it, its processes as /proc has them, its shell as the marks have it, put together for `core/attention.py`.

A halted session waits for nothing but to be resumed, whatever its terminal looks like: its processes stand still in the middle of what they did.
"""

from __future__ import annotations

import termios
from typing import TYPE_CHECKING, NamedTuple

from holdfast.core.attention import classify
from holdfast.host import observe, process
from holdfast.model.errors import Unavailable
from holdfast.wire import keeper as wire

if TYPE_CHECKING:
    from holdfast.host.session import Session

FOREGROUND_CHARS = 200
HALTED = "the session is halted: nothing in it goes on"


class Attended(NamedTuple):
    kind: str  # what it waits for
    why: str  # in words
    foreground: str  # the command line in the foreground
    pid: int | None  # who waits or works
    started: float | None  # when that process started, in seconds since the machine did


async def attend(session: Session, state: wire.State) -> tuple[str, str, str]:
    """(what it waits for, why in words, what is in the foreground)."""
    found = await attended(session, state)
    return found.kind, found.why, found.foreground


async def attended(session: Session, state: wire.State) -> Attended:
    """In a thread: a session that starts and ends processes all the time is looked at for long."""
    commands = session.commands
    try:
        found = await session.looked(
            _attend, session, state, commands.shell.at_prompt if commands.kind else None
        )
    except Unavailable as e:
        found = Attended("unknown", e.message, "", None, None)
    return found._replace(kind="halted", why=HALTED) if session.state == "halted" else found


def _attend(session: Session, state: wire.State, at_prompt: bool | None) -> Attended:
    mode = observe.TerminalMode(
        bool(state.lflag & termios.ICANON),
        bool(state.lflag & termios.ECHO),
        state.foreground or None,
    )
    first, keeper, commands = session.record.root_pid, session.keeper_pid, session.commands
    root = process.process(first, with_argv=False)
    rdev = observe.tty_rdev_of(root.tty_nr) if root is not None else 0
    everyone = observe.descendants(keeper, with_argv=False)
    verdict = classify(
        observe.terminal_facts(
            mode, rdev, keeper, first if commands.kind else None, at_prompt, everyone
        )
    )
    group = observe.group(everyone, state.foreground) if state.foreground else []
    words = " ".join(process.read_argv(group[0].pid)) or group[0].comm if group else ""
    about = next((one for one in everyone if one.pid == verdict.pid), group[0] if group else None)
    return Attended(
        str(verdict.kind),
        verdict.why,
        words[:FOREGROUND_CHARS],
        verdict.pid,
        about.start / observe.TICKS if about is not None else None,
    )
