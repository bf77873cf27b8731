"""Which session a switching key means."""

from __future__ import annotations

from typing import Any

KEYS = "123456789abcdefghijklmnopqrstuvwxyz"


def next_session(how: str | None, ids: list[str], current: str, previous: str) -> str | None:
    """The one to go to; None if the user is to choose, "" if there is none before this one."""
    if how in ("n", "p") and current in ids:
        return ids[(ids.index(current) + (1 if how == "n" else -1)) % len(ids)]
    if how == "l":
        return previous if previous in ids else ""
    return None


def chosen_session(key: bytes, sessions: list[dict[str, Any]]) -> str | None:
    """Of a list that is shown with KEYS before its lines."""
    index = KEYS.find(chr(key[0])) if len(key) == 1 else -1
    return str(sessions[index]["id"]) if 0 <= index < len(sessions) else None
