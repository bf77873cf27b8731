"""What is done after the end of a session: what is known of it is kept, who watches gets the rest of it, then its keeper may go: whatever fails with one of those who watched."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.host import making, store
from holdfast.host.telling import anyway
from holdfast.model.errors import Unavailable
from holdfast.model.limits import RUN_PACE_WINDOW_S
from holdfast.model.probe import probe
from holdfast.wire import keeper as wire

if TYPE_CHECKING:
    from holdfast.host.engine import Engine
    from holdfast.host.session import Session

LAST_VIEW_S = 2.0  # for viewers that keep up to take the last output


async def bury(engine: Engine, session: Session) -> None:
    """While it cannot be written, the keeper keeps it."""
    record = session.record
    durable = True
    try:
        await engine.store.write(store.save(record))
    except Unavailable as e:
        durable = False
        engine.events.note(session.id, "store.failed", {"detail": e.message})
    what = f"after the end of {session.id}"
    with anyway(what):
        await _let_finish(session)
    for viewer in list(session.viewers):
        with anyway(what):
            viewer.conn.event(
                "ended", session=session.id, exit_code=record.exit_code, reason=record.reason
            )
        with anyway(what):
            session.remove_viewer(viewer, "ended")
    await _until(
        lambda: not session.streams, RUN_PACE_WINDOW_S
    )  # a `run` or `read` that still takes its last output
    if not durable and session.id in engine.ended:
        await engine.store.write(store.save(record), patient=True)
    probe("host.end.recorded")
    session.link.send(wire.release())
    probe("host.end.released")
    with anyway(what):
        await session.dispose()
    making.remove(engine.home, session.id)
    await engine.halter.in_thread(engine.halter.groups.remove, session.id)
    engine.forget_old()


async def _let_finish(session: Session) -> None:
    """Viewers that still take output get all of it: each has LAST_VIEW_S to move on. Who reads the ring itself needs nobody."""
    shown = -1
    while (behind := session.behind()) and shown != sum(v.offset for v in behind):
        shown = sum(v.offset for v in behind)
        await _until(lambda: not session.behind(), LAST_VIEW_S)


async def _until(check: Callable[[], bool], limit_s: float) -> None:
    """Who still reads what was printed at the end gets it, within reason."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit_s
    while not check() and loop.time() < deadline:
        await asyncio.sleep(0.01)
