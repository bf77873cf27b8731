"""Acts: what hosts asked for, each taken once, and input that the terminal has not taken yet.

Order. Acts are taken in sequence order. Input takes effect in that order, too: it waits until the terminal has room.
RESIZE and SIGNAL do not wait for it: on every terminal, window size and signals are out of band, and a program that
stopped reading must still be interruptible. FLUSH discards all input before it, waiting or handed to the kernel, which
is what sequence order would have come to. WRITTEN passes an act only when everything up to it is complete:

    WRITTEN = the sequence before the first waiting input, or ACCEPTED if none waits

Once. A sequence up to ACCEPTED was taken before and is skipped. Per client (origin) the last act is remembered with
the client's own number: the same act under a new sequence (a host died between sending and hearing back) uses up its
sequence and does nothing.
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
        self.asked = 0  # the highest sequence whose effect a host wants to hear of
        self.origins = origins  # client -> (client, its number, sequence), longest silent first
        self.queue: list[
            tuple[int, bytes, int]
        ] = []  # input the terminal has not taken: sequence, bytes, client
        self.queued = 0  # bytes of it
        self.done = 0  # bytes of the first one that the terminal did take

    def repeats(self, origin: int, number: int) -> bool:
        """Whether this act of this client was taken under an earlier sequence."""
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
        """Input of the act just taken."""
        self.queue.append((self.accepted, data, origin))
        self.queued += len(data)
        probe("keeper.input.accepted")

    def write(self, master: int) -> None:
        """Hands waiting input to the terminal as far as it takes it. OSError: nobody has its other side open."""
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
        """Raises WRITTEN to what is complete now; whether a host wants to hear of it."""
        written = self.queue[0][0] - 1 if self.queue else self.accepted
        if written == self.written:
            return False
        wanted = self.written < self.asked
        self.written = written
        self.ring.words[WRITTEN_WORD] = written
        return wanted

    def withdraw(self, first: int) -> list[tuple[int, int, int]]:
        """Takes back waiting input from `first` on: (sequence, bytes the terminal already had, bytes) each."""
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
        """Drops what waits, of one client or (0) of all, and what is partly in the terminal, whose part goes too."""
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
