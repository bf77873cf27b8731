"""Interfaces that a session uses and higher rooms implement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from holdfast.model.errors import HoldfastError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.core.contract.message import Signed
    from holdfast.core.record.record import Written
    from holdfast.core.session.turn import Placed, Request
    from holdfast.host.session.viewer import Viewer


class Keyboard(Protocol):
    """Admits the raw keys of a session's viewers (host/acts/keyboard.py)."""

    taken: int
    not_taken: int

    def begin(self, viewer: Viewer) -> None: ...
    def end(self, viewer: Viewer, how: str) -> None: ...
    def recheck(self) -> None: ...
    def keys(self, viewer: Viewer, number: int, data: bytes, ack: bool) -> None: ...
    def refused(self, viewer: Viewer, number: int, error: HoldfastError) -> None: ...
    async def cover(self, viewer: Viewer, signed: Signed) -> Written: ...


class TurnPlugin(Protocol):
    """A turn policy outside of this process (host/policy/turn_plugin.py)."""

    name: str

    async def place(
        self, facts: Mapping[str, object], queue: Sequence[Request], request: Request
    ) -> Placed | None: ...
