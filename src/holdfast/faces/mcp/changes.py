"""What other operators changed, in the words of a tool's result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from holdfast.sdk.observed import Entry

UNDONE: Final = ("refuse", "hold")  # verdicts of acts that changed nothing
ASKED: Final = '{"act":"request"'  # a request for the turn changes nothing


def foreign_act(entry: Entry, me: str) -> str:
    """Describes an act of another operator in a line; other entries give an empty line."""
    told = entry.phase in ("intent", "fact") and entry.actor not in (me, "host")
    if not told or entry.kind in ("spawn", "entered", "cover") or entry.verdict in UNDONE:
        return ""
    if entry.kind == "keys":
        return f"{entry.actor}: typed at the terminal"
    content = (entry.content or "").strip()
    if entry.kind == "turn" and content.startswith(ASKED):
        return ""
    return f"{entry.actor}: {entry.kind} {content[:200]}".rstrip()
