"""`holdfast`: finds the command, loads only that module, and prints an error as a plain line.

Dispatch, `--help`, completion and the man page all come from the table COMMANDS.

With `--json` an error is one object, `{"error": {"code", "name", "message", "recover",
"retry_safe"}}`; `code` is the exit code as a number, `name` the stable name of the error. The
object goes to stderr, and also to stdout, where a program reads JSON; only once if both are the
same file. `run` exits with 255 when the command has no exit code, except for usage errors (2);
`code` then still tells the error.

For `new` and `run`, all words after the first `--` are the program, and argparse does not see them:
it would take the first of them for an omitted session name.
"""

from __future__ import annotations

import gc
import os
import sys
from io import TextIOWrapper

from holdfast import __version__
from holdfast.faces.cli import arguments
from holdfast.home import cores
from holdfast.model.errors import HoldfastError, NotFound, Usage
from holdfast.model.printable import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Iterator
    from types import ModuleType
    from typing import Any, NoReturn


class Command:
    """A row of the table. `module` has NAME_parser(parser) and NAME(args) -> exit code."""

    __slots__ = ("example", "group", "module", "summary")

    def __init__(self, module: str, summary: str, example: str, group: str) -> None:
        self.module, self.summary, self.example, self.group = module, summary, example, group

    def load(self) -> ModuleType:
        name = f"holdfast.faces.cli.{self.module}"
        __import__(name)  # `importlib` would cost 1 ms more
        return sys.modules[name]


# The groups of commands. Each row has the module, an example of the command, and its summary.
_TABLE = """
Start
    installation: up  start the host and its relay, make or list sessions
    installation: down  stop the host and its relay; sessions keep running

Sessions
    sessions: new build -- make -j8  make a session and attach to it
    sessions: ls --all  list sessions
    sessions: attach build  connect your terminal to a session; `a` is short for it
    sessions: detach work --others  detach clients from a session; the session keeps running
    sessions: rename shell-1 work  give a session another name
    recovery.checkpoints: checkpoint work  save a session with its processes to disk
    recovery.checkpoints: restore work  bring a saved or lost session back with its processes
    recovery.branches: fork work -n 2  make live branches of a session, which goes on
    recovery.branches: branches work  list branches with their parents
    recovery.branches: diff work-1  show what a branch has changed: files, processes, ports
    recovery.branches: keep work-1  commit a branch's files and discard the other branches
    recovery.branches: discard work-1  end a branch and remove its files
    recovery.residency: reap work never  which idle sessions leave the memory, and when; a choice
        for one
    recovery.move: move work vault  let a session go on at another machine
    recovery.leases: rehome work on  let another machine take over a session when this one is gone
    recovery.leases: lease show work  which machine may have a session, and until when
    sessions: end build  end everything that runs in a session; `kill` does the same
    sessions: forget build  delete the remains of an ended session

Steer
    steer: run work -- git status  run one command in the session's live shell
    steer: send work 'make test' --enter  type into a session
    steer: wait work --for port:3000 --timeout 60  wait until a session is idle, needs input,
        listens on a port, ...
    steer: turn work request --wait 60  the right to type: show it, ask for it, hand it over, give
        it back
    steer: seize work  take the turn at once from its holder
    steer: halt work  freeze every process of a session
    steer: resume work  continue a halted session
    ports.forward: forward work 3000  bring a listening port of a session to this machine
    steer: signal work 4711 TERM --tree  send a signal to one process of a session, or to its
        subtree

Files
    transfer.files: files put work app.tar.gz build/  files of a session: list, get, put, remove,
        move, search

Look
    look: view work  the screen now
    look: read work --follow  print raw output from an absolute offset
    look: who work  the operators attached and the holder of the turn
    attention: attention --follow  which sessions wait for input or a secret, work, or have ended
    services.notify: notify --desktop  tell you when a session waits for approval, input or a secret
    graph: graph work --port 3000  the processes of a session, their starters, files and sockets
    record: log work --follow  the signed record: each act with its actor, verdict and result
    look: events work  the events of sessions
    look: metrics  the host's metrics in the format of Prometheus
    look: resolve hf:0123456789ab@1  what a reference points to today

Operators
    operators: operator add builder --kind agent  the operators of this machine: add, list, show,
        revoke
    devices: device add phone  the devices of an operator: list, add, rename, revoke
    operators: grant builder --rights execute --session work --expires 8h  give some of your rights
        to an operator
    services.agent: agent add claude  connect a coding agent: operator, session, its configuration
    policy: approvals --follow  list the acts that wait for approval
    policy: approve q1f3  allow one waiting act, once
    policy: deny q1f3  refuse one waiting act
    invite: invite --rights read --session work  make a one-time code for a newcomer or a device
    invite: join 4KQ7-M2XD-9TRG --as bob  join a machine with a one-time code
    policy: policy try 'rm -rf /'  show, check, test or try the policy of the gate

Machines
    fleet: host connect wss://relay.example  the relays through which this machine can be reached
    fleet: machines  the machines that you can reach, and whether they answer
    relay: relay serve --listen 127.0.0.1:8410  run a relay, and make tokens for it

Installation
    service: service install --dry-run  start the host at boot with systemd; sessions survive
        upgrades
    recovery.residency: drain --notice 90s  save every session before the machine goes down
    installation: doctor  what works on this machine, what does not, and how to fix it
    installation: drill  provoke each failure mode on a throw-away home, and show what held
    installation: config show  the effective configuration and its sources
    services.mcp: mcp --as builder --session work  serve the tools of an AI agent by MCP
    services.acp: acp --as builder -- opencode acp  run an editor's agent by ACP, with its terminals
        in sessions
    services.http: http --as web  serve HTTP and JSON for services; tokens and webhooks
    completion: completion bash  a completion script for bash, zsh or fish
    paperwork: man | man -l -  print the manual page
"""


def _commands() -> Iterator[tuple[str, Command]]:
    for block in _TABLE.strip().split("\n\n"):
        group, _, rows = block.partition("\n")
        for row in arguments.joined(rows):
            module, _, rest = row.partition(": ")
            example, _, summary = rest.partition("  ")
            name = example.partition(" ")[0]
            yield name, Command(module, summary, f"holdfast {example}", group)


COMMANDS = dict(_commands())
ALIASES = {"a": "attach", "kill": "end"}
TAKES_PROGRAM = ("new", "run", "service", "acp")
# Commands that act under another name than their operation's. A decision happens once by the
# question's id.
ALSO_ACT = ("approve", "deny", "host")
# Commands that look for an unknown session on all known machines.
SEARCHES = (
    *("attach", "run", "send", "wait", "turn", "view", "read", "who", "graph", "log"),
    *("halt", "resume", "seize", "signal"),
)
COMMON_HELP = {
    "json": "print JSON, errors included",
    "session": "the session: name, id, or a unique beginning of either",
}


def main() -> NoReturn:
    """The program `holdfast`.

    Skips the shutdown of the interpreter (3 ms), which only frees memory that the kernel frees
    anyway. Imports make 20,000 objects and no garbage, so the collector runs less often (1 ms).
    """
    gc.set_threshold(50_000)
    try:
        code = run(sys.argv[1:])
    except SystemExit as e:  # --help
        code = e.code if isinstance(e.code, int) else 0
    sys.stderr.flush()
    os._exit(code)


def run(args: list[str]) -> int:
    """Run a command line and return the exit code."""
    before, _ = _split(args)
    as_json = (
        "--json" in before
        or ("--format", "json") in zip(before, before[1:], strict=False)
        or "--format=json" in before
    )
    if isinstance(sys.stdout, TextIOWrapper):
        # A terminal that cannot show a character still gets the rest.
        sys.stdout.reconfigure(errors="backslashreplace")
    cores.forbid()  # most commands have a private key in memory
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
    except BrokenPipeError:  # the reader of our output has closed the pipe
        _discard_output(1, 2)
        return code
    except OSError as e:
        _discard_output(1)
        print(
            f"holdfast: {e}\n  check where the output goes, and `holdfast doctor`", file=sys.stderr
        )
        return 5


def _discard_output(*streams: int) -> None:
    """Redirect buffered output, so that flushing at exit does not fail again."""
    for fd in streams:
        os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), fd)


def dispatch(args: list[str]) -> int:
    args, operator = _global(args)
    at = 1 if args[:1] == ["help"] else 0
    args = [*args[:at], *(ALIASES.get(word, word) for word in args[at : at + 1]), *args[at + 1 :]]
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
    module = COMMANDS[name].load()
    rest, program = _split(args[1:]) if name in TAKES_PROGRAM else (args[1:], None)
    options: Any = arguments.parsed(lambda made: declare(name, made), rest)
    if options is None:
        options = parser(name).parse_args(rest)
    if program is not None:
        options.command = [*options.command, *program]
    options.operator = operator if operator is not None else getattr(options, "as_", None)
    typed = next(filter(None, (getattr(options, one, None) for one in ("session", "name"))), None)
    command = getattr(module, name)
    try:
        code: int = command(options)
    except HoldfastError as e:
        from holdfast.faces.cli import meant

        if name in SEARCHES and meant.is_elsewhere(e, options, typed):
            return meant.run_there(command, options)
        if isinstance(e, NotFound):
            meant.explain(e, options)
        if isinstance(typed, str):
            meant.name_session(e, typed)
        e.recover = e.recover.replace("holdfast COMMAND ", f"holdfast {name} ")
        raise
    return code


def _global(args: list[str]) -> tuple[list[str], str | None]:
    """Take `--as NAME` from before the command."""
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
    """Split at the first `--`: the rest is the command line of a program to run."""
    if "--" not in args:
        return args, None
    at = args.index("--")
    return args[:at], args[at + 1 :]


def parser(name: str) -> ArgumentParser:
    """The argument parser of a command."""
    from argparse import ArgumentParser, RawDescriptionHelpFormatter

    from holdfast.faces.cli.output import wrap

    class Parser(ArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise Usage(f"{name}: {message}", f"see `holdfast {name} --help`")

    class Formatter(RawDescriptionHelpFormatter):
        def __init__(self, prog: str) -> None:
            # Without a width argparse imports shutil for every argument.
            super().__init__(prog, width=_columns() - 2)

    command = COMMANDS[name]
    made = Parser(
        prog=f"holdfast {name}",
        description=command.summary,
        epilog=f"example:\n  {command.example}",
        formatter_class=Formatter,
        allow_abbrev=False,
    )
    declare(name, made)
    made.description = "\n\n".join(
        "\n".join(wrap(" ".join(paragraph.split()), _columns() - 2))
        for paragraph in (made.description or "").split("\n\n")
    )
    for action in made._actions:
        action.help = action.help or COMMON_HELP.get(action.dest)
    return made


def declare(name: str, made: ArgumentParser | arguments.Declarations) -> None:
    """Add the arguments of this command to a parser."""
    made.add_argument(
        "--as",
        dest="as_",
        metavar="NAME",
        help="act as this identity (default: $HOLDFAST_AS or your login name)",
    )
    if is_act(name):
        made.add_argument(
            "--once",
            metavar="KEY",
            help="an idempotency key of your choice: a retry with it, from any client, "
            "has one effect",
        )
    getattr(COMMANDS[name].load(), f"{name}_parser")(made)


def is_act(name: str) -> bool:
    """Whether the command, or one of its sub-commands, asks for an act."""
    from holdfast.core.contract.table import OPERATIONS

    return name in ALSO_ACT or any(
        one.act and name == one.name.partition(".")[0] for one in OPERATIONS.values()
    )


def _columns() -> int:
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns):
        return int(columns)
    try:
        return os.get_terminal_size(1).columns or 80
    except OSError:
        return 80


def _status(error: HoldfastError, is_run: bool) -> int:
    """The exit code; `run` uses 255 for "the command has no exit code", except for usage errors."""
    return 255 if is_run and type(error) is not Usage else error.exit_code


def complain(error: HoldfastError, as_json: bool, is_run: bool) -> int:
    """Print a plain line and the advice, or JSON if asked."""
    if as_json:
        from holdfast.model import jsontext

        body = {
            "code": error.exit_code,
            "name": error.name,
            "message": error.message,
            "recover": error.recover,
            "retry_safe": error.retry_safe,
        }
        text = jsontext.dumps({"error": body})
        print(text, file=sys.stderr)
        if not os.path.sameopenfile(1, 2):
            print(text, flush=True)
    else:
        print(f"holdfast: {printable(error.message)}", file=sys.stderr)
        if error.recover:
            print(f"  {printable(error.recover)}", file=sys.stderr)
        sys.stdout.flush()
    return _status(error, is_run)
