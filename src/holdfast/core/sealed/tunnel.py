"""One stream through a relay, as either end sees it: a sealed channel, and how much may be on its way. Pure: bytes and times in, bytes and credit out.

Credit is end to end: each side may have STREAM_WINDOW_BYTES of payloads on the way that the other side's own consumer has not taken. So nobody in between
holds more than that, and who does not read stops who writes, not the relay. Payloads count, not plaintext: the relay can check it.

A window is also a backlog. On a slow link 256 KiB are seconds of output that nobody wants to see any more, so a sender uses less of it: it measures how long credit
takes to come back, and when that is QUEUE_S longer than the best it has seen, something on the way is queueing and it takes less; otherwise it takes more
(the idea is LEDBAT's, RFC 6817). What does not fit waits in the ring, where the newest screen wins. Keys go the other way and wait for none of it.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from holdfast.core.channel import Channel, Step
from holdfast.model.limits import BODY_BYTES, STREAM_WINDOW_BYTES, KiB

RESERVE_BYTES: Final = (
    64  # of credit, for what the channel itself has to say (REKEY, END, ASK, YES)
)
SEAL_BYTES: Final = 20  # that a payload is longer than what it carries
CREDIT_STEP_BYTES: Final = (
    16 * KiB
)  # taken before credit is given: small enough for a small limit, large enough to cost nothing
LIMIT_FIRST_BYTES: Final = 64 * KiB  # on the way at once, until more is known of the link
LIMIT_LEAST_BYTES: Final = 32 * KiB
LIMIT_STEP_BYTES: Final = 16 * KiB
QUEUE_S: Final = 0.15  # credit that comes back this much later than the quickest: something queues
BEST_S: Final = 30.0  # how long the quickest is remembered: a link may change

FLOW: Final = "flow"  # closed: the other side sent more than it had credit for


class Tunnel:
    def __init__(self, channel: Channel, window: int = STREAM_WINDOW_BYTES) -> None:
        self.channel = channel
        self._window = window
        self._credit = window  # what we may still send
        self._limit = min(LIMIT_FIRST_BYTES, window)
        self._sent = self._returned = 0  # payload bytes, in all
        self._marks: deque[tuple[int, float]] = (
            deque()
        )  # (sent up to here, when), of what has not come back
        self._best: float | None = None
        self._best_at = self._less_at = 0.0
        self._theirs = window  # what they may still send
        self._untaken: deque[tuple[int, int]] = (
            deque()
        )  # (plaintext, payload) that the consumer has not taken
        self._owed = 0  # payload bytes taken, for which no credit was given yet
        self._overrun = False

    @property
    def reason(self) -> str:
        """Why it is closed, or empty."""
        return FLOW if self._overrun else self.channel.reason

    @property
    def on_the_way(self) -> int:
        """Payload bytes that the far consumer has not taken, as far as is known here."""
        return self._sent - self._returned

    # ------------------------------------------------------------ out

    def start(self, now: float) -> tuple[bytes, ...]:
        return self._out(self.channel.start().send, now)

    def room(self) -> int:
        """How much plaintext may be put in now."""
        if self.reason or not self.channel.may_send:
            return 0
        return max(0, min(self._credit, self._limit - self.on_the_way) - RESERVE_BYTES - SEAL_BYTES)

    def worth(self) -> bool:
        """Whether there is room for a piece of some size, so that bulk does not go by crumbs: each that was taken would make room for another.
        A quarter is always there again, whatever credit the other side keeps back (less than CREDIT_STEP_BYTES)."""
        return self.room() >= min(BODY_BYTES, self._limit // 4)

    def put(self, data: bytes, now: float) -> tuple[bytes, ...]:
        """The payloads that carry this. At most `room`."""
        if len(data) > self.room():
            raise ValueError("more than there is room for")
        return self._out(self.channel.send(data, now), now)

    def end(self, now: float) -> tuple[bytes, ...]:
        """Says that nothing follows, if there is anybody to say it to."""
        if self.reason or not self.channel.may_send:
            return ()
        return self._out(self.channel.end(now), now)

    def ask(self, now: float) -> tuple[bytes, ...]:
        """Asks whether anybody is at the other end, if there is room for the question."""
        return (
            self._out(self.channel.ask(now), now)
            if self._credit > RESERVE_BYTES and not self.reason
            else ()
        )

    def credit(self, amount: int, now: float) -> None:
        """The other side has taken so much. More than was sent cannot have been."""
        if amount > self.on_the_way:
            self._overrun = True
            return
        self._credit += amount
        waited, full = 0.0, self.on_the_way > 2 * CREDIT_STEP_BYTES
        self._returned += amount
        while self._marks and self._marks[0][0] <= self._returned:
            waited = now - self._marks.popleft()[1]
        if (
            full and waited > 0.0
        ):  # otherwise credit waits for more to be taken, and its time says nothing
            self._learn(waited, now)

    def _learn(self, waited: float, now: float) -> None:
        if self._best is None or waited <= self._best or now - self._best_at > BEST_S:
            self._best, self._best_at = waited, now
        if waited - self._best > QUEUE_S:
            if now - self._less_at > waited:  # once for each time around
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
        """What follows from a payload: what to send, and plaintext for the consumer, who says `took` when it has it."""
        if self.reason:
            return Step()
        self._theirs -= len(payload)
        if self._theirs < 0:
            self._overrun = True
            self.channel.leave()
            return Step()
        step = self.channel.receive(payload, now)
        if sum(map(len, step.send)) > self._credit:  # it asks and asks, and takes no answer
            self._overrun = True
            self.channel.leave()
            return Step()
        if step.data:
            self._untaken.append((len(step.data), len(payload)))
        else:
            self._owed += len(payload)
        return Step(self._out(step.send, now), step.data)

    def took(self, count: int = 0) -> int:
        """The consumer has taken so much plaintext; gives the credit to send now, or 0."""
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
