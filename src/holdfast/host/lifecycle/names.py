"""Finds a session by name, id or prefix of an id, and makes up names."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from holdfast.core.record.record import MACHINE
from holdfast.model.errors import Ambiguous, NotFound, Refused, Unavailable
from holdfast.model.ids import ID_PREFIX_CHARS, check_name, session_id

if TYPE_CHECKING:
    from holdfast.host.storage.store import SessionRow

BASE_CHARS = 40
SHOWN_MAX = 8  # candidates that an error lists


def match(text: str, names: Mapping[str, str], prefix_chars: int = ID_PREFIX_CHARS) -> str | None:
    """The id of the session with that id or name, or with the only id that begins so.

    `names`: the names of all sessions, by id. A text that is the name of one session and the
    beginning of another's id means neither: an operator could choose such a name on purpose.
    """
    if text in names:
        return text
    found = [i for i, n in names.items() if n == text]
    found += [i for i in beginning(text, names, prefix_chars) if i not in found]
    return _only(text, found, names)


def match_prefix(text: str, names: Mapping[str, str]) -> str | None:
    """The id of the only session with a name or an id that begins so."""
    by_id = beginning(text, names)
    by_name = [i for i, n in names.items() if n.startswith(text) and i not in by_id]
    return _only(text, by_id + by_name, names) if text else None


def _only(text: str, found: Sequence[str], names: Mapping[str, str]) -> str | None:
    if len(found) > 1:
        shown = ", ".join(f"{i} ({names[i]})" for i in found[:SHOWN_MAX])
        more = f" and {len(found) - SHOWN_MAX} more" if len(found) > SHOWN_MAX else ""
        raise Ambiguous(
            f"{text[:80]!a} means {len(found)} sessions: {shown}{more}",
            candidates=[{"id": i, "name": names[i]} for i in found[:SHOWN_MAX]],
        )
    return found[0] if found else None


def living(
    text: str,
    known: Mapping[str, str],
    unreachable: Mapping[str, str],
    ended: Container[str],
    refuse: Callable[[str], None],
) -> str:
    """The id of a running session by id, name or unique prefix of the id.

    `known`: names by id. The whole id or name of an ended session means that session, not a prefix
    of a running one. `refuse` raises the error for a session that can be restored.
    """
    found = match(text, known)
    if found is not None and text not in (found, known[found]) and text in ended:
        found = None
    if found is not None and found in unreachable:
        raise Unavailable(
            f"session {text} cannot be used now: {unreachable[found]}",
            "the host tries again until it can",
        )
    if found is not None:
        return found
    refuse(text)
    if text in ended:
        raise NotFound(
            f"session {text} has ended",
            "`holdfast ls --all` shows how; `holdfast view` shows its last screen",
        )
    raise NotFound(f"no session {text[:80]!a}", what="session", word=text[:80])


def beginning(text: str, ids: Iterable[str], prefix_chars: int = ID_PREFIX_CHARS) -> list[str]:
    """The ids that begin with a text of sufficient length."""
    return [i for i in ids if i.startswith(text)] if len(text) >= prefix_chars else []


def newest_ended(text: str, ended: Mapping[str, SessionRow]) -> SessionRow | None:
    """The newest ended session of that name or id, or the only one with an id that begins so."""
    newest = sorted(ended.values(), key=lambda r: -(r.ended or 0))
    found = next((r for r in newest if text in (r.id, r.name)), None)
    if found is None and (prefix := match(text, {r.id: r.id for r in newest})):
        return ended[prefix]
    return found


def new_id(taken: Collection[str]) -> str:
    """A new id that begins with none of these names."""
    while True:
        made = session_id(secrets.token_bytes(8))
        if not any(beginning(name, (made,)) for name in taken):
            return made


def check_new(name: str, ids: Iterable[str]) -> None:
    """Refuses a name that is invalid, or would stand for another session or the machine too."""
    if check_name(name) == MACHINE:
        raise Refused(f"the name {name} is the machine's own", "choose another name")
    if alike := beginning(name, ids):
        raise Refused(
            f"the name {name} is the beginning of the session id {alike[0]}",
            "choose another name: this one would stand for two sessions",
        )


def free(argv: list[str], taken: Collection[str]) -> str:
    """A free name, made from the name of the program."""
    base = os.path.basename(argv[0]) if argv else "shell"
    plain = [c if (c.isalnum() and c.isascii()) or c in "._-" else "-" for c in base]
    base = "".join(plain).lstrip("-")[:BASE_CHARS] or "session"
    return next(n for i in range(1, len(taken) + 2) if (n := f"{base}-{i}") not in taken)
