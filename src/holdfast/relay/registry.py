"""The state of a relay: connections, routes, streams, watches and tenants.

Pure: `handle(event, now)` returns effects and touches nothing else. The registry knows only the
content of outer frames: a route's key, hashes of passes, stream numbers, sizes and times. The
payload of a DATA frame goes unread to the other end of the same stream, and there is no other path.
A stream joins exactly one client connection and one host connection, made by an OPEN whose pass the
host's route lists. Every frame is looked up among the streams of the connection that it came from.

Rules:
- The client numbers streams on its side, the relay on the host's side; a connection never reuses a
  number. A frame for a number that was just closed is late and ignored; a frame for an unused
  number is a fault.
- Credit comes from the far end: DATA beyond it, or more credit than a window, ends the stream. The
  queue for a slow socket is therefore bounded by streams times windows.
- A connection without token, key or pass is a stranger, and may send few frames in few seconds.
- A wrong pass and an unknown route get the same answer. A valid pass also reveals that the host is
  away; routes are remembered for that.
- A registration replaces an older one of the same key whose generation is not higher (a redialling
  host keeps its generation); the older registration's streams end.
- A tenant's token confines its connection to that tenant's routes. Without a token, the pass alone
  decides.
- A token is for enrolment: a route key that came with a token stays admitted after it expires,
  and is forgotten when the token is revoked.
- When a host withdraws passes, the streams and watches opened with them end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from holdfast.core.sealed import route as routes
from holdfast.model.limits import OUTER_BYTES
from holdfast.model.words import words_of
from holdfast.relay import events
from holdfast.relay.events import Admitted, Drop, Effect, Forget, Known, Pause, Received, Save, Send
from holdfast.relay.route_table import RouteTable, enrolled
from holdfast.relay.state import Connection, Route, Stream
from holdfast.relay.tenants import Quotas, Tenants
from holdfast.wire import outer

COUNTED = words_of("connections registrations streams frames bytes refusals drops pauses")


class Registry:
    def __init__(
        self,
        known: Iterable[Known] = (),
        quotas: Quotas | None = None,
        epoch: float = 0.0,
        software: str = "",
    ) -> None:
        self.quotas = quotas or Quotas()
        self.epoch = epoch  # Unix time when `now` was 0
        self.software = software
        self.connections: dict[int, Connection] = {}
        self.route_table = RouteTable(known)
        self.tenants = Tenants(self.quotas)
        self.opening: dict[Stream, None] = {}  # in order of time
        self.counts = dict.fromkeys(COUNTED, 0)
        self._effects: list[Effect] = []
        self._now = 0.0

    def handle(self, event: events.Event, now: float) -> list[Effect]:
        effects: list[Effect] = []
        self._effects = effects
        self._now = max(now, self._now)
        if type(event) is Received:
            connection = self.connections.get(event.connection)
            if connection is not None:
                self._received(connection, event.frame, event.size)
        else:
            _EVENTS[type(event)](self, event)
        return effects

    # ------------------------------------------------------------ connections

    def _connected(self, event: events.Connected) -> None:
        self.counts["connections"] += 1
        made = Connection(
            event.connection, event.names, event.nonce, event.token, self._now, self._now
        )
        self.connections[made.id] = made
        if (
            event.token is not None
            and not event.token.expired
            and self._pays(made, event.token.tenant)
        ):
            self._admit(made)

    def _pays(self, connection: Connection, name: str) -> bool:
        """Count a connection for a tenant. Returns False if it was dropped instead."""
        if connection.payer is not None:
            return True
        tenant = self.tenants.of(name, self._now)
        if tenant.connections >= self.quotas.tenant_connections:
            self._drop(connection, outer.LIMIT, "too many connections")
            self.tenants.tidy(tenant)
            return False
        tenant.connections += 1
        connection.payer = tenant
        return True

    def _admit(self, connection: Connection) -> None:
        if not connection.admitted:
            connection.admitted = True
            self._effects.append(Admitted(connection.id))

    def _broken(self, event: events.Broken) -> None:
        connection = self.connections.get(event.connection)
        if connection is not None:
            self._drop(connection, event.code, event.reason)

    def _gone(self, event: events.Gone) -> None:
        connection = self.connections.get(event.connection)
        if connection is not None:
            self._leave(connection, outer.OFFLINE)

    def _drop(self, connection: Connection, code: int, reason: str) -> None:
        self.counts["drops"] += 1
        self._effects.append(Drop(connection.id, code, reason))
        self._leave(connection, outer.REPLACED if code == outer.REPLACED else outer.OFFLINE)

    def _leave(self, connection: Connection, why: int) -> None:
        """Forget a connection with all streams, watches and the route."""
        del self.connections[connection.id]
        for stream in list(connection.streams.values()):
            if stream.host is connection:
                self._end(stream, to_client=(why, "the host's connection has ended"))
            else:
                self._end(stream, to_host=(outer.AWAY, "the client's connection has ended"))
        for id in connection.watches:
            self.route_table.routes[id].watchers.pop(connection.id, None)
        route = connection.route
        if route is not None and route.connection is connection:
            route.connection = None
            tenant = self.tenants.of(route.known.tenant, self._now)
            tenant.routes -= 1
            self.tenants.tidy(tenant)
            self._seen(route)
            if why != outer.REPLACED:
                self._presence(route)
        if connection.payer is not None:
            connection.payer.connections -= 1
            self.tenants.tidy(connection.payer)

    # ------------------------------------------------------------ frames

    def _heard(self, event: events.Heard) -> None:
        connection = self.connections.get(event.connection)
        if connection is not None:
            self._counts(connection, event.size)

    def _counts(self, connection: Connection, size: int) -> bool:
        """Charge a frame to the tenant and note that the peer lives. False: it was dropped."""
        connection.heard, connection.asked = self._now, False
        self.counts["frames"] += 1
        if connection.payer is not None:
            wait = connection.payer.charge(size, self._now, self.quotas)
            if wait > 0:
                self.counts["pauses"] += 1
                self._effects.append(Pause(connection.id, wait))
        if not connection.admitted:
            connection.frames += 1
            if connection.frames > self.quotas.strange_frames:
                self._drop(
                    connection, outer.LIMIT, "too many frames before anything was shown that admits"
                )
                return False
        return True

    def _received(self, connection: Connection, frame: outer.Frame, size: int) -> None:
        if not self._counts(connection, size):
            return
        kind = type(frame)
        if type(frame) is outer.Data:
            return self._data(connection, frame)
        if not connection.role and kind is not outer.Hello:
            return self._drop(connection, outer.PROTOCOL, "HELLO comes first")
        handler = _FRAMES.get((connection.role, kind))
        if handler is None:
            return self._drop(
                connection,
                outer.PROTOCOL,
                f"{kind.__name__.upper()} does not come from this side now",
            )
        handler(self, connection, frame)

    def _hello(self, connection: Connection, frame: outer.Hello) -> None:
        version = outer.choose(frame)
        if version is None:
            return self._drop(
                connection, outer.UNSPOKEN, f"this relay speaks {outer.LOWEST} to {outer.VERSION}"
            )
        connection.role = frame.role
        streams = (
            self.quotas.host_streams if frame.role == outer.HOST else self.quotas.client_streams
        )
        self._send(
            connection,
            outer.Welcome(
                version, connection.nonce, OUTER_BYTES, streams, self.quotas.ping_s, self.software
            ),
        )

    def _ping(self, connection: Connection, frame: outer.Ping) -> None:
        self._send(connection, outer.Pong(frame.mark))

    def _pong(self, connection: Connection, frame: outer.Pong) -> None:
        pass

    def _data(self, connection: Connection, frame: outer.Data) -> None:
        stream = connection.streams.get(frame.stream)
        if stream is None:
            return self._late(connection, frame.stream)
        size = len(frame.payload)
        if not stream.accepted:
            return self._end_both(stream, outer.PROTOCOL, "DATA before ACCEPT")
        if stream.client is connection:
            stream.to_host -= size
            if stream.to_host < 0:
                return self._end_both(stream, outer.FLOW, "more DATA than credit")
            self._effects.append(Send(stream.host.id, outer.Data(stream.at_host, frame.payload)))
        else:
            stream.to_client -= size
            if stream.to_client < 0:
                return self._end_both(stream, outer.FLOW, "more DATA than credit")
            self._effects.append(
                Send(stream.client.id, outer.Data(stream.at_client, frame.payload))
            )
        self.counts["bytes"] += size

    def _credit(self, connection: Connection, frame: outer.Credit) -> None:
        stream = connection.streams.get(frame.stream)
        if stream is None:
            return self._late(connection, frame.stream)
        if not stream.accepted:
            return self._end_both(stream, outer.PROTOCOL, "CREDIT before ACCEPT")
        if stream.client is connection:
            stream.to_client += frame.amount
            if stream.to_client > self.quotas.window:
                return self._end_both(stream, outer.FLOW, "more credit than a window")
            self._send(stream.host, outer.Credit(stream.at_host, frame.amount))
        else:
            stream.to_host += frame.amount
            if stream.to_host > self.quotas.window:
                return self._end_both(stream, outer.FLOW, "more credit than a window")
            self._send(stream.client, outer.Credit(stream.at_client, frame.amount))

    def _late(self, connection: Connection, number: int) -> None:
        """Ignore a frame for a closed stream; drop the peer for a stream that never existed."""
        if not 0 < number <= connection.highest:
            self._drop(connection, outer.PROTOCOL, "there is no such stream")

    def _close(self, connection: Connection, frame: outer.Close) -> None:
        if frame.stream == 0:
            self._effects.append(Drop(connection.id, outer.DONE, ""))
            return self._leave(connection, outer.OFFLINE)
        stream = connection.streams.get(frame.stream)
        if stream is None:
            return self._late(connection, frame.stream)
        if stream.client is connection:
            self._end(stream, to_host=(frame.code, frame.reason))
        else:
            self._end(stream, to_client=(frame.code, frame.reason))

    # ------------------------------------------------------------ hosts

    def _register(self, connection: Connection, frame: outer.Register) -> None:
        if connection.route is not None:
            return self._drop(connection, outer.PROTOCOL, "one registration for one connection")
        if not any(
            routes.verify(
                frame.route_key, name, connection.nonce, frame.generation, frame.signature
            )
            for name in connection.names
        ):
            return self._drop(
                connection,
                outer.UNAUTHORIZED,
                "the signature does not fit this key, this relay's name and this connection",
            )
        id = routes.route(frame.route_key)
        route = self.route_table.get(id)
        by = enrolled(connection.token, route)
        if by is None:
            expired = connection.token is not None and connection.token.expired
            return self._drop(
                connection,
                outer.UNAUTHORIZED,
                "the token has expired"
                if expired
                else "this route key is not admitted, and there is no token",
            )
        tenant, token = by
        if route is not None and frame.generation < route.known.generation:
            return self._drop(
                connection, outer.REPLACED, f"generation {route.known.generation} has been here"
            )
        held = self.tenants.get(tenant)
        ours = route is not None and route.connection is not None and route.known.tenant == tenant
        if held is not None and not ours and held.routes >= self.quotas.tenant_routes:
            return self._drop(connection, outer.LIMIT, "too many hosts online")
        if not self._pays(connection, tenant):
            return
        if route is not None and route.connection is not None:
            self._drop(route.connection, outer.REPLACED, "a newer registration of this route")
        if route is not None and route.known.tenant != tenant:
            self._forget(route)
        known = Known(frame.route_key, tenant, token, frame.generation, frame.passes, self._unix())
        route = self.route_table.put(known)
        self._effects.append(Save(known))
        self.tenants.of(tenant, self._now).routes += 1
        self.counts["registrations"] += 1
        connection.route, route.connection, route.since = route, connection, known.seen
        self._admit(connection)
        self._send(connection, outer.Registered(id))
        self._withdrawn(route)
        self._presence(route)
        self._make_room(tenant)

    def _passes(self, connection: Connection, frame: outer.Passes) -> None:
        route = connection.route
        if route is None:
            return self._drop(connection, outer.PROTOCOL, "PASSES before REGISTER")
        route.known = route.known._replace(passes=frame.passes, seen=self._unix())
        route.passes = frozenset(frame.passes)
        self._effects.append(Save(route.known))
        self._withdrawn(route)

    def _withdrawn(self, route: Route) -> None:
        """End streams and watches after a host withdrew the pass."""
        assert route.connection is not None
        for stream in [
            s for s in route.connection.streams.values() if s.digest not in route.passes
        ]:
            self._end_both(stream, outer.REFUSED, "the pass was withdrawn")
            self._stranger_again(stream.client)
        for watcher in [
            w for w in route.watchers.values() if w.watches[route.id] not in route.passes
        ]:
            self._unwatch(route, watcher)

    def _stranger_again(self, connection: Connection) -> None:
        if (
            connection.id in self.connections
            and connection.token is None
            and not connection.streams
            and not connection.watches
        ):
            connection.admitted, connection.since, connection.frames = False, self._now, 0

    def _accept(self, connection: Connection, frame: outer.Accept) -> None:
        stream = connection.streams.get(frame.stream)
        if stream is None:
            return self._late(connection, frame.stream)
        if stream.accepted:
            return self._end_both(stream, outer.PROTOCOL, "ACCEPT twice")
        stream.accepted = True
        del self.opening[stream]
        self._send(stream.client, outer.Accept(stream.at_client))

    # ------------------------------------------------------------ clients

    def _found(self, connection: Connection, id: bytes, pass_: bytes) -> tuple[Route, bytes] | None:
        """Find the route for a pass. Every failure gets the same answer."""
        route, digest = self.route_table.get(id), routes.digest(pass_)
        if (
            route is None
            or digest not in route.passes
            or (connection.token is not None and connection.token.tenant != route.known.tenant)
        ):
            self.counts["refusals"] += 1
            connection.wrong += 1
            if connection.wrong > self.quotas.wrong_passes:
                self._drop(connection, outer.LIMIT, "too many wrong passes")
            return None
        if not self._pays(connection, route.known.tenant):
            return None
        self._admit(connection)
        return route, digest

    def _open(self, connection: Connection, frame: outer.Open) -> None:
        if frame.stream <= connection.highest:
            return self._drop(connection, outer.PROTOCOL, "stream numbers only grow")
        connection.highest = frame.stream

        def refuse(code: int, why: str) -> None:
            self._answer(connection, outer.Close(frame.stream, code, why))

        found = self._found(connection, frame.route, frame.pass_)
        if found is None:
            return refuse(outer.REFUSED, "no such route, or not with this pass")
        route, digest = found
        host, tenant = route.connection, self.tenants.of(route.known.tenant, self._now)
        if host is None:
            self.tenants.tidy(tenant)
            return refuse(outer.OFFLINE, "the host is not connected")
        if (
            len(connection.streams) >= self.quotas.client_streams
            or len(host.streams) >= self.quotas.host_streams
            or tenant.streams >= self.quotas.tenant_streams
        ):
            return refuse(outer.LIMIT, "too many streams")
        if host.highest >= outer.U32:
            self._drop(host, outer.AWAY, "all stream numbers are used up; come again")
            return refuse(outer.OFFLINE, "the host is not connected")
        host.highest += 1
        ends, window = (connection, frame.stream, host, host.highest), self.quotas.window
        stream = Stream(*ends, digest, tenant, self._now, window, window)
        connection.streams[stream.at_client] = host.streams[stream.at_host] = stream
        self.opening[stream] = None
        tenant.streams += 1
        self.counts["streams"] += 1
        self._send(host, outer.Incoming(stream.at_host))

    def _watch(self, connection: Connection, frame: outer.Watch) -> None:
        if frame.route not in connection.watches and len(connection.watches) >= self.quotas.watches:
            return self._drop(connection, outer.LIMIT, "too many watches")
        found = self._found(connection, frame.route, frame.pass_)
        if found is None:
            return self._answer(connection, outer.Presence(frame.route, False, 0))
        route, digest = found
        route.watchers[connection.id] = connection
        connection.watches[route.id] = digest
        self._send(connection, self._is(route))

    def _is(self, route: Route) -> outer.Presence:
        return outer.Presence(route.id, route.connection is not None, route.since)

    def _presence(self, route: Route) -> None:
        for watcher in route.watchers.values():
            self._send(watcher, self._is(route))

    def _unwatch(self, route: Route, watcher: Connection) -> None:
        del route.watchers[watcher.id]
        del watcher.watches[route.id]
        self._send(watcher, outer.Presence(route.id, False, 0))
        self._stranger_again(watcher)

    # ------------------------------------------------------------ streams

    def _end_both(self, stream: Stream, code: int, reason: str) -> None:
        self._end(stream, (code, reason), (code, reason))

    def _end(
        self,
        stream: Stream,
        to_client: tuple[int, str] | None = None,
        to_host: tuple[int, str] | None = None,
    ) -> None:
        """Forget a stream and tell the named ends why."""
        self.opening.pop(stream, None)
        del stream.client.streams[stream.at_client]
        del stream.host.streams[stream.at_host]
        stream.tenant.streams -= 1
        if to_client is not None:
            self._answer(stream.client, outer.Close(stream.at_client, *to_client))
        if to_host is not None:
            self._answer(stream.host, outer.Close(stream.at_host, *to_host))
        self.tenants.tidy(stream.tenant)

    # ------------------------------------------------------------ time, and acts of the operator

    def _tick(self, event: events.Tick) -> None:
        now, quotas = self._now, self.quotas
        for connection in list(self.connections.values()):
            quiet = now - connection.heard
            if not connection.role and now - connection.since > quotas.hello_s:
                self._drop(connection, outer.TIMEOUT, "no HELLO")
            elif not connection.admitted and now - connection.since > quotas.admit_s:
                self._drop(connection, outer.UNAUTHORIZED, "nothing was shown that admits")
            elif quiet >= 2 * quotas.ping_s:
                self._drop(connection, outer.TIMEOUT, "silent for too long")
            elif quiet >= quotas.ping_s and connection.role and not connection.asked:
                connection.pinged, connection.asked = connection.pinged + 1, True
                self._send(connection, outer.Ping(connection.pinged.to_bytes(8, "big")))
        for stream in self._overdue():
            self._end_both(stream, outer.TIMEOUT, "the host did not answer")

    def _overdue(self) -> list[Stream]:
        def old() -> Iterator[Stream]:
            for stream in self.opening:
                if self._now - stream.since <= self.quotas.accept_s:
                    return
                yield stream

        return list(old())

    def _enroll(self, event: events.Enrolled) -> None:
        """Admit a route key; existing knowledge of the route stays."""
        route = self.route_table.get(routes.route(event.known.key))
        if route is not None and route.known.tenant != event.known.tenant:
            if route.connection is not None:
                self._drop(route.connection, outer.AWAY, "the route belongs to another tenant now")
            self._forget(route)
            route = None
        known = event.known if route is None else route.known._replace(token=None)
        self.route_table.put(known)
        self._effects.append(Save(known))
        self._make_room(known.tenant)

    def _revoked(self, event: events.Revoked) -> None:
        for route in self.route_table.enrolled_by(event.token):
            if route.connection is not None:
                self._drop(route.connection, outer.UNAUTHORIZED, "the token was revoked")
            self._forget(route)
        for connection in [
            c
            for c in self.connections.values()
            if c.token is not None and c.token.id == event.token
        ]:
            self._drop(connection, outer.UNAUTHORIZED, "the token was revoked")

    def _stopping(self, event: events.Stopping) -> None:
        for connection in list(self.connections.values()):
            self._effects.append(Drop(connection.id, outer.AWAY, "the relay restarts; come again"))
        self.connections.clear()
        self.opening.clear()
        self.tenants.clear()
        for route in self.route_table.routes.values():
            route.connection = None
            route.watchers.clear()

    # ------------------------------------------------------------ remembered routes

    def _forget(self, route: Route) -> None:
        for watcher in list(route.watchers.values()):
            self._unwatch(route, watcher)
        self.route_table.remove(route)
        self._effects.append(Forget(route.known.key))

    def _make_room(self, tenant: str) -> None:
        while (route := self.route_table.too_many(tenant, self.quotas.tenant_known)) is not None:
            self._forget(route)

    def _seen(self, route: Route) -> None:
        route.since = self._unix()
        route.known = route.known._replace(seen=route.since)
        self._effects.append(Save(route.known))

    def _unix(self) -> int:
        return max(0, int(self.epoch + self._now))

    # ------------------------------------------------------------ answering

    def _send(self, connection: Connection, frame: outer.Frame) -> None:
        self._effects.append(Send(connection.id, frame))

    def _answer(self, connection: Connection, frame: outer.Frame) -> None:
        """Send a frame if the connection still exists."""
        if connection.id in self.connections:
            self._send(connection, frame)


_EVENTS: dict[type, Callable[[Registry, Any], None]] = {
    events.Connected: Registry._connected,
    events.Heard: Registry._heard,
    events.Broken: Registry._broken,
    events.Gone: Registry._gone,
    events.Tick: Registry._tick,
    events.Enrolled: Registry._enroll,
    events.Revoked: Registry._revoked,
    events.Stopping: Registry._stopping,
}
_Handler = Callable[[Registry, Connection, Any], None]
_BOTH: dict[type, _Handler] = {
    outer.Credit: Registry._credit,
    outer.Close: Registry._close,
    outer.Ping: Registry._ping,
    outer.Pong: Registry._pong,
}
_FRAMES: dict[tuple[int, type], _Handler] = {
    (0, outer.Hello): Registry._hello,
    **{
        (role, kind): handler
        for role in (outer.HOST, outer.CLIENT)
        for kind, handler in _BOTH.items()
    },
    (outer.HOST, outer.Register): Registry._register,
    (outer.HOST, outer.Passes): Registry._passes,
    (outer.HOST, outer.Accept): Registry._accept,
    (outer.CLIENT, outer.Open): Registry._open,
    (outer.CLIENT, outer.Watch): Registry._watch,
}
