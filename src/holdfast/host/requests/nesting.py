"""Showing a session inside itself, directly or through others, would feed its own output back for ever: it is refused."""

from __future__ import annotations

from collections.abc import Collection

from holdfast.host import process
from holdfast.host.engine import Engine
from holdfast.host.session import Session
from holdfast.host.viewer import Viewer
from holdfast.model.errors import Nested

PARENTS_MAX = 64


def inside(engine: Engine, pid: int) -> str | None:
    """The session whose tree this client runs in, from the kernel: a process cannot hide it by cleaning its environment."""
    keepers = {s.keeper_pid: s.id for s in engine.sessions.values()}
    for _ in range(PARENTS_MAX):
        if pid in keepers:
            return keepers[pid]
        stat = process.read_stat(pid)
        if stat is None or stat.ppid <= 1:
            return None
        pid = stat.ppid
    return None


def refuse(target: Session, inside: str | None, viewers: Collection[Viewer]) -> None:
    seen: set[str] = set()
    while inside is not None and inside not in seen:
        if inside == target.id:
            raise Nested(f"this terminal is inside session {target.name} itself")
        seen.add(inside)
        inside = next(
            (v.inside for v in viewers if v.session.id == inside and v.inside is not None), None
        )
