"""checkpoint, restore."""

from __future__ import annotations

import sys

from holdfast.core.checkpoint.manifest import is_id
from holdfast.core.session.connections import words
from holdfast.faces.cli.arguments import usage
from holdfast.faces.cli.connect import HOLD, link
from holdfast.faces.cli.recovery.move import FILES
from holdfast.faces.cli.recovery.progress import Progress
from holdfast.model.errors import Impossible, NotFound, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

    from holdfast.client.link import Link
    from holdfast.model.jsontext import Json

WAIT_S = 3600.0  # a large session on a slow disk

checkpoint_parser = usage(f"""
    save a contained session with all its processes to disk; it goes on running

    [SESSION]
    --stop  end its processes once they are saved; `restore` brings them back
    --check  only say what can be saved and what will be lost; nothing stops
    --remove ID  remove this checkpoint of SESSION, and what no other checkpoint needs
    --list  list the checkpoints, of SESSION or of all sessions, and the machines that have copies
    --to MACHINE  send a copy to a machine that you trust (`holdfast machines trust`)
    --every D  with --to: send a copy in this period from now on (10m, 1h); off: no more
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
    to = {"to": args.to} if args.to else {}
    if args.every:
        return _every(args, connection)
    if args.check:
        said = connection.request(
            "checkpoint", wait_s=WAIT_S, session=args.session, stop=False, check=True, **to
        )
        return _put_check(args, said)

    if args.remove:
        return _remove(args, connection)
    progress = Progress(f"saving {args.session}", "packed", not args.json)
    said = connection.request(
        "checkpoint",
        wait_s=WAIT_S,
        on_event=progress,
        session=args.session,
        stop=args.stop,
        check=False,
        hold=args.hold,
        **to,
    )
    progress.clear()
    if args.json:
        from holdfast.faces.cli.output import put_json

        put_json(said)
        return 0
    made = said["saved"]
    still = f"it stood still for {made['frozen_ms']:.0f} ms, and goes on"
    after = "its processes have ended" if made["ended"] else still
    amount = f"{size(made['bytes'])}, {size(made['added'])} more on the disk"
    print(f"{said['name']} is saved as {made['checkpoint']}, {amount}; {after}")
    for loss in made["losses"]:
        print(f"  {loss}")
    for one in made["copies"]:
        if "failed" in one:
            print(
                f"holdfast: no copy reached {one['machine']}: {one['failed']}; "
                "the checkpoint here stays",
                file=sys.stderr,
            )
            return 5
        print(
            f"  {one['machine']} has a copy of {size(one['bytes'])}; {size(one['sent'])} "
            f"travelled in {one['took_ms'] / 1000:.1f} s"
        )
    return 0


def _every(args: Namespace, connection: Link) -> int:
    """Set or end the schedule of a session."""
    from holdfast.faces.cli.operators import lasting

    off = args.every == "off"
    if not off and not args.to:
        raise Usage("--every needs --to MACHINE", "or --every off")
    said = connection.request(
        "checkpoint.every",
        session=args.session,
        every_s=0 if off else int(lasting(args.every)),
        to=args.to or "",
        hold=args.hold,
    )
    if args.json:
        from holdfast.faces.cli.output import put_json

        put_json(said)
    elif said["every_s"]:
        print(f"{said['to']} gets a copy of {said['name']} every {said['every_s']} s")
    else:
        print(f"no more copies of {said['name']} are sent")
    return 0


def _remove(args: Namespace, connection: Link) -> int:
    said = connection.request(
        "checkpoint.remove", session=args.session, checkpoint=args.remove, hold=args.hold
    )
    if args.json:
        from holdfast.faces.cli.output import put_json

        put_json(said)
    else:
        print(f"{said['checkpoint']} of {said['name']} is removed; {size(said['freed'])} are free")
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
            f"{said['name']} can be saved: about {size(found['bytes'])}, "
            f"{found['seconds']:.1f} s; it stands still for the first part of that time"
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
            where = [f"copy at {copy['machine']}" for copy in one["copies"]]
            where += [f"kept for {one['kept_for']}"] if "kept_for" in one else []
            shown = (one["checkpoint"], one["name"], at, size(one["bytes"]), *where)
            print("  ".join(shown))
    return 0


restore_parser = usage(f"""
    bring an ended session back with its processes, from its newest checkpoint

    session=SESSION|CHECKPOINT
    --checkpoint ID  this checkpoint of the session
    --no-fallback  if that fails, leave the session ended; otherwise it comes back without its
        memory, like a lost session without a checkpoint
    --lost  take over a session of another machine from a copy: you state that the machine is gone
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
    fields: Json = {"checkpoint": chosen} if chosen else {}
    if args.no_fallback:
        fields["fallback"] = False
    if args.lost:
        fields["lost"] = True
    progress = Progress(f"restoring {session}", "unpacked", not args.json)
    said = connection.request(
        "restore", wait_s=WAIT_S, on_event=progress, session=session, hold=args.hold, **fields
    )
    progress.clear()
    if args.json:
        put_json(said)
        return 0
    if "re_established" in said:
        return _put_re_established(said)
    import time

    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(said["at"]))
    print(
        f"{said['name']} is back as incarnation {said['epoch']}, with its memory of {at} "
        f"({said['checkpoint']}); changes after that to files and elsewhere remain"
    )
    if "taken_from" in said:
        print(
            f"  it was taken over from {said['taken_from']}; acts after number {said['act']} are "
            f"not in its memory; its incarnation there ends when {said['taken_from']} hears of it"
        )
        at = "the state directory" if connection.away is not None else connection.home.state
        print(f"  {FILES} arrived/{said['id']} in {at}")
    for loss in said["losses"]:
        print(f"  {loss}")
    if said["connections"]:
        print(f"  connections that did not survive: {words(said['connections'])}")
    if said["replaced"]:
        print(f"  as at the checkpoint again: {', '.join(said['replaced'])}")
        if "kept" in said:
            print(f"  their newer content is in {said['kept']}")
    return 0


def _put_re_established(said: Json) -> int:
    """Say that the memory is lost, and why."""
    from holdfast.model.printable import printable

    lost = said["re_established"]
    print(
        f"{printable(lost['reason'])}. {said['name']} is back as incarnation {said['epoch']}: "
        "directory, variables and output are back; memory and programs are lost"
    )
    for one in lost["running"]:
        print(f"  it ran: {printable(one['argv'])}")
    for note in lost["notes"]:
        print(f"  {printable(note)}")
    return 0


def size(count: int) -> str:
    """A number of bytes in words."""
    return f"{count / 1e6:.1f} MB"
