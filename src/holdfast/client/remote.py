"""The way to a machine through a relay: gives what a local connection gives, a socket that speaks frames.

`dial` opens the line (a connection to the relay by the door that its address names, a stream on it, the sealed channel in it) and returns one end of a socket pair. A thread carries bytes between
its other end and the stream, so everything that works on the local socket works here unchanged, the attach loop included. When the line breaks, the socket ends,
as it does when a host dies, and whoever had it connects again.

The relay is trusted with nothing. The machine's key is pinned: who answers with another is nobody. Whatever a relay does to the stream ends the channel.
Two things are watched, because a line can be dead without a sign: the relay answers a ping within PING_WAIT_S, or it is gone; and if the machine sends nothing
for so long, it is asked, sealed, and answers, or it is gone. Nothing is asked while output comes. And a machine that came into another network has another address:
its old connections end without a word, so that is looked at as soon as nothing comes.
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
from holdfast.client.link import NoWay, Offline
from holdfast.client.presence import Watching
from holdfast.core import channel
from holdfast.core.tunnel import Tunnel
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
STREAM: Final = 1  # a connection of ours has one
MOVED_S: Final = 1.0  # of silence before the own address is looked at
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
        self._plain = bytearray()  # from the machine, not taken yet
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
        if not reads:  # it hung up, and there is no room to say the rest
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
                end = frame  # what came before it counts
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
        """The channel is over. What came before its end is handed on, and nobody is waited for."""
        if self._tunnel.reason and not self._tunnel.channel.whole:
            self.why = f"the connection to {self.machine} was tampered with or broke ({self._tunnel.reason})"
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
        """Is anybody there? Asked of the machine itself: a relay that answers for it cannot."""
        if (
            self._asleep.since()
        ):  # the network is another one, or has forgotten us: answer soon, or be gone
            self._asked, self._heard = now, now - 2 * REMOTE_SILENCE_S + AWAKE_S
            return self._send(self._tunnel.ask(now))
        if now - self._heard > MOVED_S and self._carrier.stranded():
            raise Unavailable("this machine has another address now", "try again")
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
    """Looks for the way, so that whoever wants it can do something else meanwhile. `patient`: as long as a relay says that the machine is away, it is waited for there."""

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
        """Whoever wanted it does not wait any more."""
        with self._ending:
            if self._watching is not None:
                self._watching.cancel()

    def line(self) -> tuple[socket.socket, str, Line]:
        """What was found, or why nothing was."""
        self.join()
        assert self._found is not None
        if isinstance(self._found, HoldfastError):
            raise self._found
        return self._found


def dial(
    machine: Machine, static: bytes, meeting: bytes | None = None, wait_s: float = REMOTE_WAIT_S
) -> tuple[socket.socket, str, Line]:
    """A socket that speaks frames with the machine, the hash that names this channel, and the line. The ways are tried one after the other."""
    refused: HoldfastError | None = None
    never: HoldfastError = Unavailable(
        f"no way to {machine.name} is known here",
        "pair again: `holdfast invite` there, `holdfast join` here",
    )
    for way in machine.ways:
        try:
            return _dial(machine, way, static, meeting, time.monotonic() + wait_s)
        except (Unavailable, TimedOut, NotAllowed) as e:
            refused = e
        except (Impossible, Usage) as e:  # a way that cannot be gone from here, ever; others may
            never = e
    raise refused or never


def _channel(machine: Machine, way: Way, static: bytes, meeting: bytes | None) -> channel.Channel:
    if meeting is None:
        return channel.initiator(way.route, static, machine.static, time.monotonic())
    from holdfast.core.meeting import Meeting

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
                f"who answers for {machine.name} at {address.name(way.url)} is not that machine, or the relay interferes ({tunnel.reason or 'no answer'})"
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
    """The next frame, which must be of that kind."""
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
                raise PeerFault("the relay answers something else")


def closed(machine: str, frame: outer.Close) -> HoldfastError:
    """What a relay's CLOSE means to a person. It is the relay's word, which nobody vouches for."""
    if frame.code in (outer.REFUSED, outer.UNAUTHORIZED):
        return NoWay(
            f"the relay knows no way to {machine} for us",
            "you, or this device, may have been revoked there, a code used or expired: ask there for a new invitation",
        )
    made = Offline if frame.code == outer.OFFLINE else Unavailable
    return made(
        f"{machine} {AWAY.get(frame.code, 'cannot be reached through its relay')}"
        + (f": {frame.reason}" if frame.reason else ""),
        "try again",
    )
