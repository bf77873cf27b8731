"""The host's end of the connection to one keeper: packets, the ring, the bell."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

from holdfast.host.runtime.hot_loop import add_hot, remove_hot
from holdfast.model.errors import PeerFault, Unavailable
from holdfast.model.limits import KEEPER_PACKET_BYTES, SPAWN_WAIT_S
from holdfast.transport import unix
from holdfast.wire import keeper as wire
from holdfast.wire.ring import RingReader, RingUnreadable


class StaleTerm(Exception):
    """The keeper belongs to a newer host."""

    def __init__(self, term: int) -> None:
        super().__init__(f"term {term} or newer is in charge")
        self.term = term


def stuck(session: str, pid: int) -> Unavailable:
    """The error for a keeper that does not react."""
    return Unavailable(
        f"the keeper of {session} (process {pid}) does not answer: it is stopped or hangs",
        f"`kill -CONT {pid}`, then try again",
    )


class KeeperLink:
    """Its callbacks run on the loop.

    on_bell(): new output, effects or flags. on_packet(kind, packet). on_closed().
    on_gate(listener, error): the callee then owns the listener.
    """

    def __init__(self, sock: socket.socket, welcome: wire.Welcome, fds: list[int]) -> None:
        self.welcome = welcome
        self.ring = RingReader(fds[0])
        self.ring_fd = fds[0]
        self.snapshot_fd, self.bell = fds[1], fds[2]
        self.on_bell: Callable[[], None] = lambda: None
        self.on_packet: Callable[[int, bytes], None] = lambda kind, packet: None
        self.on_closed: Callable[[], None] = lambda: None
        # Gets the listener (or -1), and the error with which the kernel refused one.
        self.on_gate: Callable[[int, int], None] | None = None
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._queue: deque[bytes] = deque()
        self.closed = False
        self._muted: asyncio.TimerHandle | None = None
        self.peer_pid = unix.peer(sock)[0]

    @property
    def label(self) -> dict[str, Any]:
        """The host's own description of the session; empty if it is unreadable."""
        try:
            label = json.loads(self.welcome.label)
        except ValueError:
            return {}
        return label if isinstance(label, dict) else {}

    @classmethod
    async def open(cls, path: str, term: int, wait_s: float = SPAWN_WAIT_S) -> KeeperLink:
        """Connects and claims the keeper for this term.

        FileNotFoundError or ConnectionRefusedError: there is no keeper.
        """
        loop = asyncio.get_running_loop()
        sock = unix.connect(path, socket.SOCK_SEQPACKET, blocking=False)
        fds: list[int] = []
        try:
            sock.send(wire.hello(term))
            async with asyncio.timeout(wait_s):
                await _readable(loop, sock)
            packet, fds, _, _ = socket.recv_fds(sock, KEEPER_PACKET_BYTES, 3)
            if packet[:1] == bytes([wire.REFUSED]):
                reason, value = wire.read_refused(packet)
                if reason == wire.REFUSED_TERM:
                    raise StaleTerm(value)
                raise PeerFault(
                    f"the keeper speaks version {value} of its wire, this host {wire.VERSION}",
                    "end the session with the release that made it, or run that release's host",
                )
            if not packet or packet[0] != wire.WELCOME or len(fds) != 3:
                raise PeerFault("the keeper did not answer as one")
            link = cls(sock, wire.read_welcome(packet), fds)
        except TimeoutError as e:
            sock.close()
            raise Unavailable(f"the keeper at {os.path.basename(path)} does not answer") from e
        except (wire.Malformed, RingUnreadable) as e:
            sock.close()
            raise PeerFault(f"the keeper's answer is unreadable: {e}") from e
        except BaseException:
            sock.close()
            raise
        loop.add_reader(sock, link._readable)
        add_hot(loop, link.bell, link._bell)
        return link

    def _bell(self) -> None:
        try:
            os.read(self.bell, 8)
        except BlockingIOError:
            return
        self.on_bell()

    def mute(self, seconds: float) -> None:
        """Ignores the bell for a moment, when no client waits for the host; then catches up."""
        if self._muted is None and not self.closed:
            remove_hot(self._loop, self.bell)
            self._muted = self._loop.call_later(seconds, self.unmute)

    def unmute(self) -> None:
        if self._muted is not None:
            self._muted.cancel()
            self._muted = None
            if not self.closed:
                add_hot(self._loop, self.bell, self._bell)

    def _readable(self) -> None:
        for _ in range(64):
            if self.closed:
                return
            try:
                packet, fds, _, _ = socket.recv_fds(
                    self._sock, KEEPER_PACKET_BYTES, 1, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return
            except OSError:
                packet, fds = b"", []
            if not packet:
                self.close()
                self.on_closed()
                return
            if fds or packet[0] == wire.GATED:
                self._gated(packet, fds)
            else:
                self.on_packet(packet[0], packet)

    def _gated(self, packet: bytes, fds: list[int]) -> None:
        try:
            error = wire.read_gated(packet)
        except wire.Malformed:
            error = -1
        if self.on_gate is not None and (fds or error):
            self.on_gate(fds.pop() if fds and not error else -1, error)
        for fd in fds:
            os.close(fd)

    def send_descriptor(self, packet: bytes, fd: int) -> bool:
        """Sends a packet with a descriptor now or not at all."""
        if self.closed or self._queue:
            return False
        try:
            socket.send_fds(self._sock, [packet], [fd])
        except OSError:
            return False
        return True

    def send(self, packet: bytes) -> None:
        """Sends a packet, or queues it if the keeper is not reading; the lane bounds the queue."""
        if self.closed:
            return
        if not self._queue:
            try:
                self._sock.send(packet)
                return
            except BlockingIOError:
                self._loop.add_writer(self._sock, self._writable)
            except OSError:
                return  # the reader side notices and reports
        self._queue.append(packet)

    def _writable(self) -> None:
        while self._queue:
            try:
                self._sock.send(self._queue[0])
            except BlockingIOError:
                return
            except OSError:
                self._queue.clear()
                break
            self._queue.popleft()
        self._loop.remove_writer(self._sock)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        if self._muted is None:
            remove_hot(self._loop, self.bell)
        else:
            self._muted.cancel()
        self._sock.close()
        os.close(self.bell)

    def dispose(self) -> None:
        """Closes the link and frees the shared memory; the ring must not be used afterwards."""
        self.close()
        self.ring.close()
        if self.snapshot_fd >= 0:
            os.close(self.snapshot_fd)
            os.close(self.ring_fd)
            self.snapshot_fd = self.ring_fd = -1


async def _readable(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(sock, lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(sock)
