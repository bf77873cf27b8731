"""What was typed: waiting to be sent, or sent and not taken yet. Both kept, bounded, and in order.

What was sent is kept until the session has taken it, so that it can be sent again to a host that comes back. No more than IN_FLIGHT_BYTES
are sent ahead: the socket takes them at once, so typing never blocks, and the host never has to refuse a part of a paste for
want of room and take a later one. What does not fit waits here; when that is much, the user's terminal is not read on:
nothing is dropped, it waits where it comes from.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from holdfast.model.limits import INPUT_IN_FLIGHT_BYTES, UNACKED_INPUT_BYTES


class Unacked:
    def __init__(self) -> None:
        self._sent: deque[tuple[int, bytes]] = deque()
        self._sent_bytes = 0
        self.waiting: deque[bytes] = deque()  # not sent yet
        self._waiting_bytes = 0

    def __len__(self) -> int:
        return len(self._sent)

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        return iter(self._sent)

    @property
    def full(self) -> bool:
        """Nothing more is to be read from the keyboard."""
        return self._waiting_bytes >= UNACKED_INPUT_BYTES

    @property
    def idle(self) -> bool:
        """What is typed now may be sent at once."""
        return not self.waiting and self._sent_bytes < INPUT_IN_FLIGHT_BYTES

    def type(self, data: bytes) -> None:
        self.waiting.append(data)
        self._waiting_bytes += len(data)

    def next(self) -> bytes | None:
        """What is to be sent now."""
        if not self.waiting or self._sent_bytes >= INPUT_IN_FLIGHT_BYTES:
            return None
        data = self.waiting.popleft()
        self._waiting_bytes -= len(data)
        return data

    def sent(self, sequence: int, data: bytes) -> None:
        self._sent.append((sequence, data))
        self._sent_bytes += len(data)

    @property
    def pressing(self) -> bool:
        """Whether something waits for the session to take what was sent."""
        return bool(self.waiting) or self._sent_bytes > INPUT_IN_FLIGHT_BYTES // 2

    def acked(self, sequence: int) -> None:
        """It and all before it were taken."""
        while self._sent and self._sent[0][0] <= sequence:
            self._sent_bytes -= len(self._sent.popleft()[1])

    def drop(self, sequence: int) -> None:
        """It was refused."""
        self._sent = deque((n, d) for n, d in self._sent if n != sequence)
        self._sent_bytes = sum(len(d) for _, d in self._sent)

    def clear(self) -> None:
        self._sent.clear()
        self.waiting.clear()
        self._sent_bytes = self._waiting_bytes = 0
