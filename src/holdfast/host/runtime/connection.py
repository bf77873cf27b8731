"""One client's connection: frames in, frames out, nothing decided.

Reading and writing go straight to the socket: an echoed key costs one recv and one send. Answers that the client does not
read are queued up to a bound, then the connection is closed (it comes back and asks again). Output is never queued here:
a viewer looks at `blocked` and waits in the ring.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
from collections import deque
from collections.abc import Callable
from typing import Any

from holdfast.host.selector import add_hot, remove_hot
from holdfast.model.errors import HoldfastError, Impossible, PeerFault
from holdfast.model.limits import FRAME_BYTES, HELLO_WAIT_S, REPLY_QUEUE_BYTES, REQUEST_BYTES
from holdfast.wire import frames

READ_BYTES = 256 * 1024
GAVE_UP = "gave up"  # why a request is cancelled, if its client went away or said so: not if the host ends the connection
_INBOX = memoryview(
    bytearray(READ_BYTES)
)  # one for all: callbacks run one at a time, and allocating this per key costs more than the key


class Connection:
    def __init__(
        self,
        sock: socket.socket,
        pid: int,
        on_frame: Callable[[Connection, int, bytes], None],
        on_closed: Callable[[Connection], None],
        channel: str = "",
        on_the_way: Callable[[], int] = lambda: 0,
    ) -> None:
        self.pid = pid
        self.channel = (
            channel  # the hash of the sealed channel it came through; "": it is on this machine
        )
        self._on_the_way = on_the_way  # bytes in that channel that its client has not taken
        self.client = 0  # the client's own id; 0 until it introduced itself
        self.operator = ""
        self.key = b""  # the operator's own, proved
        self.hello: dict[str, Any] = {}  # what it said of itself, until it is proved
        self.challenge: dict[str, Any] = {}
        self.revoking = False  # it gets its answer, also when it revokes itself
        self.binding = ""  # names this channel in what is signed on it
        self.modality = ""
        self.kind = "human"  # human, agent or service: for policies, never for mechanics (A7)
        self.wants_ack = 0  # the client asked to be told when its input of this number is taken
        self.closed = False
        self.on_drain: Callable[[], None] = lambda: None
        self.tasks: dict[int, asyncio.Task[None]] = {}  # requests under way, by their number
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._on_frame = on_frame
        self._on_closed = on_closed
        self._splitter = frames.Splitter(frames.FROM_CLIENT, REQUEST_BYTES)
        self._out: deque[bytes | memoryview] = deque()
        self._out_bytes = 0
        self.since = self._loop.time()
        sock.setblocking(False)
        add_hot(self._loop, sock.fileno(), self._readable)
        self._hello_timer = self._loop.call_later(HELLO_WAIT_S, self._no_hello)

    def introduced(self) -> None:
        self._hello_timer.cancel()

    def waits(self, **facts: Any) -> None:
        """It has said all it can; somebody decides whether it comes in, which may take a while."""
        self._hello_timer.cancel()
        self.event("waiting", **facts)

    def _no_hello(self) -> None:
        self.bye("protocol", "no introduction within the time allowed")

    # ------------------------------------------------------------ in

    def _readable(self) -> None:
        try:
            data = bytes(_INBOX[: self._sock.recv_into(_INBOX)])
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close(GAVE_UP)
            return
        try:
            if not self._splitter.pending and (one := frames.single(data)) is not None:
                self._on_frame(
                    self, one, data[frames.HEADER.size :]
                )  # a key: nothing to put together
                return
            for kind, payload in self._splitter.feed(data):
                self._on_frame(self, kind, payload)
                if self.closed:
                    return
        except PeerFault as e:
            self.bye("protocol", e.message)

    # ------------------------------------------------------------ out

    @property
    def unread(self) -> int:
        """About how many bytes the client has not taken yet, here and in the kernel, which holds up to two megabytes: it says that
        there is room again only when most of that is gone, so room is no measure of how quick a client is."""
        if self.closed:
            return 0
        in_kernel: int = struct.unpack("i", fcntl.ioctl(self._sock, termios.TIOCOUTQ, bytes(4)))[0]
        return self._out_bytes + in_kernel + self._on_the_way()

    @property
    def blocked(self) -> bool:
        return bool(self._out) or self.closed

    def send(self, frame: bytes) -> None:
        """A control frame: sent now or queued."""
        if self.closed:
            return
        if self._out:
            self._queue(frame)
            return
        try:
            sent = self._sock.send(frame)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._loop.call_soon(self.close)
            return
        if sent < len(frame):
            self._queue(frame[sent:])

    def send_with(self, frame: bytes, fds: list[int]) -> None:
        """A frame with descriptors; only when nothing is queued before it."""
        try:
            sent = socket.send_fds(self._sock, [frame], fds)
        except OSError:
            self._loop.call_soon(self.close)
            return
        if sent < len(frame):
            self._queue(frame[sent:])

    def send_pair(self, header: bytes, data: bytes | memoryview) -> None:
        """A hot frame; only when not blocked. What the socket does not take is copied, so the ring may move on."""
        if self.closed:
            return
        try:
            sent = self._sock.sendmsg((header, data)) if len(data) else self._sock.send(header)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._loop.call_soon(self.close)
            return
        if sent < len(header):
            self._queue(header[sent:] + bytes(data))
        elif sent < len(header) + len(data):
            self._queue(bytes(data[sent - len(header) :]))

    def _queue(self, data: bytes) -> None:
        if self._out_bytes + len(data) > REPLY_QUEUE_BYTES:
            self._loop.call_soon(self.close)
            return
        if not self._out:
            self._loop.add_writer(self._sock, self._writable)
        self._out.append(data)
        self._out_bytes += len(data)

    def _writable(self) -> None:
        while self._out:
            data = self._out[0]
            try:
                sent = self._sock.send(data)
            except BlockingIOError:
                return
            except OSError:
                self.close()
                return
            self._out_bytes -= sent
            if sent < len(data):
                self._out[0] = memoryview(data)[sent:]
                return
            self._out.popleft()
        self._loop.remove_writer(self._sock)
        self.on_drain()

    # ------------------------------------------------------------ conveniences

    def event(self, name: str, /, **body: Any) -> None:
        self.send(frames.pack_json(frames.EVENT, {"event": name, **body}))

    def answer(self, number: int, body: dict[str, Any]) -> None:
        frame = frames.reply(number, body)
        if len(frame) > FRAME_BYTES:
            return self.fail(
                number,
                Impossible(
                    f"the answer has {len(frame)} bytes; at most {FRAME_BYTES} fit", "ask for less"
                ),
            )
        self.send(frame)

    def fail(self, number: int, error: HoldfastError) -> None:
        self.send(frames.reply(number, error.to_wire(), ok=False))

    def bye(self, reason: str, message: str, recover: str = "") -> None:
        """The last word; as far as the socket takes it at once."""
        self.send(
            frames.pack_json(
                frames.BYE,
                {"reason": reason, "message": message, **({"recover": recover} if recover else {})},
            )
        )
        self.close()

    def close(self, why: str | None = None) -> None:
        """`why` is told to the requests that are under way."""
        if self.closed:
            return
        self.closed = True
        self._hello_timer.cancel()
        remove_hot(self._loop, self._sock.fileno())
        self._loop.remove_writer(self._sock)
        if self._out:
            try:  # a short farewell to a client that reads
                for data in self._out:
                    self._sock.send(data)
            except OSError:
                pass
        self._out.clear()
        self._sock.close()
        for task in list(self.tasks.values()):
            task.cancel(why)
        self._on_closed(self)
