"""Help and the manual page, made from the table of commands and their parsers: they cannot drift."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast import __version__
from holdfast.faces.cli.completion import options
from holdfast.faces.cli.main import COMMANDS, parser

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

ONE_SENTENCE = "Holdfast keeps a live execution alive and shared: sessions that outlive every client, and the daemon itself."


def overview() -> str:
    lines = [ONE_SENTENCE, "", "usage: holdfast [--as NAME] COMMAND ..."]
    for group in dict.fromkeys(c.group for c in COMMANDS.values()):
        lines += ["", f"{group}:"]
        lines += [f"  {name:<11} {c.summary}" for name, c in COMMANDS.items() if c.group == group]
    lines += [
        "",
        "`holdfast COMMAND --help` explains one, with an example. Reading commands have --json.",
        "Exit codes: 0 ok, 2 usage, 3 no such thing, 4 refused, 5 unavailable, 6 lost, 7 cannot be done here, 124 timed out.",
    ]
    return "\n".join(lines) + "\n"


# ---------------------------------------------------------------- man


def man_parser(p: ArgumentParser) -> None:
    p.epilog = "example:\n  holdfast man | man -l -"


def man(args: Namespace) -> int:
    print(manual(), end="")
    return 0


def _roff(text: str) -> str:
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + escaped if escaped.startswith((".", "'")) else escaped


def manual() -> str:
    out = [
        f'.TH HOLDFAST 1 "" "holdfast {__version__}" "User Commands"',
        ".SH NAME",
        f"holdfast \\- {_roff('keep a live execution alive and shared')}",
        ".SH SYNOPSIS",
        ".B holdfast",
        "[\\-\\-as NAME] COMMAND ...",
        ".SH DESCRIPTION",
        _roff(ONE_SENTENCE),
        "A session holds a process tree, its terminal, open files and local sockets. Clients attach to it and leave; it goes on.",
        ".SH COMMANDS",
    ]
    for name, command in COMMANDS.items():
        p = parser(name)
        usage = p.format_usage().split(None, 1)[1].replace("\n", " ")
        out += [
            ".TP",
            f".B {_roff(' '.join(usage.split()))}",
            _roff((p.description or command.summary).capitalize() + "."),
        ]
        out += ["Example:", f".I {_roff(command.example)}"]
        for a in options(name):
            if a.help:
                out += [
                    ".br",
                    f".B {_roff(', '.join(a.option_strings))}{' ' + _roff(str(a.metavar)) if a.metavar else ''}",
                    _roff(a.help),
                ]
    out += [
        ".SH KEYS WHILE ATTACHED",
        "The prefix key is C\\-\\e (option attach.prefix). After it:",
        ".TP",
        ".B d",
        "detach",
        ".TP",
        ".B ?",
        "help",
        ".TP",
        ".B s",
        "choose another session (n, p: next, previous; l: the last one)",
        ".TP",
        ".B t",
        "take the turn, whoever has it (g, x: give it to who asks, refuse)",
        ".TP",
        ".B H",
        "halt everything (R: resume)",
        ".TP",
        ".B y",
        "see and decide what waits for approval",
        ".TP",
        ".B r",
        "redraw",
        ".TP",
        ".B C\\-z",
        "suspend attach itself",
        ".SH EXIT STATUS",
        "0 ok; 2 usage; 3 no such thing; 4 refused; 5 unavailable; 6 lost (output rolled off); 7 cannot be done here; 124 timed out. "
        "\n.B run\nexits with the command's own code, 255 if there is none.",
        ".SH ENVIRONMENT",
        ".TP",
        ".B HOLDFAST_HOME",
        "all state and sockets of one installation",
        ".TP",
        ".B HOLDFAST_AS",
        "identity to act as",
        ".TP",
        ".B HOLDFAST_SESSION",
        "set inside a session: its id",
        ".SH FILES",
        ".TP",
        ".I ~/.config/holdfast/config.toml",
        "configuration; `holdfast config show` explains each option",
        ".TP",
        ".I ~/.local/state/holdfast",
        "state and sockets",
    ]
    return "\n".join(out) + "\n"
