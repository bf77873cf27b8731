"""operator, grant: the operators of this machine, and the rights of each."""

from __future__ import annotations

import contextlib
import os
import sys
import time

from holdfast.faces.cli.arguments import usage
from holdfast.faces.cli.connect import ask, link
from holdfast.faces.cli.output import put, put_json, table, timed
from holdfast.model import rights
from holdfast.model.errors import NotFound, Refused, Usage
from holdfast.model.printable import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

    from holdfast.client.link import Link
    from holdfast.home.keys import Identity
    from holdfast.model.jsontext import Json

PLAIN_MEANS = """\
The right `plain` lets the agent {name} steer plain sessions, where programs run as your account.
There the agent can read your files and keys, trace your programs, and leave programs behind.
Acts in your name from inside a session are refused, but a client through a relay is not seen.
A contained session (`holdfast new --contained`) needs no such right."""
PLAIN_READ = "plain-explained"  # a file of the home: the meaning was shown
NEVER_MEANS = """\
This cannot be undone. If the last administrator of this machine leaves or loses the key, no command
makes another one: the machine then needs a new home."""


operator_parser = usage("""
    act=[add|ls|show|revoke|recover|lock|unlock=ls]  what to do (default: ls)
    [NAME]  the operator
    --kind human|agent|service=human  the kind of operator (default: human)
    --key KEY  with add: a public key made elsewhere, instead of a new one here
    --passphrase  with add: protect the new key; asks for the passphrase
    --force  with revoke: even the last operator who could admit others
    --grants  with revoke: also its grants to others
    --never  with recover: switch recovery of this machine off for good
    --json
""")


def operator(args: Namespace) -> int:
    if args.act != "recover" and (args.name is None) != (args.act == "ls"):
        raise Usage(
            f"operator {args.act} needs a NAME"
            if args.name is None
            else "operator ls takes no NAME"
        )
    connection = link(args)
    if args.act in ("lock", "unlock"):
        return _passphrase(connection, args)
    if args.act == "recover":
        return _never(connection, args) if args.never else _recover(connection, args)
    if args.act == "ls":
        found = connection.request("operator.ls")["operators"]
        if args.json:
            put_json([_timed(one) for one in found])
        else:
            names = _session_names(connection, found)
            rows = [row for one in found for row in _rows(one, names)]
            print(table(("NAME", "KIND", "KEYS", "RIGHTS", "WHERE", "SINCE"), rows))
        return 0
    if args.act == "add":
        _free(connection, args.name)  # fails before a key is made
        result = connection.request(
            "operator.add",
            name=args.name,
            kind=args.kind,
            key=args.key or _new_key(connection, args),
            device="" if args.key else os.uname().nodename,
        )
    elif args.act == "show":
        result = connection.request("operator.show", name=args.name)
    else:
        result = connection.request(
            "operator.revoke", name=args.name, force=args.force, grants=args.grants
        )
    if args.json:
        put_json(_timed(result))
    else:
        print(_described(result))
        if args.act == "add":
            print(f"no rights yet: `holdfast grant {args.name} --rights execute`")
        elif args.act == "revoke":
            print("programs that it started keep running: `holdfast ls`, `holdfast halt SESSION`")
    return 0


def _free(connection: Link, name: str) -> None:
    """Refuse a revoked name before making a key: names are never reused."""
    try:
        known = connection.request("operator.show", name=name)
    except NotFound:
        return
    if known["revoked"]:
        raise Refused(
            f"{name} was revoked on {_date(known['revoked'])} by {known['revoked_by']}; "
            "the record names people, so a name is never used again",
            f"give it another name: `holdfast operator add {name}-2`, "
            f"then `holdfast grant {name}-2 --rights ...`",
        )


def _never(connection: Link, args: Namespace) -> int:
    """Switch recovery off; on a terminal a person confirms it."""
    if not args.json:
        print(NEVER_MEANS, file=sys.stderr)
    _confirm("Switch it off for good?", "not switched off", "recovery stays possible")
    off = "`holdfast operator recover` does not work on this machine any more"
    return put(args, connection.request("recovery.off"), off)


def _confirm(question: str, no: str, then: str) -> None:
    """Ask a person on a terminal; a script is not asked."""
    if sys.stdin.isatty() and sys.stderr.isatty():
        print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise Refused(no, then)


def _recover(connection: Link, args: Namespace) -> int:
    """Make the caller admin again; requires read access to the machine's own key."""
    from holdfast.client.identity import identity
    from holdfast.core.people import recovery
    from holdfast.home import keys, recovery_switch

    if recovery_switch.is_off(connection.home):
        raise recovery_switch.refusal()  # before a key is made
    if args.name is not None:
        connection.operator = args.name
    try:
        who = identity(connection.home, connection.operator, ask)
    except NotFound:
        if args.name is None:
            raise
        keys.load_machine(connection.home)  # first: without that access no key is made
        who = keys.make(
            connection.home,
            args.name,
            args.kind,
            time.time(),
            ask_twice if args.passphrase else None,
        )
    connection.recovery = recovery.sign(
        keys.load_machine(connection.home).secret(),
        who.name,
        who.kind,
        who.public,
        int(time.time()),
        os.urandom(recovery.NONCE_BYTES),
    )
    connection.connect()
    connection.recovery = None
    result = connection.request("operator.show", name=who.name)
    return put(args, result, _described(result))


def _passphrase(connection: Link, args: Namespace) -> int:
    """Add, change or remove the passphrase of a local key file. Needs no host."""
    from holdfast.home import keys

    keys.load(connection.home, args.name)
    made = (
        keys.lock(connection.home, args.name, ask, ask_twice)
        if args.act == "lock"
        else keys.unlock(connection.home, args.name, ask)
    )
    now = (
        "now needs its passphrase"
        if made.locked
        else "has no passphrase now: any program of this account can use it"
    )
    shown = {"name": made.name, "locked": made.locked}
    return put(args, shown, f"the key of {made.name} {now}")


def _new_key(connection: Link, args: Namespace) -> str:
    """Make the key of a new operator; a retry (`--once`) presents the key of the first attempt."""
    from holdfast.home import keys
    from holdfast.model import signing

    if args.once is not None and any(
        one.name == args.name for one in keys.listing(connection.home)
    ):
        return signing.show(keys.load(connection.home, args.name).public)
    made = keys.make(
        connection.home, args.name, args.kind, time.time(), ask_twice if args.passphrase else None
    )
    return signing.show(made.public)


def ask_twice(name: str) -> str:
    first = ask(name)
    if not first or ask(name) != first:
        raise Usage("the passphrases differ" if first else "an empty passphrase protects nothing")
    return first


def _timed(one: Json) -> Json:
    return timed(
        {
            **one,
            "keys": [timed(key, key["added"]) for key in one["keys"]],
            "envelopes": [timed(e, e["given"]) for e in one["envelopes"]],
        },
        one["added"],
    )


def _session_names(connection: Link, operators: list[Json]) -> dict[str, str]:
    """Names of sessions by id, if a grant is for a session."""
    if not any("session" in e["scope"] for one in operators for e in one["envelopes"]):
        return {}
    listed = connection.request("ls", all=True)["sessions"]
    return {session["id"]: session["name"] for session in listed}


def _rows(one: Json, names: dict[str, str]) -> list[tuple[str, ...]]:
    """A row per scope in which the operator has rights: the machine, or a session."""
    scopes: dict[str, set[str]] = {}
    for e in one["envelopes"]:
        if e["state"] == "valid" and not one["revoked"]:
            scopes.setdefault(_scope(e["scope"], names), set()).update(e["rights"])
    first = (one["name"], one["kind"], str(sum(k["revoked"] is None for k in one["keys"])))
    nothing = [("revoked" if one["revoked"] else "-", "-")]
    found = [(rights.show(held), where) for where, held in scopes.items()] or nothing
    return [
        (*(first if n == 0 else ("", "", "")), *what, _date(one["added"]) if n == 0 else "")
        for n, what in enumerate(found)
    ]


def _scope(scope: Json, names: dict[str, str]) -> str:
    """Where and until when a grant is valid."""
    session = scope.get("session")
    where = "machine" if session is None else f"session {names.get(session, session)}"
    until = f", until {_date(scope['expires'])}" if scope.get("expires") else ""
    limited = ", limited" if set(scope) - {"machine", "session", "expires"} else ""
    return f"{where}{until}{limited}"


def _described(one: Json) -> str:
    revoked = f", REVOKED {_date(one['revoked'])} by {one['revoked_by']}" if one["revoked"] else ""
    added = f"added {_date(one['added'])} by {one['added_by']}"
    lines = [f"{one['name']} ({one['kind']}), {added}{revoked}"]
    gone = set()
    for key in one["keys"]:
        lines.append(f"  key {key['key']} ({key['device']})" + " REVOKED" * bool(key["revoked"]))
        if key["revoked"]:
            gone.add(key["key"])
    grants = [_may(e) for e in one["envelopes"] if one["revoked"] or e["holder"] not in gone]
    return "\n".join((*lines, *dict.fromkeys(grants)))  # each device holds a copy of a grant


def _may(e: Json) -> str:
    limits = ", ".join(
        f"{k} {_date(v) if k in ('expires', 'not_before') else v}"
        for k, v in e["scope"].items()
        if k != "machine"
    )
    return (
        f"  may {rights.show(e['rights'])}"
        + (f" ({limits})" if limits else "")
        + f", from {e['given_by']}"
        + (f" [{e['state']}]" if e["state"] != "valid" else "")
    )


def _date(at: float | None) -> str:
    return "-" if at is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


COMMANDS_WORTH = """\
only these programs, and no program that they start in turn, unless it is listed too.
This holds where every program passes the gate (`ls --json`: gate = exec; contained sessions).
Elsewhere (gate = input) only the text of a `run` is compared with the list: a listed program that
starts others (git, tar, awk, sed, sort, make) is then not limited."""

grant_parser = usage("""
    give some of your own rights to an operator: never more than you have, and only for as long as
    you have them.

    [NAME]  the operator who gets the rights
    --rights LIST  read, execute, admin, or single rights, separated by commas
    --session SESSION  only on this session
    --expires D  for this long: 30m, 8h, 7d
    --rate N/S  at most N acts in S seconds
    --command NAME...  only for programs of this name, with `run` and `new`; may be repeated
    --commands LIST  the same for several programs, separated by commas
    --own-key  sign with your own key: the grant ends with your rights, and needs no `manage`
    --credential [FILE]  make a credential: one file (mode 0600), or with - one text on stdout, with
        which a program acts as NAME without a home and without pairing
    --kind human|agent|service=service  with --credential: the kind of a new operator
    --json
""")


def grant(args: Namespace) -> int:
    if args.name is None or args.rights is None:
        raise Usage("grant needs a name and --rights", "holdfast grant NAME --rights read")
    wanted = sorted(
        rights.parse(args.rights) - (rights.MACHINE_WIDE if args.session else frozenset())
    )
    expires = None if args.expires is None else int(time.time() + lasting(args.expires))
    connection = link(args)
    read = os.path.join(connection.home.state, PLAIN_READ)
    if rights.PLAIN in wanted and not os.path.exists(read):
        _explain_plain(args.name)
    made = None
    if args.credential is not None:
        if args.own_key:
            raise Usage("--credential and --own-key exclude each other")
        from holdfast.client import credential

        made = credential.new_key(connection, args.name, args.kind)
    if args.own_key:
        result = [
            connection.request("grant", envelope=text)
            for text in _delegated(connection, args, wanted, expires)
        ][-1]
    else:
        result = connection.request(
            "grant",
            name=args.name,
            rights=wanted,
            session=args.session,
            expires=expires,
            rate=_rate(args.rate),
            commands=_commands(args),
        )
    if rights.PLAIN in wanted:
        with contextlib.suppress(OSError):  # it is shown again next time
            os.close(os.open(read, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    where = f" on {args.session}" if args.session else ""
    ends = result["scope"].get("expires")  # of a retry, the end that the first attempt asked for
    until = f" until {_date(ends)}" if ends else ""
    given = f"{result['name']} may {rights.show(result['rights'])}{where}{until}"
    if made is not None:
        return _put_credential(connection, args, made, result, given)
    return put(args, result, given if _commands(args) is None else f"{given}\n{COMMANDS_WORTH}")


def _put_credential(
    connection: Link, args: Namespace, made: Identity, granted: Json, given: str
) -> int:
    """Write the credential to its file, or to stdout."""
    from holdfast.client import credential, environ
    from holdfast.home import private

    issued = credential.issue(connection, made, granted["id"])
    text, to_file = credential.encode(issued), args.credential not in ("", "-")
    if to_file:
        private.write(args.credential, text.encode() + b"\n")
    shown = {"file": args.credential} if to_file else {"credential": text}
    if args.json:
        put_json({**granted, **shown, "relays": [way.url for way in issued.machine.ways]})
        return 0
    print(given, file=sys.stderr)
    if not issued.machine.ways:
        print(
            "the credential works only on this machine; `holdfast host connect` and a new "
            "credential reach it from elsewhere",
            file=sys.stderr,
        )
    print(f"wrote {args.credential}; {environ.CREDENTIAL} names it" if to_file else text)
    return 0


def _explain_plain(name: str) -> None:
    """Shows the meaning of the right `plain`; on a terminal a person confirms it."""
    print(PLAIN_MEANS.format(name=printable(name)), file=sys.stderr)
    _confirm("Allow it?", "not granted", "contained sessions need no such right")


def _commands(args: Namespace) -> list[str] | None:
    listed = [name for text in (args.commands or "").split(",") if (name := text.strip())]
    if args.commands is not None and not listed:
        raise Usage("--commands names no program", "like --commands git,ssh")
    return sorted({*(args.command or ()), *listed}) or None


def _delegated(
    connection: Link, args: Namespace, wanted: list[str], expires: int | None
) -> list[str]:
    """Sign a grant per device here, with a key that never leaves this machine."""
    from holdfast.client.identity import identity
    from holdfast.core.people import envelope
    from holdfast.model import signing

    session = connection.request("get", session=args.session)["id"] if args.session else None
    keys = [
        signing.read(one["key"])
        for one in connection.request("operator.show", name=args.name)["keys"]
        if not one["revoked"]
    ]
    if not keys:
        raise NotFound(f"{args.name} has no valid device", f"`holdfast device ls {args.name}`")
    nonce = os.urandom(envelope.NONCE_BYTES)
    rate = _rate(args.rate)
    scope = envelope.Scope(
        session=session,
        expires=expires,
        commands=None if (commands := _commands(args)) is None else frozenset(commands),
        rate=(rate[0], rate[1]) if rate else None,
    )
    private = identity(connection.home, connection.key_name, ask).secret()
    held = connection.request("envelopes")["envelopes"]
    return envelope.delegate_to(private, held, keys, wanted, scope, nonce)


def lasting(text: str) -> float:
    """Seconds of `30m`, `8h`, `7d`."""
    from holdfast.model import durations

    try:
        return durations.read(text)
    except ValueError as e:
        raise Usage(f"{text!a} is not a length of time", "like 30m, 8h or 7d") from e


def _rate(text: str | None) -> list[int] | None:
    if text is None:
        return None
    count, _, seconds = text.partition("/")
    if not count.isdigit() or not seconds.isdigit() or not int(count) or not int(seconds):
        raise Usage(f"{text!a} is not a rate", "like 10/60: ten in a minute")
    return [int(count), int(seconds)]
