"""`holdfast`: finds the command, loads only what that command needs, and turns errors into one plain line and an exit code.

COMMANDS is the one table: dispatch, `--help`, completion and the man page come from it.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from holdfast import __version__
from holdfast.model.errors import HoldfastError

if TYPE_CHECKING:
    from argparse import ArgumentParser


class Command(NamedTuple):
    module: str        # in holdfast.faces.cli; has NAME_parser(parser) and NAME(args) -> int
    summary: str
    example: str
    group: str


COMMANDS: dict[str, Command] = {
    "up": Command("installation", "start the host, make or list sessions, say how to go on", "holdfast up", "Start"),
    "down": Command("installation", "stop the host; sessions keep running", "holdfast down", "Start"),
    "new": Command("sessions", "make a session and attach to it", "holdfast new build -- make -j8", "Sessions"),
    "ls": Command("sessions", "list sessions", "holdfast ls --all", "Sessions"),
    "attach": Command("sessions", "your terminal becomes the session's", "holdfast attach build", "Sessions"),
    "rename": Command("sessions", "give a session another name", "holdfast rename shell-1 work", "Sessions"),
    "end": Command("sessions", "end everything that runs in a session", "holdfast end build", "Sessions"),
    "forget": Command("sessions", "drop what is kept of an ended session", "holdfast forget build", "Sessions"),
    "run": Command("steer", "run one command in the session's live shell", "holdfast run work -- git status", "Steer"),
    "send": Command("steer", "type into a session", "holdfast send work 'make test' --enter", "Steer"),
    "wait": Command("steer", "wait until the live state says so", "holdfast wait work --for port:3000 --timeout 60", "Steer"),
    "turn": Command("steer", "take a free turn, or give yours back", "holdfast turn work release", "Steer"),
    "view": Command("look", "the screen now", "holdfast view work", "Look"),
    "read": Command("look", "raw output from an absolute offset", "holdfast read work --follow", "Look"),
    "who": Command("look", "who is attached, who holds the turn", "holdfast who work", "Look"),
    "events": Command("look", "what happened to sessions", "holdfast events work", "Look"),
    "resolve": Command("look", "what a reference means today", "holdfast resolve hf:0123456789ab@1", "Look"),
    "doctor": Command("installation", "what this machine can do, what not, why, and how to fix it", "holdfast doctor", "Installation"),
    "config": Command("installation", "the effective configuration and where it comes from", "holdfast config show", "Installation"),
    "completion": Command("paperwork", "completion for bash, zsh or fish", "holdfast completion bash", "Installation"),
    "man": Command("paperwork", "the manual page", "holdfast man | man -l -", "Installation"),
}


def main(argv: list[str] | None = None) -> int:
    args = sys.argv[1:] if argv is None else argv
    as_json = "--json" in (args[:args.index("--")] if "--" in args else args)
    try:
        return dispatch(args)
    except HoldfastError as e:
        return complain(e, as_json, args[:1] == ["run"])
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0


def dispatch(args: list[str]) -> int:
    args, operator = _global(args)
    if not args or args[0] in ("-h", "--help", "help"):
        from holdfast.faces.cli import paperwork

        if len(args) > 1 and args[0] == "help" and args[1] in COMMANDS:
            return dispatch([args[1], "--help"])
        print(paperwork.overview(), end="")
        return 0 if args else 2
    if args[0] in ("-V", "--version"):
        print(f"holdfast {__version__}")
        return 0
    name = args[0]
    if name not in COMMANDS:
        from holdfast.faces.cli import paperwork
        from holdfast.model.errors import Usage

        raise Usage(f"there is no command {name[:40]!a}" + paperwork.did_you_mean(name), "`holdfast --help` lists them")
    module = import_module(f"holdfast.faces.cli.{COMMANDS[name].module}")
    options = parser(name).parse_args(args[1:])
    options.operator = operator or getattr(options, "as_", None)
    code: int = getattr(module, name)(options)
    return code


def _global(args: list[str]) -> tuple[list[str], str | None]:
    """`--as NAME` before the command."""
    if len(args) >= 2 and args[0] == "--as":
        return args[2:], args[1]
    if args and args[0].startswith("--as="):
        return args[1:], args[0][5:]
    return args, None


def parser(name: str) -> ArgumentParser:
    """The argument parser of one command."""
    from argparse import ArgumentParser, RawDescriptionHelpFormatter

    command = COMMANDS[name]
    made = ArgumentParser(prog=f"holdfast {name}", description=command.summary, epilog=f"example:\n  {command.example}",
                          formatter_class=RawDescriptionHelpFormatter, allow_abbrev=False)
    made.add_argument("--as", dest="as_", metavar="NAME", help="act as this identity (default: $HOLDFAST_AS or your login name)")
    module = import_module(f"holdfast.faces.cli.{command.module}")
    getattr(module, f"{name}_parser")(made)
    return made


def complain(error: HoldfastError, as_json: bool, is_run: bool) -> int:
    """One plain line plus how to recover; JSON when asked. `run` keeps 255 for "there is no exit code of the command"."""
    if as_json:
        import json

        body = {"code": error.exit_code, "name": error.name, "message": error.message, "recover": error.recover,
                "retry_safe": error.retry_safe}
        print(json.dumps({"error": body}), file=sys.stderr if is_run else sys.stdout)
    else:
        print(f"holdfast: {error.message}", file=sys.stderr)
        if error.recover:
            print(f"  {error.recover}", file=sys.stderr)
    return 255 if is_run and error.exit_code != 2 else error.exit_code

