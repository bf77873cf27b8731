"""new, ls, attach, detach, rename, end, forget."""

from __future__ import annotations

import os
import sys
import time

from holdfast import home as homes
from holdfast.client.environ import CREDENTIAL, for_session
from holdfast.faces.cli.arguments import usage
from holdfast.faces.cli.connect import HOLD, home_here, link, operator_name
from holdfast.model.errors import HoldfastError, NotFound, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable

    from holdfast.client.link import Link
    from holdfast.model.jsontext import Json


# ---------------------------------------------------------------- new


def new_parser(p: ArgumentParser) -> None:
    usage("""
        [NAME]  letters, digits, '.', '_' and '-' (default: a generated name)
        existing=-A  attach if a session with that name exists
        --cwd DIR  directory to start in (default: this one)
        --env K=V...  set a variable in the session
        --size COLSxROWS  size of the session's terminal (default: the size of yours, or 80x24)
    """)(p)
    p.add_argument(
        "--contained",
        action="store_const",
        const=True,
        help="keep the session away from keys, the host and other sessions "
        "(default for agents and services)",
    )
    p.add_argument(
        "--plain",
        dest="contained",
        action="store_const",
        const=False,
        help="like a login shell, not sandboxed (default for people)",
    )
    usage("""
        --share PATH...  show a file or directory in the contained session; PATH:rw lets it write
            there
        --net host|own|none  network of the contained session: the machine's, its own, or none
            (default: contain.net of the configuration)
        --publish PORT...  let this machine's 127.0.0.1:PORT lead to the port inside (--net own)
        doors=--door ssh-agent|dbus|docker|display|gpu...  open a door of the contained session;
            with docker's there is no wall
        --keep-home  keep the contained session's home; `new` with the same name and this flag
            uses it again
    """)(p)
    usage("""
        --gate exec|input  what the policy judges: exec (every program that starts) or input (every
            command and line; default: exec where it costs nothing)
        --limit LIST  bounds of memory, processes, cpu and disk, for example
            memory=4G,processes=2000 (default: [limits] of the configuration, if contained)
        --reap never|evict|end  what the reaper may do with the idle session (default: as
            reaper.action of the configuration says)
        --clipboard  let programs write to your clipboard and to the clipboard of every viewer that
            allows it (OSC 52)
        --no-attach  do not attach
        --observe  attach to watch; your keys are not sent
        --json  print the session as JSON; does not attach
        command=[CMD...]  program and arguments, after -- (default: your shell)
    """)(p)


def new(args: Namespace) -> int:
    from holdfast.client import start

    environ = dict(os.environ)
    for item in args.env:
        key, equals, value = item.partition("=")
        if not key or not equals:
            raise Usage(f"--env {item[:60]!a} is not NAME=VALUE")
        environ[key] = value
    if args.name == "":
        raise Usage("the name is empty", "omit it to get a generated name")
    cwd = os.path.normpath(os.path.join(_cwd(), args.cwd)) if args.cwd else _cwd()
    umask = os.umask(0o077)
    os.umask(umask)
    attaching = not args.no_attach and not args.json and sys.stdin.isatty() and sys.stdout.isatty()
    connection = link(args)
    name, command, agent = args.name, args.command, os.environ.get("SSH_AUTH_SOCK")
    if connection.away is None:
        start.mark_stopped(connection.home, False)
    else:  # local directories and sockets have no meaning on that machine
        cwd, agent = (args.cwd if args.cwd and os.path.isabs(args.cwd) else ""), None
    given = sorted({item.partition("=")[0] for item in args.env})
    environ = for_session(environ, given, connection.away is not None)
    set_here: Json = {"given": given} if given else {}
    if args.gate:
        set_here["gate"] = args.gate
    if args.limit:
        set_here["limit"] = args.limit
    if args.clipboard:
        set_here["clipboard"] = True
    if args.reap:
        set_here["reap"] = args.reap
    set_here |= _tree_asked(args, connection.away is None)
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
    if not args.json and made.get("sees") and not made["existed"] and not attaching:
        from holdfast.faces.cli.output import clean

        print(f"holdfast: {clean(made['sees'])}", file=sys.stderr)
    if attaching:
        connection.once = None  # the key was for the new session
        return attach_to(
            connection,
            made["id"],
            args.observe,
            False,
            new=not made["existed"],
            clipboard=args.clipboard,
        )
    return _say(args, made, lambda made: made["id"])


def _tree_asked(args: Namespace, here: bool) -> Json:
    """What the flags say about the file tree of a contained session; only what was given."""
    share = list[str]()
    for text in args.share:
        path, _, mode = text.rpartition(":")
        path, mode = (path, f":{mode}") if mode in ("rw", "ro") and path else (text, "")
        if not os.path.isabs(path):
            if not here:
                raise Usage(f"--share {text[:60]!a}: the path on another machine is absolute")
            path = os.path.normpath(os.path.join(_cwd(), os.path.expanduser(path)))
        share.append(path + mode)
    if wrong := [number for number in args.publish if not 0 < number < 1 << 16]:
        raise Usage(f"--publish {wrong[0]} is not a port")
    asked = {
        "share": share,
        "doors": args.doors,
        "net": args.net,
        "publish": args.publish,
        "keep_home": args.keep_home,
    }
    return {name: value for name, value in asked.items() if value}


def _text_only(environ: dict[str, str]) -> dict[str, str]:
    return {k: v for k, v in environ.items() if k and "=" not in k}


def _cwd() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return os.path.expanduser("~")


def _size(text: str | None, attaching: bool) -> list[int] | None:
    if text is None and not attaching:
        return None
    if text is None:
        size = list(os.get_terminal_size())
    else:
        numbers = text.split("x")
        plain = text.isascii() and all(number.isdigit() for number in numbers)
        size = [int(number) for number in numbers] if plain and len(numbers) == 2 else []
    if size and all(2 <= number <= 1000 for number in size):
        return size
    if text is None:
        return None
    raise Usage(
        f"--size {text[:20]!a} is not COLSxROWS with numbers from 2 to 1000",
        "for example --size 120x40",
    )


# ---------------------------------------------------------------- ls


ls_parser = usage("""
    machine=[MACHINE/]  list the sessions of this machine; write a slash after its name
    -a --all  ended sessions too
    -l --local  only the sessions of this machine
    --cost  what each session costs: memory, processor time, disk, since when and for whom
    -e --everywhere  wait for every known machine, however long it takes (default: 3 seconds)
    --json
""")

MACHINES_WAIT_S = 3.0  # for the answers of known machines, beside the local list


def ls(args: Namespace) -> int:
    if args.machine is not None and not args.machine.endswith("/"):
        raise Usage(
            f"ls {args.machine[:40]!a}: write a slash after the name of a machine",
            f"`holdfast ls {args.machine[:40]}/`; `holdfast machines` lists them",
        )
    if args.machine is not None or args.local or os.environ.get(CREDENTIAL):
        return _put_listing(args, *_listed(args))
    if not os.path.exists(homes.resolve(os.environ).machines):  # the usual case, and quick
        return _put_listing(args, *_listed(args))
    import json

    from holdfast.faces.cli import fleet

    asked: Json = {"all": args.all, **({"cost": True} if args.cost else {})}
    there = fleet.Everywhere(args, lambda one: one.request("ls", **asked)["sessions"])
    until = time.monotonic() + MACHINES_WAIT_S
    sessions, where = _listed(args)
    left = None if args.everywhere else max(0.0, until - time.monotonic())
    found = there.asked(left)
    elsewhere = [
        # People see the name that every command takes.
        {**s, "machine": name, "name": s["name"] if args.json else f"{name}/{s['name']}"}
        for name, some in found.answers.items()
        for s in some
    ]
    _put_listing(args, [*sessions, *elsewhere], where)
    for machine, why in found.unreachable.items():
        if args.json:
            told = {"unreachable": {"machine": machine, "why": why}}
            print(json.dumps(told), file=sys.stderr)
        else:
            print(f"{machine} is unreachable: {why}")
    return 0


def _listed(args: Namespace) -> tuple[list[Json], str]:
    """The sessions of one machine, and how `new` names that machine."""
    connection = link(args)
    cost: Json = {"cost": True} if args.cost else {}
    sessions: list[Json] = connection.request("ls", all=args.all, **cost)["sessions"]
    if connection.away is None:
        return sessions, ""
    # Show the local name of the machine, which users type.
    name = connection.away.name
    return [{**one, "machine": name} for one in sessions], f" {name}/NAME"


def _put_listing(args: Namespace, sessions: list[Json], where: str) -> int:
    from holdfast.faces.cli import output
    from holdfast.faces.cli.recovery import residency

    if args.json:
        output.put_json([output.timed(s, s["created"]) for s in sessions])
    elif not sessions:
        print(f"no sessions; `holdfast new{where}` makes one")
    else:
        print(residency.costs(sessions) if args.cost else listing(sessions))
    return 0


def listing(sessions: list[Json]) -> str:
    from holdfast.faces.cli import output
    from holdfast.faces.cli.recovery import residency

    rows = []
    for s in sessions:
        state = s["state"] if s["exit_code"] is None else f"{s['state']} ({s['exit_code']})"
        if s["state"] == "ended" and s["exit_code"] is None:
            state = s.get("reason") or "ended"
        state = residency.saved(s) or state
        if s.get("stopped"):
            state += f" (stopped: {', '.join(one['operator'] for one in s['stopped'])})"
        turn = s["turn"]["holder"] if s["turn"] else "-"
        if s["turn"] and s["turn"].get("seized"):
            turn += " (seized)"
        who = ",".join(sorted({o["operator"] for o in s["operators"]})) or "-"
        age = output.duration(time.time() - s["created"]) if s["created"] else "-"
        size = f"{s['size']['cols']}x{s['size']['rows']}" if s["size"] else "-"
        kept, idle = s["output"], output.duration(s["idle_s"])
        ring = output.size(kept["end"] - kept["start"]) if kept else "-"
        row = (s["id"], s["name"], state, s["liveness"]["process"], who, turn, age, idle, size)
        rows.append((*row, ring, s["machine"]))
    head = ("ID", "NAME", "STATE", "LIVENESS", "OPERATORS", "TURN", "AGE", "IDLE", "SIZE")
    least = ("MACHINE", "LIVENESS", "OUTPUT", "AGE", "SIZE", "OPERATORS")
    return residency.explained(output.table((*head, "OUTPUT", "MACHINE"), rows, least), sessions)


# ---------------------------------------------------------------- attach


attach_parser = usage("""
    [SESSION]  the session: name, id, or a unique beginning (default: the one you used last,
        also on another machine)
    --observe  watch only: your keys are not sent
    --take  seize the turn at once
    --scrollback LINES  lines of history to show first
    --clipboard  let the session's programs write to your clipboard (OSC 52), if the session was
        made with --clipboard
    --json  errors as JSON
""")


def attach(args: Namespace) -> int:
    from holdfast.home import last_attached

    home, operator = home_here(), operator_name(args)
    last = None if args.session else last_attached.elsewhere(home, operator)
    if last is not None:
        args.session = last
        try:
            return _attach(args)
        except NotFound:  # the session or the machine is gone
            last_attached.note(home, operator, None)
            args.session = None
    return _attach(args)


def _attach(args: Namespace) -> int:
    from holdfast.home import last_attached

    operator, connection = operator_name(args), link(args)
    session, away = args.session or _default(connection), connection.away

    def began(id: str) -> None:
        place = None if away is None else f"{away.name}/{id}"
        last_attached.note(connection.home, operator, place)

    return attach_to(
        connection,
        session,
        args.observe,
        args.take,
        scrollback=args.scrollback,
        clipboard=args.clipboard,
        began=began,
    )


def _default(connection: Link) -> str:
    """The session that this operator used last, else the newest one without a client."""
    listed = connection.request("ls")
    if last := listed.get("last"):
        return str(last)
    sessions = [s for s in listed["sessions"] if s["state"] in ("live", "detached")]
    if not sessions:
        where = "" if connection.away is None else f" {connection.away.name}/main"
        raise NotFound("there is no session to attach to", f"`holdfast new{where}` makes one")
    return str(max(sessions, key=lambda s: (s["state"] == "detached", s["created"]))["id"])


def attach_to(
    connection: Link,
    session: str,
    observe: bool,
    take: bool,
    new: bool = False,
    scrollback: int | None = None,
    clipboard: bool = False,
    began: Callable[[str], object] = str,
) -> int:
    from holdfast.client.attach.loop import Attachment
    from holdfast.client.attach.prefix import Prefix
    from holdfast.core.session.keys import prefix_key
    from holdfast.home import config

    values = {v.key: v.value for v in config.load(connection.home.config)}
    prefix = values["attach.prefix"]
    lines = values["attach.scrollback"] if scrollback is None else max(0, scrollback)
    attachment = Attachment(
        connection,
        session,
        observe,
        take,
        Prefix(bytes([prefix_key(prefix)]), prefix),
        lines,
        os.environ.get("SSH_AUTH_SOCK") if connection.away is None else None,
        clipboard or values["attach.clipboard"],
        values["attach.title"],
        values["attach.others"],
    )
    state = attachment.state
    try:
        attachment.begin()
    except NotFound:
        if not new:
            raise
        return _ended_already(connection, session)
    began(state.session)
    if values["attach.status"]:
        what = "attached to the new session" if new else "attached to"
        what = "observing" if state.observe else what
        print(
            f"[holdfast] {what} {state.name} ({state.session}); "
            f"{prefix} ? for help, {prefix} d to detach",
            flush=True,
        )
        from holdfast.faces.cli.output import clean

        for line in (state.says, state.sees):
            if line:
                print(f"[holdfast] {clean(line)}", flush=True)
        if clipboard and attachment.clipboard_refused:
            print("[holdfast] this session was not made with --clipboard", flush=True)
        if new:  # the line above is now in the scrollback, where a new user does not look
            state.notices.later = (
                f"this is {state.name}; {prefix} d leaves it running, {prefix} ? for help"
            )
    elif new:
        print(state.session, flush=True)
    message, code = attachment.run()
    if message and (values["attach.status"] or code) and attachment.term.takes():
        try:
            os.write(1, f"{message}\n".encode("utf-8", "backslashreplace"))
        except OSError:  # the terminal may be gone
            pass
    return code


def _ended_already(connection: Link, session: str) -> int:
    """Show the last screen and the end of a session that ended before the attach."""
    last = connection.request("view", session=session)
    print("\n".join(last["lines"]).rstrip("\n"))
    code = last["exit_code"]
    why = f"exit code {code}" if code is not None else last["reason"]
    print(f"[holdfast] {last['name']} ended ({why})", flush=True)
    return 0


# ---------------------------------------------------------------- detach, rename, end, forget


detach_parser = usage("""
    detach your own clients from a session, or those of other operators; the session keeps running

    [SESSION]  the session: name, id, or a unique beginning (default: the one around this command,
        or the one you used last)
    --client ID  only this client; `holdfast who` shows the ids
    --others  every client except the one you use; those of other operators need the right
        turn.seize
    --json
""")


def detach(args: Namespace) -> int:
    if args.client is not None and args.others:
        raise Usage("--client and --others exclude each other")
    connection = link(args)
    inside = os.environ.get("HOLDFAST_SESSION") if connection.away is None else None
    session = args.session or inside or _default(connection)
    return _say(
        args,
        connection.request("send_away", session=session, client=args.client, others=args.others),
        _detached_words,
    )


def _detached_words(result: Json) -> str:
    count, of = len(result["detached"]), ", ".join(sorted({*result["detached"]}))
    if not count:
        return f"no such client is attached to {result['name']}: nothing was detached"
    clients = f"{count} client{'s' if count > 1 else ''} of {of}"
    return f"detached {clients} from {result['name']}; it keeps running"


rename_parser = usage("""
    SESSION
    NAME  the new name
    --json
""")


def rename(args: Namespace) -> int:
    return _say(
        args,
        link(args).request("rename", session=args.session, name=args.name),
        lambda r: f"{r['id']} is now {r['name']}",
    )


end_parser = usage(f"""
    end everything that runs in a session: its processes get HUP, after 2 s TERM, after 3 more KILL

    SESSION...
    --hold S  {HOLD}
    --json
""")


def end(args: Namespace) -> int:
    from holdfast.client.attach.farewell import changed_tool_files

    return _each(
        args,
        lambda link, session: link.request("end", wait_s=90, session=session, hold=args.hold),
        lambda r: (
            f"{r['name']} ended ({r['signal']}, {r['reason']}"
            + (f", {r['exit_code']})" if r["exit_code"] is not None else ")")
            + changed_tool_files(r.get("tool_files"))
        ),
    )


forget_parser = usage("""
    SESSION...
    --json
""")


def forget(args: Namespace) -> int:
    stay = "; its files stay in {files}: remove them yourself"
    return _each(
        args,
        lambda link, session: link.request("forget", session=session),
        lambda r: ("{name} ({id}) is forgotten" + stay * ("files" in r)).format(**r),
    )


def _each(args: Namespace, ask: Callable[[Link, str], Json], words: Callable[[Json], str]) -> int:
    """Apply the action to every session, even after a failure; raise the first error at the end."""
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


def _say(args: Namespace, result: Json, words: Callable[[Json], str]) -> int:
    if args.json:
        from holdfast.faces.cli.output import put_json

        put_json(result)
    else:
        print(words(result))
    return 0
