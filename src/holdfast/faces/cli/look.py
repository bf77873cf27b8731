"""view, read, who, events, metrics, resolve."""

from __future__ import annotations

import base64
import os
import sys
from typing import TYPE_CHECKING, Any

from holdfast.faces.cli.connect import link
from holdfast.faces.cli.output import clean, duration, put_json, table, timed
from holdfast.model.errors import Lost, Usage

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


# ---------------------------------------------------------------- view


def view_parser(p: ArgumentParser) -> None:
    p.add_argument("session", metavar="SESSION")
    p.add_argument(
        "--format",
        choices=("text", "ansi", "json"),
        default="text",
        help="text (default), with colours, or all that is known",
    )
    p.add_argument("--json", action="store_true", help="same as --format json")
    p.add_argument(
        "--history",
        type=int,
        default=0,
        metavar="LINES",
        help="that much scrollback before the screen",
    )


def view(args: Namespace) -> int:
    fmt = "json" if args.json else args.format
    screen = link(args).request(
        "view", session=args.session, ansi=fmt != "text", history=max(0, args.history)
    )
    if fmt == "json":
        put_json(screen)
        return 0
    for line in screen.get("history", []):
        print(clean(line))
    if fmt == "ansi":
        sys.stdout.write(screen["ansi"].rstrip("\r\n") + "\x1b[0m\n")
        return 0
    lines = [line.rstrip() for line in screen["lines"]]
    while lines and not lines[-1]:
        lines.pop()
    print("\n".join(clean(line) for line in lines))
    return 0


# ---------------------------------------------------------------- read


def read_parser(p: ArgumentParser) -> None:
    p.add_argument("session", metavar="SESSION")
    p.add_argument(
        "--from",
        dest="start",
        type=int,
        metavar="OFFSET",
        help="absolute offset (default: the oldest kept)",
    )
    p.add_argument("--follow", "-f", action="store_true", help="go on until the session ends")
    p.add_argument(
        "--json", action="store_true", help="one object per piece: offset, data (base64), gap"
    )


def read(args: Namespace) -> int:
    gaps: list[tuple[int, int]] = []

    def on_data(start: int, end: int, data: bytes) -> None:
        if args.json:
            put_json(
                {
                    "offset": start,
                    "end": end,
                    "data": base64.b64encode(data).decode(),
                    "text": data.decode("utf-8", "replace"),
                    "gap": None,
                }
            )
            sys.stdout.flush()
        else:
            view = memoryview(data)
            while view:
                view = view[os.write(1, view) :]

    def on_gap(start: int, end: int) -> None:
        gaps.append((start, end))
        if args.json:
            put_json(
                {
                    "offset": start,
                    "end": end,
                    "data": "",
                    "text": "",
                    "gap": {"start": start, "end": end},
                }
            )

    if args.start is not None and args.start < 0:
        raise Usage(
            "an offset is not negative",
            "offsets are absolute; `holdfast ls --json` shows the range that is kept",
        )
    link(args).request(
        "read",
        wait_s=None,
        on_data=on_data,
        on_gap=on_gap,
        session=args.session,
        follow=args.follow,
        for_terminal=sys.stdout.isatty() and not args.json,
        **{"from": args.start},
    )
    if gaps:
        lost = sum(b - a for a, b in gaps)
        raise Lost(f"{lost} bytes had rolled off: " + ", ".join(f"{a} to {b}" for a, b in gaps[:5]))
    return 0


# ---------------------------------------------------------------- who


def who_parser(p: ArgumentParser) -> None:
    p.add_argument("session", metavar="SESSION")
    p.add_argument("--json", action="store_true")


def who(args: Namespace) -> int:
    result = link(args).request("who", session=args.session)
    if args.json:
        put_json(result)
        return 0
    holder = result["turn"]["holder"] if result["turn"] else None
    rows = [
        _together(name, [o for o in result["operators"] if o["operator"] == name], result["turn"])
        for name in dict.fromkeys(o["operator"] for o in result["operators"])
    ]
    print(table(("OPERATOR", "THROUGH", "HOW", "SIZE", ""), rows) if rows else "nobody is attached")
    waiting = (
        f", {', '.join(result['turn']['waiting'])} wait"
        if result["turn"] and result["turn"]["waiting"]
        else ""
    )
    print(f"turn: {holder or 'free'}{waiting}")
    for one in result["approvals"]:
        print(
            clean(
                f"{one['operator']} waits for approval: {one['because']} (`holdfast approve {one['id']}`)"
            )
        )
    print(clean(result["says"]))
    return 0


def _together(
    name: str, clients: list[dict[str, Any]], turn: dict[str, Any] | None
) -> tuple[str, ...]:
    """One line for one operator, however many of their devices are attached; with the turn, the one that wrote last."""
    several = len({one["key"] for one in clients}) > 1 or (
        turn is not None
        and turn["holder"] == name
        and turn["device"] not in (None, clients[0]["device"])
    )
    through = ", ".join(f"{one['modality']} on {one['device']}" for one in clients)
    how = ", ".join(dict.fromkeys("observes" if one["observe"] else "attached" for one in clients))
    sizes = ", ".join(
        dict.fromkeys(f"{one['size']['cols']}x{one['size']['rows']}" for one in clients)
    )
    return (
        name,
        through,
        how,
        sizes,
        ""
        if turn is None or turn["holder"] != name
        else f"turn ({turn['device']})"
        if several and turn["device"]
        else "turn",
    )


# ---------------------------------------------------------------- events


def events_parser(p: ArgumentParser) -> None:
    p.add_argument("session", nargs="?", metavar="SESSION")
    p.add_argument(
        "--follow", "-f", action="store_true", help="go on with what happens from now on"
    )
    p.add_argument("--limit", type=int, default=100, metavar="N", help="the newest N (default 100)")
    p.add_argument("--json", action="store_true", help="one object per event")


def events(args: Namespace) -> int:
    import time

    def show(e: dict[str, Any]) -> None:
        if args.json:
            put_json(timed(e, e["time"]))
        else:
            facts = " ".join(
                f"{k}={v}"
                for k, v in e.items()
                if k not in ("time", "session", "event", "number", "signature", "statement")
            )
            print(
                f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(e['time']))} {e['session']} {e['event']} {clean(facts)}"
            )
        sys.stdout.flush()

    connection = link(args)
    last = 0
    for event in connection.request("events", session=args.session, limit=args.limit)["events"]:
        last = event["number"]
        show(event)
    if args.follow:
        connection.request(
            "events",
            wait_s=None,
            on_event=lambda e: show(e["body"]) if e.get("event") == "happened" else None,
            session=args.session,
            follow=True,
            after=last,
        )
    return 0


# ---------------------------------------------------------------- metrics


def metrics_parser(p: ArgumentParser) -> None:
    p.add_argument(
        "--json",
        action="store_true",
        help="one object per family: its name, kind, help and samples",
    )


def metrics(args: Namespace) -> int:
    found = link(args).request("metrics", families=args.json)
    if args.json:
        for family in found["families"]:
            put_json(family)
    else:
        sys.stdout.write(found["text"])
    return 0


# ---------------------------------------------------------------- resolve


def resolve_parser(p: ArgumentParser) -> None:
    p.add_argument(
        "ref", metavar="REF", help="hf:SESSION, hf:SESSION@EPOCH#ACT or hf:SESSION@EPOCH:START-END"
    )
    p.add_argument("--json", action="store_true")


def resolve(args: Namespace) -> int:
    result = link(args).request("resolve", ref=args.ref)
    if args.json:
        put_json(result)
    elif not result["known"]:
        print(f"{args.ref}: not known any more")
    elif result["state"] == "ended":
        print(f"{args.ref}: ended with {result['exit_code']}")
    else:
        s = result["session"]
        more = (
            f"; act {result['act']}{_left(result)}"
            if "act" in result
            else f"; output {'kept' if result['kept'] else 'rolled off'}"
            if "kept" in result
            else ""
        )
        print(
            clean(
                f"{args.ref}: {result['state']}, here ({s['name']}, idle {duration(s['idle_s'])}){more}"
            )
        )
    return 0 if result["known"] else 3


def _left(result: dict[str, Any]) -> str:
    """What is left of an act: said of what runs now, not of what ran."""
    import time

    how = (
        ", under way"
        if result["under_way"]
        else f", exit code {result['exit_code']}"
        if result["exit_code"] is not None
        else ""
    )
    if result["running"]:
        return f"{how}; runs: " + ", ".join(
            f"{one['command'][:60]} ({one['pid']})" for one in result["running"]
        )
    died = ", ".join(
        f"{one['program'] or 'a process'} ({one['pid']}) {'was killed by ' + one['signal'] if one['signal'] else 'exited with ' + str(one['exit_code'])} "
        f"{duration(time.time() - one['time'])} ago"
        for one in result["died"]
    )
    return f"{how}; nothing of it runs" + (f": {died}" if died else "")
