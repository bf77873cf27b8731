"""The command `files`: list, read, write, move, remove and search files of a session."""

from __future__ import annotations

import os
import stat
import sys
import time

from holdfast.faces.cli.arguments import usage
from holdfast.faces.cli.connect import HOLD, link, put_held, say_held
from holdfast.faces.cli.output import amount, clean, columns, put, put_json, write
from holdfast.model.errors import Impossible, PeerFault, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Awaitable, Callable

    from holdfast.client.link import Link
    from holdfast.client.transfers import Progress, Transfers
    from holdfast.model.jsontext import Json

PAGE = 1000  # entries of a directory in an answer
SHOW_S = 0.2  # between two lines of progress

files_parser = usage(f"""
    files of a session, over the same channel. A relative path begins in the current directory of
    the session's first program, and no path leads out of the session's root. Every operation needs
    the right `files`, passes the gate and is recorded.

    `ls SESSION [PATH]`, `stat SESSION PATH`, `get SESSION PATH [LOCAL]` (`-` is standard output),
    `put SESSION LOCAL [PATH]` (`-` is standard input), `rm SESSION PATH`, `mv SESSION PATH TO`,
    `search SESSION PATTERN [PATH]`.

    act=ls|stat|get|put|rm|mv|search  the operation
    SESSION
    words=[PATH...]  paths in the session, a pattern, or a local path, as above
    -r --recursive  with get, put and rm: a directory and everything below it
    --parents  with put: make missing directories
    --mode MODE  with put: the permission bits, such as 755 (default: those of the local file)
    --text TEXT  with search: only lines that contain this text
    --limit N  with ls and search: at most so many entries
    --hold S  {HOLD}
    --json
""")

# The least and most words of each operation, and their names.
_WORDS = {
    "ls": (0, 1, "[PATH]"),
    "stat": (1, 1, "PATH"),
    "get": (1, 2, "PATH [LOCAL]"),
    "put": (1, 2, "LOCAL [PATH]"),
    "rm": (1, 1, "PATH"),
    "mv": (2, 2, "PATH TO"),
    "search": (1, 2, "PATTERN [PATH]"),
}


def files(args: Namespace) -> int:
    least, most, names = _WORDS[args.act]
    if not least <= len(args.words) <= most:
        raise Usage(f"`files {args.act}` takes SESSION {names}")
    if args.once is not None and args.act not in ("put", "rm", "mv"):
        raise Usage(f"`files {args.act}` changes nothing and takes no --once")
    do: Callable[[Namespace, Transfers], Awaitable[int]] = {
        "ls": _ls,
        "stat": _stat,
        "get": _get,
        "put": _put,
        "rm": _rm,
        "mv": _mv,
        "search": _search,
    }[args.act]
    import asyncio

    return asyncio.run(_connected(args, do))


async def _connected(args: Namespace, do: Callable[[Namespace, Transfers], Awaitable[int]]) -> int:
    from holdfast.client.engine.engine import Engine
    from holdfast.client.transfers import Transfers

    session = args.session

    def connection() -> Link:
        args.session = session  # with the name of the machine, which `link` takes off
        return link(args)

    engine = Engine(connection)
    notice = put_held if args.json else say_held
    try:
        it = Transfers(engine, args.session, lambda event: notice(event, args.hold))
        return await do(args, it)
    finally:
        await engine.close()


# ---------------------------------------------------------------- look


async def _ls(args: Namespace, it: Transfers) -> int:
    path, left = (args.words or ["."])[0], _limit(args)
    found: list[Json] = []
    after, more, where = "", True, path
    while more and (left is None or len(found) < left):
        limit = PAGE if left is None else min(PAGE, left - len(found))
        page = await it.ask("ls", path=path, after=after, limit=limit, hold=args.hold)
        found += page["entries"]
        where, more = page["path"], page["more"] and bool(page["entries"])
        after = found[-1]["name"] if found else ""
        if not args.json:
            for one in page["entries"]:
                print(_row(one))
    if args.json:
        put_json({"path": where, "entries": found, "more": more})
    elif more:
        print(f"holdfast: there are more than {len(found)} entries", file=sys.stderr)
    return 0


def _row(one: Json) -> str:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(one["modified"]))
    kind = {"file": "-", "directory": "d", "link": "l", "fifo": "p", "socket": "s"}
    bits = "".join(
        letter if one["mode"] >> (8 - n) & 1 else "-" for n, letter in enumerate("rwxrwxrwx")
    )
    target = f" -> {one['target']}" if one.get("target") else ""
    name = one["name"] + ("/" if one["type"] == "directory" else "")
    size = amount(one["size"])
    return clean(f"{kind.get(one['type'], 'c')}{bits} {size:>8}  {when}  {name}{target}")


async def _stat(args: Namespace, it: Transfers) -> int:
    found = await it.ask("stat", path=args.words[0], hold=args.hold)
    if args.json:
        put_json(found)
    else:
        shown = {**found, "mode": f"{found['mode']:04o}"}
        shown["modified"] = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found["modified"]))
        names = ("path", "type", "size", "mode", "owner", "modified", "target", "version")
        print("\n".join(clean(f"{name:9} {shown[name]}") for name in names if name in shown))
    return 0


async def _search(args: Namespace, it: Transfers) -> int:
    pattern, *path = args.words
    limit = min(PAGE, _limit(args) or PAGE)
    found = await it.ask(
        "search",
        pattern=pattern,
        path=(path or ["."])[0],
        text=args.text or "",
        limit=limit,
        hold=args.hold,
    )
    if args.json:
        put_json(found)
        return 0
    for one in found["matches"]:
        line = f":{one['line']}: {one['text']}" if "line" in one else ""
        print(clean(f"{one['path']}{line}"))
    if found["cut"]:
        print(f"holdfast: not complete: too many {found['cut']}", file=sys.stderr)
    if found["unreadable"]:
        print(f"holdfast: {found['unreadable']} could not be read", file=sys.stderr)
    return 0


def _limit(args: Namespace) -> int | None:
    if args.limit is not None and args.limit <= 0:
        raise Usage("--limit needs a number above 0")
    limit: int | None = args.limit
    return limit


# ---------------------------------------------------------------- down


async def _get(args: Namespace, it: Transfers) -> int:
    path, local = (*args.words, ".")[:2]
    if local == "-":
        return await _to_stdout(args, it, path)
    if args.recursive:
        return await _get_tree(args, it, path, local)
    done = await _get_one(args, it, path, local)
    if args.json:
        put_json(done)
    return 0


async def _get_one(args: Namespace, it: Transfers, path: str, local: str) -> Json:
    from holdfast.client.transfers import local_target

    target = local_target(local, path)
    with _Shown(args, os.path.basename(target)) as shown:
        done = await it.download(path, target, shown.progress, args.hold)
    if done["changed"]:
        print(f"holdfast: {clean(path)} changed while it was read", file=sys.stderr)
    return done | {"local": target}


async def _get_tree(args: Namespace, it: Transfers, path: str, local: str) -> int:
    """A directory with all files below; the copy gets the name of the directory."""
    from holdfast.client.transfers import local_target

    base = local_target(local, path)
    done: list[Json] = []
    skipped: list[str] = []
    todo = [("", base)]
    while todo:
        below, here = todo.pop()
        os.makedirs(here, exist_ok=True)
        after, more = "", True
        while more:
            page = await it.ask(
                "ls", path=f"{path}/{below}", after=after, limit=PAGE, hold=args.hold
            )
            more = page["more"] and bool(page["entries"])
            for one in page["entries"]:
                after = name = one["name"]
                if "/" in name or name in (".", ".."):
                    raise PeerFault(f"a directory cannot have the entry {name!a}")
                if one["type"] == "directory":
                    todo.append((f"{below}{name}/", os.path.join(here, name)))
                elif one["type"] == "file":
                    target = os.path.join(here, name)
                    done.append(await _get_one(args, it, f"{path}/{below}{name}", target))
                else:
                    skipped.append(f"{below}{name}")
    for name in skipped:
        print(f"holdfast: left out, no regular file: {clean(name)}", file=sys.stderr)
    if args.json:
        put_json({"files": done, "skipped": skipped})
    return 0


async def _to_stdout(args: Namespace, it: Transfers, path: str) -> int:
    from contextlib import aclosing

    from holdfast.client.engine.parts import Data

    if args.recursive or args.json:
        raise Usage("`get SESSION PATH -` prints one file and nothing else")
    if sys.stdout.isatty():
        raise Impossible("the content of a file could control this terminal", "name a local file")
    async with aclosing(it.stream(path, args.hold)) as parts:
        async for part in parts:
            if isinstance(part, Data):
                write(part.data)
    return 0


# ---------------------------------------------------------------- up


async def _put(args: Namespace, it: Transfers) -> int:
    from holdfast.client.transfers import local_name

    local, path = (*args.words, ".")[:2]
    if local == "-" and path == ".":
        raise Usage("standard input has no name", "`files put SESSION - PATH` names the file")
    if args.recursive:
        return await _put_tree(args, it, local, path)
    name = "" if local == "-" else local_name(local)
    done = await _put_one(args, it, local, path, name, args.once)
    if args.json:
        put_json(done)
    return 0


async def _put_one(
    args: Namespace, it: Transfers, local: str, path: str, name: str, once: str | None
) -> Json:
    source = 0 if local == "-" else os.open(local, os.O_RDONLY | os.O_CLOEXEC)
    try:
        facts = os.fstat(source)
        if stat.S_ISDIR(facts.st_mode):
            raise Usage(f"{local} is a directory", "`files put -r` copies it")
        mode = None if local == "-" else facts.st_mode & 0o777
        with _Shown(args, name or path) as shown:
            return await it.upload(
                source,
                path,
                name,
                mode if args.mode is None else _mode(args.mode),
                args.parents,
                shown.progress,
                args.hold,
                once,
            )
    finally:
        if source:
            os.close(source)


async def _put_tree(args: Namespace, it: Transfers, local: str, path: str) -> int:
    """A directory with all files below; the copy gets the name of the directory."""
    from holdfast.client.transfers import local_name

    args.parents = True
    done: list[Json] = []
    found, skipped = _below(local)
    for below in found:
        once = None if args.once is None else f"{args.once}/{len(done) + 1}"
        target = f"{path}/{local_name(local)}/{below}"
        done.append(await _put_one(args, it, f"{local}/{below}", target, "", once))
    for one in skipped:
        print(f"holdfast: left out, no regular file: {clean(one)}", file=sys.stderr)
    if args.json:
        put_json({"files": done, "skipped": skipped})
    return 0


def _below(local: str) -> tuple[list[str], list[str]]:
    """The regular files below a directory, and the files of other types except directories."""
    found: list[str] = []
    skipped: list[str] = []
    for folder, folders, names in os.walk(local):
        links = [one for one in folders if os.path.islink(os.path.join(folder, one))]
        for one in sorted([*names, *links]):
            source = os.path.join(folder, one)
            regular = os.path.isfile(source) and not os.path.islink(source)
            (found if regular else skipped).append(os.path.relpath(source, local))
    return found, skipped


def _mode(text: str) -> int:
    try:
        mode = int(text, 8)
    except ValueError:
        mode = -1
    if not 0 <= mode <= 0o777:
        raise Usage(f"--mode {text[:20]!a}: octal permission bits, such as 644 or 755")
    return mode


async def _rm(args: Namespace, it: Transfers) -> int:
    fields: Json = {"path": args.words[0], "recursive": args.recursive, "hold": args.hold}
    done = await it.change("rm", args.once, **fields)
    return put(args, done, clean(f"removed {done['path']}"))


async def _mv(args: Namespace, it: Transfers) -> int:
    path, to = args.words
    done = await it.change("mv", args.once, path=path, to=to, hold=args.hold)
    return put(args, done, clean(f"{done['path']} is now {done['to']}"))


class _Shown:
    """A line of progress on a terminal, rewritten in place."""

    def __init__(self, args: Namespace, name: str) -> None:
        self._name, self._on = name, sys.stderr.isatty() and not args.json
        self._began, self._next = time.monotonic(), 0.0
        self._first: int | None = None

    def __enter__(self) -> _Shown:
        return self

    @property
    def progress(self) -> Progress:
        return self._show

    def _show(self, done: int, size: int) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = done
        if not self._on or (now < self._next and done < size):
            return
        self._next = now + SHOW_S
        rate = (done - self._first) / max(now - self._began, 0.001)
        share = 100 * done // size if size else 100
        line = f"{clean(self._name)}  {share:3}%  {amount(done)} of {amount(size)}"
        room = int(min(columns(), 79))
        print(f"\r\x1b[K{line}  {amount(int(rate))}/s"[: room + 4], end="", file=sys.stderr)
        sys.stderr.flush()

    def __exit__(self, *exc: object) -> None:
        if self._on and self._first is not None:
            print(file=sys.stderr)
