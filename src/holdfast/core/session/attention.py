"""The state of a session's terminal: idle, working, input, secret or unknown, from kernel facts.

This module contains only the rule. It does not know how the facts were obtained (/proc, ioctls, the
shell's prompt marks: `host/processes/proc_scan.py` and the shell integration) and keeps no state.
The same facts always give the same answer. A fact that could not be observed gives UNKNOWN, never
the previous answer (contract S2).

The rule follows from these measurements:

    situation                    termios       foreground    its tasks
    prompt of bash, zsh          raw, noecho   = shell       the shell polls or reads the terminal
    prompt of dash               ICANON ECHO   = shell       the shell reads the terminal
    cat, input()                 ICANON ECHO   not shell     read on the terminal
    `read x` in the shell        ICANON ECHO   = shell       the shell reads the terminal
    getpass, sudo                ICANON !ECHO  not shell     read on the terminal (sudo's is hidden)
    `read -s`                    ICANON !ECHO  = shell       read on the terminal
    vim, less, REPLs, node, top  raw, noecho   not shell     polls or reads the terminal
    sleep, make, a busy loop     ICANON ECHO   any           any other wait, or none

1. ICANON without ECHO is a secret, before any other check. This needs no look at the process, so it
   works for sudo, whose /proc entries are closed. It errs on the side of redaction: `stty -echo;
   sleep 9` reads "secret".
2. If a foreground task waits on the terminal, the state is input, unless that is the shell at its
   prompt.
3. The shell's own prompt mark distinguishes "prompt" from "`read x`", which the kernel cannot. But
   a mark describes the past and the kernel the present. dash does not mark the start of a command,
   so a marked prompt is not idle if its shell is seen doing other work (dash in `read x` still
   looks idle). Without marks, a shell that waits in raw mode is at its prompt (line editing), and a
   shell that waits in canonical mode is "input": either way it takes a line.
4. If no task waits on the terminal and every task was observed, the state is working. If a task
   could not be observed, it is unknown.

Where ptrace is restricted (Yama), the kernel still says that a task sleeps in poll, but not on
which descriptors. In raw mode this counts as waiting on the terminal, because a program sets raw
mode to read keys. In canonical mode it is unknown.

Not decidable here: a program that relays to another terminal (tmux, ssh, script, sudo with its own
pty) always waits for input on this terminal, whatever runs behind it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class AttentionKind(enum.StrEnum):
    IDLE = "idle"  # the shell is at its prompt
    WORKING = "working"  # a program runs and no task reads the terminal
    INPUT = "input"  # a program waits for input on the terminal
    SECRET = "secret"  # echo is off: a password prompt
    UNKNOWN = "unknown"  # the facts could not be observed


class TtyWait(enum.StrEnum):
    """The relation of a process to the terminal, over all of its threads."""

    READ = "read"  # blocked in a read of the terminal
    POLL = "poll"  # sleeps in poll, select or epoll, with the terminal among the descriptors
    POLL_ANY = "poll-any"  # sleeps in poll, select or epoll, on unknown descriptors
    NONE = "none"  # runs, or waits for another event
    STOPPED = "stopped"  # stopped by a signal or a tracer
    GONE = "gone"  # exited
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class TaskFact:
    """A process of the foreground group, or another that serves the terminal (a tmux server)."""

    pid: int
    name: str
    wait: TtyWait


@dataclass(frozen=True, slots=True)
class TerminalFacts:
    """Facts about a terminal. None: could not be read; `shell_pgrp` None: there is no shell."""

    icanon: bool | None
    echo: bool | None
    fg_pgrp: int | None
    shell_pgrp: int | None
    shell_at_prompt: bool | None
    fg_tasks: tuple[TaskFact, ...] = ()


@dataclass(frozen=True, slots=True)
class Attention:
    kind: AttentionKind
    why: str
    pid: int | None = None  # the process that the reason is about


def classify(facts: TerminalFacts) -> Attention:
    """Return the state with its reason; every combination of facts has an answer."""
    waiting = _waiting(facts)
    if facts.icanon is None or facts.echo is None:
        return Attention(AttentionKind.UNKNOWN, "the terminal's mode could not be read")
    if facts.icanon and not facts.echo:
        if waiting is not None:
            why = f"{_named(waiting)} reads the terminal with echo off"
            return Attention(AttentionKind.SECRET, why, waiting.pid)
        return Attention(AttentionKind.SECRET, "the terminal's echo is off")
    if not facts.fg_pgrp or facts.fg_pgrp < 0:
        return Attention(AttentionKind.UNKNOWN, "the terminal has no foreground process group")
    if facts.fg_pgrp == facts.shell_pgrp:
        return _in_shell_group(facts, waiting)
    return _in_program(facts, waiting)


def _in_shell_group(facts: TerminalFacts, waiting: TaskFact | None) -> Attention:
    shell = next(
        (
            task
            for task in (waiting, *facts.fg_tasks)
            if task is not None and task.pid == facts.shell_pgrp
        ),
        None,
    )
    at_prompt = facts.shell_at_prompt
    if waiting is not None and (shell is None or waiting.pid != shell.pid):
        return _input(waiting)  # a shell without job control shares its group with its children
    if shell is not None and shell is waiting:
        if at_prompt or (at_prompt is None and not facts.icanon):
            return Attention(AttentionKind.IDLE, f"{_named(shell)} is at its prompt", shell.pid)
        if at_prompt is None:
            why = f"{_named(shell)} reads a line: its prompt or `read`"
            return Attention(AttentionKind.INPUT, why, shell.pid)
        return _input(shell)
    if at_prompt and (shell is None or shell.wait in (TtyWait.UNKNOWN, TtyWait.POLL_ANY)):
        name = "the shell" if shell is None else _named(shell)
        why = f"{name} marked its prompt and holds the foreground"
        return Attention(AttentionKind.IDLE, why, facts.shell_pgrp)
    return _nobody_waits(facts)


def _in_program(facts: TerminalFacts, waiting: TaskFact | None) -> Attention:
    return _input(waiting) if waiting is not None else _nobody_waits(facts)


def _input(task: TaskFact) -> Attention:
    verb = {TtyWait.READ: "reads", TtyWait.POLL: "waits on"}.get(task.wait, "probably waits on")
    return Attention(AttentionKind.INPUT, f"{_named(task)} {verb} the terminal", task.pid)


def _nobody_waits(facts: TerminalFacts) -> Attention:
    tasks = [task for task in facts.fg_tasks if task.wait is not TtyWait.GONE]
    if not tasks:
        why = f"no process of the foreground group {facts.fg_pgrp} can be seen"
        return Attention(AttentionKind.UNKNOWN, why)
    for task in tasks:
        if task.wait in (TtyWait.UNKNOWN, TtyWait.POLL_ANY):
            why = f"what {_named(task)} waits for cannot be seen"
            return Attention(AttentionKind.UNKNOWN, why, task.pid)
    active = [task for task in tasks if task.wait is not TtyWait.STOPPED]
    if not active:
        return Attention(AttentionKind.UNKNOWN, f"{_named(tasks[0])} is stopped", tasks[0].pid)
    task = next((task for task in active if task.pid == facts.fg_pgrp), active[0])
    return Attention(
        AttentionKind.WORKING, f"{_named(task)} runs and does not read the terminal", task.pid
    )


def _waiting(facts: TerminalFacts) -> TaskFact | None:
    """Return the task that waits on the terminal, surest evidence first."""
    order = [TtyWait.READ, TtyWait.POLL]
    if facts.icanon is False:
        order.append(TtyWait.POLL_ANY)
    for wait in order:
        for task in facts.fg_tasks:
            if task.wait is wait:
                return task
    return None


def _named(task: TaskFact) -> str:
    return f"{task.name or 'a process'} (pid {task.pid})"
