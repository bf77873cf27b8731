"""The gate at input depth (P4): the facts about an act before the act takes effect."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from holdfast.core.people.scope import Command
from holdfast.core.policy import execution
from holdfast.core.policy.command_limit import is_harmless
from holdfast.core.policy.conditions import Request
from holdfast.core.shellcode.facts import Facts, Parse, Surroundings, analyse, of_argv, unknown
from holdfast.core.shellcode.interpreters import is_interpreter, is_pager, is_shell
from holdfast.core.shellcode.one_program import OF_SHELLS
from holdfast.core.shellcode.places import Real, same
from holdfast.core.shellcode.reasons import Reason

# Builtins that never take a word for an expression or for the name of a variable.
_NO_ARITHMETIC: Final = frozenset((":", "echo", "true", "false", "pwd"))
# The text of `files` is the command that has the same effect: rules for `rm` hold for `files rm`.
TEXT_ACTS: Final = ("run", "line", "paste", "exec", "new", "files")
# Printable characters and cursor keys: no program enters or runs a command for these.
_HARMLESS: Final = re.compile(rb"(?:[ -~]|\x1b(?:\[[0-9;]*[A-DHF~]|O[A-DHF]))*")
# C-c, C-z, C-\, C-q, C-s: the terminal itself acts on these keys.
_INTERRUPTS: Final = re.compile(rb"[\x03\x1a\x1c\x11\x13]+")


def facts_of(request: Request, parse: Parse, real: Real = same) -> Facts | None:
    """Return the facts about an act before the effect; None for an act without text."""
    if request.act == "keys":
        if _INTERRUPTS.fullmatch(request.content):
            return None
        program = request.foreground not in ("", "?") and not is_interpreter(request.foreground)
        if (program and not request.beneath) or (
            (program or is_pager(request.foreground)) and _HARMLESS.fullmatch(request.content)
        ):
            return None
        return unknown(Reason("keys", request.foreground if request.foreground != "?" else ""))
    if request.act not in TEXT_ACTS:
        return None
    if request.act == "new" and not request.content:
        return None  # a shell: commands are judged when entered
    around = Surroundings(
        request.cwd,
        request.home,
        request.shell,
        request.act in ("line", "paste"),
        frozenset() if request.act == "files" else request.shadowed,
        real,
        request.walls.tools if request.walls else (),
    )
    if request.act == execution.ACT:
        return execution.facts(request.content, request.details, parse, around)
    try:
        text = request.content.decode()
    except UnicodeDecodeError:
        return unknown(Reason("control"))
    if request.act == "new":
        found = of_argv(text.split("\0"), parse, around)
        # A single program reads the session's terminal, so input is judged when typed.
        if len(found.commands) == 1:
            found.commands = [
                replace(c, reasons=tuple(r for r in c.reasons if r.code != "stdin"))
                for c in found.commands
            ]
        return found
    if request.act in ("line", "paste"):
        if request.foreground and not is_shell(request.foreground):
            if request.foreground == "?" or is_interpreter(request.foreground):
                return unknown(Reason("typed", request.foreground))
            if not request.beneath:
                return None
        # also with a program in the foreground: the shell reads the remaining input
        text = text.rstrip("\r\n")
    return analyse(text, parse, around)


def programs(facts: Facts | None) -> Command | None:
    """Return the programs that an act would start, for envelopes limited to certain commands.

    The result is None if it cannot be known, or if the shell itself would write a file: a right to
    run `ls` does not cover `ls > ~/.bashrc`. It is None too if the text sets a variable that is not
    known to be harmless, because a variable can make a program load code. So it is if the shell
    itself would compute with text that is not known (core/shellcode/plain_grammar.py).
    """
    if facts is None or facts.unresolvable or any(not c.name or c.reasons for c in facts.commands):
        return None
    if any(
        r.writes and not (r.places and all(p.path == "/dev/null" for p in r.places))
        for c in facts.commands
        for r in c.redirects
    ):
        return None
    if not facts.plain or any(
        c.open_words and c.name in OF_SHELLS and c.name not in _NO_ARITHMETIC
        for c in facts.commands
    ):
        return None
    # an assignment that is no setting has no known value: a loop, `${x:=...}`
    unknown_values = {*facts.assignments} - {name for name, _ in facts.settings}
    if unknown_values or not all(is_harmless(name, value) for name, value in facts.settings):
        return None
    return tuple(frozenset((name,)) for c in facts.commands for name in (*c.via, c.name))
