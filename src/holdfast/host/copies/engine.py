"""The engine as this room sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from holdfast.host.copies.sending import Maker

if TYPE_CHECKING:
    from holdfast.host.checkpoints.incarnations import Incarnations
    from holdfast.host.leases.fences import Leases
    from holdfast.host.lifecycle.adoption import Adoptions
    from holdfast.host.processes.halt import Halter
    from holdfast.host.relays.uplinks import Uplinks
    from holdfast.host.runtime.tasks import Tasks
    from holdfast.host.storage.events import Events
    from holdfast.host.storage.store import SessionRow, Store


class Engine(Maker, Protocol):
    """The parts of the engine that this room needs."""

    @property
    def adoptions(self) -> Adoptions: ...

    @property
    def incarnations(self) -> Incarnations: ...

    @property
    def halter(self) -> Halter: ...

    @property
    def events(self) -> Events: ...

    @property
    def leases(self) -> Leases: ...

    @property
    def store(self) -> Store: ...

    @property
    def tasks(self) -> Tasks: ...

    @property
    def uplinks(self) -> Uplinks: ...

    @property
    def ended(self) -> dict[str, SessionRow]: ...

    @property
    def unreachable(self) -> dict[str, str]: ...
