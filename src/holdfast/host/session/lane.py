"""The lane orders the acts on one session, and is the only way from the host to its keeper (P1).

Everything that changes a session (keys, lines, a run's trigger, size, signals, answers to terminal
queries) becomes an act here. It gets the next sequence number, goes to the keeper, and is settled
when the keeper has taken it. The lane recognises repeats of a client's act by (origin, the client's
own number), also after a crash of the host, because the keeper remembers them. An origin is made of
an operator's key and the id that the client chose (wire/hello.py), so a client cannot use the id of
a foreign client.

Input that a program does not read is bounded: INPUT_WINDOW_BYTES may be under way, as much again
may wait, more is refused. Only typed input waits: a signal or a size must reach a program that
reads nothing.

A keeper refuses an act if the queue is full of an earlier host's input. The keeper then refuses all
acts behind the first, with an answer for each. The lane sends nothing before all these answers are
in: it could not tell an old refusal from the refusal of a new act with the same number. A query to
the keeper (BARRIER) marks the boundary: the answer comes after the refusals and says how much room
there is.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from holdfast.core.record.acts import BY_KEEPER
from holdfast.host.session.keeper_link import KeeperLink
from holdfast.model.errors import HoldfastError, Refused, Unavailable
from holdfast.model.limits import INPUT_QUEUE_BYTES, ORIGINS_KEPT
from holdfast.model.probe import probe
from holdfast.wire import keeper as wire

INPUT_WINDOW_BYTES = INPUT_QUEUE_BYTES // 2
ACTS_IN_FLIGHT = 128  # if the keeper refuses all acts, the answers must fit into the socket
BARRIER = 0xFFFFFFFF  # tag of the query
FULL_PAUSE_S = 0.05  # until a full keeper is asked again
ORIGIN_REPLIES = 1  # the host's answers to terminal queries; their number is the query's offset
ORIGIN_HOST = 0  # acts of the host itself, which are never retried

_REASONS = {
    wire.REJECT_EPOCH: "another incarnation of this session is in charge",
    wire.REJECT_SEQUENCE: "out of order",
    wire.REJECT_FULL: "the program does not read its input",
    wire.REJECT_FENCED: "the session is fenced",
    wire.REJECT_CLOSED: "its terminal is closed",
}


@dataclass(slots=True)
class _Pending:
    kind: int
    sequence: int
    origin: int
    origin_sequence: int
    body: bytes
    done: asyncio.Future[int] | None
    flags: int


class Lane:
    def __init__(self, link: KeeperLink) -> None:
        self.link = link
        self.epoch = link.welcome.epoch
        self.sequence = link.ring.accepted
        self._acked: dict[int, int] = {}
        self._sent: dict[int, int] = {}
        self._used: dict[int, int] = {}
        self._before: dict[int, int] = {}  # of earlier incarnations, from the record
        self._epoch = link.welcome.epoch
        # The number and the sequence of each origin's last act.
        self._last: dict[int, tuple[int, int]] = {}
        for origin in link.welcome.origins:
            self._acked[origin.origin] = self._sent[origin.origin] = origin.origin_sequence
            self._last[origin.origin] = (origin.origin_sequence, origin.sequence)
        self._flight: deque[_Pending] = deque()
        self._waiting: deque[_Pending] = deque()
        self._flight_bytes = 0
        self._waiting_bytes = 0
        self._window = INPUT_WINDOW_BYTES
        self._asking = False  # a query is under way; nothing is sent meanwhile
        self._held = 0  # holders; nothing is sent while the session is being saved
        if link.ring.accepted != link.ring.written:
            self._ask()  # the keeper still holds input of an earlier host

    def acked(self, origin: int) -> int:
        """The highest number of this origin that the keeper has taken."""
        return self._acked.get(origin, 0)

    def known(self, origin: int, number: int) -> bool:
        """Whether this act of this origin has been submitted before."""
        return number <= self._sent.get(origin, 0)

    def use(self, origin: int, number: int) -> None:
        """Notes the number of an act that does not go to the keeper: it is used up all the same."""
        self._used[origin] = max(number, self._used.pop(origin, 0))
        if len(self._used) > 4 * ORIGINS_KEPT:
            del self._used[next(iter(self._used))]

    def used(self, origin: int, number: int) -> bool:
        """Whether this number is at or below that of an act that did not go to the keeper."""
        return number <= self._used.get(origin, 0)

    def before(self, origin: int, number: int) -> bool:
        """Whether this act, which is known, went to an earlier incarnation and not to this one."""
        return number <= self._before.get(origin, 0)

    def restore_number(self, entry: dict[str, Any]) -> int:
        """After a start: the acked number of a client, from the client's last recorded entry."""
        origin = int(entry["client"], 16)
        if entry["kind"] not in (*BY_KEEPER, "keys", "cover", "attach"):
            self.use(origin, entry["number"])
        elif entry.get("outcome") in ("applied", "unknown") and not self.known(
            origin, entry["number"]
        ):
            # The keeper remembers only the newest clients; the record has all of them.
            self._acked[origin] = self._sent[origin] = entry["number"]
            if entry["epoch"] < self._epoch:
                self._before[origin] = entry["number"]
        return self.acked(origin)

    def origins(self) -> tuple[tuple[int, int, int], ...]:
        """The newest origins, each with the number and the sequence of its last act."""
        known = [(one, number, sequence) for one, (number, sequence) in self._last.items()]
        return tuple(sorted(known, key=lambda one: one[2])[-ORIGINS_KEPT:])

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lets all acts wait; they go on when the last holder has left."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
            if not (self._asking or self._held):
                self._go_on()

    @property
    def awaited(self) -> bool:
        """Whether a caller waits to hear that an act was taken."""
        return any(act.done is not None for act in self._flight) or bool(self._waiting)

    @property
    def next(self) -> int:
        """The sequence number of the act that is submitted next."""
        return self.sequence + len(self._waiting) + 1

    @property
    def unanswered(self) -> bool:
        """Whether the keeper has not acknowledged all acts that were sent."""
        return self._asking or any(act.sequence > self.link.ring.accepted for act in self._flight)

    # ------------------------------------------------------------ submitting

    def submit(
        self,
        kind: int,
        body: bytes,
        origin: int,
        number: int,
        want_done: bool = False,
        flags: int = 0,
    ) -> asyncio.Future[int] | None:
        """Puts an act in order. A repeat changes nothing.

        The future, if wanted, gives the act's sequence once the keeper has taken it.
        """
        done: asyncio.Future[int] | None = (
            asyncio.get_running_loop().create_future() if want_done else None
        )
        if origin and self.known(origin, number):
            if done is not None:
                self._settle_repeat(origin, number, done)
            return done
        if want_done or flags:
            self.link.unmute()
        act = _Pending(
            kind, 0, origin, number, body, done, flags | (wire.ACT_ACK if want_done else 0)
        )
        if kind != wire.INPUT:
            if self._asking or self._held:
                first = next(
                    (i for i, other in enumerate(self._waiting) if other.kind == wire.INPUT),
                    len(self._waiting),
                )
                self._waiting.insert(first, act)  # before unread input, in their own order
                self._waiting_bytes += len(body)
            else:
                self._send(act)
        elif self._waiting or not self._may_send(act):
            if self._waiting_bytes + len(body) > INPUT_WINDOW_BYTES:
                raise Refused(
                    "the program does not read its input: too much is waiting already",
                    "wait until it reads, or interrupt it (`holdfast send SESSION --key C-c`)",
                )
            act.flags |= wire.ACT_ACK
            self._waiting.append(act)
            self._waiting_bytes += len(body)
        else:
            self._send(act)
        if origin:
            self._remember(origin, number)
        return done

    def key(self, body: bytes, origin: int, number: int, flags: int) -> None:
        """As `submit` for typed input that is known to be new; quicker if nothing waits."""
        if (
            self._waiting
            or self._asking
            or self._held
            or len(self._flight) >= ACTS_IN_FLIGHT // 2
            or self._flight_bytes + len(body) > self._window
        ):
            self.submit(wire.INPUT, body, origin, number, flags=flags)
            return
        if flags:
            self.link.unmute()
        self._send(_Pending(wire.INPUT, 0, origin, number, body, None, flags))
        self._remember(origin, number)

    def _remember(self, origin: int, number: int) -> None:
        self._sent.pop(origin, None)
        self._sent[origin] = number  # at the end: the origin that was silent longest goes first
        if len(self._sent) > 4 * ORIGINS_KEPT:
            for old in list(self._sent)[:ORIGINS_KEPT]:
                if old not in {p.origin for p in self._flight}:
                    self._sent.pop(old)
                    self._acked.pop(old, None)
                    self._last.pop(old, None)

    def _settle_repeat(self, origin: int, number: int, done: asyncio.Future[int]) -> None:
        for pending in (*self._flight, *self._waiting):
            if pending.origin == origin and pending.origin_sequence == number:
                if pending.done is None:
                    pending.done = done
                else:
                    pending.done.add_done_callback(lambda first: _follow(first, done))
                return
        last, sequence = self._last.get(origin, (0, 0))
        done.set_result(sequence if number == last else self.link.ring.accepted)

    def _may_send(self, act: _Pending) -> bool:
        return not (self._asking or self._held) and (
            act.kind != wire.INPUT
            or (
                self._flight_bytes + len(act.body) <= self._window
                and len(self._flight) < ACTS_IN_FLIGHT
            )
        )

    def _send(self, act: _Pending) -> None:
        if len(self._flight) >= ACTS_IN_FLIGHT // 2:
            act.flags |= wire.ACT_ACK  # else the host would not learn when there is room again
        self.sequence += 1
        act.sequence = self.sequence
        probe("host.act.sending")
        self.link.send(
            wire.act(
                act.kind,
                (self.epoch, act.sequence, act.origin, act.origin_sequence, act.flags),
                act.body,
            )
        )
        probe("host.act.sent")
        self._flight.append(act)
        self._flight_bytes += len(act.body)

    def void(self, error: HoldfastError) -> list[tuple[int, int]]:
        """Drops input that was not sent, because the turn was seized.

        Returns (client, number) of each.
        """
        dropped = [act for act in self._waiting if act.kind == wire.INPUT]
        self._waiting = deque(act for act in self._waiting if act.kind != wire.INPUT)
        self._waiting_bytes = sum(len(act.body) for act in self._waiting)
        for act in reversed(dropped):
            self._unsent(act)
            if act.done is not None and not act.done.done():
                act.done.set_exception(error)
                act.done.exception()
        return [(act.origin, act.origin_sequence) for act in dropped]

    # ------------------------------------------------------------ settling

    def settle(self) -> None:
        """The bell rang: settles the acts that the keeper has taken."""
        accepted, written = self.link.ring.accepted, self.link.ring.written
        while self._flight and self._flight[0].sequence <= (
            accepted if not self._flight[0].body else written
        ):
            act = self._flight.popleft()
            self._flight_bytes -= len(act.body)
            self._taken(act)
        for act in self._flight:
            if act.sequence > accepted:
                break
            self._taken(act)
        if not self._flight and not self._asking:
            self._window = INPUT_WINDOW_BYTES  # input of earlier hosts was written before ours
        self._go_on()

    def _go_on(self) -> None:
        while self._waiting and self._may_send(self._waiting[0]):
            act = self._waiting.popleft()
            self._waiting_bytes -= len(act.body)
            self._send(act)

    def _taken(self, act: _Pending) -> None:
        if act.origin and act.origin_sequence > self._acked.get(act.origin, 0):
            self._acked[act.origin] = act.origin_sequence
            self._last[act.origin] = (act.origin_sequence, act.sequence)
        if act.done is not None and not act.done.done():
            act.done.set_result(act.sequence)

    def rejected(self, packet: bytes) -> None:
        """The keeper refused an act and all behind it.

        REJECT_FULL (no room) and REJECT_SEQUENCE (an act before them is missing): they are queued
        again. For any other reason they have failed.
        """
        sequence, reason, _ = wire.read_rejected(packet)
        if self._asking:
            return  # these acts are void already
        void = [a for a in self._flight if a.sequence >= sequence]
        self._flight = deque(a for a in self._flight if a.sequence < sequence)
        self._flight_bytes = sum(len(a.body) for a in self._flight)
        if reason in (wire.REJECT_FULL, wire.REJECT_SEQUENCE):
            self._put_back(void)
        else:
            error = Refused(
                f"the session did not take this: {_REASONS.get(reason, 'unknown reason')}"
            )
            for act in void:
                self._fail(act, error)
        self._ask(FULL_PAUSE_S if reason == wire.REJECT_FULL else 0.0)

    def _put_back(self, void: list[_Pending]) -> None:
        """Queues refused acts again, before the acts that came after them.

        As in the keeper, sizes and signals do not wait for input, and a FLUSH discards the input
        before it.
        """
        flush = max((n for n, act in enumerate(void) if act.kind == wire.FLUSH), default=-1)
        typed = [act for act in void[flush + 1 :] if act.kind == wire.INPUT]
        for act in void[: flush + 1]:
            if act.kind == wire.INPUT:
                if act.done is not None and not act.done.done():
                    act.done.set_exception(
                        Refused("somebody took the turn before the session took this")
                    )
                self._taken(act)
        back = [*(act for act in void if act.kind != wire.INPUT), *typed]
        for act in reversed(back):
            act.flags |= wire.ACT_ACK
            self._waiting.appendleft(act)
            self._waiting_bytes += len(act.body)

    def _ask(self, pause: float = 0.0) -> None:
        self._asking = True
        if pause:
            asyncio.get_running_loop().call_later(pause, self._ask)
        else:
            self.link.send(wire.query(BARRIER))

    def answered(self, state: wire.State) -> None:
        """Continues to send: the keeper answered the query, so all its refusals have arrived.

        Numbering resumes after the last act that the keeper accepted. Input that does not fit into
        the keeper's queue waits, and the host asks again later.
        """
        self.sequence = self.link.ring.accepted
        room = INPUT_QUEUE_BYTES - state.queued_input
        first = self._waiting[0] if self._waiting else None
        if first is not None and first.kind == wire.INPUT and len(first.body) > room:
            return self._ask(FULL_PAUSE_S)
        self._asking = False
        self._window = min(INPUT_WINDOW_BYTES, room)
        self.settle()

    def _fail(self, act: _Pending, error: HoldfastError) -> None:
        self._unsent(act)
        if act.done is not None and not act.done.done():
            act.done.set_exception(error)

    def _unsent(self, act: _Pending) -> None:
        """The act was not taken: if the client sends it again, that is no repeat."""
        if act.origin:
            self._sent[act.origin] = min(self._sent.get(act.origin, 0), act.origin_sequence - 1)

    def close(self) -> None:
        error = Unavailable(
            "the session ended before this was taken", "`holdfast ls --all` shows how it ended"
        )
        for act in (*self._flight, *self._waiting):
            if act.done is not None and not act.done.done():
                act.done.set_exception(error)
                act.done.exception()
        self._flight.clear()
        self._waiting.clear()


def _follow(first: asyncio.Future[int], second: asyncio.Future[int]) -> None:
    """Gives a repeat the outcome of the act it repeats."""
    if second.done():
        return
    if first.cancelled():
        second.cancel()
    elif (error := first.exception()) is not None:
        second.set_exception(error)
    else:
        second.set_result(first.result())
