"""An act that may wait for an approval, made of plain functions (host/acts/approvals.py)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast

from holdfast.core.policy.approvals import Pending
from holdfast.core.policy.conditions import Request
from holdfast.core.policy.policy import Decision
from holdfast.host.runtime.connection import Connection


@dataclass
class Asker:
    """`caller` has the operator, key and kind of a connection; `look` observes the act."""

    caller: Any
    look: Callable[[], Awaitable[Request]]
    wait_s: float | None = None
    told: Callable[[Pending], None] = lambda pending: None

    @property
    def conn(self) -> Connection:
        return cast(Connection, self.caller)

    async def observe(self) -> Request:
        return await self.look()

    def judged(self, decision: Decision) -> None:
        pass

    def held(self, pending: Pending) -> None:
        self.told(pending)


class Standing:
    """The rights of operators: all may act, and keys that are not lost may approve."""

    def __init__(self, lost: set[str]) -> None:
        self.lost = lost

    def approves(self, shown: str, session: str, now: float) -> bool:
        return shown not in self.lost

    def ended(self, name: str, session: str, now: float) -> str:
        return ""
