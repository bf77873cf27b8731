"""graph: what runs in a session, from the kernel."""

from __future__ import annotations

import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from holdfast.faces.cli.connect import link
from holdfast.faces.cli.output import amount, clean, duration, put_json, table, timed
from holdfast.model.errors import NotFound, Unavailable, Usage

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

COMMAND_CHARS = 60


def graph_parser(p: ArgumentParser) -> None:
    p.add_argument("session", metavar="SESSION")
    p.add_argument(
        "--port",
        type=int,
        metavar="N",
        help="only who listens on this port; exit code 3 if nobody does, 5 if that cannot be known",
    )
    p.add_argument(
        "--files",
        action="store_true",
        help="open files too, with offsets and locks, and pipes between processes",
    )
    p.add_argument(
        "--wrote",
        metavar="PATH",
        help="only who wrote this file, and who else had a hand in it; exit code 3 if nobody in any session did, 5 if that cannot be known",
    )
    p.add_argument(
        "--follow",
        "-f",
        action="store_true",
        help="what changes, until the session ends: started, exited, listening, closed, blocked, unblocked",
    )
    p.add_argument(
        "--json", action="store_true", help="all of it; with --follow one object per change"
    )


def graph(args: Namespace) -> int:
    if args.follow:
        if args.port is not None or args.files or args.wrote:
            raise Usage(
                f"--follow tells every change; it does not go with {'--files' if args.files else '--wrote' if args.wrote else '--port'}",
                "`holdfast wait SESSION --for port:N` waits for a port",
            )
        return _follow(args)
    where = args.session
    if args.wrote:
        return _wrote(
            link(args).request("graph", session=args.session, wrote=[args.wrote]),
            args.wrote,
            args.json,
        )
    found = link(args).request("graph", session=args.session)
    if args.port is not None:
        return _port(found, args.port, args.json, where)
    if args.json:
        put_json(found)
        return 0
    print(clean(_terminal(found["terminal"])))
    print(
        table(("PROCESS", "PID", "STATE", "CPU", "MEMORY", "SINCE", "BY", "ACT"), _processes(found))
    )
    known = {p["pid"]: p for p in found["processes"]}
    sockets = [s for s in found["sockets"] if s["local"] or s["remote"]]
    if sockets:
        print()
        print(
            table(
                ("SOCKET", "LOCAL", "REMOTE", "STATE", "HELD BY"),
                [
                    (
                        s["kind"],
                        clean(s["local"]),
                        clean(s["remote"]),
                        s["state"],
                        _holder(known, s["pid"]),
                    )
                    for s in sockets
                ],
            )
        )
    if args.files:
        _files(found, known)
    if found.get("timers"):
        print()
        print(
            table(
                ("TIMER", "BY", "ACT"),
                [
                    (clean(t["name"]), clean(t["actor"]), (t["act"] or "").partition("#")[2])
                    for t in found["timers"]
                ],
            )
        )
    for words in _unseen(found):
        print(words)
    return 0


def _wrote(found: dict[str, Any], path: str, as_json: bool) -> int:
    people = found["wrote"]
    if as_json:
        put_json(found)
        return (
            NotFound.exit_code
            if not people
            else Unavailable.exit_code
            if people[0]["actor"] == "unknown"
            else 0
        )
    if not people:
        raise NotFound(
            f"nobody in any session wrote {path}, or it does not exist",
            "if it is there, it is as it was before the first session began; a path without a slash in front begins where the shell is",
        )
    if people[0]["actor"] != "unknown":
        print(
            table(
                ("FILE", "BY", "ACT", "SURE"),
                [
                    (
                        clean(one["name"]),
                        clean(one["actor"]),
                        (one["act"] or "").partition("#")[2],
                        "yes" if one.get("sure", True) and one["actor"] != "unknown" else "no",
                    )
                    for one in people
                ],
            )
        )
    if people[0]["actor"] == "unknown":
        raise Unavailable(
            f"who wrote {path} is not known",
            "it was written while nobody was told of it, or by a program of no session",
        )
    return 0


def _follow(args: Namespace) -> int:
    """A host that comes back tells anew what is there: what was shown already is not shown again."""
    known: set[tuple[Any, ...]] = set()

    def show(change: dict[str, Any]) -> None:
        thing = (
            change.get("pid"),
            change.get("started") if "started" in change else change.get("local"),
        )
        if change["change"] in ("started", "listening"):
            if thing in known:
                return
            known.add(thing)
        elif change["change"] in ("exited", "closed"):
            known.discard(thing)
        if args.json:
            put_json(
                timed(
                    {
                        name: value
                        for name, value in change.items()
                        if name not in ("event", "request")
                    },
                    change["time"],
                )
            )
        else:
            print(
                f"{time.strftime('%H:%M:%S', time.localtime(change['time']))} {clean(_change(change))}"
            )
        sys.stdout.flush()

    result = link(args).request(
        "graph",
        wait_s=None,
        on_event=lambda e: show(e) if e.get("event") == "changed" else None,
        session=args.session,
        follow=True,
    )
    if not args.json:
        print(f"{result['name']} ended: {result['reason']}")
    return 0


def _change(c: dict[str, Any]) -> str:
    what = (
        "present"
        if c.get("was") and c["change"] == "started"
        else "listens"
        if c.get("was")
        else c["change"]
    )
    if what == "more":
        return f"and {c['count']} more changes at once"
    if what in ("blocked", "unblocked"):
        return f"{what}: {c['waiting']['for']} ({c['waiting']['why']})"
    if what in ("listening", "listens", "closed"):
        return f"{what} {c['kind']} {c['local']} ({c['pid']})"
    words = " ".join(c["argv"]) or c["comm"] or "a process that lived for a moment"
    how = (
        ""
        if what in ("started", "present")
        else f" killed by {_signal(c['signal'])}"
        if c["signal"]
        else f" with {c['exit_code']}"
        if c["exit_code"] is not None
        else ""
    )
    return f"{what} {c['pid']}{how}: {words}" + (f" ({c['actor']})" if c.get("actor") else "")


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # of the real-time ones only the first and the last have a name
        return f"signal {number}"


def _port(found: dict[str, Any], port: int, as_json: bool, where: str) -> int:
    known = {p["pid"]: p for p in found["processes"]}
    listening = [s for s in found["sockets"] if s["port"] == port and s["state"] == "listen"]
    if as_json:
        put_json([s | {"process": known.get(s["pid"])} for s in listening])
    for s in listening if not as_json else ():
        process = known.get(s["pid"])
        since = (
            f", running for {duration(time.time() - process['started'])}, started by {process['actor']}"
            if process
            else ""
        )
        print(clean(f"{s['local']}: {_holder(known, s['pid'])}{since}"))
    if listening:
        return 0
    if found["unreadable"] or found["cut"]:
        raise Unavailable(
            f"nobody is seen to listen on {port}, but not everything could be looked at",
            "; ".join(_unseen(found)),
        )
    raise NotFound(
        f"nobody listens on {port} in session {found['name']}",
        f"`holdfast graph {where}` shows who does listen",
    )


def _terminal(terminal: dict[str, Any]) -> str:
    size, waiting, foreground = terminal["size"], terminal["waiting"], terminal["foreground"]
    return f"{size['cols']}x{size['rows']}, {terminal['mode']} mode; {foreground['command'] or 'nothing'} is in the foreground: {waiting['for']} ({waiting['why']})"


def _processes(found: dict[str, Any]) -> list[tuple[str, ...]]:
    now, rows = found["time"], list[tuple[str, ...]]()
    for depth, p in _forest(found["processes"]):
        words = clean(" ".join(p["argv"]) or f"[{p['comm']}]")
        name = "  " * min(depth, 12) + (
            words if len(words) <= COMMAND_CHARS else words[: COMMAND_CHARS - 3] + "..."
        )
        others = [o for o in p["originators"] if o not in ("unknown", p["actor"])]
        by = p["actor"] + (f" on what {', '.join(others)} left" if others else "")
        pid = str(p["pid"]) if p["inside"] is None else f"{p['pid']} ({p['inside']})"
        rows.append(
            (
                name,
                pid,
                p["state"],
                f"{p['cpu_s']:.1f} s",
                amount(p["memory"]),
                duration(max(0.0, now - p["started"])),
                clean(by),
                (p["act"] or "").partition("#")[2],
            )
        )
    return rows


def _forest(processes: list[dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    """Parents before their children, by age; below whom each was started, if that one is still there, else below whom it is now."""
    known = {p["pid"]: p for p in processes}

    def above(p: dict[str, Any]) -> int:
        return next(
            (
                pid
                for pid in (p["started_by"], p["ppid"])
                if pid in known and known[pid]["start"] <= p["start"] and pid != p["pid"]
            ),
            0,
        )

    below: dict[int, list[dict[str, Any]]] = {}
    for p in sorted(processes, key=lambda p: (p["start"], p["pid"]), reverse=True):
        below.setdefault(above(p), []).append(p)
    found, stack = list[tuple[int, dict[str, Any]]](), [(0, p) for p in below.get(0, ())]
    while stack:
        depth, p = stack.pop()
        found.append((depth, p))
        stack += [(depth + 1, child) for child in below.get(p["pid"], ())]
    return found


def _files(found: dict[str, Any], known: dict[int, dict[str, Any]]) -> None:
    rows = [
        (
            clean(f["path"]) + (" (deleted)" if f["deleted"] else ""),
            f["mode"],
            str(f["offset"]) if f["kind"] == "file" else f["kind"],
            ", ".join(
                f"{lock['kind']} {'write' if lock['write'] else 'read'} {lock['start']}-{lock['end'] if lock['end'] is not None else 'end'}"
                for lock in f["locks"]
            ),
            _holder(known, f["pid"]),
        )
        for f in found["files"]
        if f["kind"] != "terminal"
    ]
    if rows:
        print()
        print(table(("FILE", "MODE", "OFFSET", "LOCKS", "HELD BY"), rows))
    pipes = [
        p
        for p in found["pipes"]
        if p["writers"]
        and p["readers"]
        and {e["pid"] for e in p["writers"]} != {e["pid"] for e in p["readers"]}
    ]
    if pipes:
        print()
        print(
            table(
                ("PIPE", "FROM", "TO"),
                [
                    (str(p["id"]), _ends(known, p["writers"]), _ends(known, p["readers"]))
                    for p in pipes
                ],
            )
        )


def _ends(known: dict[int, dict[str, Any]], ends: list[dict[str, int]]) -> str:
    return ", ".join(_holder(known, pid) for pid in dict.fromkeys(end["pid"] for end in ends))


def _holder(known: dict[int, dict[str, Any]], pid: int) -> str:
    process = known.get(pid)
    return clean(f"{process['comm']} ({pid})") if process else str(pid)


def _unseen(found: dict[str, Any]) -> list[str]:
    said = []
    if found["unreadable"]:
        said.append(
            f"not looked into, because they run as somebody else: {', '.join(map(str, found['unreadable'][:8]))}{' ...' if len(found['unreadable']) > 8 else ''}"
        )
    if found["cut"]:
        said.append(
            "left out, because there are too many: "
            + ", ".join(f"{n} {what}" for what, n in found["cut"].items())
        )
    return said
