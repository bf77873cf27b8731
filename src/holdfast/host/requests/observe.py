"""Operations that look and change nothing: sessions, screens, output, events, the record."""

from __future__ import annotations

import asyncio
import termios
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from holdfast.core.graph import Terminal, fitted, told
from holdfast.core.record import MACHINE
from holdfast.host import recordops, store, waiting
from holdfast.host.approvals import facts
from holdfast.host.attending import attend
from holdfast.host.connection import Connection
from holdfast.host.describing import describe, describe_ended, unreachable
from holdfast.host.following import Follower
from holdfast.host.graph import of_session
from holdfast.host.store import Record
from holdfast.host.stream import Stream
from holdfast.host.timers import timers, written
from holdfast.model import signing
from holdfast.model.errors import Lost, NotFound, Unavailable, Usage
from holdfast.model.limits import FRAME_BYTES, RUN_PACE_WINDOW_S, SCROLLBACK_LINES, KiB

if TYPE_CHECKING:
    from holdfast.host.ops import Ops

EVENTS_AT_ONCE = 200
GRAPH_BYTES = FRAME_BYTES - 64 * KiB  # of a graph in one answer
HISTORY_BYTES = (
    3 << 20
)  # of scrollback in one answer: with the screen beside it, it must fit into FRAME_BYTES


async def events(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    session = ops.engine.find_any(q["session"]) if q["session"] else None
    only = session.id if session is not None else None
    if q["follow"]:
        await _follow_events(ops, conn, number, only, q["after"])
    return {
        "events": await ops.engine.store.write(
            store.events_of(only, q["after"], min(q["limit"], store.EVENTS_KEPT))
        )
    }


async def _follow_events(
    ops: Ops, conn: Connection, number: int, only: str | None, after: int
) -> None:
    """From the store, in its order and with its numbers: whoever follows sees each event once, also across a restart. That
    something happened only wakes this up."""
    woken = asyncio.Event()

    ops.engine.events.follow(woken.set)
    try:
        while True:
            try:
                events = await ops.engine.store.write(
                    store.events_after(only, after, EVENTS_AT_ONCE)
                )
            except Unavailable:
                events = []  # a full disk: what happens now is told when it could be written
            for event in events:
                conn.event("happened", request=number, body=event)
                after = event["number"]
            if len(events) < EVENTS_AT_ONCE:
                await woken.wait()
                woken.clear()
    finally:
        ops.engine.events.unfollow(woken.set)


async def ls(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    e = ops.engine
    seen = [
        s
        for s in e.sessions.values()
        if "observe" in e.authority.rights_of(conn.key, s.id, time.time())
    ]
    relay = e.uplinks.state
    out = [describe(s, relay) for s in sorted(seen, key=lambda s: s.record.created)]
    out += [
        unreachable(i, e.unreached[i].name if i in e.unreached else "", why, relay)
        for i, why in e.unreachable.items()
    ]
    if q["all"]:
        e.forget_old()
        ended = [
            r
            for r in e.ended.values()
            if "observe" in e.authority.rights_of(conn.key, r.id, time.time())
        ]
        out += [describe_ended(r, relay) for r in sorted(ended, key=lambda r: r.ended or 0)]
    return {"sessions": out}


async def get(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    found = ops.engine.find_any(q["session"])
    relay = ops.engine.uplinks.state
    return describe_ended(found, relay) if isinstance(found, Record) else describe(found, relay)


async def who(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    s = ops.engine.find(q["session"])
    d = describe(s)
    device, turn = ops.engine.authority.device_of, d["turn"]
    shown = [{**one, "device": device(signing.read(one["key"]))} for one in d["operators"]]
    return {
        "id": s.id,
        "name": s.name,
        "operators": shown,
        "turn": None if turn is None else {**turn, "device": device(s.turn.device)},
        **s.layout,
        "approvals": [
            facts(p)
            for p in ops.engine.desk.waiting()
            if p.binding.session == s.id and p.state == "waiting"
        ],
    }


async def wait(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    found, conditions = ops.engine.find_any(q["session"]), waiting.conditions(q["for"])
    if isinstance(found, Record):
        if "exit" in conditions:
            return {
                "for": "exit",
                "seen": found.reason,
                "exit_code": found.exit_code,
                "id": found.id,
            }
        raise waiting.ended(found)
    return {"id": found.id, **await waiting.wait(ops, found, conditions, q["timeout"])}


async def view(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    found = ops.engine.find_any(q["session"])
    if isinstance(found, Record):
        return {
            "id": found.id,
            "name": found.name,
            "state": found.state,
            "size": {"cols": found.cols, "rows": found.rows},
            "lines": found.screen,
            "ansi": found.ansi,
            "cursor": None,
            "alternate": False,
            "title": "",
            "modes": {},
            "offset": found.output_end,
            "exit_code": found.exit_code,
            "reason": found.reason,
            "waiting": None,
        }
    session = found

    def look(s: Any) -> dict[str, Any]:
        x, y, visible = s.cursor
        body = {
            "lines": s.text(),
            "cursor": {"x": x, "y": y, "visible": visible},
            "alternate": s.alternate,
            "title": s.title,
            "modes": s.modes(),
        }
        if q["ansi"]:
            body["ansi"] = s.ansi().decode("utf-8", "replace")
        if q["history"]:
            body["history"] = _newest(s.history_text(min(q["history"], SCROLLBACK_LINES)))
        return body

    offset, body = await session.view.look(look)
    kind, why, foreground = await session.attention()
    return {
        "id": session.id,
        "name": session.name,
        "state": session.state,
        "offset": offset,
        "size": {"cols": session.size[0], "rows": session.size[1]},
        **body,
        "exit_code": None,
        "gate": session.layout.get("gate"),
        "waiting": {"for": kind, "why": why, "foreground": foreground},
    }


async def graph(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    session = ops.engine.find(q["session"])
    if q["follow"]:
        await Follower(ops, conn, number, session).follow()
        return {
            "id": session.id,
            "name": session.name,
            "reason": session.record.reason,
            "exit_code": session.record.exit_code,
        }
    if q["wrote"]:
        return {
            "id": session.id,
            "name": session.name,
            **await written(ops.engine.writers, session, q["wrote"]),
        }
    kin = ops.engine.kin
    before = kin.looking(session)
    found = await session.looked(of_session, ops.engine.halter.groups, session)
    if session.ended.done():
        raise NotFound(f"session {session.name} has ended", "`holdfast ls --all` shows how")
    kin.seen(
        session,
        {one.pid: (one.start, one.ppid) for one in found.processes},
        before,
        whole="processes" not in found.cut,
    )
    state = await session.marks_seen()
    kind, why, command = await attend(session, state)
    terminal = Terminal(
        *session.size,
        "line" if state.lflag & termios.ICANON else "raw",
        bool(state.lflag & termios.ECHO),
        state.foreground or None,
        command,
        kind,
        why,
    )
    known = await asyncio.to_thread(
        lambda: fitted(
            told(replace(found, terminal=terminal), session.commands.lineage, session.ref),
            GRAPH_BYTES,
        )
    )
    return {
        "id": session.id,
        "name": session.name,
        "epoch": session.record.epoch,
        "events": kin.told,
        "file_events": ops.engine.writers.told,
        "timers": await timers(ops.engine.writers, session),
        **known,
    }


async def read(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    session = ops.engine.find(q["session"])
    ring = session.ring
    start = ring.start if q["from"] is None else q["from"]
    if start > ring.head:
        raise Usage(
            f"offset {start} is beyond the end {ring.head}",
            "offsets are absolute; see `holdfast ls --json`",
        )
    if start < ring.start and q["strict"]:
        raise Lost(f"output {start} to {ring.start} has rolled off", range=[ring.start, ring.head])
    stream = Stream(
        session,
        conn,
        number,
        start,
        None if q["follow"] else ring.head,
        RUN_PACE_WINDOW_S,
        raw=not q["for_terminal"],
    )
    try:
        stream.pump()
        if q["follow"]:
            await session.or_end(stream.done)
            stream.until(ring.head)
        await stream.done
    finally:
        stream.close()
    return {"id": session.id, "start": start, "end": stream.offset, "lost": stream.lost}


async def log(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    def device(key: str | None) -> str | None:
        return None if key is None else ops.engine.authority.device_of(signing.read(key))

    return await recordops.log(
        ops.engine.journal,
        conn,
        number,
        _recorded(ops, conn, q["session"])[0],
        q["after"],
        q["limit"],
        q["follow"],
        device,
    )


async def log_export(ops: Ops, conn: Connection, number: int, q: dict[str, Any]) -> dict[str, Any]:
    session, name = _recorded(ops, conn, q["session"])
    return await recordops.export(
        ops.engine.journal, conn, number, session, name, ops.engine.authority.everyone()
    )


def _recorded(ops: Ops, conn: Connection, name: str) -> tuple[str, str]:
    """Whose record is meant: a session's, the machine's, or by its whole id one that was forgotten."""
    if name == MACHINE:
        return _seen(ops, conn, None, MACHINE), MACHINE
    try:
        found = ops.engine.find_any(name)
    except NotFound:
        if ops.engine.journal.tip(name) is None:
            raise
        return _seen(ops, conn, name, name), name
    return _seen(ops, conn, found.id, found.id), found.name


def _seen(ops: Ops, conn: Connection, session: str | None, whose: str) -> str:
    ops.may(conn, "observe", session)
    ops.looks(conn, session)
    return whose


def _newest(lines: list[str]) -> list[str]:
    """The last lines that fit into an answer."""
    left = HISTORY_BYTES
    for n, line in enumerate(reversed(lines)):
        left -= (
            2 * len(line.encode("utf-8", "replace"))
            if '"' in line or "\\" in line
            else len(line.encode("utf-8", "replace")) + 4
        )
        if left < 0:
            return lines[len(lines) - n :]
    return lines
