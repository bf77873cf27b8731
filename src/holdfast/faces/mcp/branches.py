"""The tool set `branches`: live copies of a session, to try several ways at once.

The tool stands on the SDK, so every call that changes a session is an act behind the gate.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from holdfast.faces.mcp.acts import APPROVAL_WAIT_S
from holdfast.model.errors import Usage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.faces.mcp.acts import Act
    from holdfast.faces.mcp.calls import Acting
    from holdfast.model.jsontext import Json

CHANGES: Final = 100  # in one answer
CHARS: Final = 8_000  # of differences of texts in one answer


class BranchTools:
    """The tool of the set. `act`: begins an act and waits for its result."""

    def __init__(self, act: Acting, secrets: Mapping[str, str]) -> None:
        self._act = act

    async def branch(
        self,
        do: str = "list",
        n: int = 1,
        path: str | None = None,
        take: list[str] | None = None,
        leave: list[str] | None = None,
        session: str | None = None,
        once: str | None = None,
    ) -> Json:
        """`session`: that to fork or to list; with the others the branch."""
        taken, left = take or [], leave or []

        async def work(act: Act) -> Json:
            wait_s, held = APPROVAL_WAIT_S, act.held
            if do == "fork":
                made = await act.session.fork(n, once=once, hold=wait_s, on_held=held)
                return {
                    "branches": [one.name for one in made.branches],
                    "lost": [f"connection {one.local} -> {one.remote}" for one in made.closed]
                    + [*made.losses],
                }
            if do == "diff":
                return _shown(asdict(await act.session.diff(path)))
            if do == "keep":
                keep = act.session.keep
                kept = asdict(await keep(take=taken, leave=left, hold=wait_s, on_held=held))
                names = ("done", "steps", "conflicts", "left", "discarded", "remaining")
                return {name: kept[name] for name in names}
            if do == "discard":
                gone = await act.session.discard(hold=wait_s, on_held=held)
                return {
                    "acts": gone.acts,
                    "connections": [f"{one.local} -> {one.remote}" for one in gone.connections],
                    "servers": [*gone.servers],
                }
            found = await act.session.branches()
            return {
                "branches": [
                    {"name": one.name, "state": one.state, "parent": one.parent_name}
                    for one in found
                ]
            }

        if do not in ("fork", "list", "diff", "keep", "discard"):
            raise Usage(f"branch {do[:20]}: fork, list, diff, keep or discard")
        what = (do, n, path, *taken, "", *left)
        return await self._act(session, what, work, once if do == "fork" else None)

    async def close(self) -> None:
        """Branches outlive this server."""


def _shown(found: Json) -> Json:
    room = CHARS
    files: list[Json] = []
    for one in found["files"][:CHANGES]:
        text = one["text"] if len(one["text"]) <= room else ""
        room -= len(text)
        files.append(
            {
                "path": one["path"],
                "what": one["what"],
                **({"text": text} if text else {}),
                **({"why": one["why"] or "no room: diff this path"} if one["text"] != text else {}),
            }
        )
    return {
        "state_of_branch": found["state"],
        "files": files,
        "more": found["more"] + max(0, len(found["files"]) - CHANGES),
        "private": found["private"],
        "began": [one["name"] for one in found["began"]],
        "ended": [one["name"] for one in found["ended"]],
        "opened": found["opened"],
        "closed": found["closed"],
    }
