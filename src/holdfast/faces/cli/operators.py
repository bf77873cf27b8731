"""operator, grant: who is known here, and what each may do."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from holdfast.faces.cli.connect import ask, link
from holdfast.faces.cli.output import put_json, table, timed
from holdfast.model import rights
from holdfast.model.errors import NotFound, Refused, Usage

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def operator_parser(p: ArgumentParser) -> None:
    p.add_argument(
        "act",
        help="what to do (default: ls)",
        choices=("add", "ls", "show", "revoke", "recover", "lock", "unlock"),
        nargs="?",
        default="ls",
    )
    p.add_argument("name", nargs="?", metavar="NAME", help="the operator")
    p.add_argument(
        "--kind",
        choices=("human", "agent", "service"),
        default="human",
        help="what it is (default: human)",
    )
    p.add_argument(
        "--key",
        metavar="KEY",
        help="with add: a public key made elsewhere, instead of a new one here",
    )
    p.add_argument(
        "--passphrase",
        action="store_true",
        help="with add: protect the new key; asks for the passphrase",
    )
    p.add_argument(
        "--force",
        action="store_true",
        help="with revoke: also the last one who could let others in",
    )
    p.add_argument(
        "--grants", action="store_true", help="with revoke: also what the machine gave on its word"
    )
    p.add_argument("--json", action="store_true")


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
        return _recover(connection, args)
    if args.act == "ls":
        found = connection.request("operator.ls")["operators"]
        if args.json:
            put_json([_timed(one) for one in found])
        else:
            print(table(("NAME", "KIND", "KEYS", "RIGHTS", "SINCE"), [_row(o) for o in found]))
        return 0
    if args.act == "add":
        _free(connection, args.name)  # as somebody who is known, before anything is made
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
        _print(result)
        if args.act == "add":
            print(f"no rights yet: `holdfast grant {args.name} --rights execute`")
        elif args.act == "revoke":
            print("what it has started goes on: `holdfast ls`, `holdfast halt SESSION`")
    return 0


def _free(connection: Any, name: str) -> None:
    """A name that was revoked is not given again: better said before a key is made for it."""
    try:
        known = connection.request("operator.show", name=name)
    except NotFound:
        return
    if known["revoked"]:
        raise Refused(
            f"{name} was revoked on {_date(known['revoked'])} by {known['revoked_by']}, and names are not used again: the record names people by them",
            f"give it another name: `holdfast operator add {name}-2`, then `holdfast grant {name}-2 --rights ...`",
        )


def _recover(connection: Any, args: Namespace) -> int:
    """Admin again, for whoever can read the machine's own key."""
    from holdfast.client.identity import identity
    from holdfast.core import recovery
    from holdfast.home import keys

    if args.name is not None:
        connection.operator = args.name
    try:
        who = identity(connection.home, connection.operator, ask)
    except NotFound:
        if args.name is None:
            raise
        keys.load_machine(
            connection.home
        )  # who cannot read that one recovers nothing: no key is made for them
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
    if args.json:
        put_json(result)
    else:
        _print(result)
    return 0


def _passphrase(connection: Any, args: Namespace) -> int:
    """Puts the passphrase on a key file of this machine, changes it, or takes it off. The key stays the same; needs no host."""
    from holdfast.home import keys

    keys.load(connection.home, args.name)
    made = (
        keys.lock(connection.home, args.name, ask, ask_twice)
        if args.act == "lock"
        else keys.unlock(connection.home, args.name, ask)
    )
    if args.json:
        put_json({"name": made.name, "locked": made.locked})
    else:
        print(
            f"the key of {made.name} {'needs its passphrase now' if made.locked else 'has no passphrase now: whatever runs as this account can use it'}"
        )
    return 0


def _new_key(connection: Any, args: Namespace) -> str:
    from holdfast.home import keys
    from holdfast.model import signing

    made = keys.make(
        connection.home, args.name, args.kind, time.time(), ask_twice if args.passphrase else None
    )
    return signing.show(made.public)


def ask_twice(name: str) -> str:
    first = ask(name)
    if not first or ask(name) != first:
        raise Usage("the passphrases differ" if first else "an empty passphrase protects nothing")
    return first


def _timed(one: dict[str, Any]) -> dict[str, Any]:
    return timed(
        {
            **one,
            "keys": [timed(key, key["added"]) for key in one["keys"]],
            "envelopes": [timed(e, e["given"]) for e in one["envelopes"]],
        },
        one["added"],
    )


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    state = (
        "revoked"
        if one["revoked"]
        else rights.show(
            {r for e in one["envelopes"] if e["state"] == "valid" for r in e["rights"]}
        )
        or "-"
    )
    return (
        one["name"],
        one["kind"],
        str(sum(k["revoked"] is None for k in one["keys"])),
        state,
        _date(one["added"]),
    )


def _print(one: dict[str, Any]) -> None:
    print(
        f"{one['name']} ({one['kind']}), added {_date(one['added'])} by {one['added_by']}"
        + (f", REVOKED {_date(one['revoked'])} by {one['revoked_by']}" if one["revoked"] else "")
    )
    for key in one["keys"]:
        print(f"  key {key['key']} ({key['device']})" + (" REVOKED" if key["revoked"] else ""))
    gone = {key["key"] for key in one["keys"] if key["revoked"]}
    said = dict.fromkeys(
        _may(e) for e in one["envelopes"] if one["revoked"] or e["holder"] not in gone
    )  # each device holds its own of the same grant
    for line in said:
        print(line)


def _may(e: dict[str, Any]) -> str:
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


def grant_parser(p: ArgumentParser) -> None:
    p.add_argument("name", nargs="?", metavar="NAME", help="the operator who gets them")
    p.add_argument(
        "--rights",
        metavar="LIST",
        help="read, execute, admin, or single rights, separated by commas",
    )
    p.add_argument("--session", metavar="SESSION", help="only on this session")
    p.add_argument("--expires", metavar="D", help="for this long: 30m, 8h, 7d")
    p.add_argument("--rate", metavar="N/S", help="at most N acts in S seconds")
    p.add_argument(
        "--command",
        action="append",
        metavar="NAME",
        help="only for programs of this name, with `run` and `new`; may be repeated",
    )
    p.add_argument(
        "--own-key",
        action="store_true",
        help="sign it with your own key: it ends with yours, and needs no right to manage",
    )
    p.add_argument("--json", action="store_true")
    p.description = "hand on some of your own rights; never more than you have, and only for as long as you have them."


def grant(args: Namespace) -> int:
    if args.name is None or args.rights is None:
        raise Usage("grant to whom, and what?", "holdfast grant NAME --rights read")
    wanted = sorted(
        rights.parse(args.rights) - (rights.MACHINE_WIDE if args.session else frozenset())
    )
    expires = None if args.expires is None else int(time.time() + lasting(args.expires))
    connection = link(args)
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
            commands=args.command,
        )
    if args.json:
        put_json(result)
    else:
        print(
            f"{result['name']} may {rights.show(result['rights'])}"
            + (f" on {args.session}" if args.session else "")
            + (f" until {_date(expires)}" if expires else "")
        )
    return 0


def _delegated(
    connection: Any, args: Namespace, wanted: list[str], expires: int | None
) -> list[str]:
    """Signed here, with a key that never leaves this machine: one for each device, all of one grant."""
    from holdfast.client.identity import identity
    from holdfast.core import envelope
    from holdfast.model import signing
    from holdfast.model.errors import NotAllowed

    session = connection.request("get", session=args.session)["id"] if args.session else None
    keys = [
        one["key"]
        for one in connection.request("operator.show", name=args.name)["keys"]
        if not one["revoked"]
    ]
    if not keys:
        raise NotFound(
            f"{args.name} has no device that counts", f"`holdfast device ls {args.name}`"
        )
    nonce = os.urandom(envelope.NONCE_BYTES)
    rate = _rate(args.rate)
    scope = envelope.Scope(
        session=session,
        expires=expires,
        commands=frozenset(args.command) if args.command else None,
        rate=(rate[0], rate[1]) if rate else None,
    )
    private = identity(connection.home, connection.key_name, ask).secret()
    why: NotAllowed | None = None
    for text in connection.request("envelopes")["envelopes"]:
        try:
            return [
                envelope.encode(
                    envelope.delegate(
                        private, envelope.decode(text), signing.read(key), wanted, scope, nonce
                    )
                )
                for key in keys
            ]
        except NotAllowed as e:
            why = e
    raise why or NotAllowed("you have no envelope to hand on", "ask for one with `grant`")


def lasting(text: str) -> float:
    """Seconds of `30m`, `8h`, `7d`."""
    number, unit = text[:-1], text[-1:]
    if unit not in UNITS or not number.isdigit() or not 0 < int(number) * UNITS[unit] < 1e9:
        raise Usage(f"{text!a} is not a length of time", "like 30m, 8h or 7d")
    return int(number) * UNITS[unit]


def _rate(text: str | None) -> list[int] | None:
    if text is None:
        return None
    count, _, seconds = text.partition("/")
    if not count.isdigit() or not seconds.isdigit() or not int(count) or not int(seconds):
        raise Usage(f"{text!a} is not a rate", "like 10/60: ten in a minute")
    return [int(count), int(seconds)]
