"""invite, join: let a person or agent in with a one-time code. Questions go to stderr."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from holdfast import home as homes
from holdfast.core.people.scope import span
from holdfast.faces.cli.arguments import usage
from holdfast.faces.cli.connect import link
from holdfast.faces.cli.operators import ask_twice, lasting
from holdfast.faces.cli.output import clean, drop_typed, duration, put, put_json, table
from holdfast.model import address, rights
from holdfast.model.errors import NotAllowed, Refused, Usage
from holdfast.model.ids import check_name
from holdfast.model.limits import INVITATION_GUESSES, INVITATION_S, INVITATION_S_MAX

if TYPE_CHECKING:
    from argparse import Namespace

    from holdfast.client.link import Link
    from holdfast.core.people.join_code import Code
    from holdfast.model.jsontext import Json

# ---------------------------------------------------------------- invite


SAME_PERSON = (
    "\n\nfor another machine or device of your own, with your name and rights:"
    " `holdfast device add`"
)

invite_parser = usage(f"""
    make a code that admits one newcomer, once. Anyone who has the code can use it; after
    {INVITATION_GUESSES} wrong guesses it is void. It gives at most the rights that you may grant
    (you need `manage` and `grant`), and none if you are revoked before it is used.

    With --confirm this command waits and asks `y` or `n` for each newcomer. A script answers with a
    line on stdin (its end refuses), or uses --no-wait and decides later: `holdfast invite accept
    ID`, `holdfast invite refuse ID`.

    act=[ls|revoke|accept|refuse]  ls: list invitations; revoke, accept, refuse: act on one of them
    [ID]  the invitation: the first four characters of its code
    --rights LIST  the rights to give: read, execute, admin, or single rights (default: read)
    --session SESSION  only on this session
    --expires D  the rights expire after this long: 30m, 8h, 7d (default: never)
    --within D  how long the code is valid (default: {INVITATION_S // 60}m, at most
        {INVITATION_S_MAX // 86400}d)
    --kind human|agent|service=human  the kind of the newcomer (default: human)
    --device [NAME]  invite another device of yours, with your rights, instead of a newcomer; NAME
        names it
    --of OPERATOR  with --device: a device of this operator (needs `manage`)
    --confirm  ask here before the newcomer is admitted
    --no-wait  print the code and return (default on a terminal or with --confirm: wait)
    --json  JSON: {{code, url, expires, ...}}; with --confirm one line per request and for the
        outcome
""")


def invite(args: Namespace) -> int:
    if args.act is not None:
        return _manage(args)
    if args.device is not None and (args.rights or args.session or args.expires):
        raise Usage(
            "a device has the rights of its operator",
            "omit --rights, --session and --expires; `holdfast grant` changes them for all devices",
        )
    if args.device is None and args.of is not None:
        raise Usage("--of needs --device")
    return make(link(args), args)


def make(connection: Link, args: Namespace) -> int:
    """Make an invitation for a newcomer or a device, and show the code."""
    from holdfast.client import pairing
    from holdfast.core.people import join_code

    lasts = INVITATION_S if args.within is None else int(lasting(args.within))
    wishes: Json = {"rights": [], "device": args.device, "of": args.of}
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
    doors = [door for door, _ in reached.doors] if reached else []
    afar = [door for door in doors if not address.on_loopback(door)]
    url = join_code.url(code, pairing.machine_of(connection), reached)
    waits = not args.no_wait and (args.confirm or (sys.stdout.isatty() and not args.json))
    if args.json:
        put_json(
            {
                "code": code.show(),
                "url": url,
                "relays": doors,
                "reachable": bool(afar),
                **{
                    k: v
                    for k, v in made.items()
                    if k not in ("seen", "asks", "joined", "why", "guesses")
                },
            }
        )
    else:
        if afar and sys.stdout.isatty():
            _picture(url)
        print(
            "".join(_how(connection, f"holdfast join {code.show()}", url, doors, made["of"]))
            + (
                f"makes      another device of {made['of']}"
                + (f", {made['device']}" if made["device"] else "")
                if made["of"]
                else f"admits     one newcomer ({args.kind})"
            )
            + f"{', after you confirm' if args.confirm else ''}\n"
            f"with       {_what(made, args.session)}\n"
            f"valid      once, for {span(made['expires'] - made['made'])}"
            + (f"\nthrough    {', '.join(afar)}" if afar else "")
            + ("" if made["of"] and not doors else f"\nas a link  {url}")
            + ("" if made["of"] or args.kind != "human" else SAME_PERSON)
        )
    sys.stdout.flush()
    return _wait(connection, args, made) if waits else 0


def _how(connection: Link, join: str, url: str, doors: list[str], of: str | None) -> Iterator[str]:
    """The commands to type, and where."""
    name, afar = of or "NAME", bool(doors) and not address.on_loopback(doors[0])
    other = "on the other device" if of else "on another machine"
    if doors:
        yield (
            f"{other if afar else 'from another account of this machine'}, "
            "by typing or by the link:\n\n"
            f"  {join} --relay {shlex.quote(doors[0])} --as {name}\n"
            f"  holdfast join '{url}' --as {name}\n\n"
        )
    if not of:
        yield f"on another terminal of this machine:\n\n  {join} --as {name}\n\n"
    if not afar:
        yield from _no_relay(connection, doors)
        yield f"{other}, once a relay leads here:\n\n  {join} --relay RELAY_URL --as {name}\n\n"
    if of and not afar:
        yield (
            f"{other} without a relay, if ssh leads here:\n\n"
            f"  holdfast host connect ssh://{os.uname().nodename}\n\n"
        )


def _no_relay(connection: Link, doors: list[str]) -> Iterator[str]:
    """Why no other machine reaches this one, and the way to change that."""
    lines: list[Json] = []
    with contextlib.suppress(NotAllowed):  # an inviter need not see the relays
        lines = connection.request("relays")["relays"]
    lines = [one for one in lines if not address.on_loopback(one["url"])]
    only = f"its relay {doors[0]} is on loopback" if doors else "it has no relay"
    why = "no relay has registered it" if lines else only
    yield f"no other machine can reach this one: {why}\n"
    for one in lines:
        yield clean(f"  {one['url']}: {one['state']}, {one['detail'] or 'no answer yet'}") + "\n"
    yield (
        "  holdfast host connect RELAY_URL --token -     connects it to a relay\n"
        "  holdfast relay serve --listen 0.0.0.0:8443    runs a relay that both sides reach\n\n"
    )


def _picture(url: str) -> None:
    """The link as a QR code, if the terminal is large enough."""
    import segno

    made = segno.make(url, error="l", micro=False)
    if made.symbol_size()[0] <= os.get_terminal_size().columns:
        made.terminal(compact=True)


def _wait(connection: Link, args: Namespace, made: Json) -> int:
    """Wait until a newcomer has joined or the invitation has ended."""
    id, now = made["id"], made
    if not args.json:
        print(
            "\nwaiting for the newcomer; Ctrl-C leaves, and the code stays valid"
            + (
                f"\n(`holdfast invite accept {id}` then admits the newcomer)"
                if args.confirm
                else ""
            ),
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
        print(f"no newcomer joined: the invitation {_ended(now)}")
    return 0 if now["state"] == "used" else 4


def _came(now: Json) -> str:
    return (
        f"{now['device']} is now a device of {now['joined']}"
        if now["of"]
        else f"{now['joined']} has joined"
    )


def _decide(connection: Link, args: Namespace, now: Json) -> Json:
    """Ask whether to admit the waiting newcomer."""
    who = now["asks"]
    if args.json:
        put_json({"event": "asks", "id": now["id"], **who})
        sys.stdout.flush()
    else:
        print(
            f"{clean(who['name'])} ({who['kind']}) asks to "
            f"{'add a device' if now['of'] else 'join'}; "
            f"fingerprint of its key: {who['fingerprint']}",
            file=sys.stderr,
        )
        drop_typed(sys.stderr)
        print("admit? [y/n] ", end="", file=sys.stderr, flush=True)
    accept = _yes()
    try:
        after = connection.request("invite.decide", id=now["id"], key=who["key"], accept=accept)
    except Refused as e:
        if not args.json:
            print(e.message, file=sys.stderr)
        after = connection.request("invite.wait", id=now["id"], seen=None)
    return after


def _yes() -> bool:
    """The answer on stdin; on a terminal, ask until the answer is y or n."""
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
                "no newcomer waits at this invitation",
                "`holdfast invite ls` shows the waiting ones",
            )
        result = connection.request(
            "invite.decide", id=args.id, key=one["asks"]["key"], accept=args.act == "accept"
        )
        done = "used" if args.act == "accept" else "refused"
    if result["state"] != done:
        raise Refused(
            f"the invitation {_ended(result)}",
            "`holdfast operator revoke NAME` withdraws its rights" if result["joined"] else "",
        )
    said = _came(result) if done == "used" else f"invitation {result['id']} {_ended(result)}"
    return put(args, _listed(result), said)


def _listed(one: Json) -> Json:
    return {k: v for k, v in one.items() if k != "seen"}


def _row(one: Json, names: dict[str, str]) -> tuple[str, ...]:
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


def _ended(one: Json) -> str:
    how = {
        "used": f"was used by {one['joined']}",
        "expired": "has expired",
        "revoked": "was revoked",
        "refused": "was refused",
        "void": "is void",
        "open": "is open",
    }
    return how[one["state"]] + (f": {one['why']}" if one["why"] and one["state"] == "void" else "")


def _what(one: Json, session: str | None = None) -> str:
    """The rights in few words.

    On a session, the name of a bundle stands for the bundle without the machine's rights.
    """
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


join_parser = usage("""
    join with a one-time code, under the name given by --as. If there is no key of that name, it is
    made; from then on `--as NAME` acts with it. A mistyped character is noticed here; a wrong code
    counts against the invitation.

    `join ssh://[USER@]BOX[:PORT]` needs no code: it adds this machine as a device of your account
    on BOX, through the system's ssh, which must not ask for a password.

    code=[CODE|URL]  the code or link from `holdfast invite`, or ssh://BOX (default: asked for, or
        read from stdin)
    --relay URL  the relay where another machine waits for this code; a link contains it
    --ca FILE  trust these certificates for TLS instead of the system's
    --passphrase  protect the new key; asks for the passphrase
    --device NAME  the name of this device there (default: the inviter's choice, or this machine's
        name)
    --new-key  make a second key for that machine, because the first was revoked there
    --json
""")


def _file(path: str | None) -> str | None:
    """An absolute path, because every later connection uses the path again."""
    return os.path.abspath(path) if path else None


def join(args: Namespace) -> int:
    from holdfast.client import pairing
    from holdfast.core.people import join_code

    text = args.code
    if text is not None and (way := address.ssh(text.strip())) is not None:
        return join_over_ssh(args, way)
    if text is None:
        if sys.stdin.isatty():
            print("code: ", end="", file=sys.stderr, flush=True)
        text = sys.stdin.readline(join_code.URL_CHARS + 1)
    code, machine = join_code.read(text)
    connection, elsewhere = link(args), join_code.elsewhere(text)
    if elsewhere is not None:
        pairing.stranger(connection, code, elsewhere, _file(args.ca))
    elif args.relay is not None:
        address.parsed(args.relay)
        pairing.strangers(connection, code, args.relay, _file(args.ca))

    return _join(args, connection, code, machine)


def join_over_ssh(args: Namespace, way: address.Ssh) -> int:
    """Pair with a machine that ssh reaches, as another device of the operator there."""
    from holdfast.client import pairing, ssh_pairing

    if args.relay or args.ca:
        raise Usage("--relay and --ca do not apply to ssh://")
    known = ssh_pairing.known(homes.resolve(os.environ), way)
    if known is not None and not args.new_key:
        said = f"{known.name} is connected already\n  holdfast ls {known.name}/"
        return put(args, {"as": known.name, "name": known.operator, "again": True}, said)
    offer = ssh_pairing.offered(way)
    if args.operator not in (None, offer.of):
        raise Usage(f"on {way.host} you are {offer.of}", f"omit --as, or use --as {offer.of}")
    args.operator = offer.of
    connection = link(args)
    pairing.strangers(connection, offer.code, offer.url)
    return _join(args, connection, offer.code, None, (way.host, offer.near, offer.url))


def _join(
    args: Namespace,
    connection: Link,
    code: Code,
    machine: str | None,
    over_ssh: tuple[str, str, str] | None = None,
) -> int:
    """`over_ssh`: the machine's name for ssh, its relay, and the address of that relay."""
    from holdfast.client import pairing

    if args.device:
        check_name(args.device)
    if args.new_key:
        pairing.another_key(connection)

    def told(event: Json) -> None:
        if event.get("event") == "waiting" and not args.json:
            print(
                f"waiting for {clean(str(event.get('by')))} to admit {connection.operator}; "
                f"fingerprint of your key: {event.get('fingerprint')}",
                file=sys.stderr,
                flush=True,
            )

    result = pairing.join(
        connection,
        code,
        machine,
        told,
        cache(ask_twice) if args.passphrase else None,
        args.device or "",
    )
    if connection.away is not None:
        name, ways = (
            (str(result["host"]), None) if over_ssh is None else (over_ssh[0], over_ssh[1:])
        )
        result["as"] = pairing.keep_machine(connection, name, ways).name
    if args.json:
        put_json(result)
        return 0
    sessions = connection.request("ls")["sessions"]
    seen = [s["name"] for s in sessions if s["id"] == result["scope"].get("session")]
    session = seen[0] if seen else None
    device = f"{result['name']} is in{' already' if result['again'] else ''}: {_a(result['kind'])}"
    if result.get("of"):
        already = "already " if result["again"] else ""
        device = f"this is {already}{result['device']}, a device of {result['name']},"
    alone = (
        connection.away is not None
        and pairing.only_one(connection.home, result["as"])
        and not os.environ.get("HOLDFAST_AS")
    )
    acting = "" if alone else f"--as {result['name']} "
    print(
        f"{device} on {clean(result['host'])}, with {_what(result, session)} from {result['by']}\n"
        f"  holdfast {acting}{_next(result, session, bool(sessions))}"
    )
    return 0


def _next(result: Json, session: str | None, sessions: bool) -> str:
    """The command that a newcomer can use next; `sessions`: whether the newcomer sees any."""
    machine = f"{result['as']}/" if "as" in result else ""
    if session or (machine and sessions):
        return f"attach {machine}{session or ''}"
    if machine and (result.get("of") or "new" in result["rights"]):
        return f"new {machine}main"
    return f"ls {machine}".rstrip()
