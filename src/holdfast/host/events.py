"""What happens, told once: counted, written down, and whoever follows is woken. The numbers and the order are the store's."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from holdfast.host import store
from holdfast.host.store import Store


class Events:
    def __init__(self, database: Store) -> None:
        self.counters: Counter[str] = Counter()
        self._store = database
        self._followers: list[Callable[[], None]] = []

    def note(self, session: str, name: str, facts: dict[str, Any]) -> None:
        self.counters[name] += 1
        self._store.post(store.event(time.time(), session, name, facts))
        self.wake()

    def wake(self) -> None:
        """Something was written that others follow."""
        for follower in tuple(self._followers):
            follower()

    def follow(self, follower: Callable[[], None]) -> None:
        self._followers.append(follower)

    def unfollow(self, follower: Callable[[], None]) -> None:
        if follower in self._followers:
            self._followers.remove(follower)
