"""graph: the processes, files and sockets of a session, from the kernel."""

from __future__ import annotations

import signal
import sys
import time

from holdfast.faces.cli.arguments import usage
from holdfast.faces.cli.connect import link, say_away
from holdfast.faces.cli.output import amount, clean, duration, put_json, table, timed
from holdfast.model.errors import NotFound, Unavailable, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from holdfast.model.jsontext import Json

COMMAND_CHARS = 60


graph_parser = usage("""
    SESSION
    --port N  only the process that listens on this port; exit code 3: none, 5: unknown
    --files  open files too, with offsets and locks, and pipes between processes
    --wrote PATH  only the operators who wrote this file; exit code 3: none in any session, 5:
        unknown
    --follow -f  print changes until the session ends: started, exited, listening, closed, blocked,
        unblocked
    --json  everything; with --follow one object per change
""")


def graph(args: Namespace) -> int:
    if args.follow:
        if args.port is not None or args.files or args.wrote:
            option = "--files" if args.files else "--wrote" if args.wrote else "--port"
            raise Usage(
                f"--follow prints every change; it cannot be combined with {option}",
                "`holdfast wait SESSION --for port:N` waits for a port",
            )
        return _follow(args)
    where = args.session
    if args.wrote:
        found = link(args).request("graph", session=args.session, wrote=[args.wrote])
        return _wrote(found, args.wrote, args.json)
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
    sockets = [
        (s["kind"], s["local"], s["remote"], s["state"], _holder(known, s["pid"]))
        for s in found["sockets"]
        if s["local"] or s["remote"]
    ]
    _listed(("SOCKET", "LOCAL", "REMOTE", "STATE", "HELD BY"), sockets)
    if args.files:
        _files(found, known)
    for one in found.get("stopped") or ():
        from holdfast.faces.cli.look import stopped_in_words

        print(clean(stopped_in_words(one)))
    timers = [(t["name"], t["actor"], _act(t)) for t in found.get("timers") or ()]
    _listed(("TIMER", "BY", "ACT"), timers)
    for words in _unseen(found):
        print(words)
    return 0


def _listed(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Print a table after an empty line, if there are rows."""
    if rows:
        print(f"\n{table(head, rows)}")


def _act(one: Json) -> str:
    return (one["act"] or "").partition("#")[2]


def _wrote(found: Json, path: str, as_json: bool) -> int:
    people = found["wrote"]
    unknown = bool(people) and people[0]["actor"] == "unknown"
    if as_json:
        put_json(found)
        return NotFound.exit_code if not people else Unavailable.exit_code if unknown else 0
    if not people:
        raise NotFound(
            f"no program of a session wrote {path}, or the file does not exist",
            "an existing file is unchanged since the first session began; "
            "a relative path starts at the shell's directory",
        )
    if unknown:
        raise Unavailable(
            f"we cannot tell who wrote {path}",
            "the file was written while the host could not observe writers, "
            "or by a program outside of all sessions",
        )
    rows = []
    for one in people:
        sure = one.get("sure", True) and one["actor"] != "unknown"
        rows.append((one["name"], one["actor"], _act(one), "yes" if sure else "no"))
    print(table(("FILE", "BY", "ACT", "SURE"), rows))
    return 0


def _follow(args: Namespace) -> int:
    """Print changes; after a reconnect, print the changes of the meantime and repeat none."""
    from holdfast.client.following import follow
    from holdfast.core.session.graph_news import GraphNews

    known = GraphNews()

    def show(change: Json) -> None:
        if not known.is_news(change):
            return
        if args.json:
            shown = {k: v for k, v in change.items() if k not in ("event", "request")}
            put_json(timed(shown, change["time"]))
        else:
            when = time.strftime("%H:%M:%S", time.localtime(change["time"]))
            print(f"{when} {clean(_change(change))}")
        sys.stdout.flush()

    def on_event(event: Json) -> None:
        if event.get("event") == "present":
            for change in known.returned(event):
                show(change)
        elif event.get("event") == "changed":
            show(event)

    connection = link(args)
    session = connection.request("get", session=args.session)["id"]
    result = follow(connection, "graph", say_away, on_event=on_event, session=session)
    if not args.json:
        print(f"{result['name']} ended: {result['reason']}")
    return 0


def _change(c: Json) -> str:
    what = c["change"]
    if c.get("was"):
        what = "present" if what == "started" else "listens"
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
    except ValueError:  # of the real-time signals only the first and the last have names
        return f"signal {number}"


def _port(found: Json, port: int, as_json: bool, where: str) -> int:
    known = {p["pid"]: p for p in found["processes"]}
    listening = [s for s in found["sockets"] if s["port"] == port and s["state"] == "listen"]
    if as_json:
        put_json([s | {"process": known.get(s["pid"])} for s in listening])
    for s in listening if not as_json else ():
        process = known.get(s["pid"])
        since = (
            f", running for {duration(time.time() - process['started'])}, "
            f"started by {process['actor']}"
            if process
            else ""
        )
        print(clean(f"{s['local']}: {_holder(known, s['pid'])}{since}"))
    if listening:
        return 0
    if found["unreadable"] or found["cut"]:
        raise Unavailable(
            f"no listener on {port} was found, but not all processes could be inspected",
            "; ".join(_unseen(found)),
        )
    raise NotFound(
        f"nothing listens on {port} in session {found['name']}",
        f"`holdfast graph {where}` shows all listeners",
    )


def _terminal(terminal: Json) -> str:
    size, waiting, foreground = terminal["size"], terminal["waiting"], terminal["foreground"]
    return (
        f"{size['cols']}x{size['rows']}, {terminal['mode']} mode; "
        f"{foreground['command'] or 'nothing'} is in the foreground: "
        f"{waiting['for']} ({waiting['why']})"
    )


def _processes(found: Json) -> list[tuple[str, ...]]:
    now, rows = found["time"], list[tuple[str, ...]]()
    for depth, p in _forest(found["processes"]):
        words = clean(" ".join(p["argv"]) or f"[{p['comm']}]")
        name = "  " * min(depth, 12) + (
            words if len(words) <= COMMAND_CHARS else words[: COMMAND_CHARS - 3] + "..."
        )
        others = [o for o in p["originators"] if o not in ("unknown", p["actor"])]
        by = p["actor"] + (f" on what {', '.join(others)} left" if others else "")
        pid = str(p["pid"]) if p["inside"] is None else f"{p['pid']} ({p['inside']})"
        since = duration(max(0.0, now - p["started"]))
        used = f"{p['cpu_s']:.1f} s", amount(p["memory"])
        rows.append((name, pid, p["state"], *used, since, by, _act(p)))
    return rows


def _forest(processes: list[Json]) -> list[tuple[int, Json]]:
    """Parents before children, by age.

    The parent is the process that started the child if still alive, else the present parent.
    """
    known = {p["pid"]: p for p in processes}

    def above(p: Json) -> int:
        return next(
            (
                pid
                for pid in (p["started_by"], p["ppid"])
                if pid in known and known[pid]["start"] <= p["start"] and pid != p["pid"]
            ),
            0,
        )

    below: dict[int, list[Json]] = {}
    for p in sorted(processes, key=lambda p: (p["start"], p["pid"]), reverse=True):
        below.setdefault(above(p), []).append(p)
    found: list[tuple[int, Json]] = []
    stack = [(0, p) for p in below.get(0, ())]
    while stack:
        depth, p = stack.pop()
        found.append((depth, p))
        stack += [(depth + 1, child) for child in below.get(p["pid"], ())]
    return found


def _files(found: Json, known: dict[int, Json]) -> None:
    rows = [
        (
            clean(f["path"]) + (" (deleted)" if f["deleted"] else ""),
            f["mode"],
            str(f["offset"]) if f["kind"] == "file" else f["kind"],
            ", ".join(
                f"{lock['kind']} {'write' if lock['write'] else 'read'} "
                f"{lock['start']}-{lock['end'] if lock['end'] is not None else 'end'}"
                for lock in f["locks"]
            ),
            _holder(known, f["pid"]),
        )
        for f in found["files"]
        if f["kind"] != "terminal"
    ]
    _listed(("FILE", "MODE", "OFFSET", "LOCKS", "HELD BY"), rows)
    pipes = [
        (str(p["id"]), _ends(known, p["writers"]), _ends(known, p["readers"]))
        for p in found["pipes"]
        if p["writers"]
        and p["readers"]
        and {e["pid"] for e in p["writers"]} != {e["pid"] for e in p["readers"]}
    ]
    _listed(("PIPE", "FROM", "TO"), pipes)


def _ends(known: dict[int, Json], ends: list[dict[str, int]]) -> str:
    return ", ".join(_holder(known, pid) for pid in dict.fromkeys(end["pid"] for end in ends))


def _holder(known: dict[int, Json], pid: int) -> str:
    process = known.get(pid)
    return clean(f"{process['comm']} ({pid})") if process else str(pid)


def _unseen(found: Json) -> list[str]:
    said = []
    if found["unreadable"]:
        said.append(
            "not inspected, because they run as another user: "
            f"{', '.join(map(str, found['unreadable'][:8]))}"
            f"{' ...' if len(found['unreadable']) > 8 else ''}"
        )
    if found["cut"]:
        said.append(
            "left out, because there are too many: "
            + ", ".join(f"{n} {what}" for what, n in found["cut"].items())
        )
    return said
