"""Acts requested by hosts, each applied once, and input that the terminal has not accepted yet.

Order. Acts are accepted in sequence order. Input also takes effect in that order; it waits until
the terminal has room. RESIZE and SIGNAL do not wait for queued input: window size and signals are
out of band on every terminal, and a program that stopped reading must still be interruptible. FLUSH
discards all earlier input, whether queued here or already in the kernel. WRITTEN moves past an act
only when every act up to it is complete:

    WRITTEN = the sequence before the first queued input, or ACCEPTED if the queue is empty

Exactly once. A sequence up to ACCEPTED was accepted before and is skipped. For each client (origin)
the keeper remembers the client's number of its last act. The same act under a new sequence, sent
again because a host died before it heard the answer, uses up the sequence and has no effect.
"""

from __future__ import annotations

import os

from holdfast.model.limits import INPUT_QUEUE_ACTS, INPUT_QUEUE_BYTES, ORIGINS_KEPT
from holdfast.model.probe import probe
from holdfast.wire.ring import ACCEPTED_WORD, WRITTEN_WORD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.keeper.ring import Ring


class Acts:
    __slots__ = ("accepted", "asked", "done", "origins", "queue", "queued", "ring", "written")

    def __init__(self, ring: Ring, accepted: int, origins: dict[int, tuple[int, int, int]]) -> None:
        self.ring = ring
        self.accepted = self.written = accepted
        self.asked = 0  # the highest sequence whose completion a host wants to be told
        # client -> (client, client's number, sequence), least recently active first
        self.origins = origins
        # Input that the terminal has not accepted: sequence, bytes, client.
        self.queue: list[tuple[int, bytes, int]] = []
        self.queued = 0  # bytes in the queue
        self.done = 0  # bytes of the first entry that the terminal has accepted

    def repeats(self, origin: int, number: int) -> bool:
        """Tell whether this act of this client was accepted under an earlier sequence."""
        known = self.origins.get(origin)
        return known is not None and number <= known[1]

    def full(self, size: int) -> bool:
        return self.queued + size > INPUT_QUEUE_BYTES or len(self.queue) >= INPUT_QUEUE_ACTS

    def take(self, sequence: int, origin: int, number: int) -> None:
        self.accepted = sequence
        if origin:
            origins = self.origins
            origins.pop(origin, None)
            if len(origins) >= ORIGINS_KEPT:
                del origins[next(iter(origins))]
            origins[origin] = (origin, number, sequence)
        self.ring.words[ACCEPTED_WORD] = sequence

    def add(self, data: bytes, origin: int) -> None:
        """Queue the input of the act that was just accepted."""
        self.queue.append((self.accepted, data, origin))
        self.queued += len(data)
        probe("keeper.input.accepted")

    def write(self, master: int) -> None:
        """Write queued input to the terminal until it is full.

        Raises OSError if no process has the other side of the terminal open.
        """
        queue = self.queue
        while queue:
            data = queue[0][1]
            if self.done < len(data):
                try:
                    count = os.write(master, data[self.done :] if self.done else data)
                except BlockingIOError:
                    return
                self.done += count
                self.queued -= count
                if self.done < len(data):
                    return
            probe("keeper.input.written")
            del queue[0]
            self.done = 0

    def settle(self) -> bool:
        """Advance WRITTEN to the last complete act. Return whether a host wants to be told."""
        written = self.queue[0][0] - 1 if self.queue else self.accepted
        if written == self.written:
            return False
        wanted = self.written < self.asked
        self.written = written
        self.ring.words[WRITTEN_WORD] = written
        return wanted

    def withdraw(self, first: int) -> list[tuple[int, int, int]]:
        """Take back queued input from sequence `first` on.

        Returns (sequence, bytes already written to the terminal, bytes) for each entry.
        """
        entries: list[tuple[int, int, int]] = []
        while self.queue and self.queue[-1][0] >= first:
            sequence, data, _ = self.queue.pop()
            done = 0 if self.queue else self.done
            self.queued -= len(data) - done
            entries.append((sequence, done, len(data)))
        if not self.queue:
            self.done = 0
        entries.reverse()
        return entries

    def discard(self, origin: int) -> list[tuple[int, int, int]]:
        """Drop queued input of one client, or of all clients if `origin` is 0.

        An entry that is partly written is dropped too: the flush removes its written part.
        """
        entries: list[tuple[int, int, int]] = []
        kept: list[tuple[int, bytes, int]] = []
        for sequence, data, whose in self.queue:
            done, self.done = self.done, 0
            if done or not origin or whose == origin:
                self.queued -= len(data) - done
                entries.append((sequence, done, len(data)))
            else:
                kept.append((sequence, data, whose))
        self.queue = kept
        return entries
