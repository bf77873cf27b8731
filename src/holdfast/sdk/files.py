"""Files of a session as a program sees them: list, read, write, move, remove and search.

A relative path begins in the current directory of the session's first program. No path leads out of
the session's root.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

from holdfast.client.engine.engine import Engine
from holdfast.client.engine.parts import Data
from holdfast.client.transfers import NO_PROGRESS, Transfers, local_name, local_target
from holdfast.model.errors import Impossible
from holdfast.sdk.results import FileInfo, Found, OnHeld, Transferred, given, on_question, read

PAGE: Final = 1000  # entries of a directory in one answer


class Files:
    """The files of a session; every call needs the right `files` and is recorded."""

    def __init__(
        self, engine: Engine, session: str, on_held: OnHeld | None = None, **more: Any
    ) -> None:
        self._engine, self._session = engine, session
        self._transfers = Transfers(engine, session, on_question(on_held), **more)

    def acting(
        self,
        *,
        hold: float | None = None,
        intent: str | None = None,
        expects: str | None = None,
        on_held: OnHeld | None = None,
    ) -> Files:
        """The same files, with more facts in every call.

        `hold`: seconds to wait for an approval, if the policy asks for one. `on_held`: called when
        that wait begins. `intent` and `expects`: the purpose and the expected effect, for the
        record.
        """
        meant = given(intent=intent, expects=expects)
        return Files(self._engine, self._session, on_held, hold=hold, **meant)

    async def ls(self, path: str = ".", *, after: str = "", limit: int = 1000) -> list[FileInfo]:
        """The first entries of a directory by name; `after`: the entries behind this name."""
        body = await self._transfers.ask("ls", path=path, after=after, limit=limit)
        return [read(FileInfo, one) for one in body["entries"]]

    async def walk(self, path: str = ".") -> AsyncGenerator[FileInfo, None]:
        """All entries of a directory, page by page, however many there are."""
        more, after = True, ""
        while more:
            body = await self._transfers.ask("ls", path=path, after=after, limit=PAGE)
            for one in body["entries"]:
                after = one["name"]
                yield read(FileInfo, one)
            more = body["more"] and bool(body["entries"])

    async def stat(self, path: str) -> FileInfo:
        """The attributes of a file; a link at the end of the path is not followed."""
        return read(FileInfo, await self._transfers.ask("stat", path=path))

    async def search(
        self, pattern: str, path: str = ".", *, text: str = "", limit: int = 1000
    ) -> Found:
        """Files below a directory with a name that matches a pattern like `*.py`.

        `text`: only lines that contain this text.
        """
        fields: dict[str, Any] = {"pattern": pattern, "path": path, "text": text, "limit": limit}
        return read(Found, await self._transfers.ask("search", **fields))

    async def get(
        self, path: str, local: str = ".", *, progress: Callable[[int, int], None] | None = None
    ) -> Transferred:
        """Copies a file of the session to a local file, or into a local directory.

        An interrupted copy continues where it stopped, if the file is unchanged. `progress` is
        called with the bytes so far and the size.
        """
        target = local_target(local, path)
        return read(
            Transferred, await self._transfers.download(path, target, progress or NO_PROGRESS)
        )

    async def stream(self, path: str) -> AsyncGenerator[bytes, None]:
        """The content of a file, piece by piece; its hash is compared at the end."""
        async with contextlib.aclosing(self._transfers.stream(path)) as parts:
            async for part in parts:
                if isinstance(part, Data):
                    yield part.data

    async def read_bytes(self, path: str, *, limit: int = 64 << 20) -> bytes:
        """The content of a file of at most `limit` bytes."""
        found = bytearray()
        async with contextlib.aclosing(self.stream(path)) as pieces:
            async for piece in pieces:
                found += piece
                if len(found) > limit:
                    raise Impossible(f"{path} has more than {limit} bytes", "use get or stream")
        return bytes(found)

    async def put(
        self,
        local: str,
        path: str = ".",
        *,
        parents: bool = False,
        progress: Callable[[int, int], None] | None = None,
        once: str | None = None,
    ) -> Transferred:
        """Copies a local file to a file of the session, or into a directory there.

        The file appears whole or not at all. An interrupted copy continues where it stopped, also
        by another process. `parents`: make missing directories. `once`: an idempotency key.
        """
        source = os.open(local, os.O_RDONLY | os.O_CLOEXEC)
        try:
            done = await self._transfers.upload(
                source,
                path,
                local_name(local),
                os.fstat(source).st_mode & 0o777,
                parents,
                progress or NO_PROGRESS,
                once=once,
            )
            return read(Transferred, done)
        finally:
            os.close(source)

    async def write_bytes(
        self,
        path: str,
        data: bytes,
        *,
        mode: int | None = None,
        parents: bool = False,
        once: str | None = None,
    ) -> Transferred:
        """Writes a file of the session, whole or not at all. `mode`: the permission bits."""
        done = await self._transfers.upload(data, path, "", mode, parents, once=once)
        return read(Transferred, done)

    async def rm(self, path: str, *, recursive: bool = False, once: str | None = None) -> None:
        """Removes a file, a link or an empty directory; `recursive`: with its content."""
        await self._transfers.change("rm", once, path=path, recursive=recursive)

    async def mv(self, path: str, to: str, *, once: str | None = None) -> None:
        """Gives a file another path, or moves it into a directory; an existing file is replaced."""
        await self._transfers.change("mv", once, path=path, to=to)
