"""Operations on the host itself: ping, down, counters and metrics."""

from __future__ import annotations

import asyncio
import os

from holdfast import __version__
from holdfast.core.contract.host import (
    Down,
    GoingDown,
    Metrics,
    MetricsReply,
    Pong,
    Stats,
    StoreState,
)
from holdfast.core.contract.message import Nothing
from holdfast.core.prometheus_text import render
from holdfast.host.requests.host import Context, Host
from holdfast.host.telemetry.metrics import families


async def ping(host: Host, ctx: Context, q: Nothing) -> Pong:
    engine = host.engine
    seen = sum(host.may_observe(ctx.conn, id) for id in engine.running)
    return Pong(pid=os.getpid(), release=__version__, sessions=seen, term=engine.term)


async def down(host: Host, ctx: Context, q: Down) -> GoingDown:
    ctx.act.happened(restart=q.restart)
    asyncio.get_running_loop().call_soon(host.stop, "restart" if q.restart else "down")
    return GoingDown(pid=os.getpid(), sessions=len(host.engine.sessions))


async def stats(host: Host, ctx: Context, q: Nothing) -> Stats:
    engine = host.engine
    viewers = [viewer for session in engine.sessions.values() for viewer in session.viewers]
    return Stats(
        events=dict(sorted(engine.events.counters.items())),
        store=StoreState(failures=engine.store.failures, last=engine.store.last_failure),
        under_way=dict(+host.under_way),
        viewers=len(viewers),
        sessions=len(engine.sessions),
        term=engine.term,
        skips=sum(viewer.skips for viewer in viewers),
    )


async def metrics(host: Host, ctx: Context, q: Metrics) -> MetricsReply:
    found = families(host.engine)
    if q.families:
        return MetricsReply(families=tuple(family.show() for family in found))
    return MetricsReply(text=render(found))
