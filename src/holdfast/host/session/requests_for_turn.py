"""Requests for a held turn: the built-in policy decides at once, a plug-in outside of this process.

The plug-in is asked about one request of a session at a time. Its answer is the new queue, so the
turn never waits for a plug-in when it becomes free. Without a valid answer the built-in order
`first come` counts, and an event has the reason.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from holdfast.core.policy.shown import shown
from holdfast.core.session.turn import (
    Effect,
    FirstCome,
    NoAnswer,
    NoQueue,
    Policy,
    Request,
    Turn,
)
from holdfast.model.limits import TURN_REQUESTS_MAX

if TYPE_CHECKING:
    from holdfast.host.session.interfaces import TurnPlugin
    from holdfast.host.session.session import Session


class TurnRequests:
    def __init__(self, session: Session, rules: Turn) -> None:
        self._session, self._rules = session, rules
        self.plugin: TurnPlugin | None = None
        self._one_at_a_time = asyncio.Lock()
        self._undecided = 0
        self._failed = ""  # the reason in the last event

    async def place(self, operator: str, kind: str) -> list[Effect]:
        """Requests the turn. The turn may move while a plug-in decides."""
        rules, plugin = self._rules, self.plugin
        if plugin is None or not rules.contended(operator, time.monotonic()):
            return rules.request(operator, time.monotonic(), kind)
        if self._undecided >= TURN_REQUESTS_MAX:
            return rules.request(operator, time.monotonic(), kind, NoQueue())
        self._undecided += 1
        try:
            async with self._one_at_a_time:
                policy = await self._decided(plugin, operator, kind)
                self._session.stopped.refuse(operator)
                return rules.request(operator, time.monotonic(), kind, policy)
        finally:
            self._undecided -= 1

    async def _decided(self, plugin: TurnPlugin, operator: str, kind: str) -> Policy:
        """The answer of the plug-in; the built-in order if there is none."""
        session, now = self._session, time.monotonic()
        queue = [one._replace(at=time.time() - now + one.at) for one in self._rules.state.queue]
        facts = {"session": session.id, "name": session.name, "holder": self._rules.holder(now)}
        try:
            found = await plugin.place(facts, queue, Request(operator, time.time(), kind))
        except NoAnswer as e:
            if self._failed != str(e):
                self._failed = str(e)
                session.event(
                    "turn.policy_failed", operator=operator, plugin=plugin.name, why=shown(str(e))
                )
            return FirstCome()
        self._failed = ""
        return FirstCome() if found is None else found
