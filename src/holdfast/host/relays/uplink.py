"""The host's line to a relay.

The host dials, so that clients can reach a machine behind any router. The host dials again for as
long as the line is wanted.

    relay <-> Uplink <-> Stream (a sealed channel, credit) <-> socket pair <-> Connection

The Connection is the same as for a local client. A stream gets a connection only after its channel
is established: an attacker may have recorded and replayed earlier bytes. After that, the stream is
a client like any other, and proves its identity inside the channel. Output to a relay waits in a
queue, and streams stop reading while the queue is long. So a slow relay costs a bounded amount of
memory, and the ring keeps the output that does not fit.

The host does not trust the relay. The relay may close, forget or lie: the host then dials again,
with growing pauses that differ between hosts, and sessions do not notice. The host pings a silent
relay, and treats the relay as gone if no answer comes within the relay's own time limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
import time
from typing import TYPE_CHECKING, Final, Protocol

from holdfast import __version__
from holdfast.core.contract.relays import Line
from holdfast.core.sealed import route
from holdfast.core.sealed.backoff import Patience
from holdfast.core.sealed.channel import Channel
from holdfast.core.sealed.tunnel import Tunnel
from holdfast.home.relays import Relay
from holdfast.host.relays.dialling import dialled
from holdfast.host.runtime.hot_loop import add_hot, remove_hot
from holdfast.model import address, signing
from holdfast.model.errors import HoldfastError, NotAllowed, PeerFault, Unavailable
from holdfast.model.limits import BODY_BYTES, REMOTE_AGAIN_MAX_S, REMOTE_WAIT_S, STREAMS_MAX, KiB
from holdfast.model.probe import probe
from holdfast.transport import unix
from holdfast.transport.asleep import Asleep
from holdfast.wire import outer

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.transport.carriers import Carrier

log = logging.getLogger("holdfast.uplink")

AGAIN_FIRST_S: Final = 0.05
REPLACED_S: Final = 60.0  # pause after a host with the same key has replaced this host
QUEUE_BYTES: Final = 512 * KiB  # towards the relay, before streams stop reading
HANDSHAKE_S: Final = 20.0  # until a stream's channel must be established


class Admits(Protocol):
    """The host's server, which gives a connection to a client from a remote machine."""

    def admit(self, sock: socket.socket, channel: str, on_the_way: Callable[[], int]) -> bool: ...


class Replaced(NotAllowed):
    """A host with a copy of this home registered later with the same machine key.

    The two hosts must not replace each other in turns.
    """


class Stream:
    """A client on the far side of the relay."""

    def __init__(self, uplink: Uplink, number: int) -> None:
        self.number = number
        self._uplink = uplink
        self._loop = asyncio.get_running_loop()
        self._tunnel = Tunnel(uplink.channel())
        self._begun = False  # whether data has arrived
        self._sock: socket.socket | None = None
        self._reading = self._writing = False
        self._plain = bytearray()  # for the connection, not taken yet
        self._timer: asyncio.TimerHandle | None = self._loop.call_later(
            HANDSHAKE_S, self.close, outer.TIMEOUT, "no handshake within the time allowed"
        )
        self.closed = False

    def data(self, payload: bytes) -> None:
        if self._uplink.spent and self._sock is None:
            return self.close(outer.REFUSED, "this way in is closed")
        if not self._begun:
            self._begun = True
            self._uplink.begun()  # before any answer to the client
            if self._uplink.spent:
                return self.close(outer.REFUSED, "this way in is closed")
        step = self._tunnel.data(payload, time.monotonic())
        self._send(step.send)
        if self._tunnel.reason:
            if self._sock is None:
                self._uplink.failed()
            return self.close(
                outer.FLOW if self._tunnel.reason == "flow" else outer.PROTOCOL,
                "the channel is broken",
            )
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
        """Opens a connection: the channel proves that the client is present now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        ours, theirs = unix.pair()
        ours.setblocking(False)
        self._sock = ours
        if self._uplink.server.admit(
            theirs, self._tunnel.channel.handshake_hash.hex(), lambda: self._tunnel.on_the_way
        ):
            return True
        theirs.close()
        return False

    # ------------------------------------------------------------ from the connection to the relay

    def look(self) -> None:
        """Reads from the connection while there is room on the way."""
        if self._sock is None or self.closed:
            return
        wanted = self._tunnel.worth() and not self._uplink.full
        if wanted and not self._reading:
            add_hot(self._loop, self._sock.fileno(), self._readable)
        elif not wanted and self._reading:
            remove_hot(self._loop, self._sock.fileno())
        self._reading = wanted

    def _readable(self) -> None:
        assert self._sock is not None
        if (room := self._tunnel.room()) <= 0:
            return self.look()
        try:
            data = self._sock.recv(min(BODY_BYTES, room))
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            return self.finish()  # the host closed the connection
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
            self._loop.add_writer(
                self._sock, self._hand_on
            ) if self._writing else self._loop.remove_writer(self._sock)

    def _grant(self, count: int) -> None:
        if (given := self._tunnel.took(count)) and not self._tunnel.reason:
            self._uplink.send(outer.Credit(self.number, given))

    # ------------------------------------------------------------ the end

    def finish(self) -> None:
        """Sends the rest, sealed, after the client or the host has finished."""
        if not self.closed:
            self._send(self._tunnel.end(time.monotonic()))
            self.close(outer.DONE)

    def close(self, code: int | None = None, reason: str = "") -> None:
        """Closes the stream; without a code, the relay already knows."""
        if self.closed:
            return
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._sock is not None:
            if self._reading:
                remove_hot(self._loop, self._sock.fileno())
            if self._writing:
                self._loop.remove_writer(self._sock)
            with contextlib.suppress(OSError):
                self._sock.send(self._plain)
            self._sock.close()
        self._tunnel.channel.cut()
        self._uplink.gone(self, code, reason)


class Uplink:
    def __init__(
        self,
        relay: Relay,
        server: Admits,
        route_key: bytes,
        passes: Callable[[], tuple[bytes, ...]],
        channel: Callable[[bytes], Channel],
        generation: Callable[[], int],
        failed: Callable[[], None] = lambda: None,
        begun: Callable[[], None] = lambda: None,
    ) -> None:
        """Begins to dial.

        `channel` makes the channel of a stream, for this route. `generation` returns a number that
        only grows. The uplink calls `begun` for each stream that sends data, before answering, and
        `failed` for each stream whose channel was never established.
        """
        self.relay, self.server, self.failed, self.begun = relay, server, failed, begun
        self.route = route.route(signing.public(route_key))
        self._channel = channel
        self.state = "connecting"  # connecting, registered, or refused
        self.detail = ""  # the reason, unless registered
        self.tried = asyncio.Event()  # whether no attempt is under way: registered, or failed
        self.since = time.time()
        self.spent = False  # whether this route admits no further clients
        self._route_key, self._passes = route_key, passes
        self._streams: dict[int, Stream] = {}
        self._loop = asyncio.get_running_loop()
        self._carrier: Carrier | None = None
        self._take: Callable[[outer.Frame], None] = self._frame
        # Gets only an exception: the reason why the connection ended.
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._writing = self._filled = False
        self._heard = 0.0
        self._now = asyncio.Event()
        self._generation = generation
        self._patience = Patience(AGAIN_FIRST_S, REMOTE_AGAIN_MAX_S)
        self._told: tuple[bytes, ...] = ()
        self._task = self._loop.create_task(self._run())

    def channel(self) -> Channel:
        return self._channel(self.route)

    @property
    def full(self) -> bool:
        return self.queued >= QUEUE_BYTES

    @property
    def queued(self) -> int:
        return self._carrier.pending if self._carrier is not None else 0

    # ------------------------------------------------------------ life

    async def _run(self) -> None:
        while True:
            replaced = False
            try:
                self._now.clear()
                self.tried.clear()
                await self._connect()
                why, state = "the relay closed the connection", "connecting"
            except NotAllowed as e:
                why, state, replaced = e.message, "refused", isinstance(e, Replaced)
            except (HoldfastError, OSError, TimeoutError) as e:
                why = e.message if isinstance(e, HoldfastError) else str(e) or type(e).__name__
                state = "connecting"
            except Exception as e:
                # A defect of ours or of a library must not end the line for ever.
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
        """Dials at once: the caller expects that the relay is reachable now."""
        self._now.set()

    def _became(self, state: str, detail: str = "") -> None:
        if state != self.state:
            self.since = time.time()
        self.state, self.detail = state, detail
        self.tried.set()

    async def _connect(self) -> None:
        carrier = await dialled(self._loop, self.relay)
        self._carrier, self._ended, self._writing = carrier, self._loop.create_future(), False
        self._filled = False
        add_hot(self._loop, carrier.fileno(), self._readable)
        try:
            await self._watch(await self._register())
        finally:
            remove_hot(self._loop, carrier.fileno())
            if self._writing:
                self._loop.remove_writer(carrier.fileno())
            self._carrier = None
            carrier.close()

    async def _register(self) -> float:
        """Registers this host; returns how long the relay may be silent."""
        welcomed, registered = (self._loop.create_future() for _ in range(2))
        async with asyncio.timeout(REMOTE_WAIT_S):
            self._take = self._only(outer.Welcome, welcomed)
            self._say(
                outer.Hello(outer.LOWEST, outer.VERSION, outer.HOST, f"holdfast {__version__}")
            )
            welcome = await self._or_end(welcomed)
            assert isinstance(welcome, outer.Welcome)
            outer.chosen(welcome)
            generation = self._generation()
            self._told = self._passes()
            signature = route.sign(
                self._route_key, address.name(self.relay.url), welcome.nonce, generation
            )
            self._take = self._only(outer.Registered, registered)
            self._say(
                outer.Register(signing.public(self._route_key), generation, signature, self._told)
            )
            if await self._or_end(registered) != outer.Registered(self.route):
                raise PeerFault("the relay registered something else")
        return float(welcome.ping_s)

    def _only(
        self, kind: type[outer.Frame], found: asyncio.Future[outer.Frame]
    ) -> Callable[[outer.Frame], None]:
        """Makes the receiver of a handshake step: it accepts one frame of type `kind`."""

        def take(frame: outer.Frame) -> None:
            if isinstance(frame, outer.Close):
                if frame.code in (outer.UNAUTHORIZED, outer.REFUSED):
                    reason = f": {frame.reason}" if frame.reason else ""
                    raise NotAllowed(
                        f"it does not let this machine in{reason}",
                        "`holdfast relay token` there makes a token",
                    )
                raise self._closed(frame)
            if found.done() or not isinstance(frame, kind):
                raise PeerFault("the relay answers something else")
            found.set_result(frame)
            if isinstance(frame, outer.Registered) and frame.route == self.route:
                self._take = self._frame
                self._became("registered")
                self._patience.reached(time.monotonic())
                log.info("registered at the relay %s", address.name(self.relay.url))
                probe("host.uplink.registered")

        return take

    async def _or_end(self, found: asyncio.Future[outer.Frame]) -> outer.Frame:
        await asyncio.wait((found, self._ended), return_when=asyncio.FIRST_COMPLETED)
        if not found.done():
            self._ended.result()
        return found.result()

    def _closed(self, frame: outer.Close) -> HoldfastError:
        if frame.code == outer.REPLACED:
            return Replaced(
                "another host has registered as this machine",
                "if its home was copied, remove keys/machine from the copy",
            )
        reason = f": {frame.reason}" if frame.reason else ""
        return Unavailable(f"it closed the line ({outer.CODES[frame.code]}){reason}")

    async def _watch(self, ping_s: float) -> None:
        """Runs until the connection ends; pings a silent relay, and fails without an answer."""
        asked, asleep = 0.0, Asleep()
        while not self._ended.done():
            left = max(self._heard, asked) + ping_s - self._loop.time()
            if left > 0:
                await asyncio.wait((self._ended,), timeout=left)
            elif asked > self._heard or asleep.since():
                raise Unavailable("the relay does not answer any more")
            else:
                asked = self._loop.time()
                self.send(outer.Ping(os.urandom(outer.MARK_BYTES)))
        self._ended.result()

    # ------------------------------------------------------------ in

    def _readable(self) -> None:
        assert self._carrier is not None
        try:
            messages = self._carrier.receive()
            self._heard = self._loop.time()
            for message in messages:
                if self._ended.done():
                    return
                self._take(outer.decode(message, outer.TO_HOST))
            self._drained()
        except Exception as e:  # no error may end the line for ever
            self._end(e)

    def _end(self, why: Exception) -> None:
        if not self._ended.done():
            self._ended.set_exception(why)
            # Marks the exception as retrieved: the owner may have given up this line.
            self._ended.exception()
            if self._carrier is not None:
                remove_hot(self._loop, self._carrier.fileno())

    def _frame(self, frame: outer.Frame) -> None:
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
        if self.state == "registered":
            self._say(frame)

    def _say(self, frame: outer.Frame) -> None:
        """Sends a frame to the socket; queues the bytes that the socket does not take."""
        if self._carrier is None or self._ended.done():
            return
        try:
            self._carrier.send(outer.encode(frame))
        except HoldfastError as e:
            return self._end(e)
        if self._carrier.pending and not self._writing:
            self._writing = True
            self._loop.add_writer(self._carrier.fileno(), self._writable)
        self._filled = self._filled or self.full

    def _writable(self) -> None:
        assert self._carrier is not None
        try:
            self._carrier.flush()
        except HoldfastError as e:
            return self._end(e)
        self._drained()

    def _drained(self) -> None:
        """Continues after the queue has shrunk.

        A socket reports that by being writable, a carrier without a socket by its bell.
        """
        if self._carrier is None or not self._writing:
            return
        if not self._carrier.pending:
            self._writing = False
            self._loop.remove_writer(self._carrier.fileno())
        if self._filled and not self.full:
            self._filled = False
            for stream in list(self._streams.values()):
                stream.look()

    def passes_changed(self) -> None:
        """Tells the relay the new passes, after the set of admitted keys has changed."""
        if self.state == "registered" and (passes := self._passes()) != self._told:
            self._told = passes
            self.send(outer.Passes(passes))

    def facts(self) -> Line:
        return Line(
            url=self.relay.url,
            state=self.state,
            since=self.since,
            detail=self.detail,
            streams=len(self._streams),
            own=self.relay.own,
        )

    async def close(self) -> None:
        """Ends all streams; the host's earlier farewell has told their clients to reconnect."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
