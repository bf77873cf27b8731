"""run, send, wait, turn, seize, halt, resume, signal."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from holdfast.core.originators import told_of
from holdfast.faces.cli.connect import add_hold, link
from holdfast.faces.cli.output import clean, put_json
from holdfast.model.errors import Usage
from holdfast.model.limits import INPUT_CHUNK_BYTES

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


# ---------------------------------------------------------------- run

SHAPED_SHOWN = 3  # of what another made of a run's state, in one line


def run_parser(p: ArgumentParser) -> None:
    p.add_argument("session", metavar="SESSION")
    p.add_argument(
        "--timeout",
        type=float,
        default=0.0,
        metavar="S",
        help="give up waiting after S seconds; the command is not stopped",
    )
    add_hold(p)
    p.add_argument(
        "--json",
        action="store_true",
        help="one object with output and exit code instead of the bare output",
    )
    p.add_argument(
        "command",
        nargs="*",
        metavar="CMD",
        help="after --; one argument is a script, several are one command; - reads stdin",
    )
    p.description = (
        "run one command in the session's live shell: its directory, variables and jobs. The output is what the command "
        "wrote, byte for byte; the exit code is the command's own, 255 if there is none."
    )


def run(args: Namespace) -> int:
    text = _command_text(args.command)
    pieces: list[bytes] = []
    lost: list[tuple[int, int]] = []

    def on_data(start: int, end: int, data: bytes) -> None:
        if args.json:
            pieces.append(data)
        else:
            _write(data)

    connection = link(args)
    result = connection.request(
        "run",
        wait_s=None,
        on_data=on_data,
        on_gap=lambda a, b: lost.append((a, b)),
        session=args.session,
        text=text,
        seq=connection.next_sequence(),
        timeout=_seconds(args.timeout),
        resume=None,
        hold=args.hold,
        for_terminal=sys.stdout.isatty() and not args.json,
    )
    if lost:
        print(
            f"holdfast: {sum(b - a for a, b in lost)} bytes of the output rolled off before they could be read",
            file=sys.stderr,
        )
    if args.json:
        data = b"".join(pieces)
        put_json({**result, "data": data.decode("utf-8", "backslashreplace"), "gap": lost})
    elif result.get("shaped") and sys.stderr.isatty():
        print(clean(f"holdfast: it ran on {told_in_a_line(result['shaped'])}"), file=sys.stderr)
    code = result["exit_code"]
    if code is None:
        print("holdfast: the session ended and its exit code is not known", file=sys.stderr)
        return 255
    return int(code)


def told_in_a_line(shaped: list[dict[str, Any]]) -> str:
    told = [
        told_of(one["kind"], one["name"], one["actor"], one.get("sure", True)) for one in shaped
    ]
    return ", ".join(told[:SHAPED_SHOWN]) + (
        f" and {len(told) - SHAPED_SHOWN} more" if len(told) > SHAPED_SHOWN else ""
    )


def _command_text(words: list[str]) -> str:
    if not words:
        raise Usage("nothing to run", "holdfast run SESSION -- CMD...")
    if words == ["-"]:
        return sys.stdin.buffer.read().decode("utf-8", "surrogateescape")
    if len(words) == 1:
        return words[0]
    from shlex import join

    return join(words)


def _seconds(value: float) -> float:
    if not 0 <= value < 1e9:
        raise Usage("a timeout is a number of seconds, not negative", "0 means no limit")
    return value


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


# ---------------------------------------------------------------- send


def send_parser(p: ArgumentParser) -> None:
    p.add_argument("session", metavar="SESSION")
    p.add_argument(
        "text", nargs="?", default="", metavar="TEXT", help="typed as it is; - reads stdin"
    )
    p.add_argument("--enter", action="store_true", help="press Enter afterwards")
    p.add_argument(
        "--key",
        action="append",
        default=[],
        metavar="NAME",
        help="C-c, M-x, Up, Escape, F5 ...; may be repeated",
    )
    p.add_argument(
        "--paste", action="store_true", help="as one paste, bracketed if the program asked for that"
    )
    add_hold(p)
    p.add_argument("--json", action="store_true")


def send(args: Namespace) -> int:
    text = (
        sys.stdin.buffer.read().decode("utf-8", "surrogateescape")
        if args.text == "-"
        else args.text
    )
    keys = [*args.key, *(["Enter"] if args.enter else [])]
    connection = link(args)
    size = len(text.encode("utf-8", "surrogateescape")) + 16 * len(keys)
    result = connection.request(
        "send",
        session=args.session,
        text=text,
        keys=keys,
        paste=args.paste,
        hold=args.hold,
        seq=connection.next_sequence(1 + size // INPUT_CHUNK_BYTES),
    )
    if args.json:
        put_json(result)
    return 0


# ---------------------------------------------------------------- wait


def wait_parser(p: ArgumentParser) -> None:
    p.add_argument("session", metavar="SESSION")
    p.add_argument(
        "--for",
        dest="condition",
        action="append",
        required=True,
        metavar="WHAT",
        help="idle, input, secret, exit, command, text:REGEX or port:NUMBER; given several times, whichever holds first",
    )
    p.add_argument(
        "--timeout", type=float, default=0.0, metavar="S", help="exit with 124 after S seconds"
    )
    p.add_argument("--json", action="store_true")


def wait(args: Namespace) -> int:
    result: dict[str, Any] = link(args).request(
        "wait",
        wait_s=None,
        session=args.session,
        timeout=_seconds(args.timeout),
        **{"for": args.condition if len(args.condition) > 1 else args.condition[0]},
    )
    if args.json:
        put_json(result)
    else:
        code = result.get("exit_code")
        which = f"{result['for']}: " if len(args.condition) > 1 else ""
        print(
            clean(
                which + (result["seen"] if code is None else f"{result['seen']} (exit code {code})")
            )
        )
    return 0


# ---------------------------------------------------------------- turn


def turn_parser(p: ArgumentParser) -> None:
    p.add_argument("session", metavar="SESSION")
    p.add_argument(
        "act",
        nargs="?",
        default="show",
        choices=("show", "request", "release", "hand", "grant", "refuse"),
        help="ask for it, give yours back, give it to OPERATOR, answer a request (default: show it)",
    )
    p.add_argument("to", nargs="?", metavar="OPERATOR", help="with hand, grant and refuse: to whom")
    p.add_argument(
        "--wait",
        type=float,
        default=0.0,
        metavar="S",
        help="with request: wait this long for the answer",
    )
    p.add_argument("--json", action="store_true")


def turn(args: Namespace) -> int:
    result = link(args).request(
        "turn", session=args.session, act=args.act, to=args.to, wait=_seconds(args.wait)
    )
    if args.json:
        put_json(result)
    elif result.get("asked"):
        print(
            f"asked; {result['turn']['holder']} has the turn, {len(result['turn']['waiting'])} wait for it"
        )
    else:
        print(
            f"the turn is {result['turn']['holder'] + chr(39) + 's' if result['turn'] else 'free'}"
        )
        print_inherited(result)
    return 0


def print_inherited(result: dict[str, Any]) -> None:
    for piece in (result.get("inherits") or {}).get("staged") or ():
        print(f"on the line: {piece['text']!a} typed by {piece['operator']}")
    for job in (result.get("inherits") or {}).get("jobs") or ():
        print(clean(f"runs: {job['command']} ({job['pid']}), started by {job['actor']}"))
    for one in (result.get("inherits") or {}).get("changed") or ():
        print(
            clean(
                f"changed: {told_of(one['kind'], one['name'], one['actor'], one.get('sure', True))}"
            )
        )


def halt_parser(p: ArgumentParser) -> None:
    p.add_argument("session", metavar="SESSION")
    p.add_argument("--json", action="store_true")
    p.description = "stop every process of the session, daemons included. What was done is done; nothing more happens until `resume`."


def halt(args: Namespace) -> int:
    result = link(args).request("halt", session=args.session)
    if args.json:
        put_json(result)
    else:
        print(
            f"{result['name']} is halted: {len(result['processes'])} processes stand still ({result['how']}, {result['took_ms']:.1f} ms); "
            f"the last input it took is {result['ref']}"
        )
        if not result["complete"]:
            print(
                f"NOT complete: still running: {', '.join(map(str, result['missed']))}",
                file=sys.stderr,
            )
    return 0 if result["complete"] else 7


def seize_parser(p: ArgumentParser) -> None:
    p.add_argument("session", metavar="SESSION")
    p.add_argument("--json", action="store_true")


resume_parser = seize_parser


def resume(args: Namespace) -> int:
    result = link(args).request("resume", session=args.session)
    if args.json:
        put_json(result)
    else:
        print(f"{result['name']} {'goes on' if result['halted'] else 'was not halted'}")
    return 0


def seize(args: Namespace) -> int:
    result = link(args).request("seize", session=args.session)
    if args.json:
        put_json(result)
    else:
        had = f"; {result['previous']} had it" if result["previous"] else ""
        print(f"you have the turn of {result['name']}{had}")
        print_inherited(result)
    return 0


# ---------------------------------------------------------------- signal


def signal_parser(p: ArgumentParser) -> None:
    p.add_argument("session", metavar="SESSION")
    p.add_argument(
        "pid",
        type=int,
        metavar="PID",
        help="as `holdfast graph` shows it; in a contained session also as programs inside see it",
    )
    p.add_argument(
        "signal", metavar="SIG", help="TERM, KILL, INT, HUP, STOP, CONT, USR1 ..., or its number"
    )
    p.add_argument(
        "--tree",
        action="store_true",
        help="also everything below it, what it started and left behind included",
    )
    add_hold(p)
    p.add_argument("--json", action="store_true")


def signal(args: Namespace) -> int:
    if args.pid <= 0:
        raise Usage("a pid is above 0", "`holdfast graph SESSION` shows those there are")
    result = link(args).request(
        "signal",
        wait_s=90,
        session=args.session,
        pid=args.pid,
        signal=args.signal,
        tree=args.tree,
        hold=args.hold,
    )
    if args.json:
        put_json(result)
        return 0
    others = result["count"] - 1
    print(
        clean(
            f"{result['signal']} to {result['pid']} ({result['command']})"
            + (f" and {others} below it" if others > 0 else "")
        )
    )
    if result["refused"]:
        print(
            f"holdfast: not to {', '.join(map(str, result['refused']))}, which run as somebody else",
            file=sys.stderr,
        )
    return 0
