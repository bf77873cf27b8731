"""run, send, wait, turn, seize, halt, resume, signal."""

from __future__ import annotations

import os
import sys

from holdfast.client.environ import for_session
from holdfast.faces.cli.arguments import usage
from holdfast.faces.cli.connect import HOLD, link
from holdfast.faces.cli.output import clean, put, put_json, write
from holdfast.model.errors import (
    HoldfastError,
    NotAllowed,
    NotFound,
    OutcomeUnknown,
    PeerFault,
    TimedOut,
    Unavailable,
    Usage,
)
from holdfast.model.limits import INPUT_CHUNK_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from holdfast.client.link import Link
    from holdfast.client.stdin import Source
    from holdfast.home import Home
    from holdfast.model.jsontext import Json


END_WAIT_S = 90.0  # for the end of a session whose programs ignore signals
HALT_WAIT_S = 5.0  # for the host's answer; then the command halts the session itself


# ---------------------------------------------------------------- run

SHAPED_SHOWN = 3  # originators shown in a line
MEANT = """\
--intent TEXT  the purpose of this act, for the record
    --expects TEXT  the effect that you expect, for the record
    --prompt REF  the prompt behind this act, for the record, as "conversation 12, message 4\""""


run_parser = usage(f"""
    run one command in the session's live shell, with its directory, variables and jobs. Prints
    exactly the output of the command and exits with its exit code, or 255 if there is none. If the
    input is a pipe or a file, the command reads it; in a loop that reads a pipe, use -n.

    [SESSION]
    --on MACHINE  in a new session of its own on that machine ('' is this machine), which ends
        afterwards; contained for agents and services; takes no SESSION
    --timeout S=0  stop waiting after S seconds; the command keeps running
    --hold S  {HOLD}
    -n --no-stdin  the command reads the session's terminal, and this command's input stays unread
    {MEANT}
    --json  one object with output and exit code instead of the bare output
    command=[CMD...]  after --: one argument is a script, several are one command; - reads stdin
""")


def run(args: Namespace) -> int:
    text = _command_text(args.command)
    if (args.session is None) == (args.on is None):
        raise Usage("run needs a SESSION or --on MACHINE", "holdfast run SESSION -- CMD...")
    if args.on is None:
        return _run(args, link(args), text)
    if args.once is not None:
        raise Usage("--on takes no --once", "a key is for one act; this command asks for three")
    args.machine = f"{args.on}/" if args.on else None
    connection = link(args)
    away = connection.away is not None
    made = connection.request(
        "new",
        name=None,
        argv=[],
        cwd="" if away else os.getcwd(),
        env=for_session(dict(os.environ), (), away),
        size=None,
        existing=False,
        contained=None,
    )
    args.session = made["id"]
    try:
        return _run(args, connection, text)
    finally:
        connection.source = None
        try:
            connection.request("end", wait_s=END_WAIT_S, session=made["id"])
        except NotFound:  # the command ended the session
            pass
        except NotAllowed:  # without the right `end`: the shell ends as with its terminal
            connection.request("signal", session=made["id"], pid=made["pid"], signal="HUP")


def _run(args: Namespace, connection: Link, text: str) -> int:
    pieces: list[bytes] = []
    lost: list[tuple[int, int]] = []

    def on_data(start: int, end: int, data: bytes) -> None:
        if args.json:
            pieces.append(data)
        else:
            write(data)

    if not args.no_stdin and args.command != ["-"]:
        connection.source = _input(connection, args.session)
    stdin: Json = {"stdin": True} if connection.source is not None else {}
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
        **stdin,
        **_meant(args),
    )
    if connection.source is not None:
        connection.source.finish(result)
    if lost:
        print(
            f"holdfast: {sum(b - a for a, b in lost)} bytes of the output rolled off "
            "before they could be read",
            file=sys.stderr,
        )
    if args.json:
        data = b"".join(pieces)
        put_json({**result, "data": data.decode("utf-8", "backslashreplace"), "gap": lost})
    elif result.get("shaped") and sys.stderr.isatty():
        print(clean(f"holdfast: it ran on {told_in_a_line(result['shaped'])}"), file=sys.stderr)
    if not args.json:
        _note_inherited(result)
    if (said := result.get("shell_exit")) is not None:
        print(
            f"holdfast: the program ended with {result['exit_code']}, as the kernel reports; the "
            f"shell said {said}",
            file=sys.stderr,
        )
    code = result["exit_code"]
    if code is None:
        print("holdfast: the session ended and its exit code is not known", file=sys.stderr)
        return 255
    return int(code)


def _input(connection: Link, session: str) -> Source | None:
    """The input of this command, if there is some and the host can take it."""
    from holdfast.client.stdin import source

    try:
        found = source(sys.stdin.fileno())
    except (AttributeError, ValueError, OSError):  # closed, or replaced by a program
        return None
    if found is not None and "stdin" not in connection.takes(session):
        print(
            "holdfast: the host's release does not pass input on; the command reads the terminal",
            file=sys.stderr,
        )
        return None
    return found


def told_in_a_line(shaped: list[Json]) -> str:
    from holdfast.core.originators.originators import in_words

    told = [
        in_words(one["kind"], one["name"], one["actor"], one.get("sure", True)) for one in shaped
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


def _meant(args: Namespace) -> Json:
    """What the operator said about the act; an older host does not know these fields."""
    said = {"intent": args.intent, "expects": args.expects, "prompt": args.prompt}
    return {name: text for name, text in said.items() if text is not None}


def _seconds(value: float) -> float:
    if not 0 <= value < 1e9:
        raise Usage("a timeout is a number of seconds, at least 0", "0 means no limit")
    return value


# ---------------------------------------------------------------- send


send_parser = usage(f"""
    SESSION
    [TEXT]  the text to type; - reads stdin
    --enter  press Enter afterwards
    --key NAME...  C-c, M-x, Up, Escape, F5 ...; may be repeated
    --paste  send it as one paste, bracketed if the program supports that
    --hold S  {HOLD}
    {MEANT}
    --json
""")


def send(args: Namespace) -> int:
    text = (
        sys.stdin.buffer.read().decode("utf-8", "surrogateescape")
        if args.text == "-"
        else args.text or ""
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
        **_meant(args),
    )
    if args.json:
        put_json(result)
    else:
        _note_inherited(result)
    return 0


# ---------------------------------------------------------------- wait


def wait_parser(p: ArgumentParser) -> None:
    from holdfast.core.contract.output import CONDITIONS

    p.add_argument(
        "--for",
        dest="condition",
        action="append",
        required=True,
        metavar="WHAT",
        help=f"{', '.join(CONDITIONS[:-1])} or {CONDITIONS[-1]}; "
        "if repeated, the first that holds ends the wait",
    )
    usage("""
        SESSION
        --timeout S=0  exit with 124 after S seconds
        --since OFFSET|REF  look for text in the output from there on, and not on the screen; from
            `send --json` (offset), or `run --json` (ref, output.ref)
        --json
    """)(p)


def wait(args: Namespace) -> int:
    since: Json = {} if args.since is None else {"since": args.since}
    result: Json = link(args).request(
        "wait",
        wait_s=None,
        session=args.session,
        timeout=_seconds(args.timeout),
        **since,
        **{"for": args.condition if len(args.condition) > 1 else args.condition[0]},
    )
    code = result.get("exit_code")
    which = f"{result['for']}: " if len(args.condition) > 1 else ""
    exit_code = "" if code is None else f" (exit code {code})"
    return put(args, result, clean(f"{which}{result['seen']}{exit_code}"))


# ---------------------------------------------------------------- turn


turn_parser = usage("""
    SESSION
    act=[show|request|release|hand|grant|refuse=show]  request it, release yours, hand it to
        OPERATOR, grant or refuse a request (default: show)
    to=[OPERATOR]  with hand, grant and refuse
    --wait S=0  with request: wait S seconds for the answer
    --json
""")


def turn(args: Namespace) -> int:
    result = link(args).request(
        "turn", session=args.session, act=args.act, to=args.to, wait=_seconds(args.wait)
    )
    if args.json:
        put_json(result)
    elif result.get("asked"):
        turn = result["turn"]
        print(f"asked; {turn['holder']} has the turn, {len(turn['waiting'])} wait for it")
    else:
        print(_turn_in_words(result["turn"]))
        print_inherited(result)
    return 0


def _turn_in_words(turn: Json | None) -> str:
    if turn is None:
        return "the turn is free"
    if turn.get("seized"):
        return f"the turn is held by {turn['holder']} until released"
    return f"the turn is {turn['holder']}'s"


def print_inherited(result: Json) -> None:
    from holdfast.core.originators.originators import in_words
    from holdfast.core.session import inheritance

    for piece in (result.get("inherits") or {}).get("staged") or ():
        print(f"on the line: {piece['text']!a} typed by {piece['operator']}")
    for job in (result.get("inherits") or {}).get("jobs") or ():
        print(clean(f"runs: {job['command']} ({job['pid']}), started by {job['actor']}"))
    for one in (result.get("inherits") or {}).get("changed") or ():
        change = in_words(one["kind"], one["name"], one["actor"], one.get("sure", True))
        print(clean(f"changed: {change}"))
    for one in (result.get("inherits") or {}).get("credentials") or ():
        print(clean(f"open credential: {inheritance.credential_in_words(one)}"))
    for one in (result.get("inherits") or {}).get("files") or ():
        print(clean(f"open file: {inheritance.file_in_words(one)}"))


def _note_inherited(result: Json) -> None:
    """After an act that took the turn: the state of other operators, in a line."""
    if inherits := result.get("inherits"):
        from holdfast.core.session.inheritance import in_a_line

        told = in_a_line(inherits).removeprefix("; ")
        print(clean(f"holdfast: you inherit {told}"), file=sys.stderr)


halt_parser = usage("""
    freeze every process of the session, daemons included. Effects so far remain; nothing more
    happens until `resume`. With --operator: freeze only the processes that this operator's acts
    started, and refuse its further acts in this session; all other operators work on.

    SESSION
    named=--operator NAME  freeze the processes of this operator alone
    --json
""")


def halt(args: Namespace) -> int:
    connection = link(args)
    if args.named is not None:
        result = connection.request("halt", session=args.session, operator=args.named)
        if args.json:
            put_json(result)
        else:
            print_stopped(result)
        return 0 if result["complete"] else 7
    try:
        result = connection.request("halt", wait_s=HALT_WAIT_S, session=args.session)
    except (Unavailable, TimedOut, PeerFault, OutcomeUnknown) as e:
        if connection.away is not None:
            raise
        result = _halt_directly(connection.home, args.session, e)
    if args.json:
        put_json(result)
    else:
        print(
            f"{result['name']} is halted: {len(result['processes'])} processes are frozen "
            f"({result['how']}, {result['took_ms']:.1f} ms); "
            + (
                f"the last input it took is {result['ref']}"
                if "ref" in result
                else "the host did not answer, so the record does not name you"
            )
        )
        if not result["complete"]:
            print(
                f"NOT complete: still running: {', '.join(map(str, result['missed']))}",
                file=sys.stderr,
            )
    return 0 if result["complete"] else 7


def print_stopped(result: Json) -> None:
    count = len(result["processes"])
    print(
        clean(
            f"{result['operator']} is stopped in {result['name']}: {count} "
            f"process{' is' if count == 1 else 'es are'} frozen "
            f"({result['how']}, {result['took_ms']:.1f} ms); its further acts there are refused"
        )
    )
    for one in result.get("left_out") or ():
        print(clean(f"left out: {one['pid']} ({one['why']})"))
    if result.get("advice"):
        print(clean(result["advice"]))
    if not result["complete"]:
        missed = ", ".join(map(str, result["missed"]))
        print(f"NOT complete: still running: {missed}", file=sys.stderr)


def _halt_directly(home: Home, session: str, error: HoldfastError) -> Json:
    """Halt without the host, which is stopped, frozen or gone."""
    import json
    import subprocess

    from holdfast.home import programs

    module = "holdfast.host.lifecycle.halt_directly"
    done = subprocess.run(
        programs.module(module, home.state, session), stdout=subprocess.PIPE, cwd="/", check=False
    )
    try:
        result: Json = json.loads(done.stdout)
    except ValueError:
        raise error from None
    if "error" in result:
        raise (
            NotFound(result["error"]["message"]) if result["error"]["name"] == "NotFound" else error
        )
    return result


seize_parser = usage("""
    SESSION
    --stop  also freeze the processes of the operator that had the turn
    --json
""")

resume_parser = usage("""
    SESSION
    named=--operator NAME  continue the processes of this stopped operator alone
    --json
""")


def resume(args: Namespace) -> int:
    one: Json = {} if args.named is None else {"operator": args.named}
    result = link(args).request("resume", session=args.session, **one)
    stopped = [str(one["operator"]) for one in result.get("stopped") or ()]
    if args.named is not None:
        now = "continues" if stopped else "was not stopped"
        return put(args, result, clean(f"{args.named} {now} in {result['name']}"))
    now = "continues" if result["halted"] or stopped else "was not halted"
    named = f"; {', '.join(stopped)} may act again" if stopped else ""
    return put(args, result, clean(f"{result['name']} {now}{named}"))


def seize(args: Namespace) -> int:
    stop: Json = {"stop": True} if args.stop else {}
    result = link(args).request("seize", session=args.session, **stop)
    if args.json:
        put_json(result)
    else:
        had = f"; {result['previous']} had it" if result["previous"] else ""
        print(f"you have the turn of {result['name']} until you release it{had}")
        if result.get("stopped"):
            print_stopped(result["stopped"])
        elif args.stop:
            print("no operator to stop: no other operator wrote here since the host started")
        print_inherited(result)
    return 0


# ---------------------------------------------------------------- signal


signal_parser = usage(f"""
    SESSION
    PID  the number of the process in `holdfast graph`; in a contained session also the number that
        programs inside see
    signal=SIG  TERM, KILL, INT, HUP, STOP, CONT, USR1 ..., or its number
    --tree  also to all descendants of the process, including orphans
    --hold S  {HOLD}
    --json
""")


def signal(args: Namespace) -> int:
    if args.pid <= 0:
        raise Usage("a pid is above 0", "`holdfast graph SESSION` lists processes")
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
            f"holdfast: not sent to {', '.join(map(str, result['refused']))}, "
            "which run as another user",
            file=sys.stderr,
        )
    return 0
