"""The parts of this room for the engine: costs, reaper, evictions and the drain."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol

from holdfast.core.reaper.reaper import Policy
from holdfast.home.settings import Settings
from holdfast.host.residency import costs, draining, eviction, reaping
from holdfast.host.residency.costs import Costs
from holdfast.host.residency.draining import Draining
from holdfast.host.residency.eviction import Evictions
from holdfast.host.residency.reaping import Reaping
from holdfast.host.session.session import Session
from holdfast.host.storage.store import SessionRow
from holdfast.model import durations, sizes
from holdfast.model.errors import Saved


class Engine(costs.Engine, draining.Engine, eviction.Engine, reaping.Engine, Protocol):
    """The parts of the engine that this room needs."""

    @property
    def settings(self) -> Settings: ...


class Residency:
    def __init__(self, engine: Engine) -> None:
        self.costs, self.evictions = Costs(engine), Evictions(engine)
        self.draining = Draining(engine, self.evictions)
        self.reaping = Reaping(
            engine,
            policy_of(engine.settings),
            self.costs,
            self.evictions,
            lambda: bool(self.draining.state),
        )

    def begin(self, in_use: Callable[[Session], bool]) -> None:
        self.reaping.begin(in_use)

    def close(self) -> None:
        self.reaping.close()
        self.costs.close()

    async def wake(
        self, row: SessionRow, operator: str, tell: Callable[[dict[str, Any]], None]
    ) -> Session | None:
        """Bring back a session that the host evicted; None for any other ended session."""
        if not await self.evictions.evicted(row):
            return None
        if self.draining.state:
            raise Saved(
                f"{self.draining.by} drains this machine, and session {row.name} is on the disk",
                "it comes back with the next attach after the drain; `holdfast drain --cancel`",
            )
        return await self.evictions.restore(row, operator, tell)


def policy_of(settings: Settings) -> Policy:
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    chosen = settings.reaper
    return Policy(
        _seconds(chosen.get("idle", "never")),
        0 if chosen.get("memory", "none") == "none" else sizes.read(chosen["memory"], whole),
        int(chosen.get("count", "0")),
        _seconds(chosen.get("warn", "never")),
        chosen.get("action", "evict"),
    )


def _seconds(text: str) -> float:
    return 0.0 if text == "never" else float(durations.read(text))
