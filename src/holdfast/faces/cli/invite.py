"""invite, join: somebody comes in with a one-time code. What is asked on a terminal goes to stderr, so that output stays output."""

from __future__ import annotations

import os
import sys
import time
from functools import cache
from typing import TYPE_CHECKING, Any

from holdfast.core.scope import span
from holdfast.faces.cli.connect import link
from holdfast.faces.cli.operators import ask_twice, lasting
from holdfast.faces.cli.output import clean, duration, put_json, table
from holdfast.model import address, rights
from holdfast.model.errors import Refused, Usage
from holdfast.model.ids import check_name
from holdfast.model.limits import INVITATION_GUESSES, INVITATION_S, INVITATION_S_MAX

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from holdfast.client.link import Link
    from holdfast.core.joincode import Elsewhere

ACTS = ("ls", "revoke", "accept", "refuse")


# ---------------------------------------------------------------- invite


def invite_parser(p: ArgumentParser) -> None:
    p.add_argument(
        "act",
        nargs="?",
        choices=ACTS,
        help="ls: the invitations there are; revoke, accept, refuse: one of them",
    )
    p.add_argument(
        "id", nargs="?", metavar="ID", help="the invitation: the first four characters of its code"
    )
    p.add_argument(
        "--rights",
        metavar="LIST",
        help="what it gives: read, execute, admin, or single rights (default: read)",
    )
    p.add_argument("--session", metavar="SESSION", help="only on this session")
    p.add_argument(
        "--expires",
        metavar="D",
        help="the rights end after this long: 30m, 8h, 7d (default: they do not)",
    )
    p.add_argument(
        "--within",
        metavar="D",
        help=f"the code counts for this long (default: {INVITATION_S // 60}m, at most {INVITATION_S_MAX // 86400}d)",
    )
    p.add_argument(
        "--kind",
        choices=("human", "agent", "service"),
        default="human",
        help="what the newcomer is (default: human)",
    )
    p.add_argument(
        "--device",
        nargs="?",
        const="",
        metavar="NAME",
        help="not somebody else: another device of yours, called NAME or as it says itself, with your rights",
    )
    p.add_argument(
        "--of",
        metavar="OPERATOR",
        help="with --device: another device of this operator, which needs `manage`",
    )
    p.add_argument("--confirm", action="store_true", help="ask here before somebody is let in")
    p.add_argument(
        "--no-wait",
        action="store_true",
        help="print the code and return; otherwise a terminal, or --confirm, waits for who joins",
    )
    p.add_argument(
        "--json",
        action="store_true",
        help="JSON: {code, url, expires, ...}; with --confirm then one line for each who asks and for the outcome",
    )
    p.description = (
        f"makes a code that lets one newcomer in, once. Whoever has it gets in;\n{INVITATION_GUESSES} wrong ones and it is void. It gives at most what you may hand on\n"
        "(you need `manage` and `grant`, as for `grant`), and nothing any more if you\nare revoked before it is used.\n\n"
        "With --confirm this command stays and asks `y` or `n` when somebody comes. A\nscript answers with a line on stdin (its end refuses), or says --no-wait and\n"
        "decides later: `holdfast invite accept ID`, `holdfast invite refuse ID`."
    )


def invite(args: Namespace) -> int:
    if args.act is not None:
        return _manage(args)
    if args.device is not None and (args.rights or args.session or args.expires):
        raise Usage(
            "a device has the rights of its operator",
            "leave --rights, --session and --expires out; `holdfast grant` changes them for all devices",
        )
    if args.device is None and args.of is not None:
        raise Usage("--of goes with --device")
    return make(link(args), args)


def make(connection: Link, args: Namespace) -> int:
    """A new invitation, shown; also for another device."""
    from holdfast.client import pairing
    from holdfast.core import joincode

    lasts = INVITATION_S if args.within is None else int(lasting(args.within))
    wishes: dict[str, Any] = {"rights": [], "device": args.device, "of": args.of}
    if args.device is None:
        expires = None if args.expires is None else int(time.time() + lasting(args.expires))
        wishes = {
            "rights": sorted(
                rights.parse(args.rights or "read")
                - (rights.MACHINE_WIDE if args.session else frozenset())
            ),
            "session": args.session,
            "expires": expires,
        }
    code, made = pairing.invite(
        connection, **wishes, kind=args.kind, confirm=args.confirm, lasts=lasts
    )
    reached = pairing.reached(made.pop("elsewhere", None))
    url = joincode.url(code, pairing.machine_of(connection), reached)
    waits = not args.no_wait and (args.confirm or (sys.stdout.isatty() and not args.json))
    if args.json:
        put_json(
            {
                "code": code.show(),
                "url": url,
                "relays": [door for door, _ in reached.doors] if reached else [],
                **{
                    k: v
                    for k, v in made.items()
                    if k not in ("seen", "asks", "joined", "why", "guesses")
                },
            }
        )
    else:
        afar = reached is not None and not all(
            address.loopback(address.parsed(door).hostname or "") for door, _ in reached.doors
        )
        if afar and sys.stdout.isatty():
            _picture(url)
        if made["of"] and reached is None:
            print(
                "holdfast: this machine is connected to no relay, so no other one can reach it: `holdfast host connect RELAY_URL`",
                file=sys.stderr,
            )
        print(
            _how(f"holdfast join {code.show()}", url, reached, made, afar)
            + (
                f"makes      another device of {made['of']}"
                + (f", {made['device']}" if made["device"] else "")
                if made["of"]
                else f"lets in    one newcomer ({args.kind})"
            )
            + f"{', after you were asked' if args.confirm else ''}\n"
            f"with       {_what(made, args.session)}\n"
            f"counts     once, for {span(made['expires'] - made['made'])}"
            + (f"\nthrough    {', '.join(door for door, _ in reached.doors)}" if reached else "")
            + ("" if made["of"] and reached is None else f"\nas a link  {url}")
        )
    sys.stdout.flush()
    return _wait(connection, args, made) if waits else 0


def _how(join: str, url: str, reached: Elsewhere | None, made: dict[str, Any], afar: bool) -> str:
    """What to type, and where."""
    name, ways = made["of"] or "NAME", ""
    if reached is not None:
        where = (
            "on the other device"
            if made["of"]
            else "on another machine"
            if afar
            else "from another account of this machine"
        )
        ways = f"{where}, by typing or by the link:\n\n  {join} --relay {reached.doors[0][0]} --as {name}\n  holdfast join '{url}' --as {name}\n\n"
    if not made["of"]:
        return f"{ways}on another terminal of this machine:\n\n  {join} --as {name}\n\n"
    return ways or f"on the other device, when it is:\n\n  {join} --relay RELAY_URL --as {name}\n\n"


def _picture(url: str) -> None:
    """The link to be scanned, if it fits on the terminal."""
    import segno

    made = segno.make(url, error="l", micro=False)
    if made.symbol_size()[0] <= os.get_terminal_size().columns:
        made.terminal(compact=True)


def _wait(connection: Link, args: Namespace, made: dict[str, Any]) -> int:
    """Until somebody has come in or nobody can any more."""
    id, now = made["id"], made
    if not args.json:
        print(
            "\nwaiting for somebody to join; Ctrl-C leaves, and the code still counts"
            + (f"\n(`holdfast invite accept {id}` then lets in who asks)" if args.confirm else ""),
            file=sys.stderr,
        )
    while now["state"] == "open":
        if now["asks"]:
            now = _decide(connection, args, now)
        else:
            now = connection.request("invite.wait", wait_s=None, id=id, seen=now["seen"])
    if args.json:
        put_json({"event": now["state"], "id": id, "joined": now["joined"], "why": now["why"]})
    elif now["state"] == "used":
        print(_came(now))
    else:
        print(f"nobody has joined: the invitation {_ended(now)}")
    return 0 if now["state"] == "used" else 4


def _came(now: dict[str, Any]) -> str:
    return (
        f"{now['device']} is a device of {now['joined']} from now on"
        if now["of"]
        else f"{now['joined']} has joined"
    )


def _decide(connection: Link, args: Namespace, now: dict[str, Any]) -> dict[str, Any]:
    """Somebody waits at the door."""
    who = now["asks"]
    if args.json:
        put_json({"event": "asks", "id": now["id"], **who})
        sys.stdout.flush()
    else:
        print(
            f"{clean(who['name'])} ({who['kind']}) asks to {'add a device' if now['of'] else 'come in'}; fingerprint of its key: {who['fingerprint']}\nlet in? [y/n] ",
            end="",
            file=sys.stderr,
            flush=True,
        )
    accept = _yes()
    try:
        after = connection.request("invite.decide", id=now["id"], key=who["key"], accept=accept)
    except Refused as e:
        if not args.json:
            print(e.message, file=sys.stderr)
        after = connection.request("invite.wait", id=now["id"], seen=None)
    return after


def _yes() -> bool:
    """The line that was answered; a terminal is asked until it is one of the two."""
    try:
        answer = sys.stdin.readline().strip().lower()
        while answer not in ("y", "yes", "n", "no") and sys.stdin.isatty():
            print("y or n? ", end="", file=sys.stderr, flush=True)
            line = sys.stdin.readline()
            if not line:
                break
            answer = line.strip().lower()
    except KeyboardInterrupt:
        print(file=sys.stderr)
        raise
    return answer in ("y", "yes")


def _manage(args: Namespace) -> int:
    if (args.id is None) != (args.act == "ls"):
        raise Usage(
            f"invite {args.act} needs an ID" if args.id is None else "invite ls takes no ID",
            "`holdfast invite ls` lists them",
        )
    connection = link(args)
    if args.act == "ls":
        found = connection.request("invite.ls")["invitations"]
        if args.json:
            put_json([_listed(one) for one in found])
        else:
            names = {s["id"]: s["name"] for s in connection.request("ls")["sessions"]}
            print(
                table(
                    ("ID", "STATE", "BY", "GIVES", "CODE COUNTS", "WHO"),
                    [_row(one, names) for one in found],
                )
            )
        return 0
    if args.act == "revoke":
        result, done = connection.request("invite.revoke", id=args.id), "revoked"
    else:
        one = connection.request("invite.wait", id=args.id, seen=None)
        if not one["asks"]:
            raise Refused(
                "nobody asks to come in with this invitation", "`holdfast invite ls` shows who does"
            )
        result = connection.request(
            "invite.decide", id=args.id, key=one["asks"]["key"], accept=args.act == "accept"
        )
        done = "used" if args.act == "accept" else "refused"
    if result["state"] != done:
        raise Refused(
            f"the invitation {_ended(result)}",
            "`holdfast operator revoke NAME` takes back what it gave" if result["joined"] else "",
        )
    if args.json:
        put_json(_listed(result))
    else:
        print(_came(result) if done == "used" else f"invitation {result['id']} {_ended(result)}")
    return 0


def _listed(one: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in one.items() if k != "seen"}


def _row(one: dict[str, Any], names: dict[str, str]) -> tuple[str, ...]:
    who = one["joined"] or (f"{one['asks']['name']} asks" if one["asks"] else "-")
    left = duration(max(0.0, one["expires"] - time.time())) if one["state"] == "open" else "-"
    return (
        one["id"],
        one["state"],
        one["by"],
        (
            f"another device of {one['of']}"
            if one["of"]
            else _what(one, names.get(one["scope"].get("session", "")))
        )
        + (", asks first" if one["confirm"] else ""),
        left,
        who,
    )


def _ended(one: dict[str, Any]) -> str:
    how = {
        "used": f"was used by {one['joined']}",
        "expired": "has expired",
        "revoked": "was revoked",
        "refused": "was refused",
        "void": "is void",
        "open": "is open",
    }
    return how[one["state"]] + (f": {one['why']}" if one["why"] and one["state"] == "void" else "")


def _what(one: dict[str, Any], session: str | None = None) -> str:
    """The rights in few words; a bundle is called so on a session, too, where what concerns the machine is left out."""
    scope = one["scope"]
    gives = set(one["rights"])
    if one.get("of") and not gives:
        return "the rights of that operator" if "guesses" in one else "no rights"
    shown = (
        min((rights.show(gives | more) for more in (set(), {"new"}, rights.MACHINE_WIDE)), key=len)
        if "session" in scope
        else rights.show(gives)
    )
    return (
        shown
        + (f" on {session or scope['session']}" if "session" in scope else "")
        + (
            f" until {time.strftime('%Y-%m-%d %H:%M', time.localtime(scope['expires']))}"
            if "expires" in scope
            else ""
        )
    )


def _a(kind: str) -> str:
    return ("an " if kind == "agent" else "a ") + kind


# ---------------------------------------------------------------- join


def join_parser(p: ArgumentParser) -> None:
    p.add_argument(
        "code",
        nargs="?",
        metavar="CODE|URL",
        help="as `holdfast invite` showed it; asked for, or read from stdin, if it is left out",
    )
    p.add_argument(
        "--relay",
        metavar="URL",
        help="where the machine waits for this code, if it is another one; a link says that itself",
    )
    p.add_argument(
        "--ca", metavar="FILE", help="trust these certificates for TLS, instead of the system's"
    )
    p.add_argument(
        "--passphrase", action="store_true", help="protect the new key; asks for the passphrase"
    )
    p.add_argument(
        "--device",
        metavar="NAME",
        default="",
        help="what this device is to be called there (default: the inviter's word, or this machine's name)",
    )
    p.add_argument(
        "--new-key",
        action="store_true",
        help="make another key for that machine, because the one there is was revoked there",
    )
    p.add_argument("--json", action="store_true")
    p.description = (
        "comes in with a one-time code, under the name of --as. The key of that name is\nmade if there is none; from then on `--as NAME` acts with it. A mistyped\n"
        "character is noticed here; a wrong code counts against the invitation."
    )


def _file(path: str | None) -> str | None:
    """As it can be found from anywhere: it is used again for every connection."""
    return os.path.abspath(path) if path else None


def join(args: Namespace) -> int:
    from holdfast.client import pairing
    from holdfast.core import joincode

    text = args.code
    if text is None:
        if sys.stdin.isatty():
            print("code: ", end="", file=sys.stderr, flush=True)
        text = sys.stdin.readline(joincode.URL_CHARS + 1)
    code, machine = joincode.read(text)
    connection, elsewhere = link(args), joincode.elsewhere(text)
    if elsewhere is not None:
        pairing.stranger(connection, code, elsewhere, _file(args.ca))
    elif args.relay is not None:
        address.parsed(args.relay)
        pairing.strangers(connection, code, args.relay, _file(args.ca))

    if args.device:
        check_name(args.device)
    if args.new_key:
        pairing.another_key(connection)

    def told(event: dict[str, Any]) -> None:
        if event.get("event") == "waiting" and not args.json:
            print(
                f"waiting for {clean(str(event.get('by')))} to let {connection.operator} in; fingerprint of your key: {event.get('fingerprint')}",
                file=sys.stderr,
                flush=True,
            )

    result = pairing.join(
        connection, code, machine, told, cache(ask_twice) if args.passphrase else None, args.device
    )
    if connection.away is not None:
        result["as"] = pairing.keep_machine(connection, str(result["host"])).name
    if args.json:
        put_json(result)
        return 0
    seen = [
        s["name"]
        for s in connection.request("ls")["sessions"]
        if s["id"] == result["scope"].get("session")
    ]
    session = seen[0] if seen else None
    device = f"{result['name']} is in{' already' if result['again'] else ''}: {_a(result['kind'])}"
    if result.get("of"):
        device = f"this is {'already ' if result['again'] else ''}{result['device']}, a device of {result['name']},"
    alone = (
        connection.away is not None
        and pairing.only_one(connection.home, result["as"])
        and not os.environ.get("HOLDFAST_AS")
    )
    acting = "" if alone else f"--as {result['name']} "
    print(
        f"{device} on {clean(result['host'])}, with {_what(result, session)} from {result['by']}\n"
        f"  holdfast {acting}"
        + (
            f"attach {result['as']}/{session or ''}"
            if connection.away is not None
            else f"attach {session}"
            if session
            else "ls"
        )
    )
    return 0
