"""What a session waits for now: its terminal as the keeper has it, its processes as /proc has them, its shell as the marks have it, put together for `core/attention.py`."""

from __future__ import annotations

import asyncio
import termios
from typing import TYPE_CHECKING

from holdfast.core.attention import classify
from holdfast.host import observe, process
from holdfast.wire import keeper as wire

if TYPE_CHECKING:
    from holdfast.host.session import Session


async def attend(session: Session, state: wire.State) -> tuple[str, str, str]:
    """(what it waits for, why in words, what is in the foreground). In a thread: a session that starts and ends processes all the time is looked at for long."""
    commands = session.commands
    return await asyncio.to_thread(_attend, session, state, commands.shell.at_prompt if commands.kind else None)


def _attend(session: Session, state: wire.State, at_prompt: bool | None) -> tuple[str, str, str]:
    mode = observe.TerminalMode(bool(state.lflag & termios.ICANON), bool(state.lflag & termios.ECHO), state.foreground or None)
    first, keeper, commands = session.record.root_pid, session.keeper_pid, session.commands
    root = process.process(first)
    rdev = observe.tty_rdev_of(root.tty_nr) if root is not None else 0
    verdict = classify(observe.terminal_facts(mode, rdev, keeper, first if commands.kind else None, at_prompt))
    group = observe.foreground(keeper, state.foreground) if state.foreground else []
    words = " ".join(group[0].argv) or group[0].comm if group else ""
    return str(verdict.kind), verdict.why, words[:200]
