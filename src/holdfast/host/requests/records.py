"""The record as clients ask for it: `log` and `log.export`. Reads only; who may is decided before.

An export may be larger than what is queued for a client that does not read: it is sent in pieces, and the next piece waits until the
last one has gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from holdfast.core import record
from holdfast.host.connection import Connection
from holdfast.host.journal import PAGE_ENTRIES, Journal
from holdfast.wire import frames

PIECE_BYTES: Final = 256 * 1024


async def log(
    journal: Journal,
    conn: Connection,
    number: int,
    session: str,
    after: int | None,
    limit: int,
    follow: bool,
    device: Callable[[str | None], str | None] = lambda key: None,
) -> dict[str, Any]:
    """The newest entries, or the oldest after a number; following, one event `recorded` for each, until the request is cancelled. Whoever was
    answered finds in the record what happened before the answer: what was only posted is made durable first, if the disk takes it. `device`: what that with a key is called now, beside
    what is recorded, which is the key."""

    def shown(written: record.Written) -> dict[str, Any]:
        return {**(entry := record.shown(written)), "device": device(entry["key"])}

    if follow:
        async for written in journal.follow(session, after or 0):
            await _room(conn)
            conn.event(
                "recorded", request=number, body={"number": written.seq, "entry": shown(written)}
            )
    await journal.settled()
    found = await journal.read(session, after or 0, min(limit, PAGE_ENTRIES), newest=after is None)
    return {"id": session, "entries": [shown(written) for written in found]}


async def export(
    journal: Journal,
    conn: Connection,
    number: int,
    session: str,
    name: str,
    operators: Mapping[str, Iterable[str]],
) -> dict[str, Any]:
    """All of it, as DATA frames; the offsets are those in the export."""
    offset, entries, piece = 0, 0, bytearray()

    async def send() -> None:
        nonlocal offset
        await _room(conn)
        conn.send(
            frames.data_header(number, offset, offset + len(piece), len(piece)) + bytes(piece)
        )
        offset += len(piece)
        piece.clear()

    async for line in journal.export(session, name, operators):
        piece += line
        entries += line.startswith((b'{"entry":', b'{"content":'))
        if len(piece) >= PIECE_BYTES:
            await send()
    if piece:
        await send()
    return {"id": session, "name": name, "entries": entries, "bytes": offset}


async def _room(conn: Connection) -> None:
    """Returns when nothing waits for this client, or it is gone."""
    if not conn.blocked or conn.closed:
        return
    drained = asyncio.get_running_loop().create_future()
    before = conn.on_drain

    def on_drain() -> None:
        before()
        if not drained.done():
            drained.set_result(None)

    conn.on_drain = on_drain
    try:
        await drained  # a connection that closes cancels its requests
    finally:
        conn.on_drain = before
