"""Output from the session's ring to the user's terminal, without the host between them.

The ring's descriptor comes with the answer to `attach`. It is opened when a screen is on the terminal already: its code takes longer to load than
the screen to show. Who is too far behind gets the newest screen instead.
"""

from __future__ import annotations

import contextlib
import os
import select
from typing import TYPE_CHECKING

from holdfast.model.limits import SEEN_EVERY_BYTES
from holdfast.wire import frames

if TYPE_CHECKING:
    from holdfast.client.direct import Direct
    from holdfast.client.link import Link
    from holdfast.client.overlay import Overlay
    from holdfast.client.terminal import UserTerminal


class Feed:
    def __init__(self, poll: select.poll, term: UserTerminal, overlay: Overlay, link: Link) -> None:
        self._poll, self._term, self._overlay, self._link = poll, term, overlay, link
        self.direct: Direct | None = None  # the session's ring, if we may read it ourselves
        self.descriptors: list[int] = []  # it, before it is opened
        self.rung = False  # there may be output in the ring
        self._told = 0  # how far the host knows us to be

    def open(self, offset: int, resumed: bool = False) -> None:
        if len(self.descriptors) == 2:
            from holdfast.client.direct import Direct

            ring, bell = self.descriptors
            self.descriptors = []
            try:
                self.direct = Direct(ring, bell)
            except Exception:  # not ours to read after all: the host sends the bytes
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
            with contextlib.suppress(KeyError):
                self._poll.unregister(self.direct.bell)
            self.direct.close()
            self.direct = None

    def show(self) -> bool:
        """All that there is, as far as the terminal takes it. False: too much was missed, a fresh screen is needed."""
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
            if not self._overlay.covering:
                term.write(data)
            if direct.delivered - self._told >= SEEN_EVERY_BYTES and self._link.sock is not None:
                self._told = direct.delivered
                self._link.send(frames.seen(direct.delivered))
        return True
