"""device: the machines that one operator works from. One name, one set of rights, a key on each.

A command of its own, not more acts of `operator`: that one takes an operator, this one a device of an operator, most often of one's own.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from holdfast.faces.cli.connect import link
from holdfast.faces.cli.output import clean, duration, put_json, table, timed
from holdfast.model.errors import Usage
from holdfast.model.limits import INVITATION_S, INVITATION_S_MAX

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

NEEDS = {"rename": "a device and its new name", "revoke": "a device"}


def device_parser(p: ArgumentParser) -> None:
    p.add_argument(
        "act",
        nargs="?",
        choices=("ls", "add", "rename", "revoke"),
        default="ls",
        help="(default: ls)",
    )
    p.add_argument(
        "name",
        nargs="?",
        metavar="DEVICE",
        help="its name or its key; with add: what it is to be called; with ls: whose (an operator)",
    )
    p.add_argument("to", nargs="?", metavar="NAME", help="with rename: the new name")
    p.add_argument("--of", metavar="OPERATOR", help="of somebody else, which needs `manage`")
    p.add_argument(
        "--key",
        metavar="KEY",
        help="with add: the public key of the device, made there; instead of a code",
    )
    p.add_argument(
        "--within",
        metavar="D",
        help=f"with add: the code counts for this long (default: {INVITATION_S // 60}m, at most {INVITATION_S_MAX // 86400}d)",
    )
    p.add_argument("--confirm", action="store_true", help="with add: ask here before it is let in")
    p.add_argument(
        "--no-wait",
        action="store_true",
        help="with add: print the code and return; otherwise a terminal, or --confirm, waits",
    )
    p.add_argument(
        "--force",
        action="store_true",
        help="with revoke: also the last one that could let others in",
    )
    p.add_argument(
        "--grants",
        action="store_true",
        help="with revoke: also what it gave to others, and the devices that it added",
    )
    p.add_argument("--json", action="store_true")
    p.description = (
        "the devices of an operator: one name and one set of rights, a key on each, and\neverything that is done says which it was. `add` shows a code; `holdfast join` on\n"
        "the other device makes its key there. It gets the rights of the device that\nadds it, never more. `revoke` ends its connections at once; the others go on."
    )


def device(args: Namespace) -> int:
    if args.act in NEEDS and (args.name is None or (args.to is None) != (args.act != "rename")):
        raise Usage(f"device {args.act} needs {NEEDS[args.act]}", "`holdfast device ls` lists them")
    if args.act not in NEEDS and args.to is not None:
        raise Usage(f"device {args.act} takes one name")
    connection = link(args)
    if args.act == "ls":
        return _list(args, connection.request("device.ls", operator=args.of or args.name))
    if args.act == "add" and args.key is None:
        return _invite(args, connection)
    if args.act == "add":
        result = connection.request(
            "device.add", operator=args.of, device=args.name or "", key=args.key
        )
        said = f"{result['name']} is a device of {result['operator']} from now on"
    elif args.act == "rename":
        result = connection.request("device.rename", operator=args.of, device=args.name, to=args.to)
        said = f"{result['was']} is now {result['name']}"
    else:
        result = connection.request(
            "device.revoke",
            operator=args.of,
            device=args.name,
            force=args.force,
            grants=args.grants,
        )
        said = _revoked(result)
    if args.json:
        put_json(_timed(result))
    else:
        print(said)
    return 0


def _invite(args: Namespace, connection: Any) -> int:
    from holdfast.faces.cli import invite

    args.device, args.rights, args.session, args.expires, args.kind = (
        args.name or "",
        None,
        None,
        None,
        "human",
    )
    return invite.make(connection, args)


def _revoked(result: dict[str, Any]) -> str:
    said = [
        f"{result['name']} is revoked: it is not a device of {result['operator']} any more, and its key is never accepted again"
    ]
    if not result["left"]:
        said.append(
            f"{result['operator']} has no device left: `holdfast device add --of {result['operator']}`, by somebody with `manage`"
        )
    for one in result["had_added"]:
        said.append(
            f"it had added {one['name']}"
            + (
                ", which is revoked, too"
                if one["revoked"]
                else f", which still counts: `holdfast device revoke {one['name']}`"
            )
        )
    said.append("what it has started goes on: `holdfast ls`, `holdfast halt SESSION`")
    return "\n".join(said)


def _list(args: Namespace, result: dict[str, Any]) -> int:
    if args.json:
        put_json([_timed(one) for one in result["devices"]])
        return 0
    rows = [
        (
            "*" if one["this"] else "",
            one["name"],
            "revoked" if one["revoked"] else "here" if one["connected"] else "-",
            _seen(one),
            _ways(one),
            _date(one["added"]),
            one["added_by"]
            + (
                f" ({one['added_from']})"
                if one["added_from"] and one["added_by"] == one["operator"]
                else ""
            ),
            one["fingerprint"],
        )
        for one in result["devices"]
    ]
    print(clean(f"devices of {result['operator']}:"))
    print(
        table(
            ("", "DEVICE", "STATE", "SEEN", "BY", "SINCE", "FROM", "FINGERPRINT"),
            rows,
            ("FINGERPRINT", "FROM"),
        )
    )
    return 0


def _seen(one: dict[str, Any]) -> str:
    return (
        "now"
        if one["connected"]
        else "never"
        if one["seen"] is None
        else f"{duration(max(0.0, time.time() - one['seen']))} ago"
    )


def _ways(one: dict[str, Any]) -> str:
    return ", ".join(sorted({way["way"] for way in one["connected"]})) or one["way"] or "-"


def _timed(one: dict[str, Any]) -> dict[str, Any]:
    return timed(one, one["added"])


def _date(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(at))
