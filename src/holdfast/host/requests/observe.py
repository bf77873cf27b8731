"""Operations that look and change nothing: sessions, screens, output, events, the record."""

from __future__ import annotations

import asyncio
import termios
from dataclasses import replace
from typing import Final, NamedTuple

from holdfast.core.checkpoint import manifest as forms
from holdfast.core.checkpoint.manifest import Manifest
from holdfast.core.contract.codec import encode
from holdfast.core.contract.copies import ArrivedFiles
from holdfast.core.contract.message import ABSENT, Absent, SessionNamed, Size
from holdfast.core.contract.output import (
    Cursor,
    Graph,
    GraphReply,
    Read,
    ReadReply,
    View,
    Viewed,
    Wait,
    Waited,
    Waiting,
)
from holdfast.core.contract.record import Events, EventsReply, Exported, Log, LogReply
from holdfast.core.contract.sessions import (
    Cost,
    Listed,
    Ls,
    OnDisk,
    Pinned,
    Summary,
    WhoReply,
)
from holdfast.core.session.graph import Terminal, as_json, fitted
from holdfast.host.acts.approvals import facts
from holdfast.host.copies import arrive
from holdfast.host.engine import Engine
from holdfast.host.lifecycle.after_end import changed_tool_files
from holdfast.host.originators.timers import timers, written
from holdfast.host.processes.graph import of_session
from holdfast.host.requests import records
from holdfast.host.requests import wait as waiting
from holdfast.host.requests.follow_graph import Follower
from holdfast.host.requests.host import Context, Host
from holdfast.host.requests.stream import Stream
from holdfast.host.requests.summary import (
    as_now,
    describe,
    describe_ended,
    layout,
    operators,
    stopped,
    turn,
    unreachable,
)
from holdfast.host.residency.costs import Cost as Measured
from holdfast.host.session.attention_probe import read_attention
from holdfast.host.storage import store
from holdfast.host.storage.store import SessionRow
from holdfast.host.terminal.screen import Screen
from holdfast.model import signing
from holdfast.model.errors import Lost, NotFound, Unavailable, Usage
from holdfast.model.limits import FRAME_BYTES, RUN_PACE_WINDOW_S, SCROLLBACK_LINES, KiB

EVENTS_AT_ONCE: Final = 200
GRAPH_BYTES: Final = FRAME_BYTES - 64 * KiB  # of a graph in one answer
HISTORY_BYTES: Final = 3 << 20  # of scrollback: with the screen it must fit into FRAME_BYTES


async def events(host: Host, ctx: Context, q: Events) -> EventsReply:
    session = host.engine.find_any(q.session) if q.session else None
    only = session.id if session is not None else None
    if q.follow:
        await _follow_events(host, ctx, only, q.after)
    newest = store.events_of(only, q.after, min(q.limit, store.EVENTS_KEPT))
    return EventsReply(events=await host.engine.store.run(newest))


async def _follow_events(host: Host, ctx: Context, only: str | None, after: int) -> None:
    """Sends events from the store, in order and with their numbers.

    So a follower sees each event once, also across a restart. New events only wake this loop.
    """
    woken = asyncio.Event()
    host.engine.events.follow(woken.set)
    try:
        while True:
            page = store.events_after(only, after, EVENTS_AT_ONCE)
            try:
                found = await host.engine.store.run(page)
            except Unavailable:
                found = []  # a full disk: events are sent when the disk has taken them
            for event in found:
                ctx.conn.event("happened", request=ctx.number, body=event)
                after = event["number"]
            if len(found) < EVENTS_AT_ONCE:
                await woken.wait()
                woken.clear()
    finally:
        host.engine.events.unfollow(woken.set)


async def ls(host: Host, ctx: Context, q: Ls) -> Listed:
    engine = host.engine
    relay = engine.uplinks.state
    running = [s for s in engine.sessions.values() if host.may_observe(ctx.conn, s.id)]
    out = [describe(s, relay) for s in sorted(running, key=lambda s: s.record.created)]
    for id, why in engine.unreachable.items():
        name = engine.unreached[id].name if id in engine.unreached else ""
        out.append(unreachable(id, name, why, relay))
    if q.all:
        engine.forget_old()
    ended = [
        r
        for r in engine.ended.values()
        if (q.all or r.state == "checkpointed" or engine.incarnations.returns(r))
        and host.may_observe(ctx.conn, r.id)
    ]
    if ended:
        out += [_as_now(engine, r, relay) for r in sorted(ended, key=lambda r: r.ended or 0)]
    out = [await _arrived(engine, await _on_disk(engine, one)) for one in out]
    last = engine.last_used.newest(ctx.conn.operator, {s.id for s in running})
    pinned: Pinned | Absent = ABSENT
    if q.cost is True:
        costs = await engine.residency.costs.fresh()
        out = [await _with_cost(engine, one, costs.get(one.id)) for one in out]
        seen = [costs[one.id] for one in out if one.id in costs]
        idle = engine.residency.costs.silent({one.id for one in out})
        pinned = Pinned(
            sessions=len(seen),
            memory=sum(one.memory for one in seen),
            idle=len(idle),
            idle_memory=sum(costs[id].memory for id in idle),
        )
    return Listed(sessions=tuple(out), last=last or ABSENT, pinned=pinned)


async def _arrived(engine: Engine, one: Summary) -> Summary:
    """With the places of files that came with the session from another machine."""
    living = engine.sessions.get(one.id)
    if living is None or not arrive.came(engine.home, one.id):
        return one
    found = await asyncio.to_thread(arrive.places, engine.home, one.id, living.label)
    files = tuple(ArrivedFiles(path=path, place=place, changed=None) for path, place in found)
    return replace(one, arrived=files) if files else one


def _as_now(engine: Engine, row: SessionRow, relay: str) -> Summary:
    return as_now(describe_ended(row, relay), engine.copies.present(row))


async def _on_disk(engine: Engine, one: Summary) -> Summary:
    row = engine.ended.get(one.id)
    if row is not None and engine.incarnations.restorable(row):
        made = await asyncio.to_thread(engine.incarnations.checkpoints.of, one.id)
        newest = forms.newest(made)
        return one if newest is None else replace(one, on_disk=_disk(newest))
    if one.state != "checkpointed":
        return one
    # It is still among the living for the moment until its end is filed.
    living = engine.sessions.get(one.id)
    row = engine.ended.get(one.id) if living is None else living.record
    found = None if row is None else await engine.residency.evictions.manifest(row)
    if found is None:
        return one
    return replace(one, on_disk=_disk(found))


def _disk(found: Manifest) -> OnDisk:
    return OnDisk(checkpoint=found.id, at=found.at, bytes=found.bytes, by=found.by)


async def _with_cost(engine: Engine, one: Summary, cost: Measured | None) -> Summary:
    if cost is not None:
        return replace(one, cost=Cost(**cost._asdict()))
    if one.state != "checkpointed":
        return one
    disk = await asyncio.to_thread(engine.residency.costs.disk, one.id)
    return replace(
        one, cost=Cost(memory=0, swap=0, cpu_s=0.0, disk=disk, since=one.created or 0.0, maker="")
    )


async def get(host: Host, ctx: Context, q: SessionNamed) -> Summary:
    found, relay = host.engine.find_any(q.session), host.engine.uplinks.state
    if isinstance(found, SessionRow):
        return await _on_disk(host.engine, _as_now(host.engine, found, relay))
    return describe(found, relay)


async def who(host: Host, ctx: Context, q: SessionNamed) -> WhoReply:
    s = host.engine.find(q.session)
    device, held = host.engine.authority.device_of, turn(s)
    changed = await changed_tool_files(host.engine.threads, host.engine.home, s.id)
    return WhoReply(
        id=s.id,
        name=s.name,
        operators=tuple(replace(one, device=device(signing.read(one.key))) for one in operators(s)),
        turn=None if held is None else replace(held, device=device(s.turn.device)),
        stopped=stopped(s) or ABSENT,
        **layout(s),
        approvals=tuple(
            facts(p)
            for p in host.engine.held_acts.waiting()
            if p.binding.session == s.id and p.state == "waiting"
        ),
        tool_files=tuple(changed) if changed else ABSENT,
    )


async def wait(host: Host, ctx: Context, q: Wait) -> Waited:
    found, conditions = host.engine.find_any(q.session), waiting.conditions(q.for_)
    if isinstance(found, SessionRow):
        host.engine.copies.refuse_elsewhere(found.id)
        if "exit" not in conditions:
            raise waiting.ended(found)
        return Waited(id=found.id, for_="exit", seen=found.reason, exit_code=found.exit_code)
    since = None if q.since is None else await waiting.since(host, found, conditions, q.since)
    return await waiting.wait(host, found, conditions, q.timeout, since)


async def view(host: Host, ctx: Context, q: View) -> Viewed:
    found = host.engine.find_any(q.session)
    if isinstance(found, SessionRow):
        host.engine.copies.refuse_elsewhere(found.id)
        present = host.engine.copies.present(found)
        if found.lost and not any(found.screen):
            host.engine.incarnations.refuse_if_saved(found.id)
        return Viewed(
            id=found.id,
            name=found.name,
            state=present.state,
            size=Size(cols=found.cols, rows=found.rows),
            lines=tuple(found.screen),
            ansi=found.ansi,
            cursor=None,
            alternate=False,
            title="",
            modes={},
            offset=found.output_end,
            exit_code=found.exit_code,
            reason=present.reason,
            waiting=None,
        )
    session = found
    offset, (shown, ansi, history) = await session.view.look(lambda s: _screen(s, q))
    kind, why, foreground = await session.attention()
    x, y, visible = shown.cursor
    return Viewed(
        id=session.id,
        name=session.name,
        state=session.state,
        size=Size(cols=session.size[0], rows=session.size[1]),
        lines=tuple(shown.lines),
        cursor=Cursor(x=x, y=y, visible=visible),
        alternate=shown.alternate,
        title=shown.title,
        modes=shown.modes,
        offset=offset,
        exit_code=None,
        waiting=Waiting(for_=kind, why=why, foreground=foreground),
        ansi=ansi,
        history=history,
        gate=session.layout.get("gate"),
        limits=layout(session).get("limits", ABSENT),
    )


class _Shown(NamedTuple):
    """A screen at an offset."""

    lines: list[str]
    cursor: tuple[int, int, bool]
    alternate: bool
    title: str
    modes: dict[str, bool]


def _screen(s: Screen, q: View) -> tuple[_Shown, str | Absent, tuple[str, ...] | Absent]:
    """The screen, and colours and scrollback if the request asks for them."""
    ansi = s.ansi().decode("utf-8", "replace") if q.ansi else ABSENT
    history = s.history_text(min(q.history, SCROLLBACK_LINES)) if q.history else None
    shown = _Shown(s.text(), s.cursor, s.alternate, s.title, s.modes())
    return shown, ansi, ABSENT if history is None else tuple(_newest(history))


async def graph(host: Host, ctx: Context, q: Graph) -> GraphReply:
    engine, session = host.engine, host.engine.find(q.session)
    if q.follow:
        await Follower(host, ctx.conn, ctx.number, session).follow()
        return GraphReply(
            id=session.id,
            name=session.name,
            reason=session.record.reason,
            exit_code=session.record.exit_code,
        )
    if q.wrote:
        return GraphReply(
            id=session.id,
            name=session.name,
            wrote=tuple(await written(engine.writers, session, q.wrote)),
            file_events=engine.writers.kernel_reports,
            not_told=dict(engine.writers.refused),
        )
    lineages = engine.lineages
    before = lineages.looking(session)
    found = await session.looked(of_session, engine.halter.groups, session)
    if session.ended.done():
        raise NotFound(f"session {session.name} has ended", "`holdfast ls --all` shows how")
    living = {one.pid: (one.start, one.ppid) for one in found.processes}
    lineages.seen(session, living, before, whole="processes" not in found.cut)
    state = await session.marks_seen()
    kind, why, command, *_ = await read_attention(session, state)
    mode, echo = "line" if state.lflag & termios.ICANON else "raw", bool(state.lflag & termios.ECHO)
    front = (state.foreground or None, command)
    whole = replace(found, terminal=Terminal(*session.size, mode, echo, *front, kind, why))
    lineage = session.commands.lineage
    known = await asyncio.to_thread(
        lambda: fitted(as_json(whole, lineage, session.ref), GRAPH_BYTES)
    )
    return GraphReply(
        id=session.id,
        name=session.name,
        epoch=session.record.epoch,
        events=lineages.told,
        file_events=engine.writers.kernel_reports,
        timers=tuple(await timers(engine.writers, session)),
        stopped=tuple(encode(one) for one in stopped(session)) or ABSENT,
        **known,
    )


async def read(host: Host, ctx: Context, q: Read) -> ReadReply:
    session = host.engine.find(q.session)
    ring = session.ring
    start = ring.start if q.from_ is None else q.from_
    if start > ring.head:
        raise Usage(
            f"offset {start} is beyond the end {ring.head}",
            "offsets are absolute; see `holdfast ls --json`",
        )
    if start < ring.start and q.strict:
        raise Lost(f"output {start} to {ring.start} has rolled off", range=[ring.start, ring.head])
    end = None if q.follow else ring.head
    raw = not q.for_terminal
    stream = Stream(session, ctx.conn, ctx.number, start, end, RUN_PACE_WINDOW_S, raw=raw)
    try:
        stream.pump()
        if q.follow:
            await session.or_end(stream.done)
            stream.until(ring.head)
        await stream.done
    finally:
        stream.close()
    return ReadReply(id=session.id, start=start, end=stream.offset, lost=stream.lost)


async def log(host: Host, ctx: Context, q: Log) -> LogReply:
    def device(key: str | None) -> str | None:
        return None if key is None else host.engine.authority.device_of(signing.read(key))

    session, _ = records.recorded(host, ctx.conn, q.session)
    return await records.log(
        host.engine.journal, ctx.conn, ctx.number, session, q.after, q.limit, q.follow, device
    )


async def log_export(host: Host, ctx: Context, q: SessionNamed) -> Exported:
    session, name = records.recorded(host, ctx.conn, q.session)
    engine = host.engine
    return await records.export(
        engine.journal, ctx.conn, ctx.number, session, name, engine.authority.everyone()
    )


def _newest(lines: list[str]) -> list[str]:
    """The newest lines that fit into an answer."""
    left = HISTORY_BYTES
    for n, line in enumerate(reversed(lines)):
        size = len(line.encode("utf-8", "replace"))
        left -= 2 * size if '"' in line or "\\" in line else size + 4
        if left < 0:
            return lines[len(lines) - n :]
    return lines
