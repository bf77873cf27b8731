"""new, ls, attach, rename, end, forget."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from holdfast.faces.cli.connect import add_hold, link
from holdfast.model.errors import HoldfastError, NotFound, Usage

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable

    from holdfast.client.link import Link


# ---------------------------------------------------------------- new


def new_parser(p: ArgumentParser) -> None:
    p.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="letters, digits, '.', '_' and '-' (default: one is made up)",
    )
    p.add_argument(
        "-A", dest="existing", action="store_true", help="attach if a session of that name exists"
    )
    p.add_argument("--cwd", metavar="DIR", help="directory to start in (default: this one)")
    p.add_argument(
        "--env", metavar="K=V", action="append", default=[], help="set a variable in the session"
    )
    p.add_argument(
        "--size", metavar="COLSxROWS", help="size of its terminal (default: yours, or 80x24)"
    )
    p.add_argument(
        "--contained",
        action="store_const",
        const=True,
        help="out of reach of keys, host and other sessions (the default for agents)",
    )
    p.add_argument(
        "--plain",
        dest="contained",
        action="store_const",
        const=False,
        help="like a login shell (the default for people)",
    )
    p.add_argument(
        "--gate",
        choices=("exec", "input"),
        help="how deep the policy sees: every program that starts, or what is typed and run (default: exec where it costs nothing)",
    )
    p.add_argument("--no-attach", action="store_true", help="do not attach")
    p.add_argument("--observe", action="store_true", help="attach without the right to type")
    p.add_argument("--json", action="store_true", help="print the session as JSON; does not attach")
    p.add_argument(
        "command",
        nargs="*",
        metavar="CMD",
        help="program and arguments, after -- (default: your shell)",
    )


CARRIED = (
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "LC_MESSAGES",
    "COLORTERM",
    "TZ",
)  # of one's environment, to another machine


def new(args: Namespace) -> int:
    from holdfast.client import start

    environ = dict(os.environ)
    for item in args.env:
        key, equals, value = item.partition("=")
        if not key or not equals:
            raise Usage(f"--env {item[:60]!a} is not NAME=VALUE")
        environ[key] = value
    if args.name == "":
        raise Usage("the name is empty", "leave it out to have one made up")
    cwd = os.path.normpath(os.path.join(_cwd(), args.cwd)) if args.cwd else _cwd()
    umask = os.umask(0o077)
    os.umask(umask)
    attaching = not args.no_attach and not args.json and sys.stdin.isatty() and sys.stdout.isatty()
    connection = link(args)
    name, command, agent = args.name, args.command, os.environ.get("SSH_AUTH_SOCK")
    if connection.away is None:
        start.mark_stopped(connection.home, False)
    else:  # directories, sockets and most of the environment mean nothing there
        given = {item.partition("=")[0] for item in args.env}
        environ = {key: value for key, value in environ.items() if key in given or key in CARRIED}
        cwd, agent = (args.cwd if args.cwd and os.path.isabs(args.cwd) else ""), None
    set_here: dict[str, Any] = (
        {"given": sorted({item.partition("=")[0] for item in args.env})} if args.env else {}
    )
    if args.gate:
        set_here["gate"] = args.gate
    made = connection.request(
        "new",
        name=name,
        argv=command,
        cwd=cwd,
        env=_text_only(environ),
        size=_size(args.size, attaching),
        umask=umask,
        existing=args.existing,
        contained=args.contained,
        agent=agent,
        **set_here,
    )
    if attaching:
        return attach_to(connection, made["id"], args.observe, False, new=not made["existed"])
    if args.json:
        from holdfast.faces.cli.output import put_json

        put_json(made)
    else:
        print(made["id"])
    return 0


def _text_only(environ: dict[str, str]) -> dict[str, str]:
    return {k: v for k, v in environ.items() if k and "=" not in k}


def _cwd() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return os.path.expanduser("~")


def _size(text: str | None, attaching: bool) -> list[int] | None:
    if text is None:
        if attaching:
            size = os.get_terminal_size()
            return (
                [size.columns, size.lines]
                if 2 <= size.columns <= 1000 and 2 <= size.lines <= 1000
                else None
            )
        return None
    cols, x, rows = text.partition("x")
    if not (
        x
        and text.isascii()
        and cols.isdigit()
        and rows.isdigit()
        and 2 <= int(cols) <= 1000
        and 2 <= int(rows) <= 1000
    ):
        raise Usage(
            f"--size {text[:20]!a} is not COLSxROWS with numbers from 2 to 1000",
            "for example --size 120x40",
        )
    return [int(cols), int(rows)]


# ---------------------------------------------------------------- ls


def ls_parser(p: ArgumentParser) -> None:
    p.add_argument(
        "machine",
        nargs="?",
        metavar="MACHINE/",
        help="those of another machine, with a slash behind its name",
    )
    p.add_argument("-a", "--all", action="store_true", help="ended sessions too")
    p.add_argument(
        "-e",
        "--everywhere",
        action="store_true",
        help="those of every machine that is known here, too",
    )
    p.add_argument("--json", action="store_true")


def ls(args: Namespace) -> int:
    from holdfast.faces.cli import output

    if args.machine is not None and not args.machine.endswith("/"):
        raise Usage(
            f"ls {args.machine[:40]!a}: a machine is named with a slash behind it",
            f"`holdfast ls {args.machine[:40]}/`; `holdfast machines` lists them",
        )
    where = ""
    if args.everywhere:
        from holdfast.faces.cli.fleet import everywhere

        sessions = everywhere(args)
    else:
        connection = link(args)
        sessions = connection.request("ls", all=args.all)["sessions"]
        if connection.away is not None:  # as it is called here, which is what one types
            sessions, where = (
                [{**one, "machine": connection.away.name} for one in sessions],
                f" {connection.away.name}/NAME",
            )
    if args.json:
        output.put_json([output.timed(s, s["created"]) for s in sessions])
    elif not sessions:
        print(f"no sessions; `holdfast new{where}` makes one")
    else:
        print(listing(sessions))
    return 0


def listing(sessions: list[dict[str, Any]]) -> str:
    from holdfast.faces.cli import output

    rows = []
    for s in sessions:
        state = s["state"] if s["exit_code"] is None else f"{s['state']} ({s['exit_code']})"
        if s["state"] == "ended" and s["exit_code"] is None:
            state = s.get("reason") or "ended"
        turn = s["turn"]["holder"] if s["turn"] else "-"
        who = ",".join(sorted({o["operator"] for o in s["operators"]})) or "-"
        age = output.duration(time.time() - s["created"]) if s["created"] else "-"
        size = f"{s['size']['cols']}x{s['size']['rows']}" if s["size"] else "-"
        kept = (
            f"{output.amount(s['output']['start'])}-{output.amount(s['output']['end'])}"
            if s["output"]
            else "-"
        )
        rows.append(
            (
                s["id"],
                s["name"],
                state,
                s["liveness"]["process"],
                who,
                turn,
                age,
                output.duration(s["idle_s"]),
                size,
                kept,
                s["machine"],
            )
        )
    return output.table(
        (
            "ID",
            "NAME",
            "STATE",
            "LIVENESS",
            "OPERATORS",
            "TURN",
            "AGE",
            "IDLE",
            "SIZE",
            "OUTPUT",
            "MACHINE",
        ),
        rows,
        ("MACHINE", "LIVENESS", "OUTPUT", "AGE", "SIZE", "OPERATORS"),
    )


# ---------------------------------------------------------------- attach


def attach_parser(p: ArgumentParser) -> None:
    p.add_argument(
        "session",
        nargs="?",
        metavar="SESSION",
        help="id, unique beginning of it, or name (default: the only or newest one)",
    )
    p.add_argument("--observe", action="store_true", help="watch only: what you type is not sent")
    p.add_argument("--take", action="store_true", help="take the turn at once")
    p.add_argument("--scrollback", type=int, metavar="LINES", help="lines of history to show first")
    p.add_argument("--json", action="store_true", help="errors as JSON")


def attach(args: Namespace) -> int:
    connection = link(args)
    session = args.session or _default(connection)
    return attach_to(connection, session, args.observe, args.take, scrollback=args.scrollback)


def _default(connection: Link) -> str:
    sessions = [
        s for s in connection.request("ls")["sessions"] if s["state"] in ("live", "detached")
    ]
    if not sessions:
        raise NotFound("there is no session to attach to", "`holdfast new` makes one")
    return str(max(sessions, key=lambda s: (s["state"] == "detached", s["created"]))["id"])


def attach_to(
    connection: Link,
    session: str,
    observe: bool,
    take: bool,
    new: bool = False,
    scrollback: int | None = None,
) -> int:
    from holdfast.client.attach import Attachment
    from holdfast.core.keys import prefix_key
    from holdfast.home import config

    values = {v.key: v.value for v in config.load(connection.home.config)}
    prefix = values["attach.prefix"]
    lines = values["attach.scrollback"] if scrollback is None else max(0, scrollback)
    attachment = Attachment(
        connection,
        session,
        observe,
        take,
        prefix_key(prefix),
        prefix,
        lines,
        values["attach.status"],
        os.environ.get("SSH_AUTH_SOCK") if connection.away is None else None,
    )
    try:
        attachment.begin()
    except NotFound:
        if not new:
            raise
        return _over_already(connection, session)
    if values["attach.status"]:
        what = (
            "observing"
            if attachment.observe
            else "attached to the new session"
            if new
            else "attached to"
        )
        print(
            f"[holdfast] {what} {attachment.name} ({attachment.session}); {prefix} ? for help, {prefix} d to detach",
            flush=True,
        )
        if attachment.says:
            print(f"[holdfast] {attachment.says}", flush=True)
        if new:  # that line is in the scrollback now; who is new here does not look there
            attachment.notices.later = (
                f"this is {attachment.name}; {prefix} d leaves it running, {prefix} ? for help"
            )
    elif new:
        print(attachment.session, flush=True)
    message, code = attachment.run()
    if message and (values["attach.status"] or code) and attachment.term.takes():
        with contextlib.suppress(OSError):  # the terminal may be gone
            os.write(1, f"{message}\n".encode("utf-8", "backslashreplace"))
    return code


def _over_already(connection: Link, session: str) -> int:
    """It ended before it could be shown: what it left on its screen, and how it ended."""
    last = connection.request("view", session=session)
    print("\n".join(last["lines"]).rstrip("\n"))
    code = last["exit_code"]
    print(
        f"[holdfast] {last['name']} ended ({f'exit code {code}' if code is not None else last['reason']})",
        flush=True,
    )
    return 0


# ---------------------------------------------------------------- rename, end, forget


def rename_parser(p: ArgumentParser) -> None:
    p.add_argument("session", metavar="SESSION")
    p.add_argument("name", metavar="NAME", help="the new name")
    p.add_argument("--json", action="store_true")


def rename(args: Namespace) -> int:
    return _say(
        args,
        link(args).request("rename", session=args.session, name=args.name),
        lambda r: f"{r['id']} is now {r['name']}",
    )


def end_parser(p: ArgumentParser) -> None:
    p.add_argument("session", metavar="SESSION", nargs="+")
    add_hold(p)
    p.add_argument("--json", action="store_true")
    p.description = "end everything that runs in a session: HUP, after 2 s TERM, after 3 more KILL, to all of its processes"


def end(args: Namespace) -> int:
    return _each(
        args,
        lambda link, session: link.request("end", wait_s=90, session=session, hold=args.hold),
        lambda r: (
            f"{r['name']} ended ({r['signal']}, {r['reason']}"
            + (f", {r['exit_code']})" if r["exit_code"] is not None else ")")
        ),
    )


def forget_parser(p: ArgumentParser) -> None:
    p.add_argument("session", metavar="SESSION", nargs="+")
    p.add_argument("--json", action="store_true")


def forget(args: Namespace) -> int:
    return _each(
        args,
        lambda link, session: link.request("forget", session=session),
        lambda r: f"{r['name']} ({r['id']}) is forgotten",
    )


def _each(
    args: Namespace,
    ask: Callable[[Link, str], dict[str, Any]],
    words: Callable[[dict[str, Any]], str],
) -> int:
    """All of them; one that fails does not spare the others, and its error is the command's."""
    connections: dict[str, Link] = {}  # by machine
    failed: HoldfastError | None = None
    for named in args.session:
        try:
            args.session, machine = named, named.partition("/")[0] if "/" in named else ""
            connection = connections.setdefault(machine, link(args))
            _say(args, ask(connection, named.partition("/")[2] if machine else named), words)
        except HoldfastError as e:
            if failed is not None and not args.json:
                print(f"holdfast: {e.message}", file=sys.stderr)
            failed = failed or e
    if failed is not None:
        raise failed
    return 0


def _say(args: Namespace, result: dict[str, Any], words: Callable[[dict[str, Any]], str]) -> int:
    if args.json:
        from holdfast.faces.cli.output import put_json

        put_json(result)
    else:
        print(words(result))
    return 0
