"""Typed input that waits to be sent, or was sent and not taken yet: bounded and in order. Pure.

Sent input is kept until the session has taken the input, so that the client can send the input
again to a host that comes back. At most INPUT_IN_FLIGHT_BYTES are sent ahead. The socket takes that
much at once, so typing never blocks. Also, the host never refuses a part of a paste for lack of
room and then accepts a later part. The rest waits here. If too much waits, the loop stops reading
the user's terminal: keys are not dropped but wait in the terminal.
"""

from __future__ import annotations

from holdfast.model.deque import deque
from holdfast.model.limits import INPUT_IN_FLIGHT_BYTES, UNACKED_INPUT_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


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
        """Whether the keyboard must not be read for now."""
        return self._waiting_bytes >= UNACKED_INPUT_BYTES

    @property
    def idle(self) -> bool:
        """Whether new input may be sent at once."""
        return not self.waiting and self._sent_bytes < INPUT_IN_FLIGHT_BYTES

    def type(self, data: bytes) -> None:
        self.waiting.append(data)
        self._waiting_bytes += len(data)

    def next(self) -> bytes | None:
        """The next input that may be sent now."""
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
        """Whether an acknowledgement is needed soon, to send more."""
        return bool(self.waiting) or self._sent_bytes > INPUT_IN_FLIGHT_BYTES // 2

    def acked(self, sequence: int) -> None:
        """The session has taken this input and all earlier input."""
        while self._sent and self._sent[0][0] <= sequence:
            self._sent_bytes -= len(self._sent.popleft()[1])

    def drop(self, sequence: int) -> None:
        """The host refused this input."""
        self._sent = deque((n, d) for n, d in self._sent if n != sequence)
        self._sent_bytes = sum(len(d) for _, d in self._sent)

    def clear(self) -> None:
        self._sent.clear()
        self.waiting.clear()
        self._sent_bytes = self._waiting_bytes = 0
