"""A machine, a relay and a remote client in a simulated world.

The relay, the line of the host and the link of the client are real; the session at one end and the
user at the other end are modelled.

    with Simulation(seed) as stage:
        stage.client.type("ls")
        stage.relay_killed() ...
        stage.settles()

Real: relay (store on disk, registry, hub, WebSocket door), host/relays/uplink.py with
host/runtime/connection.py, client/link.py with client/remote.py and its threads,
client/attach/unacked.py, the sealed channel, websockets. Modelled: the session (`Session`, with the
promises of a keeper: bytes with offsets, a bounded ring, every input once by its number) and the
loops around (`_Host`: as much of a server as attaching and typing takes; `Client`: the steps of
client/attach/loop.py when a connection breaks).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import tempfile
import time
from collections import deque
from typing import Any, Final, Self

from holdfast import __version__
from holdfast.client.attach.reconnect import Reconnect
from holdfast.client.attach.unacked import Unacked
from holdfast.client.gone import NoRoute
from holdfast.client.link import Link
from holdfast.core.sealed import channel, route
from holdfast.home import Home, generation, keys
from holdfast.home.machines import Machine, Way
from holdfast.home.relays import Relay
from holdfast.host.relays.uplink import QUEUE_BYTES, Uplink
from holdfast.host.runtime.connection import Connection
from holdfast.model import agreement, signing
from holdfast.model.errors import TimedOut, Unavailable
from holdfast.model.limits import REPLY_QUEUE_BYTES, SEALED_BYTES, STREAM_WINDOW_BYTES
from holdfast.relay import admin
from holdfast.relay import hub as hubs
from holdfast.relay.admission import Doorkeeper
from holdfast.relay.hub import Hub
from holdfast.relay.registry import Registry
from holdfast.relay.server import Door
from holdfast.relay.store import Store
from holdfast.relay.tenants import Quotas
from holdfast.wire import frames, hello
from tests.support.simulation.plug import plugs
from tests.support.simulation.virtual_net import BACKLOG, Listener, Net
from tests.support.simulation.world import BEGIN_UNIX, Actor, World

NAME, PORT = (
    "localhost",
    80,
)  # to which plain addresses may lead; here each actor is its own machine
URL: Final = f"ws://{NAME}"
RING_BYTES: Final = 4096  # small, so that a day's output does not fit
ROWS: Final = 10
SESSION: Final = "s1"
LOOK_S: Final = 1.7  # between looks at the values that must stay small
PLENTY_S: Final = (
    300.0  # until all must be well again: a retransmission's pause, a kernel's, two silences
)


class Session:
    """The promises of a keeper: bytes with offsets, the last are kept, each input once."""

    def __init__(self) -> None:
        self.start = self.end = 0
        self.ring = bytearray()
        self.rows: deque[bytes] = deque(maxlen=ROWS)
        self._row = b""
        self.last: dict[int, int] = {}  # by client: the highest number that was taken
        self.taken: dict[int, list[bytes]] = {}  # by client, in order
        self.wrong: list[str] = []
        self.viewers: list[_Viewer] = []

    def prints(self, data: bytes) -> None:
        self.ring += data
        self.end += len(data)
        del self.ring[: max(0, len(self.ring) - RING_BYTES)]
        self.start = self.end - len(self.ring)
        *rows, self._row = (self._row + data).split(b"\n")
        self.rows.extend(rows)
        for viewer in list(self.viewers):
            viewer.soon()

    def types(self, client: int, number: int, data: bytes) -> None:
        last = self.last.get(client, 0)
        if number <= last:
            return  # a repeat
        if number != last + 1:
            self.wrong.append(f"{client:x}: {number} after {last}")
        self.last[client] = number
        self.taken.setdefault(client, []).append(data)
        self.prints(b"<" + data.rstrip(b"\n") + b">\n")

    def screen(self) -> bytes:
        return b"\n".join((*self.rows, self._row))


class _Viewer:
    """An attached client, as far as it has got."""

    def __init__(self, session: Session, conn: Connection, client: int, offset: int | None) -> None:
        self.session, self.conn, self.client, self.offset = session, conn, client, offset
        self._loop = asyncio.get_running_loop()
        self._said = 0
        conn.on_drain = self.look
        session.viewers.append(self)
        self.look()

    def soon(self) -> None:
        with contextlib.suppress(RuntimeError):  # the host is dead
            self._loop.call_soon_threadsafe(self.look)

    def look(self) -> None:
        session, conn = self.session, self.conn
        acked = session.last.get(self.client, 0)
        while not conn.blocked and (self.offset != session.end or acked != self._said):
            if self.offset is None or self.offset < session.start:
                self.offset = session.end
                conn.send(
                    frames.screen(self.offset, acked, frames.SCREEN_LAG, 80, ROWS, session.screen())
                )
            else:
                data = bytes(session.ring[self.offset - session.start :][:1024])
                conn.send_pair(
                    frames.output_header(self.offset, self.offset + len(data), acked, len(data)),
                    data,
                )
                self.offset += len(data)
            self._said = acked


class _Host:
    """As much of a host as attaching and typing takes; its line is real."""

    def __init__(self, stage: Simulation) -> None:
        self.stage = stage
        self.connections: dict[Connection, _Viewer | None] = {}
        self.uplink: Uplink | None = None  # until the loop runs

    async def main(self) -> None:
        stage = self.stage
        self.uplink = Uplink(
            Relay(URL, stage.token),
            self,
            stage.route_key,
            lambda: (route.digest(stage.pass_),),
            lambda at: channel.responder(at, keys.static(stage.machine), time.monotonic()),
            lambda: generation.following(stage.home, time.time_ns() // 1_000_000),
        )
        await asyncio.Event().wait()

    def admit(self, sock: socket.socket, sealed: str, on_the_way: Any) -> bool:
        self.connections[Connection(sock, 0, self._frame, self._closed, sealed, on_the_way)] = None
        return True

    def _closed(self, conn: Connection) -> None:
        viewer = self.connections.pop(conn, None)
        if viewer is not None:
            self.stage.session.viewers.remove(viewer)

    def _frame(self, conn: Connection, kind: int, payload: bytes) -> None:
        session = self.stage.session
        if kind == frames.HELLO:
            conn.hello = frames.read_json(payload)
            conn.key = signing.read(conn.hello["key"])
            conn.challenge = {
                "version": frames.VERSION,
                "machine": signing.show(self.stage.machine.public),
                "nonce": os.urandom(hello.NONCE_BYTES).hex(),
            }
            conn.send(frames.pack_json(frames.CHALLENGE, conn.challenge))
        elif kind == frames.PROOF:
            signature = bytes.fromhex(frames.read_json(payload)["signature"])
            assert signing.verify(
                conn.key,
                hello.DOMAIN,
                hello.statement(conn.hello, conn.challenge, conn.channel),
                signature,
            )
            conn.client = conn.hello["client"]
            conn.proved()
            conn.send(frames.pack_json(frames.WELCOME, {"version": frames.VERSION}))
        elif kind == frames.REQUEST:
            number, body = frames.read_request(payload)
            resume = (
                body["resume"]
                if body["resume"] is not None and session.start <= body["resume"] <= session.end
                else None
            )
            conn.answer(
                number,
                {
                    "id": SESSION,
                    "epoch": 1,
                    "seen": None,
                    "acked": session.last.get(conn.client, 0),
                    "resume": resume,
                },
            )
            self.connections[conn] = _Viewer(session, conn, conn.client, resume)
        elif kind == frames.INPUT:
            sequence, _, data = frames.read_input(payload)
            session.types(conn.client, sequence, data)


class Client:
    """A user that watches and types.

    Input typed while no host is reached waits, and is resent until it is taken.
    """

    def __init__(self, stage: Simulation, name: str) -> None:
        self.stage, self.name = stage, name
        self.actor = stage.world.actor(name)
        self.shown: deque[bytes] = deque(maxlen=ROWS)
        self._row = b""
        self.offset: int | None = None
        self.unacked = Unacked()
        self.attached = False
        self.attaches = 0
        self.id = 0
        self.lines: list[bytes] = []  # all that was typed
        self._keys, self._keyboard = plugs()
        self._wake_r, self._wake_w = plugs()
        self.actor.run(self._run)

    def type(self, line: str) -> None:
        self.lines.append(line.encode() + b"\n")
        self._keyboard.send(self.lines[-1])

    def screen(self) -> bytes:
        return b"\n".join((*self.shown, self._row))

    def _run(self) -> None:
        self._keys.setblocking(False)
        self._wake_r.setblocking(False)
        link = Link(self.stage.home, "ann", machine=self.stage.way)
        link.identity, self.id = self.stage.ann, link.client
        again = Reconnect(remote=True)
        while True:
            try:
                again.tries(time.monotonic())
                while not link.ready(self._found):
                    again.dials(time.monotonic())
                    self._idle(again)
                link.connect()
                self._attach(link)
                self.attached = True
                self.stage.world.note(self.name, "is attached")
                again.reached(time.monotonic())
                while True:
                    self._turn(link)
            except (Unavailable, TimedOut, OSError, NoRoute) as e:
                link.close()
                if self.attached:
                    self.stage.world.note(self.name, f"lost it: {e}")
                    again.lost(time.monotonic())
                else:
                    again.failed(time.monotonic())
                self.attached = False
                self._idle(again)

    def _found(self) -> None:
        self._wake_w.send(b"!")

    def _idle(self, again: Reconnect) -> None:
        """Wait until the time of the next try, or until a path is found."""
        poll = select.poll()
        poll.register(self._wake_r, select.POLLIN)
        poll.register(self._keys, select.POLLIN)
        while (left := again.at - time.monotonic()) > 0:
            for fd, _ in poll.poll(left * 1000):
                if fd == self._wake_r.fileno():
                    self._wake_r.recv(100)
                    return
                self._read_keys()
                again.typed()

    def _read_keys(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for line in self._keys.recv(65536).splitlines(keepends=True):
                self.unacked.type(line)

    def _attach(self, link: Link) -> None:
        self.attaches += 1
        link.send(frames.request(1, {"op": "attach", "session": SESSION, "resume": self.offset}))
        kind, payload = link.receive(10.0)
        assert kind == frames.REPLY
        _, ok, body = frames.read_reply(payload)
        assert ok
        if body["resume"] is None:
            self.offset = None
        self.unacked.acked(int(body["acked"]))
        assert link.sock is not None
        link.sock.settimeout(None)
        for sequence, data in self.unacked:
            link.send(frames.input_(sequence, data, frames.INPUT_ACK))

    def _turn(self, link: Link) -> None:
        for kind, payload in link.take_ready():
            self._frame(kind, payload)
        while (data := self.unacked.next()) is not None:
            link.sequence += 1
            self.unacked.sent(link.sequence, data)
            link.send(frames.input_(link.sequence, data, frames.INPUT_ACK))
        assert link.sock is not None
        poll = select.poll()
        poll.register(link.sock, select.POLLIN)
        poll.register(self._keys, select.POLLIN)
        for fd, _ in poll.poll():
            if fd == self._keys.fileno():
                self._read_keys()
            else:
                self._frame(*link.receive(10.0))

    def _frame(self, kind: int, payload: bytes) -> None:
        if kind == frames.OUTPUT:
            start, end, acked, data = frames.read_output(payload)
            if start != self.offset:
                raise AssertionError(f"output from {start} on, at {self.offset}")
            self.offset = end
            *rows, self._row = (self._row + bytes(data)).split(b"\n")
            self.shown.extend(rows)
        elif kind == frames.SCREEN:
            self.offset, acked, _, _, _, paint = frames.read_screen(payload)
            *rows, self._row = bytes(paint).split(b"\n")
            self.shown = deque(rows, maxlen=ROWS)
        else:
            raise AssertionError(f"a frame of kind {kind}")
        self.unacked.acked(acked)


class Simulation:
    """The whole stage. `tick_s`: how often the relay looks at its clock.

    A day of seconds is slow, and a relay that looks less often only reacts later. The session
    prints `prints` bytes every `prints_s`.
    """

    def __init__(
        self,
        seed: int,
        token_s: float | None = 3600.0,
        tick_s: float = 1.0,
        prints_s: float = 30.0,
        prints: int = 0,
    ) -> None:
        self._undo = contextlib.ExitStack()
        self._folder = self._undo.enter_context(tempfile.TemporaryDirectory())
        self.home = Home(f"{self._folder}/home", f"{self._folder}/config", True)
        os.makedirs(self.home.state, 0o700)
        self.machine = keys.machine(self.home, BEGIN_UNIX)
        self.ann = keys.make(self.home, "ann", "human", BEGIN_UNIX)
        self.world = World(seed)
        self.net = Net(self.world)
        self.session = Session()
        self.route_key, self.pass_ = keys.route_key(self.machine, NAME), os.urandom(32)
        self.way = Machine(
            "box",
            self.machine.public,
            agreement.public(keys.static(self.machine)),
            "ann",
            0,
            (Way(URL, route.route(signing.public(self.route_key)), self.pass_),),
        )
        self.token, self._digest = admin.make()
        self._token_s, self._tick_s, self._prints_s, self._prints = (
            token_s,
            tick_s,
            prints_s,
            prints,
        )
        self.most: dict[str, int] = {}  # the maximum ever seen of each value that must stay small
        self.hub: Hub | None = None
        self.store: Store | None = None
        self.host: _Host
        self.former: list[Client] = []
        self._fresh = True
        self._typed = 0

    def __enter__(self) -> Self:
        self._undo.enter_context(self.world)
        self._undo.enter_context(self.net)
        before, hubs.TICK_S = hubs.TICK_S, self._tick_s
        self._undo.callback(lambda: setattr(hubs, "TICK_S", before))
        self.net.names[NAME] = "relay"
        self.net.link("host", "relay")
        self.net.link("client", "relay")
        self.start_relay()
        self.start_host()
        self.client = Client(self, "client")
        self.world.after(self._prints_s, self._print)
        self.world.after(LOOK_S * self._tick_s, self._look)
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.world.end()
        self._close_store()
        self._undo.close()

    def _print(self) -> None:
        self.session.prints(f"at {self.world.now:.2f}\n".encode().rjust(self._prints, b"."))
        self.world.after(self._prints_s, self._print)

    # ------------------------------------------------------------ the actors

    def start_relay(self) -> None:
        actor = self.world.actor("relay")
        actor.serve(lambda: self._relay(actor))

    async def _relay(self, actor: Actor) -> None:
        loop = asyncio.get_running_loop()
        self.store = store = Store(f"{self._folder}/relay.db")
        now = int(BEGIN_UNIX + self.world.now)
        if self._fresh:
            self._fresh = False
            expires = None if self._token_s is None else now + int(self._token_s)
            store.at_once(
                lambda db: admin.act(
                    db,
                    {
                        "act": "token.new",
                        "digest": self._digest.hex(),
                        "tenant": "t",
                        "expires": expires,
                    },
                    now,
                )
            )
        registry = Registry(
            store.routes(now),
            Quotas(),
            epoch=BEGIN_UNIX + self.world.now - loop.time(),
            software=f"holdfast {__version__}",
        )
        self.hub = hub = Hub(registry, Doorkeeper((NAME,), ()), store)
        hub.doorkeeper.learn(store.at_once(admin.tokens))
        store.start()
        Door(hub, Listener(self.net, actor, NAME, PORT), lambda: None)  # type: ignore[arg-type]
        await asyncio.Event().wait()

    def _close_store(self) -> None:
        if self.store is not None:
            self.store._db.close()
            self.store = None

    def kill_relay(self, power: bool = False) -> None:
        self.net.vanish(self.world.actors["relay"]) if power else self.world.actors["relay"].kill()
        self._close_store()

    def relay_loses_all(self) -> None:
        """Replace the relay's disk. Its administrator makes the token known again."""
        for name in os.listdir(self._folder):
            if name.startswith("relay.db"):
                os.unlink(f"{self._folder}/{name}")

    def make_token(self) -> None:
        self._fresh = True

    def relay_again(self) -> None:
        self.net.back("relay")
        self.start_relay()

    def start_host(self) -> None:
        self.host = _Host(self)
        self.world.actor("host").serve(self.host.main)

    def kill_host(self, power: bool = False) -> None:
        self.net.vanish(self.world.actors["host"]) if power else self.world.actors["host"].kill()
        # The keeper stays: without power it would not, and there would be no session
        self.session.viewers.clear()

    def host_again(self) -> None:
        self.net.back("host")
        self.start_host()

    def client_again(self) -> None:
        """Replace the client: the old one is gone with its unsent input."""
        self.former.append(self.client)
        self.client = Client(self, "client")

    def _look(self) -> None:
        """Note the size of each collection, also during a fault."""
        facts = {
            "connections": len(self.net.pipes) // 2,
            "client's threads": len(self.client.actor.fibers),
            "unsent": sum(conn.unread for conn in self.host.connections),
        }
        if self.host.uplink is not None:
            facts |= {
                "host's queue": self.host.uplink.queued,
                "host's streams": len(self.host.uplink._streams),
            }
        if self.hub is not None:
            facts |= {
                "relay's lines": len(self.hub.lines),
                "relay's queues": sum(line.carrier.queued() for line in self.hub.lines.values()),
                "relay's routes": len(self.hub.registry.route_table.routes),
                "strangers": self.hub.strangers.total(),
            }
        for name, count in facts.items():
            self.most[name] = max(count, self.most.get(name, 0))
        self.world.after(LOOK_S * self._tick_s, self._look)

    # ------------------------------------------------------------ checks

    def type(self, line: str = "") -> str:
        self._typed += 1
        line = line or f"line {self._typed}"
        self.client.type(line)
        return line

    @property
    def state(self) -> str:
        """Of the host's line."""
        return "starting" if self.host.uplink is None else self.host.uplink.state

    def is_settled(self) -> bool:
        client = self.client
        return bool(
            client.attached
            and client.offset == self.session.end
            and not len(client.unacked)
            and not client.unacked.waiting
            and self.session.taken.get(client.id) == client.lines
            and self.state == "registered"
        )

    def settles(self, within_s: float = PLENTY_S) -> None:
        """All that was typed has been taken, once and in order, and both ends show the same."""
        self.type()
        ok = self.world.until(self.is_settled, within_s)
        assert ok, f"not settled after {within_s} s: {self.describe()}\n{self.world.story()}"
        assert not self.session.wrong, self.session.wrong
        assert self.client.screen() == self.session.screen()
        for gone in self.former:  # unsent input is gone with the client; the rest was typed once
            taken = self.session.taken.get(gone.id, [])
            assert taken == gone.lines[: len(taken)]
        self.bounded()

    def describe(self) -> str:
        client = self.client
        detail = self.host.uplink.detail if self.host.uplink is not None else ""
        return (
            f"attached {client.attached}, at {client.offset} of {self.session.end}, "
            f"{len(client.unacked)} sent and {len(client.unacked.waiting)} waiting, "
            f"taken {self.session.taken.get(client.id, [])[-3:]} of {client.lines[-3:]}, "
            f"the host is {self.state} ({detail})"
        )

    def bounded(self) -> None:
        """Assert that no state of ended connections is left over."""
        assert self.hub is not None and self.host.uplink is not None
        registry = self.hub.registry
        facts = {
            "lines": len(self.hub.lines),
            "connections": len(registry.connections),
            "streams": sum(len(c.streams) for c in registry.connections.values()),
            "routes": len(registry.route_table.routes),
            "opening": len(registry.opening),
            "strangers": self.hub.strangers.total(),
            "host's streams": len(self.host.uplink._streams),
            "host's connections": len(self.host.connections),
            "viewers": len(self.session.viewers),
            "client's threads": len(self.client.actor.fibers),
            "queue": self.host.uplink.queued,
        }
        limits = {
            "lines": 6,
            "connections": 6,
            "streams": 6,
            "routes": 1,
            "opening": 2,
            "strangers": 2,
            "host's streams": 3,
            "host's connections": 3,
            "viewers": 3,
            "client's threads": 4,
            "queue": SEALED_BYTES,
        }
        assert all(facts[name] <= most for name, most in limits.items()), f"left over: {facts}"
        most = {
            "connections": 12 + BACKLOG,
            "client's threads": 4,
            "host's queue": QUEUE_BYTES + SEALED_BYTES,
            "host's streams": 8,
            "unsent": REPLY_QUEUE_BYTES,
            "relay's lines": 12,
            "relay's queues": 4 * STREAM_WINDOW_BYTES,
            "relay's routes": 1,
            "strangers": 8,
        }
        assert all(self.most.get(name, 0) <= count for name, count in most.items()), (
            f"too much at some time: {self.most}"
        )
