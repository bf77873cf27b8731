"""move: let a session go on at another machine."""

from __future__ import annotations

from holdfast.faces.cli.arguments import usage
from holdfast.faces.cli.connect import HOLD, link
from holdfast.faces.cli.output import clean
from holdfast.faces.cli.recovery.progress import Progress, carried_out

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

    from holdfast.model.jsontext import Json


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
    said = carried_out(
        connection,
        "move",
        progress,
        f"`holdfast ls --all` shows where it runs; `holdfast events {args.session}`, what happened",
        session=args.session,
        machine=args.machine,
        check=args.check,
        hold=args.hold,
    )
    if args.json:
        from holdfast.faces.cli.output import put_json

        put_json(said)
    elif args.check:
        print(f"{said['name']} could go on at {said['machine']}")
    else:
        print(
            f"{said['name']} goes on at {said['machine']} as incarnation {said['epoch']}; "
            f"it stood still for {said['stood_ms'] / 1000:.1f} s, and {said['sent'] / 1e6:.1f} MB "
            "travelled"
        )
        put_files(said["files"], f" of {said['machine']}")
    return 0


def put_files(files: list[Json], where: str = "") -> None:
    """Say where the shared places of a session are now, and how to copy them back."""
    for one in files:
        print(f"  {clean(copy_line(one, where))}")
        if (changed := one["changed"]) is None:
            continue
        if changed:
            from shlex import quote

            compare = f"`diff -r {quote(one['path'])} {quote(one['place'])}`"
            print(
                clean(f"  {changed} files in {one['path']} have changed meanwhile: {compare} first")
            )
        else:
            print(clean(f"  {one['path']} is as it was when the session left"))


def copy_line(one: Json, where: str = "") -> str:
    from shlex import quote

    path, place = one["path"], one["place"]
    command, there = f"cp -a {quote(place)}/. {quote(path)}/", " there" if where else ""
    return f"the files of {path} are now in {place}{where}; to copy them back{there}: `{command}`"
