"""Finds out whether a session waits for input, for a secret, or works.

The facts are the terminal's state from the keeper, the processes from /proc and the shell's marks;
`core/session/attention.py` decides. A halted session waits only to be resumed, however the terminal
looks: the processes were stopped in the middle of their work.

The facts are not of one moment. A shell that gets to its prompt meanwhile would seem to read a line
for a program: its mode is older than its read. So a session that seems to wait must have the same
terminal and marks after the look as before. Otherwise it is looked at again.
"""

from __future__ import annotations

import termios
from typing import TYPE_CHECKING, NamedTuple

from holdfast.core.session.attention import classify
from holdfast.host.processes import proc_scan, process
from holdfast.host.processes.tty_wait import tty_rdev_of
from holdfast.model.errors import Unavailable
from holdfast.wire import keeper as wire

if TYPE_CHECKING:
    from holdfast.host.session.session import Session

FOREGROUND_CHARS = 200
LOOKS = 5  # of a session that changes in each look; the last look counts
ANSWER_S = 1.0  # for the keeper to describe the terminal after a look
WAITING = ("idle", "input", "secret")
HALTED = "the session is halted: nothing in it goes on"


class Attention(NamedTuple):
    kind: str  # what it waits for
    why: str  # for people
    foreground: str  # the command line in the foreground
    pid: int | None  # the process that waits or works
    started: float | None  # when that process started, in seconds since boot


async def read_attention(session: Session, state: wire.State) -> Attention:
    """Reads /proc in a thread: that takes long if the session starts processes all the time."""
    try:
        for _ in range(LOOKS):
            at_prompt = _at_prompt(session)
            found = await session.looked(_read, session, state, at_prompt)
            if found.kind not in WAITING:
                break
            before, state = state, await session.marks_seen(ANSWER_S)
            if _terminal(before) == _terminal(state) and at_prompt == _at_prompt(session):
                break
    except Unavailable as e:
        found = Attention("unknown", e.message, "", None, None)
    return found._replace(kind="halted", why=HALTED) if session.state == "halted" else found


def _at_prompt(session: Session) -> bool | None:
    """What the shell's marks say; None without marks."""
    commands = session.commands
    return commands.shell.at_prompt if commands.kind else None


def _terminal(state: wire.State) -> tuple[int, int]:
    return state.lflag & (termios.ICANON | termios.ECHO), state.foreground


def _read(session: Session, state: wire.State, at_prompt: bool | None) -> Attention:
    mode = proc_scan.TerminalMode(
        bool(state.lflag & termios.ICANON),
        bool(state.lflag & termios.ECHO),
        state.foreground or None,
    )
    first, keeper, commands = session.record.root_pid, session.keeper_pid, session.commands
    root = process.read_stat(first)
    rdev = tty_rdev_of(root.tty_nr) if root is not None else 0
    everyone = proc_scan.of_session(keeper)
    verdict = classify(
        proc_scan.terminal_facts(mode, rdev, first if commands.kind else None, at_prompt, everyone)
    )
    group = proc_scan.group(everyone, state.foreground) if state.foreground else []
    words = " ".join(process.read_argv(group[0].pid)) or group[0].comm if group else ""
    about = next((one for one in everyone if one.pid == verdict.pid), group[0] if group else None)
    return Attention(
        str(verdict.kind),
        verdict.why,
        words[:FOREGROUND_CHARS],
        verdict.pid,
        about.start / proc_scan.TICKS if about is not None else None,
    )
