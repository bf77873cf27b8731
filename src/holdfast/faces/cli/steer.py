"""run, send, wait, turn."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from holdfast.faces.cli.connect import link
from holdfast.faces.cli.output import put_json
from holdfast.model.errors import Usage
from holdfast.model.limits import INPUT_CHUNK_BYTES

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


# ---------------------------------------------------------------- run

def run_parser(p: ArgumentParser) -> None:
    p.add_argument("session", metavar="SESSION")
    p.add_argument("--timeout", type=float, default=0.0, metavar="S", help="give up waiting after S seconds; the command is not stopped")
    p.add_argument("--json", action="store_true", help="one object with output and exit code instead of the bare output")
    p.add_argument("command", nargs="*", metavar="CMD", help="after --; one argument is a script, several are one command; - reads stdin")
    p.description = ("run one command in the session's live shell: its directory, variables and jobs. The output is what the command "
                     "wrote, byte for byte; the exit code is the command's own, 255 if there is none.")


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
    result = connection.request("run", wait_s=None, on_data=on_data, on_gap=lambda a, b: lost.append((a, b)), session=args.session, text=text,
                                seq=connection.next_sequence(), timeout=_seconds(args.timeout), resume=None,
                                for_terminal=sys.stdout.isatty() and not args.json)
    if lost:
        print(f"holdfast: {sum(b - a for a, b in lost)} bytes of the output rolled off before they could be read", file=sys.stderr)
    if args.json:
        data = b"".join(pieces)
        put_json({**result, "data": data.decode("utf-8", "backslashreplace"), "gap": lost})
    code = result["exit_code"]
    if code is None:
        print("holdfast: the session ended and its exit code is not known", file=sys.stderr)
        return 255
    return int(code)


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
        view = view[os.write(1, view):]


# ---------------------------------------------------------------- send

def send_parser(p: ArgumentParser) -> None:
    p.add_argument("session", metavar="SESSION")
    p.add_argument("text", nargs="?", default="", metavar="TEXT", help="typed as it is; - reads stdin")
    p.add_argument("--enter", action="store_true", help="press Enter afterwards")
    p.add_argument("--key", action="append", default=[], metavar="NAME", help="C-c, M-x, Up, Escape, F5 ...; may be repeated")
    p.add_argument("--paste", action="store_true", help="as one paste, bracketed if the program asked for that")
    p.add_argument("--json", action="store_true")


def send(args: Namespace) -> int:
    text = sys.stdin.buffer.read().decode("utf-8", "surrogateescape") if args.text == "-" else args.text
    keys = [*args.key, *(["Enter"] if args.enter else [])]
    connection = link(args)
    size = len(text.encode("utf-8", "surrogateescape")) + 16 * len(keys)
    result = connection.request("send", session=args.session, text=text, keys=keys, paste=args.paste,
                                seq=connection.next_sequence(1 + size // INPUT_CHUNK_BYTES))
    if args.json:
        put_json(result)
    return 0


# ---------------------------------------------------------------- wait

def wait_parser(p: ArgumentParser) -> None:
    p.add_argument("session", metavar="SESSION")
    p.add_argument("--for", dest="condition", required=True, metavar="WHAT",
                   help="idle, input, secret, exit, command, text:REGEX or port:NUMBER")
    p.add_argument("--timeout", type=float, default=0.0, metavar="S", help="exit with 124 after S seconds")
    p.add_argument("--json", action="store_true")


def wait(args: Namespace) -> int:
    result: dict[str, Any] = link(args).request("wait", wait_s=None, session=args.session, timeout=_seconds(args.timeout),
                                                **{"for": args.condition})
    if args.json:
        put_json(result)
    else:
        print(result["seen"])
    return 0


# ---------------------------------------------------------------- turn

def turn_parser(p: ArgumentParser) -> None:
    p.add_argument("session", metavar="SESSION")
    p.add_argument("act", choices=("take", "release"), help="take it if it is free, or give yours back")
    p.add_argument("--json", action="store_true")


def turn(args: Namespace) -> int:
    result = link(args).request("turn", session=args.session, act=args.act)
    if args.json:
        put_json(result)
    else:
        print(f"the turn is {result['turn']['holder'] + chr(39) + 's' if result['turn'] else 'free'}")
    return 0
