"""The line to a machine through a relay: a socket that speaks frames, like the local socket.

`dial` connects to the relay by the carrier that the relay's URL names, and opens a stream with the
sealed channel inside. `dial` returns one end of a socket pair. A thread moves bytes between the
other end and the stream. So all code for the local socket works unchanged, the attach loop
included. When the line breaks, the socket ends, as after the death of a host, and the caller
connects again.

The relay is not trusted. The machine's key is pinned, so an answer under a different key is
refused. Any interference of the relay with the stream ends the channel. A line can be dead without
a sign, so the client checks both parts. The relay must answer a ping within PING_WAIT_S. A machine
that is silent for that long is asked through the sealed channel and must answer. While output
arrives, the client does not ask. When this machine moves to a different network, the old
connections end silently. So during silence the client also checks this machine's address.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

from holdfast import __version__
from holdfast.client.gone import NoRoute, Offline
from holdfast.client.presence import Watching
from holdfast.core.sealed import channel
from holdfast.core.sealed.tunnel import Tunnel
from holdfast.home.machines import Machine, Way
from holdfast.model import address
from holdfast.model.errors import (
    HoldfastError,
    Impossible,
    NotAllowed,
    PeerFault,
    TimedOut,
    Unavailable,
    Usage,
)
from holdfast.model.limits import BODY_BYTES, REMOTE_SILENCE_S, REMOTE_WAIT_S
from holdfast.transport import carriers, unix
from holdfast.transport.asleep import Asleep
from holdfast.transport.carriers import Carrier
from holdfast.wire import outer

F = TypeVar("F")
STREAM: Final = 1  # the only stream on a connection of ours
MOVED_S: Final = 1.0  # silence before the client checks this machine's address
AWAKE_S: Final = 2.0  # after a sleep: for the machine to answer before the line is dialled anew
AWAY: Final = {
    outer.OFFLINE: "is not connected to the relay",
    outer.AWAY: "went away",
    outer.REPLACED: "has connected anew",
    outer.TIMEOUT: "does not answer the relay",
    outer.FAILED: "could not be reached by the relay",
    outer.SLOW: "was too slow for the relay",
    outer.LIMIT: "has no room for another connection at the relay",
}


class Line(threading.Thread):
    """Carries bytes between a socket and a stream until either ends."""

    def __init__(self, machine: str, carrier: Carrier, tunnel: Tunnel, ours: socket.socket) -> None:
        super().__init__(name=f"line to {machine}", daemon=True)
        self.machine, self.why = machine, ""
        self._carrier, self._tunnel, self._sock = carrier, tunnel, ours
        self._plain = bytearray()  # received from the machine, not taken by the socket yet
        self._heard = self._asked = time.monotonic()
        self._asleep = Asleep()
        self._over = False

    def run(self) -> None:
        try:
            self._carry()
        except HoldfastError as e:
            self.why = e.message
        finally:
            with contextlib.suppress(HoldfastError, OSError):
                self._say_end()
            self._sock.close()
            self._carrier.close()

    def _carry(self) -> None:
        poll, carrier, sock = select.poll(), self._carrier, self._sock
        sock.setblocking(False)
        watched = (-1, -1)
        while not self._over:
            reads = not carrier.pending and self._tunnel.worth()
            wanted = (
                select.POLLIN | (select.POLLOUT if carrier.pending else 0),
                (select.POLLIN if reads else 0) | (select.POLLOUT if self._plain else 0),
            )
            if wanted != watched:
                poll.register(carrier.fileno(), wanted[0])
                poll.register(sock.fileno(), wanted[1])
                watched = wanted
            for fd, events in poll.poll(
                min(
                    REMOTE_SILENCE_S / 2,
                    max(0.1, self._heard + 2 * REMOTE_SILENCE_S - time.monotonic()),
                )
                * 1000
            ):
                if fd == carrier.fileno():
                    if events & select.POLLOUT:
                        carrier.flush()
                    if events & ~select.POLLOUT:
                        self._from_relay(carrier.receive())
                elif events & select.POLLOUT and self._plain:
                    self._hand_on()
                elif events & (select.POLLIN | select.POLLHUP | select.POLLERR):
                    self._from_user(reads)
            self._watch(time.monotonic())

    def _from_user(self, reads: bool) -> None:
        if not reads:  # the user of the socket hung up, and there is no room for the rest
            self._over = True
            return
        try:
            data = self._sock.recv(min(BODY_BYTES, self._tunnel.room()))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._over = True
            return
        self._send(self._tunnel.put(data, time.monotonic()))

    def _from_relay(self, messages: list[bytes]) -> None:
        now, end = time.monotonic(), None
        for message in messages:
            frame = outer.decode(message, outer.TO_CLIENT)
            if isinstance(frame, outer.Data) and frame.stream == STREAM:
                step = self._tunnel.data(frame.payload, now)
                self._send(step.send)
                self._heard = self._asked = now
                self._plain += step.data
            elif isinstance(frame, outer.Credit) and frame.stream == STREAM:
                self._tunnel.credit(frame.amount, now)
            elif isinstance(frame, outer.Close):
                end = frame  # earlier frames still count
                break
            elif isinstance(frame, outer.Ping):
                self._carrier.send(outer.encode(outer.Pong(frame.mark)))
        if end is not None:
            self.why = "" if self._tunnel.channel.whole else closed(self.machine, end).message
            return self._finish()
        if self._plain:
            self._hand_on()
        else:
            self._grant(0)
        if self._tunnel.reason or self._tunnel.channel.whole:
            self._finish()

    def _finish(self) -> None:
        """Deliver the data that arrived before the channel ended, without waiting."""
        if self._tunnel.reason and not self._tunnel.channel.whole:
            self.why = (
                f"the connection to {self.machine} was tampered with or broke "
                f"({self._tunnel.reason})"
            )
        self._sock.setblocking(True)
        self._sock.settimeout(REMOTE_WAIT_S)
        with contextlib.suppress(OSError):
            self._sock.sendall(self._plain)
        self._over = True

    def _hand_on(self) -> None:
        try:
            count = self._sock.send(self._plain)
        except BlockingIOError:
            return
        except OSError:
            self._over = True
            return
        del self._plain[:count]
        self._grant(count)

    def _grant(self, count: int) -> None:
        if (given := self._tunnel.took(count)) and not self._tunnel.reason:
            self._carrier.send(outer.encode(outer.Credit(STREAM, given)))

    def _watch(self, now: float) -> None:
        """Check that the machine itself answers; a relay cannot answer for the machine."""
        if self._asleep.since():
            # A new network, or a router dropped the connection: the answer must come soon.
            self._asked, self._heard = now, now - 2 * REMOTE_SILENCE_S + AWAKE_S
            return self._send(self._tunnel.ask(now))
        if now - self._heard > MOVED_S and self._carrier.stranded():
            raise Unavailable("the address of this machine changed", "try again")
        if now - self._heard > 2 * REMOTE_SILENCE_S:
            raise Unavailable(f"{self.machine} does not answer any more")
        if now - max(self._heard, self._asked) > REMOTE_SILENCE_S:
            self._asked = now
            self._send(self._tunnel.ask(now))

    def _send(self, payloads: tuple[bytes, ...]) -> None:
        for payload in payloads:
            self._carrier.send(outer.encode(outer.Data(STREAM, payload)))

    def _say_end(self) -> None:
        self._send(self._tunnel.end(time.monotonic()))
        self._carrier.send(outer.encode(outer.Close(STREAM, outer.DONE)))


class Dialling(threading.Thread):
    """Opens the line in a thread, so that the caller can go on meanwhile.

    `patient`: while a relay reports that the machine is away, wait at the relay.
    """

    def __init__(
        self,
        machine: Machine,
        static: bytes,
        meeting: bytes | None = None,
        told: Callable[[], None] = lambda: None,
        patient: bool = False,
    ) -> None:
        super().__init__(name=f"dialling {machine.name}", daemon=True)
        self._watching = Watching(machine) if patient else None
        self._machine, self._static, self._meeting, self._told = machine, static, meeting, told
        self._found: tuple[socket.socket, str, Line] | HoldfastError | None = None
        self._ending = threading.Lock()
        self.start()

    @property
    def busy(self) -> bool:
        return self._found is None

    def run(self) -> None:
        try:
            found: tuple[socket.socket, str, Line] | HoldfastError = self._dial()
        except HoldfastError as e:
            found = e
        except Exception as e:
            found = Unavailable(f"{self._machine.name} cannot be reached: {type(e).__name__}: {e}")
        wanted = True
        with self._ending:
            if self._watching is not None:
                wanted = not self._watching.cancelled
                self._watching.close()
                self._watching = None
            self._found = found
        if wanted:
            self._told()
        elif not isinstance(found, HoldfastError):
            found[0].close()

    def _dial(self) -> tuple[socket.socket, str, Line]:
        while True:
            try:
                return dial(self._machine, self._static, self._meeting)
            except Offline:
                if self._watching is None or self._watching.cancelled:
                    raise
                self._watching.wait()

    def cancel(self) -> None:
        """Stop: the line is no longer wanted."""
        with self._ending:
            if self._watching is not None:
                self._watching.cancel()

    def line(self) -> tuple[socket.socket, str, Line]:
        """The line, or the error that prevented the line."""
        self.join()
        assert self._found is not None
        if isinstance(self._found, HoldfastError):
            raise self._found
        return self._found


def dial(
    machine: Machine, static: bytes, meeting: bytes | None = None, wait_s: float = REMOTE_WAIT_S
) -> tuple[socket.socket, str, Line]:
    """A socket that speaks frames with the machine, the channel's hash, and the line.

    Tries the known ways in turn.
    """
    refused: HoldfastError | None = None
    never: HoldfastError = Unavailable(
        f"no relay to {machine.name} is known here",
        "pair again: `holdfast invite` there, `holdfast join` here",
    )
    for way in machine.ways:
        try:
            return _dial(machine, way, static, meeting, time.monotonic() + wait_s)
        except (Unavailable, TimedOut, NotAllowed) as e:
            refused = e
        except (Impossible, Usage) as e:  # this way can never work from here; the next way may
            never = e
    raise refused or never


def _channel(machine: Machine, way: Way, static: bytes, meeting: bytes | None) -> channel.Channel:
    if meeting is None:
        return channel.initiator(way.route, static, machine.static, time.monotonic())
    from holdfast.core.sealed.meeting import Meeting

    return Meeting(True, way.route, static, meeting, time.monotonic())


def _dial(
    machine: Machine, way: Way, static: bytes, meeting: bytes | None, deadline: float
) -> tuple[socket.socket, str, Line]:
    carrier = carriers.dial(way.url, None, way.ca, deadline - time.monotonic())
    try:
        carrier.send(
            outer.encode(
                outer.Hello(outer.LOWEST, outer.VERSION, outer.CLIENT, f"holdfast {__version__}")
            )
        )
        welcome = _await(carrier, deadline, machine.name, outer.Welcome)
        outer.chosen(welcome)
        tunnel = Tunnel(_channel(machine, way, static, meeting))
        carrier.send(outer.encode(outer.Open(STREAM, way.route, way.pass_)))
        _await(carrier, deadline, machine.name, outer.Accept)
        said = tunnel.start(time.monotonic())
        while not tunnel.channel.handshake_hash and not tunnel.reason:
            for payload in said:
                carrier.send(outer.encode(outer.Data(STREAM, payload)))
            said = tunnel.data(
                _await(carrier, deadline, machine.name, outer.Data).payload, time.monotonic()
            ).send
        if tunnel.reason:
            raise PeerFault(
                f"the peer at {address.name(way.url)} is not {machine.name}, or the relay "
                f"interferes ({tunnel.reason or 'no answer'})"
            )
        theirs, ours = unix.pair()
        line = Line(machine.name, carrier, tunnel, ours)
        line._send(said)
        line.start()
        return theirs, tunnel.channel.handshake_hash.hex(), line
    except BaseException:
        carrier.close()
        raise


def _await(carrier: Carrier, deadline: float, machine: str, kind: type[F]) -> F:
    """The next frame; raises unless the frame is of that kind."""
    poll = select.poll()
    while True:
        poll.register(carrier.fileno(), select.POLLIN | (select.POLLOUT if carrier.pending else 0))
        if (left := deadline - time.monotonic()) <= 0 or not (ready := poll.poll(left * 1000)):
            raise TimedOut(f"{machine} does not answer through its relay", "try again")
        if ready[0][1] & select.POLLOUT:
            carrier.flush()
        if not ready[0][1] & ~select.POLLOUT:
            continue
        for message in carrier.receive():
            frame = outer.decode(message, outer.TO_CLIENT)
            if isinstance(frame, outer.Ping):
                carrier.send(outer.encode(outer.Pong(frame.mark)))
            elif isinstance(frame, outer.Close):
                raise closed(machine, frame)
            elif isinstance(frame, kind):
                return frame
            elif not isinstance(frame, outer.Credit):
                raise PeerFault("the relay sent an unexpected frame")


def closed(machine: str, frame: outer.Close) -> HoldfastError:
    """The error for a relay's CLOSE. The relay's statement is not proved."""
    if frame.code in (outer.REFUSED, outer.UNAUTHORIZED):
        return NoRoute(
            f"the relay does not know {machine}, or your access was revoked",
            "you or this device may have been revoked there, or a code was used or expired: "
            "ask there for a new invitation",
        )
    made = Offline if frame.code == outer.OFFLINE else Unavailable
    return made(
        f"{machine} {AWAY.get(frame.code, 'cannot be reached through its relay')}"
        + (f": {frame.reason}" if frame.reason else ""),
        "try again",
    )
