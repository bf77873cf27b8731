"""view, read, who, events, metrics, resolve."""

from __future__ import annotations

import binascii
import os
import sys

from holdfast.faces.cli.arguments import usage
from holdfast.faces.cli.connect import link, say_away
from holdfast.faces.cli.output import clean, duration, put_json, table, timed, write
from holdfast.model.errors import Lost, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable

    from holdfast.client.link import Link
    from holdfast.model.jsontext import Json


# ---------------------------------------------------------------- view


view_parser = usage("""
    SESSION
    --format text|ansi|json=text  text (default), text with colours, or everything as JSON
    --json  same as --format json
    --history LINES=0  show this much scrollback before the screen
""")


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


read_parser = usage("""
    SESSION
    start=--from OFFSET  absolute offset (default: the oldest kept)
    --follow -f  continue until the session ends
    --json  one object per piece: offset, data (base64), gap
""")


def read(args: Namespace) -> int:
    gaps: list[tuple[int, int]] = []

    def show(start: int, end: int, data: bytes, gap: Json | None) -> None:
        encoded, text = binascii.b2a_base64(data, newline=False), data.decode("utf-8", "replace")
        piece = {"offset": start, "end": end, "data": encoded.decode(), "text": text, "gap": gap}
        put_json(piece)

    def on_data(start: int, end: int, data: bytes) -> None:
        if args.json:
            show(start, end, data, None)
            sys.stdout.flush()
        else:
            write(data)

    def on_gap(start: int, end: int) -> None:
        gaps.append((start, end))
        if args.json:
            show(start, end, b"", {"start": start, "end": end})

    if args.start is not None and args.start < 0:
        raise Usage(
            "an offset cannot be negative",
            "offsets are absolute; `holdfast ls --json` shows the range that is kept",
        )
    connection = link(args)
    for_terminal = sys.stdout.isatty() and not args.json
    where: Json = {"from": args.start, "for_terminal": for_terminal}
    if args.follow:
        _follow_output(connection, args.session, on_data, on_gap, where)
    else:
        connection.request(
            "read", wait_s=None, on_data=on_data, on_gap=on_gap, session=args.session, **where
        )
    if gaps:
        lost = sum(b - a for a, b in gaps)
        raise Lost(f"{lost} bytes had rolled off: " + ", ".join(f"{a} to {b}" for a, b in gaps[:5]))
    return 0


def _follow_output(
    connection: Link,
    session: str,
    on_data: Callable[[int, int, bytes], None],
    on_gap: Callable[[int, int], None],
    where: Json,
) -> None:
    from holdfast.client.following import follow

    reached = 0  # the end of the output that was shown

    def arrived(start: int, end: int, data: bytes) -> None:
        nonlocal reached
        on_data(start, end, data)
        reached = end

    def missed(start: int, end: int) -> None:
        nonlocal reached
        on_gap(start, end)
        reached = end

    one = connection.request("get", session=session)["id"]
    found = follow(connection, "read", say_away, arrived, missed, session=one, **where)
    # A session that ended without a host has kept no output, only the offset of its end.
    end = found["output"]["end"] if "output" in found else reached
    if reached < end:
        on_gap(max(reached, where["from"] or 0), end)


# ---------------------------------------------------------------- who


who_parser = usage("""
    SESSION
    --json
""")


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
    head = ("OPERATOR", "THROUGH", "HOW", "SIZE", "CLIENT", "")
    print(table(head, rows) if rows else "nobody is attached")
    waiting = ", ".join(result["turn"]["waiting"]) if result["turn"] else ""
    seized = result["turn"] is not None and result["turn"].get("seized")
    turn = f"held by {holder} until released" if seized else holder or "free"
    print(f"turn: {turn}" + (f", {waiting} wait" if waiting else ""))
    for one in result.get("stopped") or ():
        print(clean(stopped_in_words(one)))
    for one in result["approvals"]:
        decide = f"`holdfast approve {one['id']}`"
        print(clean(f"{one['operator']} waits for approval: {one['because']} ({decide})"))
    print(clean(result["says"]))
    if limits := result.get("limits"):
        from holdfast.core.session.limits import says

        print(says(limits))
    if result.get("sees"):
        print(clean(result["sees"]))
    if changed := result.get("tool_files"):
        print(clean(f"changed, and executed by tools of people later: {', '.join(changed)}"))
    return 0


def stopped_in_words(one: Json) -> str:
    count = len(one["processes"])
    return (
        f"stopped: {one['operator']}, by {one['by']} "
        f"({count} process{'' if count == 1 else 'es'}, {one['how']})"
    )


def _together(name: str, clients: list[Json], turn: Json | None) -> tuple[str, ...]:
    """A row per operator, for any number of attached devices; names the last writer."""
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
    holds = ""
    if turn is not None and turn["holder"] == name:
        holds = f"turn ({turn['device']})" if several and turn["device"] else "turn"
    ids = ", ".join(str(one.get("client", "-")) for one in clients)
    return name, through, how, sizes, ids, holds


# ---------------------------------------------------------------- events


events_parser = usage("""
    [SESSION]
    --follow -f  continue with new events
    --limit N=100  the newest N (default 100)
    --json  one object per event
""")


def events(args: Namespace) -> int:
    import time

    def show(e: Json) -> None:
        if args.json:
            put_json(timed(e, e["time"]))
        else:
            facts = " ".join(
                f"{k}={v}"
                for k, v in e.items()
                if k not in ("time", "session", "event", "number", "signature", "statement")
            )
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(e["time"]))
            print(f"{when} {e['session']} {e['event']} {clean(facts)}")
        sys.stdout.flush()

    connection = link(args)
    session = args.session
    if args.follow and session is not None:
        session = connection.request("get", session=session)["id"]
    last = 0
    for event in connection.request("events", session=session, limit=args.limit)["events"]:
        last = event["number"]
        show(event)
    if args.follow:
        from holdfast.client.following import follow

        follow(
            connection,
            "events",
            say_away,
            on_event=lambda e: show(e["body"]) if e.get("event") == "happened" else None,
            session=session,
            after=last,
        )
    return 0


# ---------------------------------------------------------------- metrics


metrics_parser = usage("""
    --json  one object per family: its name, kind, help and samples
""")


def metrics(args: Namespace) -> int:
    found = link(args).request("metrics", families=args.json)
    if args.json:
        for family in found["families"]:
            put_json(family)
    else:
        sys.stdout.write(found["text"])
    return 0


# ---------------------------------------------------------------- resolve


resolve_parser = usage("""
    REF  hf:SESSION, hf:SESSION@EPOCH#ACT or hf:SESSION@EPOCH:START-END
    --json
""")


def resolve(args: Namespace) -> int:
    connection = link(args)
    result, place = connection.request("resolve", ref=args.ref), "here"
    left = not result["known"] or "elsewhere" in result
    if left and os.path.exists(connection.home.machines):
        from holdfast.faces.cli import fleet

        found = fleet.resolve_elsewhere(args, args.ref, result, lambda one: _told(args.ref, one))
        if found is not None:
            place, result = f"on {found[0]}", {**found[1], "machine": found[0]}
    if args.json:
        put_json(result)
    else:
        print(clean(_told(args.ref, result, place)))
    return 0 if result["known"] else 3


def _told(ref: str, result: Json, place: str = "") -> str:
    if not result["known"]:
        forgotten = result["state"] == "not known any more"
        return f"{ref}: {'no longer known' if forgotten else result['state']}"
    if result["state"] == "ended":
        code = result["exit_code"]
        return f"{ref}: ended" + (", exit code not known" if code is None else f" with {code}")
    if result["session"]["liveness"]["process"] == "ended":
        return f"{ref}: {_standing(result, place)}"
    s = result["session"]
    more = ""
    if "act" in result:
        more = f"; act {result['act']}{_left(result)}"
    elif "kept" in result:
        more = f"; output {'kept' if result['kept'] else 'rolled off'}"
    here = f"{place} ({s['name']}, idle {duration(s['idle_s'])})"
    return f"{ref}: {result['state']}, {here}{more}"


def _standing(result: Json, place: str) -> str:
    """Where a session is that is neither live nor ended, and what brings it back."""
    state, went = str(result["state"]), result.get("elsewhere")
    brings = f"; `holdfast restore {result['session']['name']}` there brings it back"
    if went is None:
        here = f", {place}"
        words = state + here + (brings if state in ("checkpointed", "lost") else "")
    else:
        where = f"{went['machine']} (key {went['key']})"
        words = {
            "moved": f"moved to {where}, incarnation {went['epoch']}",
            "copied": f"of {where}; {place} is a copy",
        }.get(state, f"being moved to {where}")
    code = result.get("exit_code")
    return words + ("" if code is None else f"; exit code {code}")


def _left(result: Json) -> str:
    """The processes of an act that still run."""
    import time

    how = "" if result["exit_code"] is None else f", exit code {result['exit_code']}"
    how = ", under way" if result["under_way"] else how
    if result["running"]:
        return f"{how}; runs: " + ", ".join(
            f"{one['command'][:60]} ({one['pid']})" for one in result["running"]
        )
    died = ", ".join(
        f"{one['program'] or 'a process'} ({one['pid']}) "
        f"{'was killed by' if one['signal'] else 'exited with'} "
        f"{one['signal'] or one['exit_code']} "
        f"{duration(time.time() - one['time'])} ago"
        for one in result["died"]
    )
    return f"{how}; nothing of it runs" + (f": {died}" if died else "")
