"""One stream through a relay, from either end: a sealed channel and its flow control. Pure.

Credit is end to end. Each side may have STREAM_WINDOW_BYTES of payloads in flight that the consumer
on the other side has not taken. So no relay in between holds more than that, and a slow reader
stops the writer, not the relay. Payloads count, not plaintext, so the relay can check the limit.

A window is also a backlog. On a slow link 256 KiB are seconds of outdated output, so a sender uses
less of the window. The sender measures how long credit takes to return. If that takes QUEUE_S
longer than the best time, data queues on the way, and the sender reduces its limit; otherwise it
raises the limit (the idea of LEDBAT, RFC 6817). Output that does not fit waits in the ring, where
the newest screen wins. Keys travel the other way and never wait for output.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from holdfast.core.sealed.channel import Channel, Step
from holdfast.model.limits import BODY_BYTES, STREAM_WINDOW_BYTES, KiB

RESERVE_BYTES: Final = 64  # of credit, for the channel's own messages (REKEY, END, ASK, YES)
SEAL_BYTES: Final = 20  # overhead of a payload over its content
CREDIT_STEP_BYTES: Final = 16 * KiB
"""Taken bytes before credit is given: small enough for a small limit, large enough to be cheap."""
LIMIT_FIRST_BYTES: Final = 64 * KiB  # in flight at first, before the link is measured
LIMIT_LEAST_BYTES: Final = 32 * KiB
LIMIT_STEP_BYTES: Final = 16 * KiB
QUEUE_S: Final = 0.15  # credit that returns this much later than the best time shows a queue
BEST_S: Final = 30.0  # how long the best time is remembered, because a link may change

FLOW: Final = "flow"  # closed: the other side sent more than its credit


class Tunnel:
    """The flow control of one side of a stream."""

    def __init__(self, channel: Channel, window: int = STREAM_WINDOW_BYTES) -> None:
        self.channel = channel
        self._window = window
        self._credit = window  # bytes that this side may still send
        self._limit = min(LIMIT_FIRST_BYTES, window)
        self._sent = self._returned = 0  # payload bytes in total
        # (total sent, time) of payloads whose credit has not returned
        self._marks: deque[tuple[int, float]] = deque()
        self._best: float | None = None
        self._best_at = self._less_at = 0.0
        self._theirs = window  # bytes that the other side may still send
        # (plaintext, payload) bytes that the consumer has not taken
        self._untaken: deque[tuple[int, int]] = deque()
        self._owed = 0  # payload bytes that were taken but not credited yet
        self._overrun = False

    @property
    def reason(self) -> str:
        """Why the tunnel is closed; empty while it is open."""
        return FLOW if self._overrun else self.channel.reason

    @property
    def on_the_way(self) -> int:
        """Payload bytes that the remote consumer has not taken, as far as this side knows."""
        return self._sent - self._returned

    # ------------------------------------------------------------ out

    def start(self, now: float) -> tuple[bytes, ...]:
        return self._out(self.channel.start().send, now)

    def room(self) -> int:
        """Return how much plaintext may be sent now."""
        if self.reason or not self.channel.may_send:
            return 0
        return max(0, min(self._credit, self._limit - self.on_the_way) - RESERVE_BYTES - SEAL_BYTES)

    def worth(self) -> bool:
        """Say whether there is room for a piece of useful size.

        Otherwise bulk data would go in crumbs, because each taken crumb makes room for the next. A
        quarter of the limit always becomes free again, because the other side keeps back less
        credit than CREDIT_STEP_BYTES.
        """
        return self.room() >= min(BODY_BYTES, self._limit // 4)

    def put(self, data: bytes, now: float) -> tuple[bytes, ...]:
        """Return the payloads that carry this data, which must be at most `room`."""
        if len(data) > self.room():
            raise ValueError("more data than there is room for")
        return self._out(self.channel.send(data, now), now)

    def end(self, now: float) -> tuple[bytes, ...]:
        """Return the payload that says END, if the channel can send."""
        if self.reason or not self.channel.may_send:
            return ()
        return self._out(self.channel.end(now), now)

    def ask(self, now: float) -> tuple[bytes, ...]:
        """Return the payload that asks whether the other side is present, if there is room."""
        return (
            self._out(self.channel.ask(now), now)
            if self._credit > RESERVE_BYTES and not self.reason
            else ()
        )

    def credit(self, amount: int, now: float) -> None:
        """Take credit from the other side; more than is in flight is a violation."""
        if amount > self.on_the_way:
            self._overrun = True
            return
        self._credit += amount
        waited, full = 0.0, self.on_the_way > 2 * CREDIT_STEP_BYTES
        self._returned += amount
        while self._marks and self._marks[0][0] <= self._returned:
            waited = now - self._marks.popleft()[1]
        # With little data in flight the peer delays credit, so the time does not measure the line.
        if full and waited > 0.0:
            self._learn(waited, now)

    def _learn(self, waited: float, now: float) -> None:
        if self._best is None or waited <= self._best or now - self._best_at > BEST_S:
            self._best, self._best_at = waited, now
        if waited - self._best > QUEUE_S:
            if now - self._less_at > waited:  # once per round trip
                self._limit, self._less_at = max(LIMIT_LEAST_BYTES, self._limit * 3 // 4), now
        else:
            self._limit = min(self._window, self._limit + LIMIT_STEP_BYTES)

    def _out(self, payloads: tuple[bytes, ...], now: float) -> tuple[bytes, ...]:
        for payload in payloads:
            self._sent += len(payload)
            self._credit -= len(payload)
        if payloads:
            self._marks.append((self._sent, now))
        return payloads

    # ------------------------------------------------------------ in

    def data(self, payload: bytes, now: float) -> Step:
        """Process a payload: return the payloads to send, and plaintext for the consumer.

        The consumer calls `took` when it has taken the plaintext.
        """
        if self.reason:
            return Step()
        self._theirs -= len(payload)
        if self._theirs < 0:
            self._overrun = True
            self.channel.leave()
            return Step()
        step = self.channel.receive(payload, now)
        if sum(map(len, step.send)) > self._credit:  # the peer keeps asking and takes no answer
            self._overrun = True
            self.channel.leave()
            return Step()
        if step.data:
            self._untaken.append((len(step.data), len(payload)))
        else:
            self._owed += len(payload)
        return Step(self._out(step.send, now), step.data)

    def took(self, count: int = 0) -> int:
        """Note that the consumer took plaintext; return the credit to send now, or 0."""
        while count and self._untaken:
            plain, payload = self._untaken[0]
            if count < plain:
                part = payload * count // plain
                self._untaken[0] = (plain - count, payload - part)
                self._owed += part
                break
            self._untaken.popleft()
            self._owed += payload
            count -= plain
        if self._owed < CREDIT_STEP_BYTES and self._theirs >= self._window // 4:
            return 0
        given, self._owed = self._owed, 0
        self._theirs += given
        return given
