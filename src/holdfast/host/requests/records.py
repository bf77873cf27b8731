"""The record for `log` and `log.export`: reading and sending, after the rights were checked.

`log.redact` drops contents: an act on the machine, and also a fact in the record concerned.

An export may be larger than the queue of a client that does not read. So the record is sent in
pieces, and the next piece waits until the last has gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from holdfast.core.contract.message import Json
from holdfast.core.contract.record import Exported, LogReply, Redact, Redacted
from holdfast.core.record import record
from holdfast.core.record.record import MACHINE
from holdfast.host.requests.host import Context, Host
from holdfast.host.runtime.connection import Connection
from holdfast.host.runtime.flow import Downstream
from holdfast.host.storage.journal import PAGE_ENTRIES, Journal
from holdfast.model.errors import NotFound

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
) -> LogReply:
    """The newest entries, or the oldest after a number.

    With `follow` each entry is an event `recorded`, until the request is cancelled. The reply
    contains everything that happened before: posted entries are made durable first, if the disk
    takes them. `device`: the present name of the device with a key; the record itself has the key.
    """

    def shown(written: record.Written) -> Json:
        return {**(entry := record.shown(written)), "device": device(entry["key"])}

    if follow:
        flow = Downstream(conn, number)
        try:
            async for written in journal.follow(session, after or 0):
                await flow.room()
                body = {"number": written.seq, "entry": shown(written)}
                conn.event("recorded", request=number, body=body)
        finally:
            flow.close()
    await journal.settled()
    found = await journal.read(session, after or 0, min(limit, PAGE_ENTRIES), newest=after is None)
    return LogReply(id=session, entries=tuple(shown(written) for written in found))


async def export(
    journal: Journal,
    conn: Connection,
    number: int,
    session: str,
    name: str,
    operators: Mapping[str, Iterable[str]],
) -> Exported:
    """Sends the whole record as DATA frames, with offsets in the export."""
    offset, entries, piece, flow = 0, 0, bytearray(), Downstream(conn, number)

    async def send() -> None:
        nonlocal offset
        await flow.room()
        flow.send(offset, offset + len(piece), bytes(piece))
        offset += len(piece)
        piece.clear()

    try:
        async for line in journal.export(session, name, operators):
            piece += line
            entries += line.startswith((b'{"entry":', b'{"content":'))
            if len(piece) >= PIECE_BYTES:
                await send()
        if piece:
            await send()
    finally:
        flow.close()
    return Exported(id=session, name=name, entries=entries, bytes=offset)


async def redact(host: Host, ctx: Context, q: Redact) -> Redacted:
    """Drops contents. The policy is not asked: a leaked secret must not wait for an approval."""
    engine, conn = host.engine, ctx.conn
    about, name = recorded(host, conn, q.record)
    await engine.door.commit(ctx.act)
    asked = {"asked": ctx.act.written.seq} if ctx.act.written is not None else {}
    gone = await engine.journal.redact(
        about, q.seqs, conn.operator, conn.modality, q.reason, **asked
    )
    ctx.act.outcome = {"session": about, "seqs": gone}
    return Redacted(id=about, name=name, seqs=tuple(gone))


def recorded(host: Host, conn: Connection, name: str) -> tuple[str, str]:
    """The record of a session or of the machine; of a forgotten session by its whole id."""
    if name == MACHINE:
        return _seen(host, conn, None, MACHINE), MACHINE
    try:
        found = host.engine.find_any(name)
    except NotFound:
        if host.engine.journal.tip(name) is None:
            raise
        return _seen(host, conn, name, name), name
    return _seen(host, conn, found.id, found.id), found.name


def _seen(host: Host, conn: Connection, session: str | None, whose: str) -> str:
    host.require(conn, "observe", session)
    host.shows(conn, session)
    return whose
