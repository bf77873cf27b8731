"""Worker processes for the files of sessions: started on demand, kept for a moment, ended if stuck.

A worker serves one request at a time. A request that ends early, or gets no answer for ANSWER_S,
ends its worker: a file system that does not answer blocks that process and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from typing import Any, Final
from weakref import WeakKeyDictionary

from holdfast.home import programs
from holdfast.host.requests.files.worker import DATA, HEAD, JSON, MESSAGE_BYTES
from holdfast.host.runtime.threads import Quota, Threads
from holdfast.host.runtime.worker_programs import WorkerProgram
from holdfast.host.session.session import Session
from holdfast.model.errors import BY_NAME, HoldfastError, Impossible, Unavailable

WORKERS_MAX: Final = 8  # of a session at a time; more requests wait
ANSWER_S: Final = 60.0  # between two messages of a worker
IDLE_S: Final = 10.0  # until a worker without a request ends
LEAVE_S: Final = 2.0  # for a worker to end by itself
BUFFER_BYTES: Final = 1 << 20  # of the socket to a worker
Json = dict[str, Any]
RECOVER: Final = {
    "not_found": "`holdfast files ls SESSION PATH` shows what is there",
    "refused": "the session's own account decides which files it may use",
    "changed": "transfer the file again from its beginning",
}
HANGS: Final = "look at the file system of that path: a network or FUSE server may be away"


class Worker:
    """A process; `leave` ends it, and `kill` ends a process that a file system blocks."""

    def __init__(self, session: Session) -> None:
        """Blocks for the fork: call it in a thread."""
        self._sock, theirs = socket.socketpair()
        for one in (self._sock, theirs):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        record, self.session = session.record, session.id
        with theirs:
            name = "holdfast.host.requests.files.worker"
            command = programs.module(name, str(record.root_pid), str(record.root_start))
            self._child = WorkerProgram(command, (theirs.fileno(),))
        self._sock.setblocking(False)
        self._buffer = bytearray()
        self.broken = False  # a message was cut: the process cannot be used again

    async def send(self, body: Json) -> None:
        data = json.dumps(body).encode()
        await self._send(HEAD.pack(len(data), JSON) + data)

    async def give(self, data: bytes) -> None:
        """Bytes of an upload; none: the end."""
        await self._send(HEAD.pack(len(data), DATA) + data)

    async def _send(self, data: bytes) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                await asyncio.get_running_loop().sock_sendall(self._sock, data)
        except (OSError, TimeoutError) as e:
            raise Unavailable("the session's file system takes no more bytes", HANGS) from e

    async def receive(self, wait_s: float | None = ANSWER_S) -> Json | bytes:
        """The next message of the worker; the error that it names is raised."""
        kind, data = await self._message(wait_s)
        if kind == DATA:
            return data
        body: Json = json.loads(data)
        if "error" in body:
            name, message = body["error"]
            raise _error(name, message)
        return body

    async def told(self, wait_s: float | None = ANSWER_S) -> Json:
        """The next message that is no sign of life."""
        while True:
            body = await self.receive(wait_s)
            if isinstance(body, dict) and "alive" not in body.get("told", {}):
                return body

    async def ask(self, op: str, wait_s: float = ANSWER_S, **fields: Any) -> Json:
        """The reply to a request without data."""
        await self.send({"op": op, **fields})
        while True:
            if "reply" in (body := await self.told(wait_s)):
                reply: Json = body["reply"]
                return reply

    async def _message(self, wait_s: float | None) -> tuple[int, bytes]:
        length, kind = HEAD.unpack(await self._exactly(HEAD.size, wait_s))
        if length > MESSAGE_BYTES:
            raise Unavailable("the worker for files broke its protocol", "try again")
        return kind, await self._exactly(length, ANSWER_S)

    async def _exactly(self, length: int, wait_s: float | None) -> bytes:
        loop, buffer = asyncio.get_running_loop(), self._buffer
        while len(buffer) < length:
            try:
                async with asyncio.timeout(wait_s):
                    piece = await loop.sock_recv(self._sock, BUFFER_BYTES)
            except TimeoutError as e:
                raise Unavailable("the session's file system does not answer", HANGS) from e
            if not piece:
                raise Unavailable("the worker for files ended", "try again")
            buffer += piece
        data = bytes(buffer[:length])
        del buffer[:length]
        return data

    def leave(self) -> None:
        """Lets the process end: it removes a part file that no client can continue."""
        self._sock.close()

    def kill(self) -> None:
        self._child.kill()

    @property
    def over(self) -> bool:
        return self._child.over


class Workers:
    """One per host."""

    def __init__(self) -> None:
        self._threads = Threads("files")
        self._idle: WeakKeyDictionary[Session, list[Worker]] = WeakKeyDictionary()
        self._slots: WeakKeyDictionary[Session, asyncio.Semaphore] = WeakKeyDictionary()
        self._ending: list[Worker] = []  # killed; a dead file system may hold them for long

    @contextlib.asynccontextmanager
    async def of(self, session: Session) -> AsyncIterator[Worker]:
        """A worker for one request. A request that fails in the middle ends the worker."""
        async with self._slots.setdefault(session, asyncio.Semaphore(WORKERS_MAX)):
            worker = await self._taken(session)
            try:
                yield worker
            except HoldfastError as e:
                if isinstance(e, Unavailable):
                    self._end(worker)
                else:
                    self._rest(session, worker)
                raise
            except BaseException:
                self._end(worker)
                raise
            self._rest(session, worker)

    async def _taken(self, session: Session) -> Worker:
        idle = self._idle.setdefault(session, [])
        while idle:
            if not (worker := idle.pop()).over:
                return worker
        self._ending = [one for one in self._ending if not one.over]
        if sum(one.session == session.id for one in self._ending) >= WORKERS_MAX:
            raise Unavailable("the session's file systems do not answer", HANGS)
        quotas = (Quota(session.id, WORKERS_MAX),)
        try:
            worker = await self._threads.do(quotas, Worker, session)
        except OSError as e:
            raise Impossible(f"no worker for files could start: {e.strerror}") from e
        try:
            await worker.told()
        except BaseException:
            self._end(worker)
            raise
        return worker

    def _rest(self, session: Session, worker: Worker) -> None:
        """Keeps a worker for the next request of the session, for IDLE_S."""
        if session.ended.done() or worker.broken:
            return self._end(worker)
        idle = self._idle.setdefault(session, [])
        idle.append(worker)

        def leave() -> None:
            if worker in idle:
                idle.remove(worker)
                self._end(worker)

        asyncio.get_running_loop().call_later(IDLE_S, leave)

    def _end(self, worker: Worker) -> None:
        worker.leave()
        asyncio.get_running_loop().call_later(LEAVE_S, worker.kill)
        self._ending = [one for one in (*self._ending, worker) if not one.over]


def _error(name: str, message: str) -> HoldfastError:
    return BY_NAME.get(name, Impossible)(message, RECOVER.get(name, ""))
