"""move: let a session go on at another machine."""

from __future__ import annotations

from holdfast.faces.cli.arguments import usage
from holdfast.faces.cli.connect import HOLD, link
from holdfast.faces.cli.recovery.progress import Progress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

WAIT_S = 3600.0
FILES = "files that it shares with the machine, such as the project's, are now below"

move_parser = usage(f"""
    let a contained session go on at another machine, under the same id, with its processes and
    files. You must trust that machine (`holdfast machines trust`). If the move fails, the session
    goes on here.

    session=SESSION
    machine=MACHINE  the machine that takes the session; `holdfast machines` lists them
    --check  only say whether the session could go on there; nothing stops
    --hold S  {HOLD}
    --json
""")


def move(args: Namespace) -> int:
    connection = link(args)
    progress = Progress(f"moving {args.session}", "sent", not args.json)
    try:
        said = connection.request(
            "move",
            wait_s=WAIT_S,
            on_event=progress,
            session=args.session,
            machine=args.machine,
            check=args.check,
            hold=args.hold,
        )
    finally:
        progress.clear()
    if args.json:
        from holdfast.faces.cli.output import put_json

        put_json(said)
    elif args.check:
        print(f"{said['name']} could go on at {said['machine']}")
    else:
        print(
            f"{said['name']} goes on at {said['machine']} as incarnation {said['epoch']}; "
            f"it stood still for {said['stood_ms'] / 1000:.1f} s, and {said['sent'] / 1e6:.1f} MB "
            f"travelled\n  {FILES} arrived/{said['id']} in the state directory of {said['machine']}"
        )
    return 0
