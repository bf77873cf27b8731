"""The host's line to one relay: dialled by the host, so that a machine behind any router can be reached, and dialled again for as long as it is wanted.

    relay <-> Uplink <-> Stream (a sealed channel, credit) <-> socket pair <-> Connection, as every local client has

A stream becomes a connection when its channel is established, not before: what came until then may have been recorded and sent again by anybody. From there on
it is a client like any other; who it is, it proves inside. What this side sends to a relay waits in a queue whose streams stop reading when it is long, so
a slow relay costs a bounded amount of memory, and the ring keeps what does not fit.

The relay is believed in nothing. It may close, forget or lie: the line is dialled again, with pauses that grow (and are never the same for two hosts), sessions do not notice.
It is asked whether it is there, and gone if it does not answer within its own time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from holdfast import __version__
from holdfast.core import route
from holdfast.core.channel import Channel
from holdfast.core.patience import Patience
from holdfast.core.tunnel import Tunnel
from holdfast.home.relays import Relay
from holdfast.model import address, signing
from holdfast.model.errors import HoldfastError, NotAllowed, PeerFault, Unavailable
from holdfast.model.limits import REMOTE_AGAIN_MAX_S, REMOTE_WAIT_S, STREAMS_MAX, KiB
from holdfast.model.probe import probe
from holdfast.transport import carriers, unix
from holdfast.transport.asleep import Asleep
from holdfast.wire import outer

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.host.server import Server
    from holdfast.transport.carriers import Line

log = logging.getLogger("holdfast.uplink")

AGAIN_FIRST_S: Final = 0.05
REPLACED_S: Final = 60.0                 # before a host that was replaced by another with the same key tries again
QUEUE_BYTES: Final = 512 * KiB           # towards the relay, before streams stop reading
PLAIN_BYTES: Final = 64 * KiB            # of frames at a time
HANDSHAKE_S: Final = 20.0                # until a stream's channel must be established


class Replaced(NotAllowed):
    """Somebody registered with this machine's key after us: a copy of its home. Both must not take turns."""


class Stream:
    """One client beyond the relay."""

    def __init__(self, uplink: Uplink, number: int) -> None:
        self.number = number
        self._uplink = uplink
        self._loop = asyncio.get_running_loop()
        self._tunnel = Tunnel(uplink.channel())
        self._begun = False                      # something came
        self._sock: socket.socket | None = None
        self._reading = self._writing = False
        self._plain = bytearray()                # for the connection, not taken yet
        self._timer: asyncio.TimerHandle | None = self._loop.call_later(HANDSHAKE_S, self.close, outer.TIMEOUT, "no handshake within the time allowed")
        self.closed = False

    def data(self, payload: bytes) -> None:
        if self._uplink.spent and self._sock is None:
            return self.close(outer.REFUSED, "this way in is closed")
        if not self._begun:
            self._begun = True
            self._uplink.begun()                 # before it is answered
            if self._uplink.spent:
                return self.close(outer.REFUSED, "this way in is closed")
        step = self._tunnel.data(payload, time.monotonic())
        self._send(step.send)
        if self._tunnel.reason:
            if self._sock is None:
                self._uplink.failed()
            return self.close(outer.FLOW if self._tunnel.reason == "flow" else outer.PROTOCOL, "the channel is broken")
        if self._sock is None and self._tunnel.channel.established and not self._begin():
            return self.close(outer.LIMIT, "no room for another client")
        if step.data:
            self._plain += step.data
            self._hand_on()
        else:
            self._grant(0)
        if self._tunnel.channel.whole:
            self.finish()
        else:
            self.look()

    def credit(self, amount: int) -> None:
        self._tunnel.credit(amount, time.monotonic())
        if self._tunnel.reason:
            return self.close(outer.FLOW, "credit for what was not sent")
        self.look()

    def _begin(self) -> bool:
        """The other side has proved that it is there now: it gets a connection."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        ours, theirs = unix.pair()
        ours.setblocking(False)
        self._sock = ours
        if self._uplink.server.admit(theirs, self._tunnel.channel.handshake_hash.hex(), lambda: self._tunnel.on_the_way):
            return True
        theirs.close()
        return False

    # ------------------------------------------------------------ from the connection to the relay

    def look(self) -> None:
        """Reads from the connection while there is room on the way."""
        if self._sock is None or self.closed:
            return
        wanted = self._tunnel.room() > 0 and not self._uplink.full
        if wanted and not self._reading:
            self._loop.add_reader(self._sock, self._readable)
        elif not wanted and self._reading:
            self._loop.remove_reader(self._sock)
        self._reading = wanted

    def _readable(self) -> None:
        assert self._sock is not None
        if (room := self._tunnel.room()) <= 0:
            return self.look()
        try:
            data = self._sock.recv(min(PLAIN_BYTES, room))
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            return self.finish()                 # the host closed it
        self._send(self._tunnel.put(data, time.monotonic()))
        self.look()

    def _send(self, payloads: tuple[bytes, ...]) -> None:
        for payload in payloads:
            self._uplink.send(outer.Data(self.number, payload))

    # ------------------------------------------------------------ from the relay to the connection

    def _hand_on(self) -> None:
        if self._sock is None or not self._plain:
            return
        try:
            count = self._sock.send(self._plain)
        except BlockingIOError:
            count = 0
        except OSError:
            return self.finish()
        del self._plain[:count]
        self._grant(count)
        if bool(self._plain) != self._writing:
            self._writing = not self._writing
            self._loop.add_writer(self._sock, self._hand_on) if self._writing else self._loop.remove_writer(self._sock)

    def _grant(self, count: int) -> None:
        if (given := self._tunnel.took(count)) and not self._tunnel.reason:
            self._uplink.send(outer.Credit(self.number, given))

    # ------------------------------------------------------------ the end

    def finish(self) -> None:
        """Nothing more comes from one of the sides. The rest is said, sealed."""
        if not self.closed:
            self._send(self._tunnel.end(time.monotonic()))
            self.close(outer.DONE)

    def close(self, code: int | None = None, reason: str = "") -> None:
        """Without a code: the relay knows."""
        if self.closed:
            return
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._sock is not None:
            if self._reading:
                self._loop.remove_reader(self._sock)
            if self._writing:
                self._loop.remove_writer(self._sock)
            with contextlib.suppress(OSError):
                self._sock.send(self._plain)
            self._sock.close()
        self._tunnel.channel.cut()
        self._uplink.gone(self, code, reason)


class Uplink:
    def __init__(self, relay: Relay, server: Server, route_key: bytes, passes: Callable[[], tuple[bytes, ...]], channel: Callable[[bytes], Channel],
                 generation: Callable[[], int], failed: Callable[[], None] = lambda: None, begun: Callable[[], None] = lambda: None) -> None:
        """`channel` makes a stream's, for this route; `generation` gives a number that only grows; `begun` is told of each stream that says something, before it is
        answered, `failed` of one that came to nothing."""
        self.relay, self.server, self.failed, self.begun = relay, server, failed, begun
        self.route = route.route(signing.public(route_key))
        self._channel = channel
        self.state = "connecting"                # connecting, registered, or refused
        self.detail = ""                         # why it is not registered
        self.since = time.time()
        self.spent = False                       # nobody comes in any more who has not
        self._route_key, self._passes = route_key, passes
        self._streams: dict[int, Stream] = {}
        self._queue: deque[bytes] = deque()
        self._queued = 0
        self._more = asyncio.Event()
        self._now = asyncio.Event()
        self._generation = generation
        self._patience = Patience(AGAIN_FIRST_S, REMOTE_AGAIN_MAX_S)
        self._told: tuple[bytes, ...] = ()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def channel(self) -> Channel:
        return self._channel(self.route)

    @property
    def full(self) -> bool:
        return self._queued >= QUEUE_BYTES

    # ------------------------------------------------------------ life

    async def _run(self) -> None:
        while True:
            replaced = False
            try:
                self._now.clear()
                await self._connect()
                why, state = "the relay closed the connection", "connecting"
            except NotAllowed as e:
                why, state, replaced = e.message, "refused", isinstance(e, Replaced)
            except (HoldfastError, OSError, TimeoutError) as e:
                why, state = e.message if isinstance(e, HoldfastError) else str(e) or type(e).__name__, "connecting"
            except Exception as e:               # a defect of ours or of a library must not end the line for ever
                log.exception("relay %s", address.name(self.relay.url))
                why, state = f"internal error: {type(e).__name__}: {e}", "connecting"
            finally:
                for stream in list(self._streams.values()):
                    stream.close()
                self._streams.clear()
            if why != self.detail or self.state == "registered":
                log.info("relay %s: %s", address.name(self.relay.url), why)
            self._became(state, why)
            luck = random.random()
            pause = self._patience.pause(time.monotonic(), luck)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REPLACED_S * (0.5 + luck) if replaced else pause):
                    await self._now.wait()

    def again(self) -> None:
        """Somebody has reason to think that the relay can be reached now."""
        self._now.set()

    def _became(self, state: str, detail: str = "") -> None:
        if state != self.state:
            self.since = time.time()
        self.state, self.detail = state, detail

    async def _connect(self) -> None:
        async with asyncio.timeout(REMOTE_WAIT_S):
            line = await carriers.connect(self.relay.url, self.relay.token, self.relay.ca)
        try:
            await self._serve(line)
        finally:
            await line.close()

    async def _serve(self, line: Line) -> None:
        async with asyncio.timeout(REMOTE_WAIT_S):
            await line.send(outer.encode(outer.Hello(outer.LOWEST, outer.VERSION, outer.HOST, f"holdfast {__version__}")))
            welcome = await self._next(line)
            if not isinstance(welcome, outer.Welcome):
                raise PeerFault("the relay did not welcome us")
            outer.chosen(welcome)
            generation = self._generation()
            self._told = self._passes()
            signature = route.sign(self._route_key, address.name(self.relay.url), welcome.nonce, generation)
            await line.send(outer.encode(outer.Register(signing.public(self._route_key), generation, signature, self._told)))
            registered = await self._next(line)
            if not isinstance(registered, outer.Registered) or registered.route != self.route:
                raise PeerFault("the relay registered something else")
        self._queue.clear()
        self._queued = 0
        self._became("registered")
        self._patience.reached(time.monotonic())
        log.info("registered at the relay %s", address.name(self.relay.url))
        probe("host.uplink.registered")
        writer = asyncio.get_running_loop().create_task(self._write(line))
        try:
            await self._read(line, float(welcome.ping_s))
        finally:
            writer.cancel()

    async def _next(self, line: Line) -> outer.Frame:
        message = await line.recv()
        frame = outer.decode(message, outer.TO_HOST)
        if isinstance(frame, outer.Close):
            if frame.code in (outer.UNAUTHORIZED, outer.REFUSED):
                raise NotAllowed(f"it does not let this machine in{': ' + frame.reason if frame.reason else ''}", "`holdfast relay token` there makes a token")
            raise self._closed(frame)
        return frame

    def _closed(self, frame: outer.Close) -> HoldfastError:
        if frame.code == outer.REPLACED:
            return Replaced("another host has registered as this machine", "if its home was copied, remove keys/machine from the copy")
        return Unavailable(f"it closed the line ({outer.CODES[frame.code]}){': ' + frame.reason if frame.reason else ''}")

    async def _read(self, line: Line, ping_s: float) -> None:
        """Until the connection ends. A relay that says nothing is asked, and is gone if it does not answer."""
        asked, asleep = False, Asleep()
        while True:
            try:
                async with asyncio.timeout(ping_s):
                    message = await line.recv()
            except TimeoutError:
                if asked or asleep.since():
                    raise Unavailable("the relay does not answer any more") from None
                asked = True
                self.send(outer.Ping(os.urandom(outer.MARK_BYTES)))
                continue
            asked = False
            frame = outer.decode(message, outer.TO_HOST)
            if isinstance(frame, outer.Data):
                if (stream := self._streams.get(frame.stream)) is not None:
                    stream.data(frame.payload)
            elif isinstance(frame, outer.Credit):
                if (stream := self._streams.get(frame.stream)) is not None:
                    stream.credit(frame.amount)
            elif isinstance(frame, outer.Incoming):
                self._incoming(frame.stream)
            elif isinstance(frame, outer.Ping):
                self.send(outer.Pong(frame.mark))
            elif isinstance(frame, outer.Close):
                if frame.stream == 0:
                    raise self._closed(frame)
                if (stream := self._streams.get(frame.stream)) is not None:
                    stream.close()
            elif not isinstance(frame, outer.Pong):
                raise PeerFault("the relay says something out of place")

    def _incoming(self, number: int) -> None:
        if number in self._streams:
            raise PeerFault("the relay opened a stream twice")
        if len(self._streams) >= STREAMS_MAX:
            return self.send(outer.Close(number, outer.LIMIT, "too many streams"))
        self._streams[number] = Stream(self, number)
        self.send(outer.Accept(number))

    def gone(self, stream: Stream, code: int | None, reason: str) -> None:
        if self._streams.get(stream.number) is stream:
            del self._streams[stream.number]
            if code is not None:
                self.send(outer.Close(stream.number, code, reason))

    # ------------------------------------------------------------ out

    def send(self, frame: outer.Frame) -> None:
        if self.state != "registered":
            return
        data = outer.encode(frame)
        self._queue.append(data)
        self._queued += len(data)
        self._more.set()

    async def _write(self, line: Line) -> None:
        """Until the connection ends, which whoever reads tells."""
        with contextlib.suppress(Unavailable):
            await self._write_on(line)

    async def _write_on(self, line: Line) -> None:
        while True:
            while self._queue:
                data = self._queue.popleft()
                await line.send(data)
                was, self._queued = self.full, self._queued - len(data)
                if was and not self.full:
                    for stream in list(self._streams.values()):
                        stream.look()
            self._more.clear()
            await self._more.wait()

    def passes_changed(self) -> None:
        """Who may come through the line is different now."""
        if self.state == "registered" and (passes := self._passes()) != self._told:
            self._told = passes
            self.send(outer.Passes(passes))

    def facts(self) -> dict[str, Any]:
        return {"url": self.relay.url, "state": self.state, "since": self.since, "detail": self.detail, "streams": len(self._streams), "own": self.relay.own}

    async def close(self) -> None:
        """Streams end; who was on them is told to come back by the host's own farewell, which went before."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
