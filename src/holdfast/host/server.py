"""Connections of clients: admits clients by proved keys and dispatches the frames."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable
from typing import Any

from holdfast import __version__
from holdfast.core.contract.codec import encode
from holdfast.host.engine import Engine
from holdfast.host.requests import nesting
from holdfast.host.requests.host import Host
from holdfast.host.requests.table import handle
from holdfast.host.runtime.connection import GAVE_UP, Connection
from holdfast.host.runtime.notify import log_error
from holdfast.host.runtime.tasks import Tasks
from holdfast.model import ids, signing
from holdfast.model.errors import HoldfastError, NotAllowed, PeerFault, Refused, Usage
from holdfast.model.limits import CLIENTS_MAX, INPUT_CHUNK_BYTES, OPERATOR_CLIENTS_MAX
from holdfast.model.probe import probe
from holdfast.transport import unix
from holdfast.wire import frames, hello, version

REQUESTS_MAX = 256  # of a client at a time
ACCEPT_PAUSE_S = 0.2


class Server:
    def __init__(self, engine: Engine, host: Host, listener: socket.socket) -> None:
        self.engine = engine
        self.host = host
        self.connections = engine.counters.connections
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks("a request")  # requests outlive the connection
        self._listener = listener
        listener.setblocking(False)
        self._loop.add_reader(listener, self._accept)
        engine.authority.on_change.append(self._drop_revoked)
        engine.authority.on_recovered.append(self._announce)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:  # no descriptor left: pause, or the loop would call this again at once
            self._loop.remove_reader(self._listener)
            self._loop.call_later(ACCEPT_PAUSE_S, self._listen_again)
            return
        pid, uid = unix.peer(sock)
        if uid not in (os.geteuid(), 0) or not self._room():
            sock.close()  # the second lock: the mode of the directory keeps other accounts out
            return
        if (around := nesting.around(pid)) is None and uid == os.geteuid():
            sock.close()  # a client that is gone, or hides where it runs
            return
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self.connections.add(Connection(sock, pid, self._frame, self._closed, around=around or ()))

    def admit(self, sock: socket.socket, channel: str, on_the_way: Callable[[], int]) -> bool:
        """Admits a client from a remote machine, through a sealed channel.

        False: there is no room.
        """
        if not self._room():
            return False
        self.connections.add(Connection(sock, 0, self._frame, self._closed, channel, on_the_way))
        return True

    def _room(self) -> bool:
        """Makes room, if need be by closing the oldest connection without an introduction."""
        if len(self.connections) >= CLIENTS_MAX:
            silent = min(
                (conn for conn in self.connections if not conn.client),
                key=lambda conn: conn.since,
                default=None,
            )
            if silent is not None:
                silent.bye(
                    "protocol", "too many connections, and this one has not said whose it is"
                )
        return len(self.connections) < CLIENTS_MAX

    def _listen_again(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener, self._accept)

    def _drop_revoked(self) -> None:
        """Disconnects revoked clients, also clients that only follow output or events."""
        for conn in list(self.connections):
            if conn.client and not conn.revoking:
                try:
                    self.engine.authority.who(conn.key)
                except NotAllowed as e:
                    conn.bye("admission", e.message, e.recover)

    def _announce(self) -> None:
        """Shows a recovery to every attached client; other clients learn of it in a welcome."""
        for conn, viewer in list(self.host.viewers.items()):
            for one in self._untold(conn):
                conn.event("recovered", session=viewer.session.id, **one)

    def _untold(self, conn: Connection) -> list[dict[str, object]]:
        """The recoveries to show to this client, if it shows any; each key is told once."""
        if conn.hello.get("announce") is not True:
            return []
        found = self.engine.authority.unseen(conn.key)
        self.engine.authority.told(conn.key)
        return [{"operator": name, "at": at} for name, at in found.items()]

    def _closed(self, conn: Connection) -> None:
        self.connections.discard(conn)
        self.engine.devices.left(conn)
        if conn.client:
            self.engine.presence.left(conn.operator)
        self.host.leave(conn, "lost")

    # ------------------------------------------------------------ frames

    def _frame(self, conn: Connection, kind: int, payload: bytes) -> None:
        if kind == frames.INPUT:
            self._input(conn, payload)
        elif not conn.client:
            if kind == frames.HELLO and not conn.hello:
                self._hello(conn, frames.read_json(payload))
            elif kind == frames.PROOF:
                self._proof(conn, frames.read_json(payload))
            else:
                raise PeerFault("not introduced")
        elif kind == frames.REQUEST:
            number, body = frames.read_request(payload)
            if number in conn.tasks:
                raise PeerFault(f"request number {number} is in use")
            if len(conn.tasks) >= REQUESTS_MAX:
                why = f"{REQUESTS_MAX} requests of this client are under way"
                return conn.fail(number, Refused(why, "wait for their answers"))
            conn.tasks[number] = self._tasks.spawn(self._request(conn, number, body))
        elif kind == frames.SEEN:
            viewer = self.host.viewers.get(conn)
            if viewer is not None:
                viewer.seen(frames.read_seen(payload))
        elif kind == frames.STDIN:
            number, start, data = frames.read_stdin(payload)
            if (taking := conn.inputs.get(number)) is not None:
                taking(start, data)
        elif kind == frames.CREDIT:
            number, until = frames.read_credit(payload)
            if (flow := conn.downstreams.get(number)) is not None:
                flow.allow(until)
        elif kind == frames.RESIZE:
            self._resize(conn, payload)
        elif kind == frames.CANCEL:
            task = conn.tasks.get(frames.read_cancel(payload))
            if task is not None:
                # Not before the first step: a task that never ran would leave no answer.
                self._loop.call_soon(task.cancel, GAVE_UP)
        else:
            raise PeerFault("introduced twice")

    def _hello(self, conn: Connection, body: dict[str, Any]) -> None:
        chosen = version.choose(body.get("lowest"), body.get("version"))
        if chosen is None:
            return conn.bye(
                "version",
                f"this host speaks versions {frames.LOWEST} to {frames.VERSION} of the wire",
            )
        client, operator, modality = body.get("client"), body.get("operator"), body.get("modality")
        if (
            not isinstance(client, int)
            or not 1 < client < 1 << 64
            or not isinstance(operator, str)
            or not isinstance(modality, str)
        ):
            raise PeerFault("an introduction needs client, operator, modality and key")
        try:
            conn.operator, conn.modality = ids.check_name(operator), ids.check_name(modality)
            conn.key = signing.read(str(body.get("key")))
        except (Usage, ValueError) as e:
            raise PeerFault(str(e)) from e
        conn.hello = body
        if type(credit := body.get("credit")) is int and credit > 0:
            conn.window = credit
        conn.challenge = {
            "version": chosen,
            "machine": signing.show(self.engine.authority.machine),
            "nonce": os.urandom(hello.NONCE_BYTES).hex(),
        }
        conn.challenged()
        conn.send(frames.pack_json(frames.CHALLENGE, conn.challenge))

    def _proof(self, conn: Connection, body: dict[str, Any]) -> None:
        if not conn.challenge or conn.tasks:
            raise PeerFault("a proof nobody asked for")
        try:
            signature = bytes.fromhex(str(body.get("signature")))
            statement = hello.statement(conn.hello, conn.challenge, conn.channel)
        except ValueError as e:
            raise PeerFault("a malformed proof") from e
        if not signing.verify(conn.key, hello.DOMAIN, statement, signature):
            return conn.bye("admission", f"this is not the key of {conn.operator}")
        conn.proved()
        conn.binding = hello.binding(statement, signature)
        conn.tasks[0] = self._tasks.spawn(
            self._admit(conn, statement, body.get("recovery"), body.get("invitation"))
        )

    async def _admit(
        self, conn: Connection, statement: bytes, recovery: Any, invitation: Any
    ) -> None:
        """Decides whether a proved key belongs to a known operator.

        On a machine without operators the first key becomes an operator with admin.
        """
        authority, joined = self.engine.authority, {}
        try:
            if authority.needs_first and invitation is None and not conn.channel:
                with contextlib.suppress(Refused):  # a different client was first
                    await authority.first_identity(
                        conn.operator, "human", conn.key, time.time(), os.uname().nodename
                    )
                    self.engine.door.record_joined(conn, "first")
            if recovery is not None and (conn.channel or self.engine.insiders.session_of(conn)):
                raise NotAllowed(
                    "recovery is not possible from another machine, nor from inside a session",
                    "use a terminal of the machine itself, outside of every session",
                )
            if recovery is not None:
                await authority.recover(
                    bytes.fromhex(str(recovery["statement"])),
                    bytes.fromhex(str(recovery["signature"])),
                    time.time(),
                    os.uname().nodename,
                )
                self.engine.door.record_joined(conn, "recover")
            if invitation is not None:
                found = await self.engine.invitations.join(
                    conn.operator, conn.key, statement, invitation, conn.waits
                )
                joined = {"joined": encode(found)}
                if not found.again:
                    self.engine.door.record_joined(
                        conn,
                        "join",
                        by=found.by,
                        invitation=str(invitation["id"]),
                        rights=list(found.rights),
                        scope=joined["joined"]["scope"],
                        **({"of": found.of, "device": found.device} if found.of else {}),
                    )
            if isinstance(about := conn.hello.get("about"), str):
                await self.engine.adoptions.needed_by({"op": "place", "session": about}, 0)
            open_here = await self.host.open_keys.has(conn.operator, conn.key)
            conn.stray = open_here and bool(conn.channel)
            who = authority.who(conn.key)
            if who.name != conn.operator:
                raise NotAllowed(
                    f"this key is {who.name}'s, not {conn.operator}'s", f"use --as {who.name}"
                )
            if (
                sum(one.operator == conn.operator and one.client > 0 for one in self.connections)
                >= OPERATOR_CLIENTS_MAX
            ):
                raise Refused(
                    f"{conn.operator} has {OPERATOR_CLIENTS_MAX} connections already",
                    "close some of them",
                )
        except HoldfastError as e:
            return conn.bye("admission", e.message, e.recover)
        except (ValueError, TypeError, KeyError) as e:
            return conn.bye("protocol", f"a malformed recovery or invitation: {e}")
        finally:
            conn.tasks.pop(0, None)
        conn.kind = who.kind
        conn.client = hello.origin(conn.hello["key"], conn.hello["client"])
        self.engine.devices.came(conn)
        self.engine.presence.came(conn.operator)
        conn.send(
            frames.pack_json(
                frames.WELCOME,
                {
                    "version": conn.challenge["version"],
                    "host": os.uname().nodename,
                    "home": self.engine.home.state,
                    "pid": os.getpid(),
                    "release": __version__,
                    "device": authority.device_of(conn.key),
                    "takes": ["stdin", "credit"],
                    **({"recovered": untold} if (untold := self._untold(conn)) else {}),
                    **joined,
                    **self._about(conn),
                },
            )
        )

    def _about(self, conn: Connection) -> dict[str, Any]:
        """The place that acts on the named session are signed for; empty without access."""
        about = conn.hello.get("about")
        try:
            return (
                {"place": encode(self.host.place_of(conn, self.host.meant(conn, about)))}
                if isinstance(about, str)
                else {}
            )
        except HoldfastError:
            return {}

    async def _request(self, conn: Connection, number: int, body: dict[str, Any]) -> None:
        try:
            await self.engine.adoptions.needed_by(body, conn.pid)
            answer = await handle(self.host, conn, number, body)
            if answer is not None:
                conn.answer(number, answer)
        except HoldfastError as e:
            self.engine.counters.refusals[e.name] += 1
            conn.fail(number, e)
        except asyncio.CancelledError:
            conn.fail(number, Refused("cancelled"))
        except Exception as e:
            log_error(f"request {body.get('op')}", e)
            why = f"internal error: {type(e).__name__}: {e}"
            report = "the host's log has the details; please report it"
            conn.fail(number, HoldfastError(why, report))
        finally:
            conn.tasks.pop(number, None)
            if conn.revoking:
                conn.revoking = False
                self._drop_revoked()

    def _input(self, conn: Connection, payload: bytes) -> None:
        viewer = self.host.viewers.get(conn)
        if viewer is None:
            if conn.client:
                conn.event(
                    "refused", name="refused", message="not attached", recover="attach first"
                )
                return
            raise PeerFault("not introduced")
        number, flags, data = frames.read_input(payload)
        if len(data) > INPUT_CHUNK_BYTES or number == 0:
            raise PeerFault(f"an input of {len(data)} bytes with number {number}")
        probe("host.input.received")
        if flags & frames.INPUT_ACK:
            conn.wants_ack = number
        try:
            viewer.session.keyboard.keys(viewer, number, data, bool(flags & frames.INPUT_ACK))
        except HoldfastError as e:
            viewer.session.keyboard.refused(viewer, number, e)

    def _resize(self, conn: Connection, payload: bytes) -> None:
        _, cols, rows = frames.read_resize(payload)
        viewer = self.host.viewers.get(conn)
        if viewer is None:
            return
        session = viewer.session
        holder = session.turn.holder
        alone = not any(v is not viewer and not v.observe for v in session.viewers)
        viewer.resized(cols, rows)
        if (
            not viewer.observe
            and viewer.resizes
            and (holder == conn.operator or (holder is None and alone))
        ):
            session.viewers.resize(cols, rows)

    def close(self, reason: str, message: str) -> None:
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for conn in list(self.connections):
            conn.bye(reason, message)
