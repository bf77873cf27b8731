"""What happens, told once: counted, written down, and whoever follows is woken. The numbers and the order are the store's, the names are core/events.py's."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from holdfast.host import store
from holdfast.host.store import Store
from holdfast.host.telling import tell

HOWS: Final = ("client.left", "turn.taken")


class Events:
    def __init__(self, database: Store) -> None:
        self.counters: Counter[str] = Counter()
        self.hows: Counter[tuple[str, str]] = (
            Counter()
        )  # of events that have one of a few words as `how`
        self._store = database
        self._followers: list[Callable[[], None]] = []

    def note(self, session: str, name: str, facts: dict[str, Any]) -> None:
        self.count(name)
        if name in HOWS:
            self.hows[name, facts["how"]] += 1
        self._store.post(store.event(time.time(), session, name, facts))
        self.wake()

    def count(self, name: str) -> None:
        """Of what is written down elsewhere, together with what it is about."""
        self.counters[name] += 1

    def wake(self) -> None:
        """Something was written that others follow."""
        tell(self._followers)

    def follow(self, follower: Callable[[], None]) -> None:
        self._followers.append(follower)

    def unfollow(self, follower: Callable[[], None]) -> None:
        if follower in self._followers:
            self._followers.remove(follower)
