"""The session that a switching key means. Pure."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.model.jsontext import Json

KEYS = "123456789abcdefghijklmnopqrstuvwxyz"


def next_session(how: str | None, ids: list[str], current: str, previous: str) -> str | None:
    """The session to attach; None: the user must choose; "": there is no previous session."""
    if how in ("n", "p") and current in ids:
        return ids[(ids.index(current) + (1 if how == "n" else -1)) % len(ids)]
    if how == "l":
        return previous if previous in ids else ""
    return None


def chosen_session(key: bytes, sessions: list[Json]) -> str | None:
    """The session that this key chooses in a list whose lines begin with KEYS."""
    index = KEYS.find(chr(key[0])) if len(key) == 1 else -1
    return str(sessions[index]["id"]) if 0 <= index < len(sessions) else None
