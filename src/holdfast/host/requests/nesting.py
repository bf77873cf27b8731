"""Refuses to show a session inside itself: its output would feed back into itself for ever."""

from __future__ import annotations

from collections.abc import Collection

from holdfast.host.processes import process
from holdfast.host.session.session import Session
from holdfast.host.session.viewer import Viewer
from holdfast.model.errors import Nested


def around(pid: int) -> tuple[int, ...] | None:
    """The process of a client and all processes above it.

    None: the process is gone, or there are too many above it to say where it runs. Empty: the
    process is outside of this pid namespace.
    """
    found = tuple(process.ancestors(pid))
    return found if pid <= 1 or 0 < len(found) < process.ANCESTORS_MAX else None


def refuse(target: Session, inside: str | None, viewers: Collection[Viewer]) -> None:
    seen: set[str] = set()
    while inside is not None and inside not in seen:
        if inside == target.id:
            raise Nested(f"this terminal is inside session {target.name} itself")
        seen.add(inside)
        inside = next(
            (v.inside for v in viewers if v.session.id == inside and v.inside is not None), None
        )
