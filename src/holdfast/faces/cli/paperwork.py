"""Help and the manual page, made from the table of commands and the parsers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast import __version__
from holdfast.faces.cli.completion import options
from holdfast.faces.cli.main import COMMANDS, parser

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

ONE_SENTENCE = "Holdfast keeps terminal sessions alive and shared, beyond every client and daemon."


KEYS = {
    "d": "detach",
    "?": "help",
    "s": "choose another session (n, p: next, previous; l: the last one)",
    "t": "take the turn from its holder (g, x: give it to the operator who asks, refuse)",
    "H": "halt everything (R: resume)",
    "y": "see and decide the acts that wait for approval",
    "r": "redraw",
    "C\\-z": "suspend attach itself",
}
ENVIRONMENT = {
    "HOLDFAST_HOME": "the directory of all state and sockets of one installation",
    "HOLDFAST_AS": "the identity to act as",
    "HOLDFAST_SESSION": "inside a session: its id",
}
FILES = {
    "~/.config/holdfast/config.toml": "configuration; `holdfast config show` explains each option",
    "~/.local/state/holdfast": "state and sockets",
}


def overview() -> str:
    lines = [ONE_SENTENCE, "", "usage: holdfast [--as NAME] COMMAND ..."]
    for group in dict.fromkeys(c.group for c in COMMANDS.values()):
        lines += ["", f"{group}:"]
        lines += [f"  {name:<11} {c.summary}" for name, c in COMMANDS.items() if c.group == group]
    lines += [
        "",
        "`holdfast COMMAND --help` explains a command. Most commands have --json.",
        "Exit codes: 0 ok, 2 usage, 3 not found, 4 refused, 5 unavailable, 6 lost,",
        "7 not possible here, 124 timed out.",
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


def _terms(style: str, terms: dict[str, str]) -> list[str]:
    return [line for term, text in terms.items() for line in (".TP", f"{style} {term}", text)]


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
        "A session holds a process tree, its terminal, open files and local sockets. "
        "Clients attach to it and leave; it keeps running.",
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
                    f".B {_roff(', '.join(a.option_strings))}"
                    f"{' ' + _roff(str(a.metavar)) if a.metavar else ''}",
                    _roff(a.help),
                ]
    out += [
        ".SH KEYS WHILE ATTACHED",
        "The prefix key is C\\-\\e (option attach.prefix). After it:",
    ]
    out += _terms(".B", KEYS)
    out += [
        ".SH EXIT STATUS",
        "0 ok; 2 usage; 3 not found; 4 refused; 5 unavailable; 6 lost (output rolled off); "
        "7 not possible here; 124 timed out. "
        "\n.B run\nexits with the command's own code, 255 if there is none.",
        ".SH ENVIRONMENT",
        *_terms(".B", ENVIRONMENT),
        ".SH FILES",
        *_terms(".I", FILES),
    ]
    return "\n".join(out) + "\n"
