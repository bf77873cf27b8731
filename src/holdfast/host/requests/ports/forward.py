"""`forward` opens a listening port of a session to a client; `forward.connect` is a connection.

A forward is an act: judged, recorded, and open until its client leaves, the session ends or the
right `forward` ends. Each connection is a request of its own, so credit limits each direction of
each connection by itself. For each new connection the host looks again whether a process of the
session listens on the port, and connects in the network namespace of that process.

Limit: between this look and the connection, another process of the same network may take the port.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from holdfast.core.contract.ports import Connect, Connected, Forwarded
from holdfast.core.contract.ports import Forward as Asked
from holdfast.host.acts.act_context import ProposedAct
from holdfast.host.processes import graph, proc_scan
from holdfast.host.processes.argv import words
from holdfast.host.processes.net_entry import NetEntry, namespace
from holdfast.host.requests.host import Context, Host
from holdfast.host.runtime.connection import Connection
from holdfast.host.runtime.flow import Downstream, Upstream
from holdfast.host.session.session import Session
from holdfast.model.errors import NotFound, NotListening, Refused, Unavailable, Usage
from holdfast.model.limits import FORWARD_CONNECTIONS_MAX, FORWARDS_MAX, OUTPUT_CHUNK_BYTES

if TYPE_CHECKING:
    from holdfast.model.canonical import Canonical

CONNECT_S: Final = 10.0  # for a server of the session to accept
COMMAND_CHARS: Final = 200  # of the server, for an approver
_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: a close is a reset


async def forward(host: Host, ctx: Context, q: Asked) -> Forwarded:
    """Keeps a forward open."""
    if not 0 < q.port < 65536:
        raise Usage(f"{q.port} is no port", "a port is a number from 1 to 65535")
    if isinstance(q.once, str):
        raise Usage("a forward has no idempotency key", "open it again: the old one has ended")
    session, conn = host.engine.find(q.session), ctx.conn
    opened = Forward(host, session, conn.key, q.port)
    server = await opened.server()
    command = (await words(session, [server.pid])).get(server.pid, "")[:COMMAND_CHARS]
    details = {"port": str(q.port), "pid": str(server.pid), "command": command}
    await host.engine.door.enter(ctx.act, ProposedAct("forward", details=details, wait_s=q.hold))
    if sum(one.key == conn.key for one in host.forwards.values()) >= FORWARDS_MAX:
        raise Refused(f"{FORWARDS_MAX} ports are open for this key", "close one of them")
    host.shows(conn, session.id, "forward")
    host.forwards[opened.id] = opened
    facts: dict[str, Canonical] = {"port": q.port, "pid": server.pid}
    ctx.act.applied(None, **facts)
    session.event("forward.opened", operator=conn.operator, **facts)
    conn.event("began", request=ctx.number, session=session.id, forward=opened.id, **facts)
    try:
        await asyncio.wait({session.ended})
        return Forwarded(id=session.id, name=session.name, port=q.port, **opened.counts())
    finally:
        del host.forwards[opened.id]
        opened.close()
        session.event("forward.closed", operator=conn.operator, port=q.port, **opened.counts())


async def connect(host: Host, ctx: Context, q: Connect) -> Connected:
    """Carries one connection to the server until both directions have ended."""
    opened, session, conn = host.forwards.get(q.forward), host.engine.find(q.session), ctx.conn
    if opened is None or opened.session is not session or opened.key != conn.key:
        raise NotFound("this forward is not open any more", "open the port again")
    host.shows(conn, session.id, "forward")
    with opened.counted():
        sock = await opened.connected()
        try:
            conn.event("began", request=ctx.number, session=session.id, forward=opened.id)
            return await _carry(opened, conn, ctx.number, sock)
        except OSError as e:
            raise Unavailable(f"the connection to the server broke: {e.strerror}") from e
        except BaseException:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            raise
        finally:
            sock.close()


class Forward:
    """An open forward, with its connections and their bytes."""

    def __init__(self, host: Host, session: Session, key: bytes, port: int) -> None:
        self.id = os.urandom(8).hex()
        self.session, self.key, self._port = session, key, port
        self._host = host
        self._connections = self.sent = self.received = 0
        self._open: set[asyncio.Task[object]] = set()
        self._look = asyncio.Lock()
        self._looked_at = -1.0
        self._server: proc_scan.Socket | None = None
        self._entry: NetEntry | None = None  # into the network namespace of the session

    def counts(self) -> dict[str, int]:
        return {"connections": self._connections, "sent": self.sent, "received": self.received}

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Counts the current request as a connection, which ends with the forward."""
        if len(self._open) >= FORWARD_CONNECTIONS_MAX:
            raise Refused(
                f"{FORWARD_CONNECTIONS_MAX} connections to this port are open", "close some of them"
            )
        task = asyncio.current_task()
        assert task is not None
        self._connections += 1
        self._open.add(task)
        try:
            yield
        finally:
            self._open.discard(task)

    async def server(self) -> proc_scan.Socket:
        """The listening socket now; requests that come at the same time share one look."""
        loop = asyncio.get_running_loop()
        asked = loop.time()
        async with self._look:
            if self._looked_at < asked:
                self._looked_at = loop.time()
                self._server = await self.session.looked(self._find)
        if self._server is None:
            raise NotListening(
                f"no process of session {self.session.name} listens on TCP port {self._port}",
                f"start the server there, or wait for it with the condition port:{self._port}",
                port=self._port,
            )
        return self._server

    def _find(self) -> proc_scan.Socket | None:
        members = graph.members(self._host.engine.halter.groups, self.session)
        found = [
            one
            for one in proc_scan.listening(members)
            if one.port == self._port and one.proto in ("tcp", "tcp6")
        ]
        return min(found, key=lambda one: one.proto, default=None)

    async def connected(self) -> socket.socket:
        """A new connection to the server."""
        server, error = await self.server(), ""
        for family, address in _addresses(server):
            sock = await self._socket(server.pid, family)
            try:
                sock.setblocking(False)
                async with asyncio.timeout(CONNECT_S):
                    loop = asyncio.get_running_loop()
                    await loop.sock_connect(sock, (address, self._port))
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return sock
            except (OSError, TimeoutError) as e:
                sock.close()
                error = getattr(e, "strerror", None) or "it does not accept"
            except BaseException:
                sock.close()
                raise
        raise Unavailable(
            f"the server on port {self._port} refused the connection: {error}",
            "look at the server in the session",
        )

    async def _socket(self, pid: int, family: socket.AddressFamily) -> socket.socket:
        """A new socket in the network namespace of the process."""
        there = namespace(pid)
        if there == namespace(os.getpid()):
            return socket.socket(family, socket.SOCK_STREAM)
        async with self._look:
            if self._entry is None or self._entry.namespace != there:
                self._leave()
                self._entry = await asyncio.to_thread(NetEntry, pid)
            return await asyncio.to_thread(self._entry.socket, family)

    def _leave(self) -> None:
        if self._entry is not None:
            self._entry.close()
            self._entry = None

    def close(self) -> None:
        """Ends all connections."""
        for task in self._open:
            task.cancel()
        self._leave()


def _addresses(server: proc_scan.Socket) -> list[tuple[socket.AddressFamily, str]]:
    """Where the server can be reached; a server on all addresses is reached on the loopback."""
    v4, v6 = (socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")
    if server.address == "0.0.0.0":
        return [v4]
    if server.address == "::":
        return [v6, v4]
    return [(v6[0] if ":" in server.address else v4[0], server.address)]


async def _carry(opened: Forward, conn: Connection, number: int, sock: socket.socket) -> Connected:
    """Both directions, each until its own end."""
    loop, arrived = asyncio.get_running_loop(), asyncio.Event()
    waiting: deque[bytes] = deque()  # received from the client: at most a window
    sent = received = 0

    def take(data: bytes) -> None:
        waiting.append(data)
        arrived.set()

    async def up() -> None:
        nonlocal sent
        while True:
            while not waiting:
                arrived.clear()
                await arrived.wait()
            data = waiting.popleft()
            if not data:
                sock.shutdown(socket.SHUT_WR)
                return upstream.complete()
            await loop.sock_sendall(sock, data)
            sent += len(data)
            opened.sent += len(data)
            upstream.used(sent)

    async def down() -> None:
        nonlocal received
        while True:
            await flow.room()
            data = await loop.sock_recv(sock, OUTPUT_CHUNK_BYTES)
            await flow.room()
            flow.send(received, received + len(data), data)  # without bytes: the server's end
            if not data:
                return
            received += len(data)
            opened.received += len(data)
            await asyncio.sleep(0)  # a quick server must not occupy the host

    flow, upstream = Downstream(conn, number), Upstream(conn, number, take)
    upstream.used(0)
    try:
        async with asyncio.TaskGroup() as both:
            both.create_task(up())
            both.create_task(down())
    except ExceptionGroup as broken:  # of the server's socket
        raise broken.exceptions[0] from None
    finally:
        flow.close()
        upstream.close()
    return Connected(sent=sent, received=received)
