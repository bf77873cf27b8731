"""rehome, lease."""

from __future__ import annotations

from holdfast.faces.cli.arguments import usage
from holdfast.faces.cli.connect import HOLD, link

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

    from holdfast.model.jsontext import Json

ASK_S = 3.0  # for the answer of a second machine

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
        return _show(args)
    if args.act == "invalidate":
        said = link(args).request("lease.invalidate", session=args.session, hold=args.hold)
    else:
        raise Usage(f"{args.act[:40]!a} is neither show nor invalidate")
    if args.json:
        _put_json(said)
    else:
        print("\n".join(_lines(said)))
    return 0


def _show(args: Namespace) -> int:
    """The lease. Of a session at a second machine: its answer, and the facts known here."""
    from holdfast.faces.cli.recovery.progress import Progress, carried_out
    from holdfast.model.errors import HoldfastError, TimedOut, Unavailable

    connection, silent = link(args), ""
    where = connection.where
    try:
        progress = Progress(f"asking {where}", "", not args.json)
        said = carried_out(connection, "lease", progress, "", session=args.session)
    except (Unavailable, TimedOut) as e:
        if connection.away is None:
            raise
        try:
            said = link(args).request("lease", session=args.session)
        except HoldfastError:
            raise e from None
        silent = e.message
    there, elsewhere = None, said.get("elsewhere")
    if elsewhere is not None and not silent:
        there, silent = _asked(args, elsewhere["key"], said["id"])
    if args.json:
        _put_json({**said, "there": there} if elsewhere is not None else said)
    else:
        lines = _lines(said) if said["lease"] is not None or elsewhere is None else []
        print("\n".join([*lines, *(_known(said, there, silent) if elsewhere is not None else ())]))
    return 0


def _asked(args: Namespace, key: str, session: str) -> tuple[Json | None, str]:
    """The answer of the machine with that key within ASK_S, or the reason why there is none."""
    from holdfast.faces.cli import fleet
    from holdfast.faces.cli.connect import home_here
    from holdfast.home import machines
    from holdfast.model import signing

    names = [m.name for m in machines.listing(home_here()) if signing.show(m.key) == key]
    if not names:
        return None, "this home is not paired with it"
    found = fleet.Everywhere(args, lambda one: one.request("lease", session=session)).asked(ASK_S)
    for name in names:
        if name in found.answers:
            return found.answers[name], ""
    why = found.unreachable.get(names[0], "")
    return None, why if why and "--everywhere" not in why else f"no answer within {ASK_S:.0f} s"


def _known(said: Json, there: Json | None, silent: str) -> list[str]:
    """The facts known here about a session at a second machine, and how to take it over."""
    import time

    elsewhere, name = said["elsewhere"], said["name"]
    machine, epoch = elsewhere["machine"], elsewhere["epoch"]
    if elsewhere["state"] == "moved":
        lines = [f"{name} went to {machine} as incarnation {epoch}"]
    else:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(elsewhere["at"]))
        lines = [f"{name} is a session of {machine}; this machine has its copy of {at}"]
    if there is not None:
        return [*lines, f"  {machine} says:", *(f"    {line.strip()}" for line in _lines(there))]
    lines.append(f"  {machine} does not say more: {silent}")
    if elsewhere["state"] == "moved":
        return lines
    if (said["lease"] or {}).get("rehomable"):
        lines.append(f"  to take it over when the wait is over: `holdfast restore {name}`")
    else:
        lines.append(
            f"  only if {machine} is gone for good: `holdfast restore {name} --lost` takes it over,"
            f" with its memory of {at}"
        )
    return lines


def _lines(said: Json) -> list[str]:
    found = said["lease"]
    if found is None:
        return [
            f"{said['name']} is pinned to its machine; the store ({said['store']}) has no lease"
        ]
    kind = "re-homable" if found["rehomable"] else "pinned"
    machine = found["machine"] or found["owner"]
    state, name = found["state"], said["name"]
    lines = [f"{name}: incarnation {found['epoch']} on {machine}, {kind}, {state}"]
    if not found["rehomable"] and state == "held":
        lines.append(
            f"  pinned: no other machine takes it; `holdfast rehome {name} on` changes that"
        )
    if found["until"] is not None:
        import time

        left = found["until"] - time.time()
        lines.append(f"  the lease ends in {left:.1f} s, unless it is renewed")
    elif said["wait_s"]:
        lines.append(
            f"  no machine may attach or take it for {said['wait_s']:.1f} s, as seen from here"
        )
    elif said["wait_s"] == 0:
        lines.append(
            f"  a machine that has a copy may take it now: `holdfast restore {name}` there"
        )
    return lines


def _put_json(said: Json) -> None:
    from holdfast.faces.cli.output import put_json

    put_json(said)
