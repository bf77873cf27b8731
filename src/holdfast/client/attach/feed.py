"""Output from the session's ring to the user's terminal, without passing through the host.

The descriptors of ring and bell come with the answer to `attach`. The client opens the ring once a
screen is on the terminal: the code for the ring takes longer to load than the screen to show. A
client that is too far behind gets the newest screen instead.
"""

from __future__ import annotations

import os
import select

from holdfast.model.limits import SEEN_EVERY_BYTES
from holdfast.wire import frames

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.client.attach.ring_reader import Direct
    from holdfast.client.attach.state import AttachState
    from holdfast.client.attach.terminal import UserTerminal
    from holdfast.client.link import Link


class Feed:
    def __init__(
        self, poll: select.poll, term: UserTerminal, state: AttachState, link: Link
    ) -> None:
        self._poll, self._term, self._state, self._link = poll, term, state, link
        self.direct: Direct | None = None  # the open ring, if the host lends the ring
        self.descriptors: list[int] = []  # ring and bell, until `direct` is open
        self.clipboard = False  # session and user let programs write to the clipboard
        self.rung = False  # there may be output in the ring
        self._told = 0  # how far the host knows that this client has read

    @property
    def reading(self) -> bool:
        return self.direct is not None and self.direct.offset >= 0

    def open(self, offset: int, resumed: bool = False) -> None:
        if len(self.descriptors) == 2:
            from holdfast.client.attach.ring_reader import Direct

            ring, bell = self.descriptors
            self.descriptors = []
            try:
                self.direct = Direct(ring, bell, self.clipboard)
            except Exception:  # unreadable: the host sends the output instead
                self.direct = None
                return
            self._poll.register(bell, select.POLLIN)
        if self.direct is not None:
            self.direct.begin(offset, resumed)
            self._told = offset
            self.rung = True

    def close(self) -> None:
        for fd in self.descriptors:
            os.close(fd)
        self.descriptors = []
        if self.direct is not None:
            try:
                self._poll.unregister(self.direct.bell)
            except KeyError:
                pass
            self.direct.close()
            self.direct = None

    def show(self) -> bool:
        """Show as much output as the terminal takes.

        False: some output rolled off the ring, so a fresh screen is needed.
        """
        direct, term = self.direct, self._term
        if direct is None:
            self.rung = False
            return True
        while term.pending is None:
            data = direct.take()
            if data is None:
                direct.stop()
                self.rung = False
                return False
            if not len(data):
                self.rung = False
                return True
            if not self._state.covered:
                term.write(data)
            if direct.delivered - self._told >= SEEN_EVERY_BYTES and self._link.sock is not None:
                self._told = direct.delivered
                self._link.send(frames.seen(direct.delivered))
        return True
