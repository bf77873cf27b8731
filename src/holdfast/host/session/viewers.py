"""The attached clients of a session, and the terminal's size, which follows the typing client."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from holdfast.host.session.lane import ORIGIN_HOST
from holdfast.host.session.viewer import Viewer, sane_size
from holdfast.model.limits import BELLS_MAX
from holdfast.wire import keeper as wire

if TYPE_CHECKING:
    from holdfast.host.session.session import Session


class Viewers(list[Viewer]):
    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session
        self._tag = 0
        self._asked_size: tuple[int, int] | None = None  # of a resize that is under way
        self.left_at = 0.0  # when the last one left, by the monotonic clock

    def tell(self, name: str, /, **body: object) -> None:
        for viewer in self:
            viewer.conn.event(name, session=self._session.id, **body)

    # ------------------------------------------------------------ attach and leave

    def attach(self, viewer: Viewer) -> None:
        session, conn = self._session, viewer.conn
        alone = all(v.observe for v in self)
        self.append(viewer)
        self._counted()
        session.keyboard.begin(viewer)
        if session.state == "detached":
            session.change(
                "attached", operator=conn.operator, modality=conn.modality, **session.position
            )
        if (
            not viewer.observe
            and viewer.sane
            and viewer.resizes
            and alone
            and session.turn.holder in (None, conn.operator)
        ):
            self.resize(*viewer.size)
        for other in self:
            if other is not viewer:
                who = {"operator": conn.operator, "modality": conn.modality}
                other.conn.event("joined", session=session.id, **who)

    def leave(self, viewer: Viewer, how: str) -> None:
        session, operator = self._session, viewer.conn.operator
        if viewer not in self:
            return
        if viewer.tag:
            session.link.send(wire.silence(viewer.tag))
        viewer.close()
        self.remove(viewer)
        self.left_at = time.monotonic()
        self._counted()
        session.keyboard.end(viewer, how)
        if not any(v.conn.operator == operator for v in self):
            session.turn.leave(operator)
        if not self and session.state == "live":
            modality = viewer.conn.modality
            session.change(
                "left", operator=operator, modality=modality, how=how, **session.position
            )
        self.tell("left", operator=operator)
        session.pace.report()

    def _counted(self) -> None:
        """Records how many clients the next host has to wait for if this one dies."""
        self._session.record.viewers = self._session.pace.company()
        self._session.on_company()

    def let_read(self, viewer: Viewer) -> int:
        """Lets a viewer on this machine read the ring; returns the viewer's bell, or -1."""
        bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._tag = (self._tag + 1) & 0x7FFFFFFF or 1
        if len(self) >= BELLS_MAX or not self._session.link.send_descriptor(
            wire.listen(self._tag), bell
        ):
            os.close(bell)
            return -1
        viewer.tag = self._tag
        return bell

    # ------------------------------------------------------------ size

    def follow_size(self, viewer: Viewer) -> None:
        """The session takes the terminal size of the viewer that types."""
        if (
            viewer.sane
            and viewer.resizes
            and viewer.size != self._session.size
            and viewer.size != self._asked_size
        ):
            self.resize(*viewer.size)

    def resize(self, cols: int, rows: int) -> None:
        """Sends the new size as an act like any other; degenerate sizes are ignored."""
        session = self._session
        if not sane_size(cols, rows) or (cols, rows) == session.size:
            return
        self._asked_size = (cols, rows)
        session.keyboard.recheck()
        done = session.lane.submit(
            wire.RESIZE, wire.resize_body(cols, rows), ORIGIN_HOST, 0, want_done=True
        )
        assert done is not None
        done.add_done_callback(
            lambda f: self._resized() if not f.cancelled() and f.exception() is None else None
        )

    def _resized(self) -> None:
        self._asked_size = None
        if self.take_size():
            cols, rows = self._session.size
            self.tell("resized", cols=cols, rows=rows)
        self._session.view.poke(urgent=True)

    def take_size(self) -> bool:
        """Adopts the size that the keeper has set. Returns whether the size changed."""
        session = self._session
        _, cols, rows = session.ring.resized
        if (cols, rows) == session.size:
            return False
        session.record.cols, session.record.rows = cols, rows
        session.keyboard.recheck()
        for viewer in self:
            viewer.session_resized()
        return True
