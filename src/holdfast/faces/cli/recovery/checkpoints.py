"""checkpoint, restore."""

from __future__ import annotations

import sys

from holdfast.faces.cli.arguments import usage
from holdfast.faces.cli.connect import HOLD, link
from holdfast.faces.cli.output import size as room
from holdfast.faces.cli.recovery.move import put_files
from holdfast.faces.cli.recovery.progress import Progress, carried_out
from holdfast.model.errors import Impossible, NotFound, Unavailable, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

    from holdfast.client.link import Link
    from holdfast.model.jsontext import Json

checkpoint_parser = usage(f"""
    save a session with all its processes to disk; it goes on running (contained, or of root)

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
        progress = Progress(f"looking at {args.session}", "", not args.json)
        check: Json = {"session": args.session, "stop": False, "check": True, **to}
        said = carried_out(connection, "checkpoint", progress, "", **check)
        return _put_check(args, said)

    if args.remove:
        return _remove(args, connection)
    progress = Progress(f"saving {args.session}", "packed", not args.json)
    said = carried_out(
        connection,
        "checkpoint",
        progress,
        f"`holdfast checkpoint {args.session} --list` shows whether it was saved",
        session=args.session,
        stop=args.stop,
        check=False,
        hold=args.hold,
        **to,
    )
    if args.json:
        from holdfast.faces.cli.output import put_json

        put_json(said)
        return 0
    made = said["saved"]
    still = f"it stood still for {made['frozen_ms']:.0f} ms, and goes on"
    ended = f"its processes have ended; `holdfast restore {said['name']}` brings it back"
    after = ended if made["ended"] else still
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
        if "there" in said:
            _put_there(said["there"])
    if "there" in said and said["there"]["possible"] is None:
        return Unavailable.exit_code
    possible = found["possible"] and ("there" not in said or said["there"]["possible"])
    return 0 if possible else Impossible.exit_code


def _put_there(there: Json) -> None:
    machine = there["machine"]
    if there["possible"]:
        fit = "processor, kernel, CRIU, programs and files fit"
        print(
            f"{machine} could go on with it: {fit}, and {room(there['free'])} are free for copies"
        )
    elif there["possible"] is None:
        print(f"whether {machine} could go on with it is not known: {there['reasons'][0]}")
    else:
        print(f"{machine} could not go on with it. {machine} says:")
        for reason in there["reasons"]:
            print(f"  {reason}")


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
    if _is_checkpoint(session):
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
    look = (
        f"`holdfast ls --all` shows whether it is back, `holdfast events {session}` what happened"
    )
    asked: Json = {"session": session, "hold": args.hold, **fields}
    try:
        said = carried_out(connection, "restore", progress, look, **asked)
    except NotFound as e:
        if args.lost and e.facts.get("what") == "session" and not e.facts.get("known_as"):
            raise _no_copy(session) from None
        raise
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
    if said.get("halted"):
        still = (
            f"still halted, as when it was saved; `holdfast resume {said['name']}` lets it go on"
        )
        print(f"  it is {still}")
    if "taken_from" in said:
        print(
            f"  it was taken over from {said['taken_from']}; acts after number {said['act']} are "
            f"not in its memory; its incarnation there ends when {said['taken_from']} hears of it"
        )
        if said.get("unfenced"):
            print("  until then it may still run and take input there: no lease stopped it")
        put_files(said.get("files", ()))
    for loss in said["losses"]:
        print(f"  {loss}")
    if said.get("in_flight") or said.get("later"):
        _put_acts(said)
    if said["connections"]:
        from holdfast.core.session.connections import words

        print(f"  connections that did not survive: {words(said['connections'])}")
    if said["replaced"]:
        print(f"  as at the checkpoint again: {', '.join(said['replaced'])}")
        if "kept" in said:
            print(f"  their newer content is in {said['kept']}")
    return 0


def _put_acts(said: Json) -> None:
    from holdfast.core.record import acts_beside

    if acts := said.get("in_flight"):
        print(f"  in flight then: {acts_beside.words(acts)}: {acts_beside.IN_FLIGHT}")
    if acts := said.get("later"):
        more = said.get("later_more", 0)
        print(f"  later acts: {acts_beside.words(acts, more)}: {acts_beside.LATER}")


def _is_checkpoint(word: str) -> bool:
    if not word.startswith("cp-"):  # as every id; the module below takes 8 ms to load
        return False
    from holdfast.core.checkpoint.manifest import is_id

    return is_id(word)


def _no_copy(word: str) -> NotFound:
    """A machine without a copy can bring nothing back."""
    return NotFound(
        f"nothing of {word[:80]} can return on this machine: no copy of that session is here",
        "another machine may have one: `holdfast checkpoint --list` there lists its copies",
    )


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
