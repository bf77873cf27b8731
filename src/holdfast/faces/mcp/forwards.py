"""The tool set `forward`: listening ports of a session on loopback addresses of this machine.

A forward lasts until it is closed, its session ends, or this server ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.errors import Usage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.faces.mcp.acts import Act
    from holdfast.faces.mcp.calls import Acting
    from holdfast.model.jsontext import Json
    from holdfast.sdk.forward import Forward


class ForwardTools:
    """The tools of the set. `act`: begins an act and waits for its result."""

    def __init__(self, act: Acting, secrets: Mapping[str, str]) -> None:
        self._act = act
        self._open: dict[tuple[str, int], Forward] = {}  # by id of the session and port

    async def forward(
        self,
        do: str = "list",
        port: int | None = None,
        session: str | None = None,
        intent: str | None = None,
    ) -> Json:
        for key in [key for key, one in self._open.items() if one.over]:
            del self._open[key]
        if do == "list":
            return {"state": "done", "forwards": self._listed()}
        if port is None:
            raise Usage(f"forward {do} needs port")

        async def open_it(act: Act) -> Json:
            key = (act.session.id, port)
            if key not in self._open:
                at = act.session.forward(port, intent=intent, on_held=act.held)
                await at.__aenter__()
                self._open[key] = at
            return {"address": self._open[key].address}

        async def close_it(act: Act) -> Json:
            at = self._open.pop((act.session.id, port), None)
            if at is not None:
                await at.close()
            return {"closed": at is not None}

        return await self._act(session, (do, port), open_it if do == "open" else close_it)

    def _listed(self) -> list[Json]:
        return [
            {
                "session": session,
                "port": port,
                "address": one.address,
                "connections": one.connections,
            }
            for (session, port), one in self._open.items()
        ]

    async def close(self) -> None:
        for one in self._open.values():
            await one.close()
