"""The network of a world (tests/support/simulation/world.py): TCP connections over bad networks.

A program's end is a real socket, so that `poll` and asyncio work. Written data is taken from there,
travels for as long as the link says, and comes out at the other end. A `Way` is one direction of
the link between two machines:

    latency_s, jitter_s, rate     slow and long
    open = False                  sent data vanishes: TCP resends it, so the stream stands still,
                                  and continues some time after the way is open again (a
                                  retransmission's pause grows with the outage); after GIVEN_UP_S
                                  without an answer the sender's kernel gives up, and the other
                                  side learns nothing (half-open)
    loss                          part of the pieces come a retransmission later, and so does all
                                  data behind them
    broken                        part of the pieces end the connection: a middlebox gave up
    Link.cut                      every connection is reset and none can be made
    Link.forget                   the existing connections lead nowhere any more

A machine that vanished without a word (`vanish`) answers with a reset once it is back, to every
peer that still believes in a connection. Not modelled: the cost of a packet, congestion windows,
and data that arrives although its acknowledgement is lost: a way that is closed stops its direction
only.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from tests.support.simulation.plug import Plug, plugs
from tests.support.simulation.world import Actor, Loop, World, fiber, replaced

WINDOW_BYTES: Final = 256 * 1024  # on the way at once
PIECE_BYTES: Final = 16 * 1024
GIVEN_UP_S: Final = 924.6  # Linux: tcp_retries2 = 15
RETRY_S: Final = 0.2  # the shortest pause before a retransmission ...
RETRY_MAX_S: Final = 120.0
KNOCKS_S: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)  # of a connection that is not answered
BACKLOG: Final = 128
END, RESET = "end", "reset"


class Way:
    """One direction between two machines."""

    def __init__(self, net: Net) -> None:
        self._net = net
        self.latency_s, self.jitter_s, self.rate, self.loss, self.broken = (
            0.01,
            0.002,
            0.0,
            0.0,
            0.0,
        )
        self.closed: set[str] = set()  # the reasons why the way is closed
        self.since = 0.0  # when that began
        self.free = 0.0
        self.passed = 0  # bytes

    @property
    def open(self) -> bool:
        return not self.closed

    def close(self, why: str) -> None:
        if not self.closed:
            self.since = self._net.world.now
        self.closed.add(why)

    def reopen(self, why: str) -> None:
        self.closed.discard(why)
        if self.open:
            self._net.reopened(self)


class Link:
    def __init__(self, net: Net, one: str, other: str) -> None:
        self._net, self.ends = net, (one, other)
        self.ways = {one: Way(net), other: Way(net)}  # from there
        self.is_cut = False

    def cut(self) -> None:
        self.is_cut = True
        self._net.world.note("-".join(self.ends), "is cut")
        for pipe in [p for p in self._net.pipes if p.way in self.ways.values()]:
            pipe.to.breaks(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))

    def forget(self) -> None:
        """Let a middlebox forget the existing connections, as routers do.

        They carry nothing any more, and neither end is told. New connections are welcome.
        """
        self._net.world.note("-".join(self.ends), "is forgotten")
        nowhere = Way(self._net)
        nowhere.close("forgotten")
        for pipe in [p for p in self._net.pipes if p.way in self.ways.values()]:
            pipe.way = nowhere

    def mend(self) -> None:
        self.is_cut = False
        self._net.world.note("-".join(self.ends), "is mended")


class End:
    """One side of a connection."""

    def __init__(self, net: Net, actor: Actor) -> None:
        self.actor, self._net = actor, net
        self.plug, self.sock = plugs()
        self.over = False  # the connection is gone: new data is answered with a reset
        self.out: Pipe

    def breaks(self, error: OSError) -> None:
        """Report the error to the program; the other side is not told."""
        if not self.over:
            self.plug.broken = error
            self.finish()

    def finish(self) -> None:
        self.over = True
        self.out.deaf()
        self.sock.close()
        self._net.tidy()


class Pipe:
    """Data that one side has sent and the other has not received yet."""

    def __init__(self, net: Net, way: Way, here: End, to: End) -> None:
        self._net, self.way, self.here, self.to = net, way, here, to
        self.queue: deque[tuple[float, float, Any]] = deque()  # (due, sent, data)
        self.bytes = 0
        self._listens = False
        self._fd = here.sock.fileno()
        self.listen()

    def listen(self) -> None:
        if not self._listens and not self.here.over:
            self._listens = True
            self._net.readable.register(self._fd, select.EPOLLIN)
            self._net.by_fd[self._fd] = self

    def deaf(self) -> None:
        if self._listens:
            self._listens = False
            self._net.readable.unregister(self._fd)
            del self._net.by_fd[self._fd]

    def take(self) -> None:
        try:
            data = self.here.sock.recv(PIECE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self.deaf()
            return self.put(RESET)
        if not data:
            self.deaf()
            return self.put(END)
        self.bytes += len(data)
        self.put(data)
        if self.bytes >= WINDOW_BYTES:
            self.deaf()

    def put(self, what: Any) -> None:
        net, way = self._net, self.way
        now, rnd, size = (
            net.world.now,
            net.world.random,
            len(what) if isinstance(what, bytes) else 40,
        )
        way.free = max(way.free, now) + (size / way.rate if way.rate else 0.0)
        due = way.free + way.latency_s + rnd.random() * way.jitter_s
        while way.loss and rnd.random() < way.loss:
            due += RETRY_S + 2 * way.latency_s
        if way.broken and rnd.random() < way.broken:
            net.world.note(f"{self.here.actor.name}>{self.to.actor.name}", "a connection is broken")
            self.here.breaks(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
            what = RESET
        if self.queue:
            due = max(due, self.queue[-1][0])
        self.queue.append((due, now, what))
        net.world.at(due, self.deliver)
        net.world.at(now + GIVEN_UP_S, self._give_up)

    def _give_up(self) -> None:
        """End the connection: no acknowledgement came for too long."""
        if (
            self.queue
            and not self.way.open
            and self._net.world.now - max(self.queue[0][1], self.way.since) >= GIVEN_UP_S - 1.0
        ):
            self._net.world.note(self.here.actor.name, "its kernel gives a connection up")
            self.queue.clear()
            self.here.breaks(TimeoutError(errno.ETIMEDOUT, "Connection timed out"))

    def delayed(self, seconds: float) -> None:
        """Delay all data by this much: it has to be sent again."""
        if self.queue:
            at = self._net.world.now + seconds
            self.queue = deque((max(due, at), sent, what) for due, sent, what in self.queue)
            self._net.world.at(at, self.deliver)

    def deliver(self) -> None:
        world = self._net.world
        while self.queue and self.way.open and self.queue[0][0] <= world.now:
            due, sent, what = self.queue[0]
            if self.to.over:
                self.queue.clear()
                if what is not RESET and not self.here.over:
                    self.to.out.put(RESET)
                return
            if what is RESET:
                self.queue.clear()
                self.to.breaks(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
                return
            try:
                if what is END:
                    self.to.sock.shutdown(socket.SHUT_WR)
                else:
                    count = self.to.sock.send(what)
                    self.bytes -= count
                    self.way.passed += count
                    world.note(f"{self.here.actor.name}>{self.to.actor.name}", str(count))
                    if count < len(what):
                        self.queue[0] = (due, sent, what[count:])
                        continue
            except BlockingIOError:
                self._net.stuck[self] = None
                return
            except OSError:
                self.queue.clear()
                self.to.finish()
                if not self.here.over:
                    self.to.out.put(RESET)
                return
            self.queue.popleft()
            if what is not END and self.bytes < WINDOW_BYTES:
                self.listen()
            if what is END and not self.to.out._listens and not self.to.out.queue:
                self.to.finish()  # both have said all
                self.here.finish()
        self._net.stuck.pop(self, None)


def settle(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


class Listener:
    """Stands for a listening socket."""

    def __init__(self, net: Net, actor: Actor, name: str, port: int) -> None:
        self._net, self.actor, self.place = net, actor, (name, port)
        self.waiting: deque[tuple[socket.socket, Any]] = deque()
        self.waiter: asyncio.Future[None] | None = None
        net.listeners[self.place] = self

    def setblocking(self, flag: bool) -> None:
        pass

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        if self._net.listeners.get(self.place) is self:
            del self._net.listeners[self.place]

    def came(self, sock: socket.socket, address: Any) -> None:
        self.waiting.append((sock, address))
        self.ring()

    def ring(self) -> None:
        waiter, self.waiter = self.waiter, None
        if waiter is not None:
            with contextlib.suppress(RuntimeError):  # the program is gone
                waiter.get_loop().call_soon_threadsafe(settle, waiter, None)

    @staticmethod
    async def accept(listener: Any) -> tuple[socket.socket, Any]:
        while not listener.waiting:
            listener.waiter = asyncio.get_running_loop().create_future()
            await listener.waiter
        return listener.waiting.popleft()  # type: ignore[no-any-return]


class Net:
    """`with Net(world) as net:`; `net.names` says which machine a name stands for."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.names: dict[str, str] = {}
        self.links: dict[frozenset[str], Link] = {}
        self.listeners: dict[tuple[str, int], Listener] = {}
        self.pipes: list[Pipe] = []
        self.dials: dict[str, int] = {}  # by the name of the dialling actor
        self.off: set[str] = set()  # machines without power
        self.readable = select.epoll()
        self.by_fd: dict[int, Pipe] = {}
        self.stuck: dict[Pipe, None] = {}
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> Net:
        from holdfast.transport import accepting, unix

        self.world.pumps.append(self.pump)
        self.world.on_kill.append(self._killed)
        Loop.dial = self._dial_soon
        self._undo.enter_context(replaced(socket, "create_connection", self._connect))
        self._undo.enter_context(replaced(unix, "pair", plugs))
        self._undo.enter_context(replaced(accepting, "accept", Listener.accept))
        return self

    def __exit__(self, *_: object) -> None:
        self.world.end()
        self._undo.close()
        for pipe in list(self.pipes):
            pipe.here.sock.close()
            pipe.here.plug.close()
        self.readable.close()

    def link(self, one: str, other: str) -> Link:
        key = frozenset((one, other))
        if key not in self.links:
            self.links[key] = Link(self, one, other)
        return self.links[key]

    def pump(self) -> None:
        for fd, _ in self.readable.poll(0):
            if (pipe := self.by_fd.get(fd)) is not None:
                pipe.take()
        for pipe in list(self.stuck):
            pipe.deliver()

    def tidy(self) -> None:
        self.pipes = [pipe for pipe in self.pipes if not (pipe.here.over and pipe.to.over)]

    def reopened(self, way: Way) -> None:
        """Resend the data that stood still, after a pause that has grown with the outage."""
        for pipe in self.pipes:
            if pipe.way is way:
                pipe.delayed(
                    RETRY_S
                    + min(self.world.now - way.since, RETRY_MAX_S) * self.world.random.random()
                )

    def asleep(self, name: str, yes: bool) -> None:
        """Put a machine to sleep or without power: no data reaches or leaves it."""
        for key, link in self.links.items():
            if name in key:
                for way in link.ways.values():
                    way.close(name) if yes else way.reopen(name)

    def _killed(self, actor: Actor) -> None:
        for listener in [one for one in self.listeners.values() if one.actor is actor]:
            listener.close()
        for pipe in [p for p in self.pipes if p.here.actor is actor and not p.here.over]:
            end = pipe.here
            end.breaks(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
            if actor.name not in self.off:  # the kernel answers for the program
                pipe.put(RESET)

    def vanish(self, actor: Actor) -> None:
        """Take away the power; no peer is told."""
        self.off.add(actor.name)
        self.asleep(actor.name, True)
        actor.kill()

    def back(self, name: str) -> None:
        self.off.discard(name)
        self.asleep(name, False)

    # ------------------------------------------------------------ connections

    def dial(
        self, actor: Actor, name: str, port: int, done: Callable[[Plug | OSError], None]
    ) -> Callable[[], None]:
        """Call `done` once. Returns the function by which a caller cancels."""
        self.dials[actor.name] = self.dials.get(actor.name, 0) + 1
        over = False
        link = self.link(actor.name, self.names[name])
        there, back = link.ways[actor.name], link.ways[self.names[name]]

        def leave() -> None:
            nonlocal over
            over = True

        def say(what: Plug | OSError) -> None:
            if not over and not actor.dead:
                leave()
                self.world.note(
                    actor.name,
                    f"dialled {name}: "
                    + ("connected" if isinstance(what, Plug) else errno.errorcode[what.errno or 0]),
                )
                done(what)
            elif isinstance(what, Plug):
                what.close()

        def refused(code: int, after: float) -> None:
            self.world.after(
                after,
                lambda: say(
                    OSError(code, os.strerror(code))
                    if code != errno.ECONNREFUSED
                    else ConnectionRefusedError(code, os.strerror(code))
                ),
            )

        def knock(count: int) -> None:
            if over or actor.dead:
                return
            way_s = there.latency_s + back.latency_s
            listener = self.listeners.get((name, port))
            lost = any(way.loss and self.world.random.random() < way.loss for way in (there, back))
            if link.is_cut:
                refused(errno.ENETUNREACH, 0.001)
            elif (
                there.open
                and back.open
                and not lost
                and (listener is None or len(listener.waiting) < BACKLOG)
            ):
                if listener is None:
                    refused(errno.ECONNREFUSED, way_s)
                else:
                    self.world.after(way_s, lambda: self._establish(actor, link, listener, say))
            elif count < len(KNOCKS_S):
                self.world.after(KNOCKS_S[count], lambda: knock(count + 1))
            else:
                refused(errno.ETIMEDOUT, 0.0)

        knock(0)
        return leave

    def _establish(
        self, actor: Actor, link: Link, listener: Listener, say: Callable[[Plug | OSError], None]
    ) -> None:
        if actor.dead or listener.actor.dead or link.is_cut:
            return say(ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"))
        ours, theirs = End(self, actor), End(self, listener.actor)
        ours.out = Pipe(self, link.ways[actor.name], ours, theirs)
        theirs.out = Pipe(self, link.ways[listener.actor.name], theirs, ours)
        self.pipes += [ours.out, theirs.out]
        listener.came(
            theirs.plug, (f"10.0.0.{sorted(self.world.actors).index(actor.name) + 1}", 40000)
        )
        say(ours.plug)

    async def _dial_soon(self, actor: Actor, name: str, port: int) -> socket.socket:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Plug | OSError] = loop.create_future()

        def done(what: Plug | OSError) -> None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, future, what)

        leave = self.dial(actor, name, port, done)
        try:
            found = await future
        finally:
            leave()
        if isinstance(found, OSError):
            raise found
        return found

    def _connect(
        self, address: tuple[str, int], timeout: float | None = None, *rest: Any
    ) -> socket.socket:
        one = fiber()
        assert one is not None, "only an actor dials here"
        found: list[Plug | OSError] = []
        leave = self.dial(one.actor, *address, found.append)
        try:
            one.wait(lambda: found, timeout)
        finally:
            leave()
        if not found:
            raise TimeoutError("timed out")
        if isinstance(found[0], OSError):
            raise found[0]
        found[0].settimeout(timeout)
        return found[0]
