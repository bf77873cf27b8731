"""Files of a session: asks, and transfers that survive the host, the relay and this client.

A download into a file goes to a part file beside it, whose name has the version of the remote file.
The next download of the same version continues there, also by another process. The file gets its
name after its hash was compared.

An upload names its size and hash first, so that the host can continue a part of the same upload and
compares the whole. Every change has an idempotency key: a repeated request has one effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import stat
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

from holdfast.client.engine.engine import Engine
from holdfast.client.engine.parts import Data, Event, Part, Reply
from holdfast.client.engine.wire import Exchange
from holdfast.model.errors import Changed, Impossible, PeerFault, Unavailable

Json = dict[str, Any]
Progress = Callable[[int, int], None]  # bytes so far, of all
PART_SUFFIX: Final = ".hf-part"
BEGIN_AGAIN: Final = 3  # times, if the file changes during the transfer
ANSWER_S: Final = 90.0  # longer than the host waits for a file system
CHUNK_BYTES: Final = 256 * 1024
NO_PROGRESS: Final[Progress] = lambda done, size: None  # noqa: E731


class Transfers:
    """The files of one session. `on_held`: called when an act waits for an approval.

    `more`: fields that every request has in addition.
    """

    def __init__(
        self,
        engine: Engine,
        session: str,
        on_held: Callable[[Json], object] = lambda event: None,
        **more: object,
    ) -> None:
        self._engine, self._session, self._on_held = engine, session, on_held
        self._more = more

    async def ask(self, op: str, **fields: Any) -> Json:
        """The reply to `files.OP`."""
        async with contextlib.aclosing(self._parts(op, fields)) as parts:
            async for part in parts:
                if isinstance(part, Reply):
                    return part.body
        raise PeerFault("an answer without a reply")

    async def _parts(self, op: str, fields: Json, **more: Any) -> AsyncGenerator[Part, None]:
        # While an upload is under way the host has nothing to say; a lost connection is noticed.
        wait_s = None if op == "put" else ANSWER_S
        asked = {"session": self._session, **fields, **self._more}
        stream = self._engine.stream(f"files.{op}", wait_s, **more, **asked)
        async with contextlib.aclosing(stream) as parts:
            async for part in parts:
                if isinstance(part, Event) and part.name == "held":
                    self._on_held(part.body)
                yield part

    # ------------------------------------------------------------ down

    async def stream(self, path: str, hold: float | None = None) -> AsyncGenerator[Part, None]:
        """The content of a file: an event `began` with the facts, data, and a reply."""
        fields: Json = {"path": path, "from": 0, "version": "", "hold": hold}
        digest = hashlib.sha256()
        async with contextlib.aclosing(self._parts("get", fields)) as parts:
            async for part in parts:
                if isinstance(part, Data):
                    digest.update(part.data)
                elif isinstance(part, Reply):
                    _compare(digest.hexdigest(), part.body)
                yield part

    async def download(
        self,
        path: str,
        local: str,
        progress: Progress = NO_PROGRESS,
        hold: float | None = None,
    ) -> Json:
        """Writes a remote file to a local path; gives the facts about it."""
        for left in reversed(range(BEGIN_AGAIN)):
            try:
                return await self._download(path, local, progress, hold)
            except Changed:
                if not left:
                    raise
        raise AssertionError

    async def _download(
        self, path: str, local: str, progress: Progress, hold: float | None
    ) -> Json:
        part_file = await self._begun(path, local, hold)
        digest, at = hashlib.sha256(), 0
        if part_file.file is not None:
            at = part_file.hash_into(digest)
        fields: Json = {
            "path": path,
            "from": at,
            "version": part_file.version if at else "",
            "hold": hold,
        }
        done: Json | None = None
        size = at
        try:
            async with contextlib.aclosing(self._parts("get", fields)) as parts:
                async for part in parts:
                    if isinstance(part, Event) and part.name == "began":
                        size = int(part.body["size"])
                        part_file.begin(str(part.body["version"]))
                    elif isinstance(part, Data):
                        digest.update(part.data)
                        part_file.write(part.data)
                        at += len(part.data)
                    elif isinstance(part, Reply):
                        done = part.body
                    progress(at, size)
            if done is None:
                raise PeerFault("an answer without a reply")
            try:
                _compare(digest.hexdigest(), done)
            except PeerFault:
                part_file.discard()
                raise
            part_file.finish(int(done["mode"]))
            return done
        finally:
            part_file.close()

    async def _begun(self, path: str, local: str, hold: float | None) -> _PartFile:
        """The part file of an earlier attempt, if the remote file is still the same."""
        found = _PartFile(local)
        if found.others():
            facts = await self.ask("stat", path=path, hold=hold)
            if facts["type"] == "file":
                found.resume(str(facts["version"]))
        return found

    # ------------------------------------------------------------ up, and other changes

    async def change(self, op: str, once: str | None = None, **fields: Any) -> Json:
        """The reply to `files.rm` or `files.mv`."""
        return await self.ask(op, once=once or _key(), **fields)

    async def upload(
        self,
        source: int | bytes,
        path: str,
        name: str = "",
        mode: int | None = None,
        parents: bool = False,
        progress: Progress = NO_PROGRESS,
        hold: float | None = None,
        once: str | None = None,
    ) -> Json:
        """Writes a file of the session from a descriptor or from bytes; gives the facts about it.

        A descriptor of a regular file is read from its beginning. Any other is read to its end,
        once: such an upload cannot continue.
        """
        content = _Content(source)
        fields: Json = {
            "path": path,
            "name": name,
            "mode": mode,
            "parents": parents,
            "hold": hold,
            "once": once or _key(),
            **await asyncio.to_thread(content.announced),
        }
        begun: asyncio.Queue[int] = asyncio.Queue()  # where the host wants the upload to begin

        async def feed(exchange: Exchange) -> None:
            while not begun.empty():  # of a lost connection
                begun.get_nowait()
            at = await begun.get()
            async for piece in content.pieces(at):
                if not await exchange.send(piece):
                    return
                progress(at := at + len(piece), max(content.size, at))
            await exchange.send(b"")

        async with contextlib.aclosing(self._parts("put", fields, feed=feed)) as parts:
            async for part in parts:
                if isinstance(part, Event) and part.name == "began":
                    progress(int(part.body["offset"]), content.size)
                    begun.put_nowait(int(part.body["offset"]))
                elif isinstance(part, Reply):
                    return part.body
        raise PeerFault("an answer without a reply")


def _key() -> str:
    return os.urandom(16).hex()


class _Content:
    """The bytes of an upload."""

    def __init__(self, source: int | bytes) -> None:
        self._source = source
        self._file = isinstance(source, bytes) or stat.S_ISREG(os.fstat(source).st_mode)
        self.size = 0
        self._used = False

    def announced(self) -> Json:
        """The size and the hash, if the bytes can be read twice."""
        if not self._file:
            return {}
        digest = hashlib.sha256()
        while piece := self._at(self.size, 1 << 20):
            digest.update(piece)
            self.size += len(piece)
        return {"size": self.size, "sha256": digest.hexdigest()}

    def _at(self, start: int, count: int) -> bytes:
        if isinstance(self._source, bytes):
            return self._source[start : start + count]
        return os.pread(self._source, count, start)

    async def pieces(self, at: int) -> AsyncGenerator[bytes, None]:
        """The bytes from an offset on."""
        if self._file:
            while at < self.size and (piece := self._at(at, min(CHUNK_BYTES, self.size - at))):
                yield piece
                at += len(piece)
            return
        if self._used:
            raise Unavailable(
                "the connection broke, and the input cannot be read again; nothing was written",
                "upload a file, which continues where it stopped",
            )
        self._used = True
        assert isinstance(self._source, int)
        while piece := await asyncio.to_thread(os.read, self._source, CHUNK_BYTES):
            yield piece


class _PartFile:
    """A local file in the making, beside its final name."""

    def __init__(self, local: str) -> None:
        self._final = local
        self._folder, self._name = os.path.split(os.path.abspath(local))
        self.version, self._path = "", ""
        self.file: int | None = None

    def _path_of(self, version: str) -> str:
        key = hashlib.sha256(version.encode()).hexdigest()[:16]
        return os.path.join(self._folder, f".{self._name[:150]}.{key}{PART_SUFFIX}")

    def others(self) -> list[str]:
        """Part files of earlier attempts."""
        start = f".{self._name[:150]}."
        with os.scandir(self._folder) as entries:
            return [
                one.path
                for one in entries
                if one.name.startswith(start) and one.name.endswith(PART_SUFFIX)
            ]

    def resume(self, version: str) -> None:
        """Opens the part file of this version; the parts of other versions are of no use."""
        wanted = self._path_of(version)
        for path in self.others():
            if path != wanted:
                os.unlink(path)
        with contextlib.suppress(FileNotFoundError):
            self.file = os.open(wanted, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            self.version, self._path = version, wanted

    def hash_into(self, digest: Any) -> int:
        """Adds the bytes so far to the hash; gives their number."""
        assert self.file is not None
        at = 0
        while piece := os.pread(self.file, 1 << 20, at):
            digest.update(piece)
            at += len(piece)
        os.lseek(self.file, at, os.SEEK_SET)
        return at

    def begin(self, version: str) -> None:
        """The host sends this version from the offset that was asked for."""
        if self.file is None:
            self.version, self._path = version, self._path_of(version)
            flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            self.file = os.open(self._path, flags, 0o600)
        elif version != self.version:
            raise Changed("the file changed during the transfer")

    def write(self, data: bytes) -> None:
        assert self.file is not None
        view = memoryview(data)
        while view:
            view = view[os.write(self.file, view) :]

    def finish(self, mode: int) -> None:
        """Makes the content durable and gives the file its name."""
        if self.file is None:
            raise PeerFault("an answer without a beginning")
        os.fchmod(self.file, mode & 0o777)
        os.fsync(self.file)
        os.replace(self._path, self._final)

    def discard(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)

    def close(self) -> None:
        if self.file is not None:
            os.close(self.file)


def _compare(found: str, done: Json) -> None:
    if found != done["sha256"]:
        raise PeerFault("the received bytes have another hash than the file", "try again")


def local_target(local: str, path: str) -> str:
    """The local file for a remote path: `local`, or a file of the same name in that directory."""
    if not os.path.isdir(local):
        return local
    name = path.rstrip("/").rpartition("/")[2]
    if name in ("", ".", ".."):
        raise Impossible(f"{path} has no name for a file here", "name the local file")
    return os.path.join(local, name)


def local_name(local: str) -> str:
    """The name of a local file."""
    return os.path.basename(os.path.abspath(local))
