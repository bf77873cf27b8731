"""Which operators have a client connected to this host, for turns that last while they do.

A seized turn ends when its holder has been gone for a stated time (core/session/turn.py). The turn
of a session watches a single operator. The cost of a connection therefore does not depend on the
number of sessions.
"""

from __future__ import annotations

from collections import Counter
from typing import Protocol


class Watcher(Protocol):
    def presence(self, connected: bool) -> None: ...


class Presence:
    def __init__(self) -> None:
        self._clients: Counter[str] = Counter()
        self._watched: dict[str, dict[Watcher, None]] = {}
        self._of: dict[Watcher, str] = {}

    def came(self, operator: str) -> None:
        self._clients[operator] += 1
        if self._clients[operator] == 1:
            self._tell(operator)

    def left(self, operator: str) -> None:
        self._clients[operator] -= 1
        if self._clients[operator] <= 0:
            del self._clients[operator]
            self._tell(operator)

    def connected(self, operator: str) -> bool:
        return operator in self._clients

    def watch(self, watcher: Watcher, operator: str | None) -> None:
        """Tells the watcher when this operator comes or goes; None: no operator."""
        before = self._of.pop(watcher, None)
        if before is not None:
            self._watched[before].pop(watcher, None)
            if not self._watched[before]:
                del self._watched[before]
        if operator is not None:
            self._of[watcher] = operator
            self._watched.setdefault(operator, {})[watcher] = None

    def _tell(self, operator: str) -> None:
        for watcher in list(self._watched.get(operator, ())):
            watcher.presence(self.connected(operator))
