"""Publishes events: counts, stores, and wakes the followers.

The store gives each event its number and order. The names are defined in core/session/events.py.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from holdfast.host.runtime.notify import tell
from holdfast.host.storage import store
from holdfast.host.storage.store import Store

# Events with a fact of few possible values, by which they are counted.
HOWS: Final = {"client.left": "how", "turn.taken": "how", "connection.lost": "kind"}


class Events:
    def __init__(self, database: Store) -> None:
        self.counters: Counter[str] = Counter()
        # By (event, value of that fact).
        self.hows: Counter[tuple[str, str]] = Counter()
        self._store = database
        self._followers: list[Callable[[], None]] = []

    def note(self, session: str, name: str, facts: Mapping[str, object]) -> None:
        self.count(name)
        if name in HOWS:
            self.hows[name, str(facts[HOWS[name]])] += 1
        self._store.post(store.event(time.time(), session, name, facts))
        self.wake()

    def count(self, name: str) -> None:
        """Counts an event that the caller stores in the same transaction as the change."""
        self.counters[name] += 1

    def wake(self) -> None:
        """Calls the followers: a new event is stored."""
        tell(self._followers)

    def follow(self, follower: Callable[[], None]) -> None:
        self._followers.append(follower)

    def unfollow(self, follower: Callable[[], None]) -> None:
        if follower in self._followers:
            self._followers.remove(follower)
