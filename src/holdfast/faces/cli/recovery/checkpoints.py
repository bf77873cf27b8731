"""checkpoint, restore."""

from __future__ import annotations

import sys

from holdfast.core.checkpoint.manifest import is_id
from holdfast.faces.cli.arguments import usage
from holdfast.faces.cli.connect import HOLD, link
from holdfast.model.errors import Impossible, NotFound, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

    from holdfast.model.jsontext import Json

WAIT_S = 3600.0  # a large session on a slow disk

checkpoint_parser = usage(f"""
    save a contained session with all its processes to disk; it goes on running

    [SESSION]
    --stop  end its processes once they are saved; `restore` brings them back
    --check  only say what can be saved and what will be lost; nothing stops
    --list  list the checkpoints, of SESSION or of all sessions
    --hold S  {HOLD}
    --json
""")


def checkpoint(args: Namespace) -> int:
    connection = link(args)
    if args.list:
        fields = {"session": args.session} if args.session else {}
        found = connection.request("checkpoints", **fields)["checkpoints"]
        return _put_list(args, found)
    if not args.session:
        raise Usage("checkpoint needs a session", "or --list")
    if args.stop and args.check:
        raise Usage("--stop and --check exclude each other")
    if args.check:
        said = connection.request("checkpoint", session=args.session, stop=False, check=True)
        return _put_check(args, said)

    def progress(event: Json) -> None:
        if not args.json and sys.stderr.isatty() and event.get("event") == "progress":
            print(f"\r{event['step']}: {_size(event['bytes'])} ", end="", file=sys.stderr)

    said = connection.request(
        "checkpoint",
        wait_s=WAIT_S,
        on_event=progress,
        session=args.session,
        stop=args.stop,
        check=False,
        hold=args.hold,
    )
    if not args.json and sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)
    if args.json:
        from holdfast.faces.cli.output import put_json

        put_json(said)
        return 0
    made = said["saved"]
    still = f"it stood still for {made['frozen_ms']:.0f} ms, and goes on"
    after = "its processes have ended" if made["ended"] else still
    print(f"{said['name']} is saved as {made['checkpoint']}, {_size(made['bytes'])}; {after}")
    for loss in made["losses"]:
        print(f"  {loss}")
    return 0


def _put_check(args: Namespace, said: Json) -> int:
    found = said["found"]
    if args.json:
        from holdfast.faces.cli.output import put_json

        put_json(said)
    elif not found["possible"]:
        raise Impossible(f"{said['name']} cannot be saved: {'; '.join(found['blockers'])}", "")
    else:
        print(
            f"{said['name']} can be saved: about {_size(found['bytes'])}, "
            f"{found['seconds']:.1f} s; it stands still for most of that time"
        )
        for loss in found["losses"]:
            print(f"  {loss}")
    return 0 if found["possible"] else Impossible.exit_code


def _put_list(args: Namespace, found: list[Json]) -> int:
    from holdfast.faces.cli import output

    if args.json:
        output.put_json([output.timed(one, one["at"]) for one in found])
    elif not found:
        print("no checkpoints; `holdfast checkpoint SESSION` makes one")
    else:
        import time

        for one in found:
            at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one["at"]))
            print(f"{one['checkpoint']}  {one['name']}  {at}  {_size(one['bytes'])}")
    return 0


restore_parser = usage(f"""
    bring an ended session back with its processes, from its newest checkpoint

    session=SESSION|CHECKPOINT
    --checkpoint ID  this checkpoint of the session
    --hold S  {HOLD}
    --json
""")


def restore(args: Namespace) -> int:
    from holdfast.faces.cli.output import put_json

    connection, session, chosen = link(args), args.session, args.checkpoint
    if is_id(session):
        chosen = session
        known = connection.request("checkpoints")["checkpoints"]
        session = next((one["id"] for one in known if one["checkpoint"] == chosen), None)
        if session is None:
            raise NotFound(f"no checkpoint {chosen}", "`holdfast checkpoint --list` lists them")
    fields = {"checkpoint": chosen} if chosen else {}
    said = connection.request("restore", wait_s=WAIT_S, session=session, hold=args.hold, **fields)
    if args.json:
        put_json(said)
        return 0
    import time

    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(said["at"]))
    print(
        f"{said['name']} is back as incarnation {said['epoch']}, with its memory of {at} "
        f"({said['checkpoint']}); what it did after that is undone in memory, and not in the world"
    )
    for loss in said["losses"]:
        print(f"  {loss}")
    if said["replaced"]:
        print(f"  as saved again: {', '.join(said['replaced'])}; the newer content: {said['kept']}")
    return 0


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB"
