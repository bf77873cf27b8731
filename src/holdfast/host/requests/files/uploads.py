"""Operations that change the files of a session: `put`, `rm`, `mv`.

Each is entered as a write of its operator: if another operator runs the file later, the record
names the writer as an originator (P3). A client that leaves does not interrupt a change that has
begun, so that the record has the true outcome. An upload that ends early changes nothing and keeps
its part.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from collections.abc import Coroutine
from typing import Any, Final

from holdfast.core.contract.files import (
    FilesMoved,
    FilesMv,
    FilesPut,
    FilesRemoved,
    FilesRm,
    FilesWritten,
)
from holdfast.core.originators.lineage import Cause
from holdfast.core.originators.writers import Stamp
from holdfast.host.requests.files.handlers import permitted, still_allowed
from holdfast.host.requests.files.workers import HANGS, Worker
from holdfast.host.requests.host import Context, Host
from holdfast.host.runtime.flow import Upstream
from holdfast.host.session.session import Session
from holdfast.model.errors import OutcomeUnknown, Refused, TimedOut, Unavailable, Usage

Json = dict[str, Any]
WINDOW_BYTES: Final = 1 << 20  # that a client may send before the worker has taken them
QUIET_S: Final = 300.0  # without a byte of the client, until an upload is given up
FINISH_S: Final = 600.0  # for the file system to make a whole file durable, or to remove a tree
SHA256_CHARS: Final = 64


async def put(host: Host, ctx: Context, q: FilesPut) -> FilesWritten:
    session = host.engine.find(q.session)
    _check(q)
    session.refuse_if_halted()
    known = {"size": str(q.size), "sha256": q.sha256} if q.sha256 else {}
    async with permitted(host, ctx, session, q.hold, ["tee"], q.path, into=q.name, **known) as it:
        session.refuse_if_halted()
        path, act = it.paths[0], ctx.act
        same = f"{ctx.conn.operator}\0{session.id}\0{path}\0{q.sha256}".encode()
        asked = {
            "path": path,
            "size": q.size or 0,
            "sha256": q.sha256,
            "mode": q.mode,
            "parents": q.parents,
            "upload": hashlib.sha256(same).hexdigest()[:32] if q.sha256 else "",
            "random": os.urandom(16).hex(),
            "again": act.first is not None,
        }
        await it.worker.send({"op": "put", **asked})
        begun: Json = (await it.worker.told())["told"]
        upload = Upload(host, ctx, session, it.worker)
        ctx.conn.event("began", request=ctx.number, **begun)
        done = await upload.received()
        _entered(host, ctx, session, done.pop("written"))
        act.outcome = {name: done[name] for name in ("path", "size", "sha256", "replaced")}
        return FilesWritten(**done)


def _check(q: FilesPut) -> None:
    if bool(q.sha256) != (q.size is not None):
        raise Usage("an upload names both its size and its hash, or neither")
    if q.sha256 and (len(q.sha256) != SHA256_CHARS or set(q.sha256) - set("0123456789abcdef")):
        raise Usage("a hash has 64 hexadecimal digits")
    if q.mode is not None and q.mode > 0o777:
        raise Usage("a mode has the permission bits only, 0 to 0777")
    if "/" in q.name or "\0" in q.name or q.name in (".", ".."):
        raise Usage("a name of a file has no slash")


class Upload:
    """The bytes of one upload, from the client's STDIN frames to the worker."""

    def __init__(self, host: Host, ctx: Context, session: Session, worker: Worker) -> None:
        self._host, self._ctx, self._session, self._worker = host, ctx, session, worker
        self._arrived: asyncio.Queue[bytes] = asyncio.Queue()  # at most WINDOW_BYTES
        self._upstream = Upstream(ctx.conn, ctx.number, self._arrived.put_nowait, WINDOW_BYTES)
        self._upstream.used(0)

    async def received(self) -> Json:
        """The facts about the written file."""
        feeding = asyncio.ensure_future(self._feed())
        answer = asyncio.ensure_future(self._worker.told(None))
        try:
            await asyncio.wait({feeding, answer}, return_when=asyncio.FIRST_COMPLETED)
            if not feeding.done():
                reply: Json = answer.result()["reply"]  # an error: the file is not whole
                return reply
            feeding.result()
            return await _to_the_end(answer)
        except asyncio.CancelledError:
            raise Refused("the upload ended early; nothing was changed") from None
        finally:
            self._worker.broken = not (feeding.done() and answer.done())
            for task in (feeding, answer):
                task.cancel()
                with contextlib.suppress(BaseException):
                    await task
            self._upstream.close()

    async def _feed(self) -> None:
        used = 0
        while True:
            try:
                async with asyncio.timeout(QUIET_S):
                    data = await self._arrived.get()
            except TimeoutError:
                raise TimedOut("the client sent no byte for too long", "upload it again") from None
            still_allowed(self._host, self._ctx, self._session)
            await self._worker.give(data)
            if not data:
                return
            self._upstream.used(used := used + len(data))


async def _to_the_end(answer: asyncio.Future[Json]) -> Json:
    """The reply of the worker, also if the client has left meanwhile."""
    left = False
    while not answer.done():
        try:
            done, _ = await asyncio.wait({answer}, timeout=FINISH_S)
            if not done:
                raise OutcomeUnknown("the session's file system does not answer", HANGS)
        except asyncio.CancelledError:
            if left:
                raise
            left = True
    try:
        reply: Json = answer.result()["reply"]
        return reply
    except Unavailable as e:
        raise OutcomeUnknown(f"{e.message}; the change may have taken effect", HANGS) from e


async def _changed(work: Coroutine[Any, Any, Json]) -> Json:
    async def answered() -> Json:
        return {"reply": await work}

    return await _to_the_end(asyncio.ensure_future(answered()))


async def rm(host: Host, ctx: Context, q: FilesRm) -> FilesRemoved:
    session = host.engine.find(q.session)
    session.refuse_if_halted()
    command = ["rm", "-r"] if q.recursive else ["rm"]
    async with permitted(host, ctx, session, q.hold, command, q.path) as it:
        session.refuse_if_halted()
        asked = it.worker.ask("rm", FINISH_S, path=it.paths[0], recursive=q.recursive)
        return FilesRemoved(**await _changed(asked))


async def mv(host: Host, ctx: Context, q: FilesMv) -> FilesMoved:
    session = host.engine.find(q.session)
    session.refuse_if_halted()
    name = q.path.rstrip("/").rpartition("/")[2]
    async with permitted(host, ctx, session, q.hold, ["mv"], q.path, q.to, into=name) as it:
        session.refuse_if_halted()
        path, to = it.paths
        done = await _changed(it.worker.ask("mv", path=path, to=to))
        _entered(host, ctx, session, done.pop("written"), moved=True)
        ctx.act.outcome = done
        return FilesMoved(**done)


def _entered(
    host: Host, ctx: Context, session: Session, written: list[Any], moved: bool = False
) -> None:
    """Enters the operator as the writer of a file, with operators that started its client."""
    key, changed, size = written
    if key is None:
        return
    inside, operator = ctx.act.inside, ctx.conn.operator
    others = tuple(inside.others(operator)) if inside is not None else ()
    cause = Cause(operator, None, others)
    stamp = Stamp(changed, size)
    host.engine.writers.uploaded(session, cause, bytes.fromhex(key), stamp, moved)
