"""A client's connection: reads and writes frames, and takes no decisions.

Reading and writing go straight to the socket: an echoed key costs a recv and a send. Answers
that the client does not read are queued up to a bound, then the connection is closed (the client
reconnects and asks again). Output is never queued here: a viewer checks `blocked` and waits in the
ring.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.host.runtime.hot_loop import add_hot, remove_hot
from holdfast.model.errors import HoldfastError, Impossible, PeerFault
from holdfast.model.limits import FRAME_BYTES, HELLO_WAIT_S, REPLY_QUEUE_BYTES, REQUEST_BYTES
from holdfast.wire import frames

if TYPE_CHECKING:
    from holdfast.host.runtime.flow import Downstream

READ_BYTES = 256 * 1024
# Why a request ends early: the client left or cancelled. Not used if the host disconnects.
GAVE_UP = "gave up"
# Shared by all connections: callbacks never overlap, and an allocation costs more than a key.
_INBOX = memoryview(bytearray(READ_BYTES))


class Connection:
    def __init__(
        self,
        sock: socket.socket,
        pid: int,
        on_frame: Callable[[Connection, int, bytes], None],
        on_closed: Callable[[Connection], None],
        channel: str = "",
        on_the_way: Callable[[], int] = lambda: 0,
        around: tuple[int, ...] = (),
    ) -> None:
        """`around`: the client's process and the processes above it, when the client connected."""
        self.pid, self.around = pid, around
        self.channel = channel  # the hash of the sealed channel; "": the client is on this machine
        self._on_the_way = on_the_way  # bytes in that channel that the client has not taken
        self.client = 0  # the id that the client chose; 0 until the introduction
        self.operator = ""
        self.key = b""  # the operator's key, proved by a signature
        # A relay's client whose private key programs of this account can read here.
        self.stray = False
        self.hello: dict[str, Any] = {}  # the client's introduction, not proved yet
        self.challenge: dict[str, Any] = {}
        self.revoking = False  # the client gets an answer even to a revocation of itself
        self.binding = ""  # names this channel in signed statements
        self.modality = ""
        self.kind = "human"  # human, agent or service: for policies, never for mechanics (A7)
        self.wants_ack = 0  # the client wants to know when input up to this number is taken
        self.closed = False
        self.on_drain: Callable[[], None] = lambda: None  # of the attached viewer
        # Credit that the client gives each request at its start; None: the client gives none.
        self.window: int | None = None
        self.downstreams: dict[int, Downstream] = {}  # requests that send DATA, by number
        self.tasks: dict[int, asyncio.Task[None]] = {}  # requests under way, by number
        # Requests under way that take the client's input (STDIN), by number: offset, bytes.
        self.inputs: dict[int, Callable[[int, bytes], None]] = {}
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

    def challenged(self) -> None:
        """The client has HELLO_WAIT_S for its proof, however late the host read its hello."""
        self._hello_timer.cancel()
        self._hello_timer = self._loop.call_later(HELLO_WAIT_S, self._no_hello)

    def proved(self) -> None:
        """The introduction is complete: now the client waits for the host, not the reverse."""
        self._hello_timer.cancel()

    def waits(self, **facts: object) -> None:
        """An operator decides on admission, which takes time."""
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
                # A key: a single whole frame.
                self._on_frame(self, one, data[frames.HEADER.size :])
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
        """About how many bytes the client has not taken, in this queue and in the kernel.

        The kernel holds up to two megabytes, and reports room only when most of that is gone. So
        room in the socket does not measure how quick a client is.
        """
        if self.closed:
            return 0
        in_kernel: int = struct.unpack("i", fcntl.ioctl(self._sock, termios.TIOCOUTQ, bytes(4)))[0]
        return self._out_bytes + in_kernel + self._on_the_way()

    @property
    def blocked(self) -> bool:
        return bool(self._out) or self.closed

    def send(self, frame: bytes) -> None:
        """Sends a control frame now, or queues the frame."""
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
        """Sends a frame with descriptors; only when no frame is queued."""
        try:
            sent = socket.send_fds(self._sock, [frame], fds)
        except OSError:
            self._loop.call_soon(self.close)
            return
        if sent < len(frame):
            self._queue(frame[sent:])

    def send_pair(self, header: bytes, data: bytes | memoryview) -> None:
        """Sends output; only when not blocked. The rest is copied, so the ring may move on."""
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
        for number, flow in list(self.downstreams.items()):
            flow.wake()
            if self._out and number in self.downstreams:  # next time the others come first
                self.downstreams[number] = self.downstreams.pop(number)
                break

    # ------------------------------------------------------------ conveniences

    def event(self, name: str, /, **body: object) -> None:
        self.send(frames.pack_json(frames.EVENT, {"event": name, **body}))

    def answer(self, number: int, body: dict[str, Any]) -> None:
        frame = frames.reply(number, body)
        if len(frame) > FRAME_BYTES:
            why = f"the answer has {len(frame)} bytes; at most {FRAME_BYTES} fit"
            return self.fail(number, Impossible(why, "ask for less"))
        self.send(frame)

    def fail(self, number: int, error: HoldfastError) -> None:
        self.send(frames.reply(number, error.to_wire(), ok=False))

    def bye(self, reason: str, message: str, recover: str = "") -> None:
        """Sends as much of a last frame as the socket takes at once, and closes."""
        body = {"reason": reason, "message": message} | ({"recover": recover} if recover else {})
        self.send(frames.pack_json(frames.BYE, body))
        self.close()

    def close(self, why: str | None = None) -> None:
        """Closes the socket, and cancels the requests under way with the reason `why`."""
        if self.closed:
            return
        self.closed = True
        self._hello_timer.cancel()
        remove_hot(self._loop, self._sock.fileno())
        self._loop.remove_writer(self._sock)
        if self._out:
            try:  # the rest, if the client is reading
                for data in self._out:
                    self._sock.send(data)
            except OSError:
                pass
        self._out.clear()
        self._sock.close()
        for task in list(self.tasks.values()):
            task.cancel(why)
        self._on_closed(self)
