"""What a session's terminal waits for: idle, working, input, secret or unknown, decided from kernel facts.

Owns the rule only. It must not know how the facts were got (/proc, ioctls, the shell's prompt marks: those
are `host/observe.py` and the shell integration), and it keeps nothing: the same facts always give the same
answer, and what could not be looked at is UNKNOWN, never the previous answer (contract S2).

The rule, with the measured rows it comes from:

    situation                         termios       foreground    its tasks
    prompt of bash, zsh               raw, noecho   = shell       the shell polls or reads the terminal
    prompt of dash                    ICANON ECHO   = shell       the shell reads the terminal
    cat, input()                      ICANON ECHO   not shell     read on the terminal
    `read x` in the shell             ICANON ECHO   = shell       the shell reads the terminal
    getpass, sudo                     ICANON !ECHO  not shell     read on the terminal (sudo's cannot be seen)
    `read -s`                         ICANON !ECHO  = shell       read on the terminal
    vim, less, REPLs, node, top       raw, noecho   not shell     polls or reads the terminal
    sleep, make, a busy loop          ICANON ECHO   any           anything else

1. ICANON without ECHO is a secret, before anything else is asked. It needs no look at the process, so it
   holds for sudo, whose /proc entries are closed, and it errs on the side that redacts: `stty -echo; sleep
   9` reads "secret".
2. A task of the foreground that waits on the terminal means input, unless it is the shell at its prompt.
3. The shell's own prompt mark decides between "prompt" and "`read x`", which the kernel cannot tell apart.
   But a mark is a log of the past and the kernel is the present: dash marks no command start, so a marked
   prompt whose shell is seen doing something else is not idle (dash in `read x` still looks it). Without
   marks, a shell that waits in raw mode is at its prompt (line editing) and one that waits in canonical
   mode is "input": either way it takes a line.
4. Nobody waits on the terminal and every task was seen: working. A task that could not be seen: unknown.

Where ptrace is restricted (Yama) the kernel still says that a task sleeps in poll, but not on what. In raw
mode that is taken as waiting on the terminal (a program that made it raw does so to read keys); in
canonical mode it is unknown.

Not decidable here: a program that relays to another terminal (tmux, ssh, script, sudo with its own pty)
always waits for input on this one, whatever runs behind it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class AttentionKind(enum.StrEnum):
    IDLE = "idle"  # the shell is at its prompt
    WORKING = "working"  # something runs and nobody reads the terminal
    INPUT = "input"  # a program waits for input on the terminal
    SECRET = "secret"  # echo is off: a password prompt
    UNKNOWN = "unknown"  # it could not be seen


class TtyWait(enum.StrEnum):
    """What one process does about the terminal, over all of its threads."""

    READ = "read"  # blocked in a read of it
    POLL = "poll"  # sleeps in poll, select or epoll with it among the descriptors to read
    POLL_ANY = "poll-any"  # sleeps in poll, select or epoll; on which descriptors cannot be seen
    NONE = "none"  # runs, or waits for something else
    STOPPED = "stopped"  # stopped by a signal or a tracer
    GONE = "gone"  # exited
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class TaskFact:
    """A process of the foreground group, or an outsider that serves the terminal (a tmux server)."""

    pid: int
    name: str
    wait: TtyWait


@dataclass(frozen=True, slots=True)
class TerminalFacts:
    """`None` is "could not be read"; `shell_pgrp` None is "the session's program is no shell"."""

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
    """Total: every combination of facts has an answer, and every answer its reason."""
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
    """The task that waits on the terminal, surest evidence first."""
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
