"""What runs in a session that is taken over, and by whom it was started (A6): from what is known already, so that whoever seizes the turn does not wait for a walk through /proc, nor for a program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from holdfast.host.process import read_stat
from holdfast.host.words import words

if TYPE_CHECKING:
    from holdfast.host.session import Session

JOBS_SHOWN: Final = 16  # the newest
COMMAND_CHARS: Final = 120


async def jobs(session: Session) -> list[dict[str, Any]]:
    """Those that still run, newest first. Where the kernel does not tell of processes they are those of the last look."""
    lineage, found = session.commands.lineage, list[dict[str, Any]]()
    for pid in reversed(lineage.tops()):
        stat = read_stat(pid)
        if stat is None or stat.state in "ZX" or not lineage.same(pid, stat.start):
            continue
        cause = lineage.of(pid)
        found.append(
            {"pid": pid, "command": stat.comm, "actor": cause.actor, "act": cause.ref(session.ref)}
        )
        if len(found) == JOBS_SHOWN:
            break
    said = await words(session, [one["pid"] for one in found])
    return [
        {**one, "command": said.get(one["pid"], one["command"])[:COMMAND_CHARS]} for one in found
    ]
