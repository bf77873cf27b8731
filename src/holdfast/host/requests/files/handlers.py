"""Operations on the files of a session (T8).

Every operation is an act behind the gate. The policy judges the shell command with the same effect
(`cat PATH` for `files.get`), so rules about paths hold here too. The act is recorded before a file
is touched; the outcome names the path, the size and the hash.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from holdfast.core.contract.files import (
    LS_ENTRIES,
    SEARCH_MATCHES,
    FileInfo,
    FileMatch,
    FilesFound,
    FilesGet,
    FilesGot,
    FilesListed,
    FilesLs,
    FilesSearch,
    FilesStat,
)
from holdfast.host.acts.act_context import ProposedAct
from holdfast.host.requests.files.workers import Worker
from holdfast.host.requests.host import Context, Host
from holdfast.host.runtime.flow import Downstream
from holdfast.host.session.session import Session
from holdfast.model.errors import Usage


class Permitted(NamedTuple):
    """An act on files that the policy allowed and the record has."""

    session: Session
    worker: Worker
    paths: list[str]  # absolute in the session


@asynccontextmanager
async def permitted(
    host: Host,
    ctx: Context,
    session: Session,
    hold: float | None,
    command: list[str],
    *paths: str,
    into: str = "",
    **details: str,
) -> AsyncIterator[Permitted]:
    """Judges and records an act. `command`: with the same effect, before the paths.

    `into`: the name in the last path, if that is a directory.
    """
    async with host.file_workers.of(session) as worker:
        found: list[str] = (await worker.ask("where", paths=paths, into=into))["paths"]
        text = shlex.join([*command, *found]).encode("utf-8", "surrogateescape")
        proposed = ProposedAct("files", text, details, wait_s=hold)
        await host.engine.door.enter(ctx.act, proposed)
        ctx.act.outcome = {"path": found[0]}
        yield Permitted(session, worker, found)


async def ls(host: Host, ctx: Context, q: FilesLs) -> FilesListed:
    limit = _within(q.limit, LS_ENTRIES)
    session = host.engine.find(q.session)
    async with permitted(host, ctx, session, q.hold, ["ls"], q.path) as it:
        found = await it.worker.ask("ls", path=it.paths[0], after=q.after, limit=limit)
    entries = tuple(FileInfo(**one) for one in found["entries"])
    return FilesListed(path=found["path"], entries=entries, more=found["more"])


async def stat(host: Host, ctx: Context, q: FilesStat) -> FileInfo:
    session = host.engine.find(q.session)
    async with permitted(host, ctx, session, q.hold, ["stat"], q.path) as it:
        return FileInfo(**await it.worker.ask("stat", path=it.paths[0]))


async def search(host: Host, ctx: Context, q: FilesSearch) -> FilesFound:
    limit = _within(q.limit, SEARCH_MATCHES)
    session = host.engine.find(q.session)
    details = {"pattern": q.pattern, **({"text": q.text} if q.text else {})}
    async with permitted(host, ctx, session, q.hold, ["ls", "-R"], q.path, **details) as it:
        found = await it.worker.ask(
            "search", path=it.paths[0], pattern=q.pattern, text=q.text, limit=limit
        )
    matches = tuple(FileMatch(**one) for one in found.pop("matches"))
    return FilesFound(matches=matches, **found)


async def get(host: Host, ctx: Context, q: FilesGet) -> FilesGot:
    """Sends the content within the credit of the client: a slow reader stops the worker."""
    session = host.engine.find(q.session)
    async with permitted(host, ctx, session, q.hold, ["cat"], q.path) as it:
        asked = {"path": it.paths[0], "from": q.from_, "version": q.version}
        await it.worker.send({"op": "get", **asked})
        about: dict[str, Any] = (await it.worker.told())["told"]
        ctx.conn.event("began", request=ctx.number, **about)
        flow, at = Downstream(ctx.conn, ctx.number), q.from_
        try:
            while True:
                await flow.room()
                still_allowed(host, ctx, session)
                part = await it.worker.receive()
                if isinstance(part, bytes):
                    flow.send(at, at + len(part), part)
                    at += len(part)
                elif "reply" in part:
                    break
        finally:
            flow.close()
    done = FilesGot(**part["reply"])
    ctx.act.outcome = {
        "path": done.path,
        "from": q.from_,
        "size": done.size,
        "sha256": done.sha256,
    }
    return done


def still_allowed(host: Host, ctx: Context, session: Session) -> None:
    """A right that ends during a transfer ends the transfer."""
    authority, now = host.engine.authority, time.time()
    authority.require(ctx.conn.key, "files", session.id, now, spend=False)


def _within(limit: int, most: int) -> int:
    if not 1 <= limit <= most:
        raise Usage(f"a limit is 1 to {most}")
    return limit
