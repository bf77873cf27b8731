"""What the engine needs to begin an incarnation of a session: a new one, or a restored one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.host.storage.store import SessionRow
from holdfast.model.limits import SPAWN_WAIT_S
from holdfast.wire.keeper import Spawn

Complete = Callable[[Spawn], Awaitable[Spawn]]

if TYPE_CHECKING:
    from holdfast.host.session.keeper_link import KeeperLink


async def _nothing(link: KeeperLink) -> None:
    return


@dataclass(frozen=True, slots=True)
class Beginning:
    """`complete` adds what must come last to the request. `claimed`: awaited with the new keeper,
    before the host reads its screen, and before a client finds the session.
    """

    record: SessionRow
    label: dict[str, Any]
    request: Spawn
    complete: Complete
    operator: str
    patience_s: float = SPAWN_WAIT_S
    claimed: Callable[[KeeperLink], Awaitable[None]] = _nothing
