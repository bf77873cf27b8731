"""The hub between transports and registry: handles events, carries out effects, and keeps time.

A transport gives each connection a Carrier and then talks to the hub. Effects of one turn of the
loop are gathered and written together (`flush`), because a write is a system call. The hub makes no
decision about rights; the hub measures the length and age of queues, which only a running program
knows.

- A queue beyond RELAY_QUEUE_BYTES, or a socket that accepts no byte for RELAY_SLOW_READER_S, ends
  that connection (SLOW).
- While a host's queue is beyond RELAY_PRESSURE_BYTES, clients that send to the host are not read. A
  client with a pass thus cannot get a host dropped by flooding it. In the other direction no host
  is held back by its slowest client: credit bounds the queue and a time limit ends the connection.
- When all queues together exceed RELAY_QUEUES_BYTES, the longest queue is dropped.
- Strangers are counted from the first byte, before TLS, in total and per address. An address is
  counted, never trusted.
- The clock ticks only while a peer is connected.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import time
from collections import Counter
from typing import Protocol

from holdfast.model import limits
from holdfast.model.errors import PeerFault
from holdfast.relay import events
from holdfast.relay.admission import Admission, Doorkeeper
from holdfast.relay.registry import Registry
from holdfast.relay.store import Store
from holdfast.wire import outer

TICK_S = 1.0
BACKLOG_BYTES = limits.MiB  # shorter queues are not added up
log = logging.getLogger("holdfast.relay")


class Carrier(Protocol):
    """A connection, as its transport provides it."""

    def send(self, data: bytes) -> None:
        """Queue a frame; `flush` writes it."""

    def flush(self) -> None: ...

    def finish(self, code: int) -> None:
        """Send queued frames, read nothing more, and close soon."""

    def pause(self, seconds: float) -> None:
        """Stop reading for this long."""

    def hold(self, held: bool) -> None:
        """Stop reading while held."""

    def queued(self) -> int:
        """Return the bytes that wait for the socket."""

    def taken(self) -> int:
        """Return the total of bytes that the socket accepted."""


class Visit:
    """A stranger's connection, from the first byte until it is admitted or closed."""

    __slots__ = ("_hub", "address")

    def __init__(self, hub: Hub, address: str) -> None:
        self._hub: Hub | None = hub
        self.address = address
        hub.strangers[address] += 1

    def known(self) -> bool:
        return self._hub is None

    def over(self) -> None:
        if self._hub is not None:
            strangers, self._hub = self._hub.strangers, None
            strangers[self.address] -= 1
            if not strangers[self.address]:
                del strangers[self.address]


class _Line:
    __slots__ = ("carrier", "taken", "visit", "waits_since")

    def __init__(self, carrier: Carrier, visit: Visit) -> None:
        self.carrier, self.visit = carrier, visit
        self.taken, self.waits_since = 0, -1.0


class Hub:
    def __init__(self, registry: Registry, doorkeeper: Doorkeeper, store: Store) -> None:
        self.registry, self.doorkeeper, self.store = registry, doorkeeper, store
        self.lines: dict[int, _Line] = {}
        self.strangers: Counter[str] = Counter()
        self.sockets: set[object] = set()  # not closed yet, finished ones included
        self.counts = {"turned_away": 0, "slow": 0, "frame_faults": 0}
        self._number = 0
        self._dirty: dict[int, Carrier] = {}
        self._backlog: set[int] = set()
        self._pressed: dict[
            int, set[int]
        ] = {}  # connection with a long queue -> clients that are held for it
        self._evict: list[tuple[int, int, str]] = []
        self._ticking: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------ strangers

    def knock(self, address: str) -> Visit | None:
        """Admit another stranger from this address if there is room."""
        address = counted_address(address)
        if (
            len(self.lines) >= limits.RELAY_CONNECTIONS_MAX
            or self.strangers.total() >= limits.RELAY_STRANGERS_MAX
            or self.strangers[address] >= limits.RELAY_STRANGERS_PER_ADDRESS
        ):
            self.counts["turned_away"] += 1
            return None
        return Visit(self, address)

    # ------------------------------------------------------------ calls of transports

    def connected(self, carrier: Carrier, admission: Admission, visit: Visit) -> int:
        """Register an admitted connection and return the connection's number."""
        self._number += 1
        self.lines[self._number] = _Line(carrier, visit)
        self._handle(
            events.Connected(
                self._number, admission.names, os.urandom(outer.NONCE_BYTES), admission.token
            )
        )
        if self._ticking is None:
            self._ticking = asyncio.get_running_loop().call_later(TICK_S, self._tick)
        return self._number

    def received(self, number: int, data: bytes) -> None:
        """Handle a message; the caller flushes after the last one."""
        try:
            frame = outer.decode(data)
        except PeerFault as e:
            self.counts["frame_faults"] += 1
            self._handle(
                events.Broken(number, outer.PROTOCOL, e.message[: limits.CLOSE_REASON_CHARS])
            )
            return
        self._handle(events.Received(number, frame, len(data)))

    def heard(self, number: int, size: int) -> None:
        self._handle(events.Heard(number, size))

    def broken(self, number: int, code: int, reason: str) -> None:
        self._handle(events.Broken(number, code, reason))
        self.flush()

    def gone(self, number: int) -> None:
        if self.lines.pop(number, None) is not None:
            self._backlog.discard(number)
            self._dirty.pop(number, None)
            self.relieved(number)
            for held in self._pressed.values():
                held.discard(number)
            self._handle(events.Gone(number))
            self.flush()

    def flush(self) -> None:
        while self._dirty or self._evict:
            dirty, self._dirty = self._dirty, {}
            for number, carrier in dirty.items():
                carrier.flush()
                self._measure(number, carrier)
            evict, self._evict = self._evict, []
            for number, code, reason in evict:
                if number in self.registry.connections:
                    self.counts["slow"] += 1
                    self._handle(events.Broken(number, code, reason))

    def pressed(self, number: int) -> None:
        """A connection's queue is long; `relieved` tells when it is short again."""
        if number in self.lines:
            self._pressed.setdefault(number, set())

    def relieved(self, number: int) -> None:
        for client in self._pressed.pop(number, ()):
            line = self.lines.get(client)
            if line is not None and not any(client in others for others in self._pressed.values()):
                line.carrier.hold(False)

    def operator(self, event: events.Event) -> None:
        """Handle an act of the relay's operator."""
        self._handle(event)
        self.flush()

    # ------------------------------------------------------------ effects

    def _handle(self, event: events.Event) -> None:
        for effect in self.registry.handle(event, time.monotonic()):
            if isinstance(effect, events.Send):
                line = self.lines.get(effect.connection)
                if line is not None:
                    line.carrier.send(outer.encode(effect.frame))
                    self._dirty[effect.connection] = line.carrier
                    if self._pressed and isinstance(event, events.Received):
                        self._hold(event.connection, effect.connection)
            else:
                self._rarely(effect)

    def _hold(self, sender: int, receiver: int) -> None:
        held, connection = self._pressed.get(receiver), self.registry.connections.get(sender)
        if (
            held is not None
            and connection is not None
            and connection.role == outer.CLIENT
            and sender != receiver
            and sender not in held
        ):
            held.add(sender)
            self.lines[sender].carrier.hold(True)

    def _rarely(self, effect: events.Effect) -> None:
        match effect:
            case events.Drop(number, code, reason):
                line = self.lines.get(number)
                if line is not None:
                    if line.visit.known():  # strangers must not fill the disk with log lines
                        log.info("connection %d: %s: %s", number, outer.CODES[code], reason)
                    line.carrier.send(outer.encode(outer.Close(0, code, reason)))
                    line.carrier.finish(code)
                    self._dirty[number] = line.carrier
            case events.Pause(number, seconds):
                line = self.lines.get(number)
                if line is not None:
                    line.carrier.pause(seconds)
            case events.Admitted(number):
                line = self.lines.get(number)
                if line is not None:
                    line.visit.over()
            case events.Save(known):
                self.store.save(known)
            case events.Forget(key):
                self.store.forget(key)

    # ------------------------------------------------------------ slow sockets, and time

    def _measure(self, number: int, carrier: Carrier) -> None:
        queued = carrier.queued()
        if queued > limits.RELAY_QUEUE_BYTES:
            self._evict.append((number, outer.SLOW, "too much waits for this connection"))
        elif queued > BACKLOG_BYTES:
            self._backlog.add(number)
            waiting = {n: self.lines[n].carrier.queued() for n in self._backlog if n in self.lines}
            if sum(waiting.values()) > limits.RELAY_QUEUES_BYTES:
                self._evict.append(
                    (
                        max(waiting, key=lambda n: waiting[n]),
                        outer.SLOW,
                        "too much waits at this relay",
                    )
                )

    def _tick(self) -> None:
        now = time.monotonic()
        self._ticking = (
            asyncio.get_running_loop().call_later(TICK_S, self._tick) if self.lines else None
        )
        for number, line in list(self.lines.items()):
            queued = line.carrier.queued()
            if queued <= BACKLOG_BYTES:
                self._backlog.discard(number)
            taken = line.carrier.taken()
            if not queued or taken != line.taken or line.waits_since < 0:
                line.taken, line.waits_since = taken, now if queued else -1.0
            elif now - line.waits_since > limits.RELAY_SLOW_READER_S:
                self._evict.append((number, outer.SLOW, "this connection takes nothing"))
        for client in {c for held in self._pressed.values() for c in held}:
            self._handle(events.Heard(client, 0))  # it is alive: we do not read it
        self._handle(events.Tick())
        self.flush()

    def stop(self) -> None:
        """Tell all peers that the relay restarts."""
        if self._ticking is not None:
            self._ticking.cancel()
        self._handle(events.Stopping())
        self.flush()


def counted_address(address: str) -> str:
    """Return the unit of counting: an IPv4 address or an IPv6 /64, which a customer has."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv6Address):
        return (
            str(ip.ipv4_mapped)
            if ip.ipv4_mapped is not None
            else str(ipaddress.ip_network((ip, 64), strict=False))
        )
    return str(ip)
