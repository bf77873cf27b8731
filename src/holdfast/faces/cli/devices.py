"""device: the devices of an operator. Devices share a name and rights; each has a separate key.

This is a separate command because `operator` takes an operator, and `device` takes a device, most
often a device of the caller.
"""

from __future__ import annotations

import time

from holdfast.faces.cli.arguments import usage
from holdfast.faces.cli.connect import link
from holdfast.faces.cli.output import clean, duration, put, put_json, table, timed
from holdfast.model.errors import Usage
from holdfast.model.limits import INVITATION_S, INVITATION_S_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

    from holdfast.client.link import Link
    from holdfast.model.jsontext import Json

NEEDS = {"rename": "a device and its new name", "revoke": "a device"}


device_parser = usage(f"""
    the devices of an operator. They share a name and rights; each has its own key, and every act
    names its device. `add` shows a code; `holdfast join` on the other device makes its key there. A
    new device gets at most the rights of the device that adds it. `revoke` ends the connections of
    one device; the others go on.

    act=[ls|add|rename|revoke=ls]  (default: ls)
    name=[DEVICE]  its name or key; with add: the name to give it; with ls: an operator
    to=[NAME]  with rename: the new name
    --of OPERATOR  of another operator (needs `manage`)
    --key KEY  with add: the public key made on the device, instead of a code
    --within D  with add: how long the code is valid (default: {INVITATION_S // 60}m, at most
        {INVITATION_S_MAX // 86400}d)
    --confirm  with add: ask here before admitting it
    --no-wait  with add: print the code and return (default on a terminal: wait)
    --force  with revoke: even the last device that could add others
    --grants  with revoke: also its grants to others and the devices that it added
    --json
""")


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
        said = f"{result['name']} is now a device of {result['operator']}"
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
    return put(args, _timed(result), said)


def _invite(args: Namespace, connection: Link) -> int:
    from holdfast.faces.cli import invite

    args.device, args.kind = args.name or "", "human"
    args.rights = args.session = args.expires = None
    return invite.make(connection, args)


def _revoked(result: Json) -> str:
    said = [
        f"{result['name']} is revoked: it is no longer a device of {result['operator']}, "
        "and its key is never accepted again"
    ]
    if not result["left"]:
        said.append(
            f"{result['operator']} has no device left: an operator with `manage` can "
            f"`holdfast device add --of {result['operator']}`"
        )
    for one in result["had_added"]:
        said.append(
            f"it had added {one['name']}"
            + (
                ", which is revoked too"
                if one["revoked"]
                else f", which is still valid: `holdfast device revoke {one['name']}`"
            )
        )
    said.append("programs that it started keep running: `holdfast ls`, `holdfast halt SESSION`")
    return "\n".join(said)


def _list(args: Namespace, result: Json) -> int:
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


def _seen(one: Json) -> str:
    return (
        "now"
        if one["connected"]
        else "never"
        if one["seen"] is None
        else f"{duration(max(0.0, time.time() - one['seen']))} ago"
    )


def _ways(one: Json) -> str:
    return ", ".join(sorted({way["way"] for way in one["connected"]})) or one["way"] or "-"


def _timed(one: Json) -> Json:
    return timed(one, one["added"])


def _date(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(at))
