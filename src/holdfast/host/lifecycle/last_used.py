"""Remembers when each operator last attached to each session, for `attach` without a name."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from holdfast.host.storage import store
from holdfast.host.storage.store import Store

if TYPE_CHECKING:
    from holdfast.host.session.session import Session

KEPT: Final = 4096  # entries that a new host reads; the oldest beyond that are dropped
_KEY: Final = "used/"  # in the table `meta`: used/SESSION/OPERATOR -> milliseconds


class LastUsed:
    def __init__(self, database: Store) -> None:
        self._store = database
        self._at: dict[tuple[str, str], int] = {}  # (session, operator) -> milliseconds
        newest = "SELECT key, value FROM meta WHERE key LIKE 'used/%' ORDER BY value DESC"
        for row, (key, value) in enumerate(database.rows(newest)):
            _, session, operator = str(key).split("/", 2)
            if row < KEPT:
                self._at[session, operator] = int(value)
            else:
                self._store.post(store.forget_fact(str(key)))

    def note(self, session: str, operator: str, now: float) -> None:
        self._at[session, operator] = at = int(now * 1000)
        self._store.post(store.keep_fact(f"{_KEY}{session}/{operator}", at))

    def newest(self, operator: str, sessions: Collection[str]) -> str | None:
        """The session among these that the operator attached to last."""
        used = [(at, one) for (one, who), at in self._at.items() if who == operator]
        return max((one for one in used if one[1] in sessions), default=(0, None))[1]

    def begin(self, session: Session) -> None:
        """Nothing is known of a new session; an adopted session keeps its entries."""

    def end(self, session: Session) -> None:
        for key in [key for key in self._at if key[0] == session.id]:
            del self._at[key]
            self._store.post(store.forget_fact(f"{_KEY}{key[0]}/{key[1]}"))
