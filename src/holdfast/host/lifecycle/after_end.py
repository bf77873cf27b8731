"""The host's work after the end of a session.

The host saves the record, sends viewers the last output, and releases the keeper. An error with a
viewer stops none of the later steps.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Protocol

from holdfast.core.originators.lineage import UNKNOWN
from holdfast.core.record.record import host_fact
from holdfast.host.lifecycle import prepare
from holdfast.host.lifecycle.contained import own_directories, tool_files
from holdfast.host.runtime.notify import log_errors
from holdfast.host.storage import store
from holdfast.model.errors import Unavailable
from holdfast.model.limits import RUN_PACE_WINDOW_S
from holdfast.model.probe import probe
from holdfast.wire import frames
from holdfast.wire import keeper as wire

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from holdfast.home import Home
    from holdfast.host.lifecycle.contained.own_directories import OwnDirectories
    from holdfast.host.processes.halt import Halter
    from holdfast.host.runtime.threads import Threads
    from holdfast.host.session.session import Session
    from holdfast.host.storage.events import Events
    from holdfast.host.storage.journal import Journal
    from holdfast.host.storage.store import SessionRow, Store

COMPARE_S = 5.0  # for the file system of a workspace to answer
LAST_VIEW_S = 2.0  # for viewers that keep up to take the last output


class Checkpointed(Protocol):
    """Which ended sessions can be restored; keeps the output of these sessions."""

    def saved_session(self, session: str) -> bool: ...

    def awaited(self, row: SessionRow) -> bool: ...

    async def saved_by_now(self, session: str) -> None: ...

    async def keep_output(self, session: Session) -> None: ...


class Returning(Protocol):
    """Which ended sessions come back, or can."""

    def coming(self, session: str) -> bool: ...

    def keeps(self, record: SessionRow) -> bool: ...


class Survivor(Protocol):
    """The parts of a host that finish an ended session."""

    @property
    def home(self) -> Home: ...

    @property
    def store(self) -> Store: ...

    @property
    def events(self) -> Events: ...

    @property
    def halter(self) -> Halter: ...

    @property
    def threads(self) -> Threads: ...

    @property
    def own_directories(self) -> OwnDirectories: ...

    @property
    def ended(self) -> Container[str]: ...

    @property
    def incarnations(self) -> Checkpointed: ...

    @property
    def near_end(self) -> Returning: ...

    def forget_old(self) -> None: ...


def record_end(journal: Journal, session: Session) -> None:
    """Records the end of the first program, and the operator whose act ended it.

    After `end`, the outcome of that act is the record.
    """
    row, end = session.record, session.end_of
    if end.asked or end.saved_as:
        return
    known = end.cause.actor != UNKNOWN.actor
    journal.post(
        host_fact(
            row.id,
            row.epoch,
            "ended",
            end.cause.actor if known else "host",
            "host",
            act=end.cause.act,
            originators=end.perhaps if known else (*end.perhaps, UNKNOWN.actor),
            facts={"exit_code": row.exit_code, "reason": row.reason},
        )
    )


async def bury(host: Survivor, session: Session) -> None:
    """Releases the keeper once the end is durable; until then the keeper holds the end."""
    record = session.record
    durable = True
    try:
        await host.store.run(store.save(record))
    except Unavailable as e:
        durable = False
        host.events.note(session.id, "store.failed", {"detail": e.message})
    what = f"after the end of {session.id}"
    changed = await changed_tool_files(host.threads, host.home, session.id)
    if changed:
        host.events.note(session.id, "session.tool_files", {"changed": changed})
    with log_errors(what):
        await _let_finish(session)
    awaited = host.incarnations.awaited(record) or host.near_end.coming(session.id)
    for viewer in list(session.viewers):
        if awaited:  # the client reconnects, and waits for the next incarnation
            session.viewers.leave(viewer, "checkpointed")
            viewer.conn.close()
            continue
        with log_errors(what):
            viewer.conn.event(
                "ended",
                session=session.id,
                exit_code=record.exit_code,
                reason=record.reason,
                **({"tool_files": changed} if changed else {}),
            )
        with log_errors(what):
            session.viewers.leave(viewer, "ended")
    # A `run` or `read` may still take the last output.
    await _until(lambda: not session.streams, RUN_PACE_WINDOW_S)
    if not durable and session.id in host.ended:
        await host.store.run(store.save(record), patient=True)
    probe("host.end.recorded")
    session.link.send(wire.release())
    probe("host.end.released")
    if not host.near_end.keeps(record):
        await host.incarnations.saved_by_now(session.id)
    if host.incarnations.saved_session(session.id):
        with log_errors(what):
            await host.incarnations.keep_output(session)
    with log_errors(what):
        await session.dispose()
    await host.halter.in_thread(host.halter.groups.remove, session.id)
    if not host.near_end.keeps(record):
        await host.own_directories.remove(session.id)
    host.forget_old()


async def changed_tool_files(threads: Threads, home: Home, session_id: str) -> list[str]:
    """Files that the session changed and that people's tools execute later.

    None if the workspace's file system does not answer.
    """

    def compare() -> list[str]:
        before = tool_files.load(f"{home.run}/{prepare.HOST_ONLY}/{session_id}")
        return tool_files.changed(before, own_directories.placed(home)) if before else []

    with contextlib.suppress(TimeoutError):
        return await asyncio.wait_for(threads.of(session_id, compare), COMPARE_S)
    return []


async def _let_finish(session: Session) -> None:
    """Waits until each viewer has the last screen and output, or stalls for LAST_VIEW_S.

    A viewer that reads the ring itself needs only its screen; a new one if it missed output.
    """
    for viewer in [v for v in session.viewers if v.missed]:
        await viewer.refresh(frames.SCREEN_LAG)
    shown = -1
    while (late := [v for v in session.viewers if v.unfinished]) and shown != sum(
        v.offset for v in late
    ):
        shown = sum(v.offset for v in late)
        await _until(lambda: not any(v.unfinished for v in session.viewers), LAST_VIEW_S)


async def _until(check: Callable[[], bool], limit_s: float) -> None:
    """Waits until `check` is true, at most `limit_s`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit_s
    while not check() and loop.time() < deadline:
        await asyncio.sleep(0.01)
