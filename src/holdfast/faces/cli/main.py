"""`holdfast`: finds the command, loads only what that command needs, and turns errors into one plain line and an exit code.

COMMANDS is the one table: dispatch, `--help`, completion and the man page come from it.

With `--json` an error is one object, `{"error": {"code", "name", "message", "recover", "retry_safe"}}`; `code` is the exit code of
the surface as a number, `name` the stable name of the error. It goes to stderr, where errors go, and to stdout as well, where
whoever asked for JSON reads; once only if both are the same file. `run` exits with 255 when there is no exit code of the
command, except for usage errors (2); `code` still says which it was.

Everything after the first `--` is the program of `new` and `run`, untouched: argparse would take the first word for a missing name.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from io import TextIOWrapper
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from holdfast import __version__
from holdfast.home import cores
from holdfast.model.errors import HoldfastError, NotFound, Usage
from holdfast.model.printable import printable

if TYPE_CHECKING:
    from argparse import ArgumentParser


class Command(NamedTuple):
    module: str  # in holdfast.faces.cli; has NAME_parser(parser) and NAME(args) -> int
    summary: str
    example: str
    group: str


COMMANDS: dict[str, Command] = {
    "up": Command(
        "installation",
        "start the host and its relay, make or list sessions, say how to go on",
        "holdfast up",
        "Start",
    ),
    "down": Command(
        "installation",
        "stop the host and its relay; sessions keep running",
        "holdfast down",
        "Start",
    ),
    "new": Command(
        "sessions", "make a session and attach to it", "holdfast new build -- make -j8", "Sessions"
    ),
    "ls": Command("sessions", "list sessions", "holdfast ls --all", "Sessions"),
    "attach": Command(
        "sessions", "your terminal becomes the session's", "holdfast attach build", "Sessions"
    ),
    "rename": Command(
        "sessions", "give a session another name", "holdfast rename shell-1 work", "Sessions"
    ),
    "end": Command(
        "sessions", "end everything that runs in a session", "holdfast end build", "Sessions"
    ),
    "forget": Command(
        "sessions", "drop what is kept of an ended session", "holdfast forget build", "Sessions"
    ),
    "run": Command(
        "steer",
        "run one command in the session's live shell",
        "holdfast run work -- git status",
        "Steer",
    ),
    "send": Command(
        "steer", "type into a session", "holdfast send work 'make test' --enter", "Steer"
    ),
    "wait": Command(
        "steer",
        "wait until the live state says so",
        "holdfast wait work --for port:3000 --timeout 60",
        "Steer",
    ),
    "turn": Command(
        "steer",
        "who may write now: ask for it, hand it over, give it back",
        "holdfast turn work request --wait 60",
        "Steer",
    ),
    "seize": Command("steer", "take the turn now, whoever has it", "holdfast seize work", "Steer"),
    "halt": Command("steer", "stop every process of a session, now", "holdfast halt work", "Steer"),
    "resume": Command("steer", "let a halted session go on", "holdfast resume work", "Steer"),
    "signal": Command(
        "steer",
        "signal one process of a session, or it and all below it",
        "holdfast signal work 4711 TERM --tree",
        "Steer",
    ),
    "view": Command("look", "the screen now", "holdfast view work", "Look"),
    "read": Command(
        "look", "raw output from an absolute offset", "holdfast read work --follow", "Look"
    ),
    "who": Command("look", "who is attached, who holds the turn", "holdfast who work", "Look"),
    "attention": Command(
        "attention",
        "which sessions wait for input or a secret, work, or have ended",
        "holdfast attention --follow",
        "Look",
    ),
    "graph": Command(
        "graph",
        "what runs in a session: processes, who started them, files, sockets, what waits",
        "holdfast graph work --port 3000",
        "Look",
    ),
    "log": Command(
        "record",
        "the record: who did what, on whose state, with which verdict",
        "holdfast log work --follow",
        "Look",
    ),
    "events": Command("look", "what happened to sessions", "holdfast events work", "Look"),
    "metrics": Command(
        "look", "the host's numbers, as Prometheus reads them", "holdfast metrics", "Look"
    ),
    "resolve": Command(
        "look", "what a reference means today", "holdfast resolve hf:0123456789ab@1", "Look"
    ),
    "operator": Command(
        "operators",
        "who is known here: add, list, show, revoke",
        "holdfast operator add builder --kind agent",
        "Operators",
    ),
    "device": Command(
        "devices",
        "the devices of an operator: list, add, rename, revoke",
        "holdfast device add phone",
        "Operators",
    ),
    "grant": Command(
        "operators",
        "hand on some of your rights",
        "holdfast grant builder --rights execute --session work --expires 8h",
        "Operators",
    ),
    "approvals": Command(
        "policy", "what waits for a decision", "holdfast approvals --follow", "Operators"
    ),
    "approve": Command(
        "policy", "let one waiting act happen, once", "holdfast approve q1f3", "Operators"
    ),
    "deny": Command("policy", "refuse one waiting act", "holdfast deny q1f3", "Operators"),
    "invite": Command(
        "invite",
        "let somebody in with a one-time code",
        "holdfast invite --rights read --session work",
        "Operators",
    ),
    "join": Command(
        "invite", "come in with such a code", "holdfast join 4KQ7-M2XD-9TRG --as bob", "Operators"
    ),
    "policy": Command(
        "policy",
        "a policy for the gate: shown, checked, tried",
        "holdfast policy try 'rm -rf /'",
        "Operators",
    ),
    "host": Command(
        "fleet",
        "the relays that this machine can be reached through",
        "holdfast host connect wss://relay.example",
        "Machines",
    ),
    "machines": Command(
        "fleet",
        "the machines that can be reached from here, and whether they answer",
        "holdfast machines",
        "Machines",
    ),
    "relay": Command(
        "relay",
        "a relay by itself: run it, make tokens for it",
        "holdfast relay serve --listen 127.0.0.1:8410",
        "Machines",
    ),
    "service": Command(
        "service",
        "start at boot by systemd; sessions outlive upgrades",
        "holdfast service install --dry-run",
        "Installation",
    ),
    "doctor": Command(
        "installation",
        "what this machine can do, what not, why, and how to fix it",
        "holdfast doctor",
        "Installation",
    ),
    "config": Command(
        "installation",
        "the effective configuration and where it comes from",
        "holdfast config show",
        "Installation",
    ),
    "completion": Command(
        "completion", "completion for bash, zsh or fish", "holdfast completion bash", "Installation"
    ),
    "man": Command("paperwork", "the manual page", "holdfast man | man -l -", "Installation"),
}
TAKES_PROGRAM = ("new", "run", "service")
COMMON_HELP = {
    "json": "JSON for programs, errors included",
    "session": "id, unique beginning of it, or name",
}


def main(argv: list[str] | None = None) -> int:
    args = sys.argv[1:] if argv is None else argv
    before, _ = _split(args)
    as_json = (
        "--json" in before
        or ("--format", "json") in zip(before, before[1:], strict=False)
        or "--format=json" in before
    )
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(
            errors="backslashreplace"
        )  # a terminal that cannot show a character still gets the listing
    cores.forbid()  # there will be a key in memory, of most commands
    code = 0
    try:
        try:
            code = dispatch(args)
            sys.stdout.flush()
            return code
        except SystemExit:  # --help
            sys.stdout.flush()
            raise
        except HoldfastError as e:
            code = _status(e, _is_run(args))
            return complain(e, as_json, _is_run(args))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read us has enough
        _discard_output(1, 2)
        return code
    except OSError as e:
        _discard_output(1)
        print(
            f"holdfast: {e}\n  check where the output goes, and `holdfast doctor`", file=sys.stderr
        )
        return 5


def _discard_output(*streams: int) -> None:
    """What is still buffered must not fail a second time when the interpreter ends."""
    for fd in streams:
        os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), fd)


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
        from holdfast.faces.cli.meant import close

        raise Usage(
            f"there is no command {name[:40]!a}{close(name, list(COMMANDS))}",
            "`holdfast --help` lists them",
        )
    module = import_module(f"holdfast.faces.cli.{COMMANDS[name].module}")
    rest, program = _split(args[1:]) if name in TAKES_PROGRAM else (args[1:], None)
    options = parser(name).parse_args(rest)
    if program is not None:
        options.command = [*options.command, *program]
    options.operator = operator if operator is not None else getattr(options, "as_", None)
    try:
        code: int = getattr(module, name)(options)
    except NotFound as e:
        from holdfast.faces.cli.meant import explain

        explain(e, options)
        raise
    return code


def _global(args: list[str]) -> tuple[list[str], str | None]:
    """`--as NAME` before the command."""
    if args[:1] == ["--as"]:
        if len(args) < 2:
            raise Usage("--as needs a name", "holdfast --as NAME COMMAND ...")
        return args[2:], args[1]
    if args and args[0].startswith("--as="):
        return args[1:], args[0][5:]
    return args, None


def _is_run(args: list[str]) -> bool:
    at = 2 if args[:1] == ["--as"] else 1 if args and args[0].startswith("--as=") else 0
    return args[at : at + 1] == ["run"]


def _split(args: list[str]) -> tuple[list[str], list[str] | None]:
    """What follows the first `--` is a command line of somebody else: not ours to parse."""
    if "--" not in args:
        return args, None
    at = args.index("--")
    return args[:at], args[at + 1 :]


def parser(name: str) -> ArgumentParser:
    """The argument parser of one command."""
    from argparse import ArgumentParser, RawDescriptionHelpFormatter

    class Parser(ArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise Usage(f"{name}: {message}", f"see `holdfast {name} --help`")

    class Formatter(RawDescriptionHelpFormatter):
        def __init__(self, prog: str) -> None:
            super().__init__(
                prog, width=_columns() - 2
            )  # or argparse imports shutil to ask, for every argument added

    command = COMMANDS[name]
    made = Parser(
        prog=f"holdfast {name}",
        description=command.summary,
        epilog=f"example:\n  {command.example}",
        formatter_class=Formatter,
        allow_abbrev=False,
    )
    made.add_argument(
        "--as",
        dest="as_",
        metavar="NAME",
        help="act as this identity (default: $HOLDFAST_AS or your login name)",
    )
    module = import_module(f"holdfast.faces.cli.{command.module}")
    getattr(module, f"{name}_parser")(made)
    for action in made._actions:
        action.help = action.help or COMMON_HELP.get(action.dest)
    return made


def _columns() -> int:
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns):
        return int(columns)
    try:
        return os.get_terminal_size(1).columns or 80
    except OSError:
        return 80


def _status(error: HoldfastError, is_run: bool) -> int:
    """`run` keeps 255 for "there is no exit code of the command"."""
    return 255 if is_run and error.exit_code != 2 else error.exit_code


def complain(error: HoldfastError, as_json: bool, is_run: bool) -> int:
    """One plain line plus how to recover; JSON when asked."""
    if as_json:
        import json

        body = {
            "code": error.exit_code,
            "name": error.name,
            "message": error.message,
            "recover": error.recover,
            "retry_safe": error.retry_safe,
        }
        text = json.dumps({"error": body})
        print(text, file=sys.stderr)
        if not os.path.sameopenfile(1, 2):
            print(text, flush=True)
    else:
        print(f"holdfast: {printable(error.message)}", file=sys.stderr)
        if error.recover:
            print(f"  {printable(error.recover)}", file=sys.stderr)
        sys.stdout.flush()
    return _status(error, is_run)
