"""rehome, lease."""

from __future__ import annotations

from holdfast.faces.cli.arguments import usage
from holdfast.faces.cli.connect import HOLD, link

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

    from holdfast.model.jsontext import Json

rehome_parser = usage(f"""
    let another machine take over a session when this one is gone, or pin it to this machine

    SESSION
    to=on|off    on: another machine may take the session over; off: pinned
    --hold S  {HOLD}
    --json
""")


def rehome(args: Namespace) -> int:
    from holdfast.model.errors import Usage

    if args.to not in ("on", "off"):
        raise Usage(f"{args.to[:40]!a} is neither on nor off")
    said = link(args).request("rehome", session=args.session, on=args.to == "on", hold=args.hold)
    if args.json:
        _put_json(said)
    else:
        state = "re-homable" if said["rehomable"] else "pinned"
        print(f"{said['name']} is {state}: {said['says']}")
    return 0


lease_parser = usage(f"""
    show the machine that may run a session, and the end of its lease; or end the lease

    act=show|invalidate    show the lease, or end it without its machine
    SESSION
    --hold S  {HOLD}
    --json
""")


def lease(args: Namespace) -> int:
    from holdfast.model.errors import Usage

    if args.act == "show":
        said = link(args).request("lease", session=args.session)
    elif args.act == "invalidate":
        said = link(args).request("lease.invalidate", session=args.session, hold=args.hold)
    else:
        raise Usage(f"{args.act[:40]!a} is neither show nor invalidate")
    if args.json:
        _put_json(said)
    else:
        print("\n".join(_lines(said)))
    return 0


def _lines(said: Json) -> list[str]:
    found = said["lease"]
    if found is None:
        return [
            f"{said['name']} is pinned to its machine; the store ({said['store']}) has no lease"
        ]
    kind = "re-homable" if found["rehomable"] else "pinned"
    machine = found["machine"] or found["owner"]
    lines = [f"{said['name']}: epoch {found['epoch']} on {machine}, {kind}, {found['state']}"]
    if found["until"] is not None:
        import time

        left = found["until"] - time.time()
        lines.append(f"  the lease ends in {left:.1f} s, unless it is renewed")
    elif said["wait_s"]:
        lines.append(
            f"  no machine may attach or take it for {said['wait_s']:.1f} s, as seen from here"
        )
    elif said["wait_s"] == 0:
        lines.append("  another machine may take it now: `holdfast restore`")
    return lines


def _put_json(said: Json) -> None:
    from holdfast.faces.cli.output import put_json

    put_json(said)
