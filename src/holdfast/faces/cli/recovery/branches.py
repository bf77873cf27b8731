"""fork, branches, diff, keep, discard."""

from __future__ import annotations

from holdfast.core.session.connections import line
from holdfast.faces.cli.arguments import usage
from holdfast.faces.cli.connect import HOLD, link
from holdfast.faces.cli.recovery.checkpoints import size
from holdfast.faces.cli.recovery.progress import WAIT_S, Progress, carried_out
from holdfast.model.errors import Impossible, Refused, Usage
from holdfast.model.printable import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterable

    from holdfast.client.link import Link
    from holdfast.model.jsontext import Json

TAB = "\t"

fork_parser = usage(f"""
    make branches of a live contained session, with its memory and files; the session goes on

    session=SESSION
    -n N  the number of branches (1)
    --name NAME  the name of the branch; several are NAME-1, NAME-2 ...
    --check  only say what can be forked and what will be lost; nothing stops
    --hold S  {HOLD}
    --json
""")


def here(paths: Iterable[str], connection: Link) -> list[str]:
    """The paths, with relative ones below the current directory of this command."""
    import os

    found = list[str]()
    for path in paths:
        if not os.path.isabs(path) and connection.away is not None:
            raise Usage(f"the path {path[:200]!a} on another machine must be absolute", "")
        found.append(os.path.abspath(path))
    return found


def fork(args: Namespace) -> int:
    from holdfast.faces.cli.output import put_json

    if args.n is not None and args.n < 1:
        raise Usage(f"-n {args.n} is not a number of branches", "at least 1: `-n 2` makes two")

    said = carried_out(
        link(args),
        "fork",
        Progress(f"forking {args.session}", "", not args.json),
        "`holdfast branches` shows whether there are branches",
        session=args.session,
        n=1 if args.n is None else args.n,
        check=args.check,
        hold=args.hold,
        **({"name": args.name} if args.name else {}),
    )
    found = said["found"]
    if args.json:
        put_json(said)
    elif found is not None and not found["possible"]:
        raise Impossible(f"{said['name']} cannot be forked: {'; '.join(found['blockers'])}", "")
    elif found is not None:
        print(f"{said['name']} can be forked: {size(found['bytes'])}, {found['seconds']:.1f} s")
    else:
        for one in said["branches"]:
            print(f"{one['name']}  {one['id']}")
        print(f"{said['name']} stood still for {said['frozen_ms']:.0f} ms, and goes on")
        one = said["branches"][0]["name"]
        print(f"  `holdfast diff {one}` shows its changes; `keep` commits them, `discard` ends it")
    if not args.json:
        for connection in said["closed"]:
            print(f"  closed in the branches: {line(connection)}")
        for loss in said["losses"]:
            print(f"  {loss}")
    return 0 if found is None or found["possible"] else Impossible.exit_code


branches_parser = usage("""
    list branches with their parents

    [SESSION]
    --json
""")


def branches(args: Namespace) -> int:
    from holdfast.faces.cli import output

    fields = {"session": args.session} if args.session else {}
    found = link(args).request("branches", **fields)["branches"]
    if args.json:
        output.put_json([output.timed(one, one["at"]) for one in found])
    elif not found:
        print("no branches; `holdfast fork SESSION` makes some")
    else:
        known = {one["id"] for one in found}
        for one in found:
            if one["parent"] not in known:
                _put_tree(found, one["parent"], one["parent_name"])
                known.add(one["parent"])
    return 0


def _put_tree(found: list[Json], session: str, name: str, depth: int = 0) -> None:
    if not depth:
        print(f"{name}  {session}")
    for one in found:
        if one["parent"] == session:
            kept = "  kept" if one["kept"] else ""
            code = "" if one["exit_code"] is None else f" with {one['exit_code']}"
            print(f"{'  ' * (depth + 1)}{one['name']}  {one['id']}  {one['state']}{code}{kept}")
            _put_tree(found, one["id"], one["name"], depth + 1)


diff_parser = usage("""
    show what a branch has changed since the fork: files, processes, ports

    session=BRANCH
    [PATH]  only this file, or below this directory; a relative path is below your own directory
    --stat  only the names and sizes of files
    --every  home, /tmp, /var/tmp and /run too
    --json
""")


def diff(args: Namespace) -> int:
    from holdfast.faces.cli.output import put_json

    connection = link(args)
    path: Json = {"path": here([args.path], connection)[0]} if args.path else {}
    said = connection.request(
        "diff",
        wait_s=WAIT_S,
        session=args.session,
        every=args.every,
        texts=not args.stat,
        **path,
    )
    if args.json:
        put_json(said)
        return 0
    for one in said["files"]:
        source = f"{printable(one['source'])} -> " if one.get("source") else ""
        why = f"  ({one['why']})" if one["why"] else ""
        print(f"{one['what']:8} {source}{printable(one['path'])}{_sizes(one)}{why}")
        for text in one["text"].splitlines():
            print(f"  {printable(text.replace(TAB, '    '))}")
    if said["more"]:
        print(f"and {said['more']} more files; name a PATH to see them")
    if said["private"]:
        print(f"changes in home, /tmp and /run: {said['private']} (--every shows them)")
    for name, word in (("began", "has started"), ("ended", "has ended")):
        for one in said[name]:
            print(f"process {one['pid']} ({printable(one['name'])}) {word}")
    for name in ("opened", "closed"):
        for port in said[name]:
            print(f"port {port} {name}")
    if said["state"] == "ended":
        print(f"{said['name']} has ended with {said['exit_code']}")
    return 0


def _sizes(one: Json) -> str:
    before, after = one["before"], one["after"]
    if one["what"] == "mode":
        return f"  {before['mode']:o} -> {after['mode']:o}"
    if one["what"] == "kind":
        return f"  {before['kind']} -> {after['kind']}"
    sizes = [f"{e['size']}" for e in (before, after) if e is not None and e["kind"] == "file"]
    return f"  {' -> '.join(sizes)} bytes" if sizes else ""


keep_parser = usage(f"""
    commit the files of a branch into its parent's directories, and discard the other branches

    session=BRANCH
    --check  only say what would be written, and what conflicts
    --take PATH...  where both changed: the file of the branch
    --leave PATH...  where both changed: the file as it is; also for files without a conflict.
        A PATH is a changed file or a directory above; a relative one is below your own directory
    --others  do not discard the other branches
    --hold S  {HOLD}
    --json
""")


def keep(args: Namespace) -> int:
    from holdfast.faces.cli.output import put_json

    connection = link(args)
    said = carried_out(
        connection,
        "keep",
        Progress(f"keeping {args.session}", "", not args.json),
        f"`holdfast keep {args.session}` completes it, or says that it is over",
        session=args.session,
        take=here(args.take or (), connection),
        leave=here(args.leave or (), connection),
        others=args.others,
        check=args.check,
        hold=args.hold,
    )
    if args.json:
        put_json(said)
    else:
        _put_kept(args, said)
    return Refused.exit_code if said["conflicts"] or said["remaining"] else 0


def _put_kept(args: Namespace, said: Json) -> None:
    for one in said["conflicts"]:
        print(f"conflict: {printable(one['path'])}: {one['why']}")
    if said["conflicts"] and not said["done"]:
        print(
            f"nothing was written; decide: `holdfast keep {said['name']} --take PATH` for the "
            "branch's file, or --leave PATH for the parent's"
        )
    elif said["done"]:
        again = " (the rest of an interrupted keep)" if said["resumed"] else ""
        print(f"the files of {said['name']} are kept: {said['steps']} changes{again}")
        if said["conflicts"]:
            print("not those that conflict; no branch is discarded; decide, and keep once more")
        else:
            print(f"  {said['name']} still runs: `holdfast discard {said['name']}` ends it")
    else:
        print(f"{said['steps']} changes would be written")
    for path in said["left"]:
        print(f"  left as it is: {printable(path)}")
    for left in said["discarded"]:
        print(f"{left['name']} is discarded")
        put_left(left)
    for one in said["remaining"]:
        print(f"{one['name']} is not discarded: {one['why']}")


discard_parser = usage(f"""
    end a branch and remove its files; say what left the branch and cannot be undone

    session=BRANCH
    --hold S  {HOLD}
    --json
""")


def discard(args: Namespace) -> int:
    from holdfast.faces.cli.output import put_json

    progress = Progress(f"discarding {args.session}", "", not args.json)
    progress.stops = False
    look, asked = "`holdfast branches` shows what is left", {"session": args.session}
    said = carried_out(link(args), "discard", progress, look, **asked, hold=args.hold)
    if args.json:
        put_json(said)
        return 0
    print(f"{said['name']} is discarded")
    put_left(said["left"])
    return 0


def put_left(left: Json) -> None:
    for one in left["connections"]:
        print(f"  it was connected: {line(one)}")
    for one in left.get("earlier", ()):
        print(f"  it had been connected: {line(one)}")
    if left.get("more"):
        print(f"  and {left['more']} earlier connections more")
    for path in left["servers"]:
        print(f"  it could use the server at {printable(path)}; its requests are not known")
    if left["acts"]:
        acts = "1 act" if left["acts"] == 1 else f"{left['acts']} acts"
        print(f"  it took {acts}; `holdfast log {left['id']}` has the record")
