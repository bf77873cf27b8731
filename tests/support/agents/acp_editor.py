"""An editor on the official ACP library, and the agent of `acp_agent.py` behind `holdfast acp`."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.installation import DEADLINE_S, Installation

acp: Any = pytest.importorskip("acp", reason="the library of ACP is not installed")

AGENT = str(Path(__file__).parent / "acp_agent.py")
Json = dict[str, Any]


class Editor:
    """The library's client. It has no terminals of its own."""

    def __init__(self) -> None:
        self.updates: list[Json] = []
        self.news = asyncio.Event()
        self.asked: list[str] = []

    def on_connect(self, agent: Any) -> None:
        """The connection is known already."""

    async def session_update(self, session_id: str, update: Any, **more: Any) -> None:
        self.updates.append(update.model_dump(mode="json", by_alias=True, exclude_none=True))
        self.news.set()

    async def request_permission(
        self, session_id: str, tool_call: Any, options: list[Any], **more: Any
    ) -> Any:
        """The user allows everything once."""
        self.asked.append("permission")
        (chosen,) = (one.option_id for one in options if one.kind == "allow_once")
        outcome = {"outcome": "selected", "optionId": chosen}
        return acp.RequestPermissionResponse.model_validate({"outcome": outcome})

    async def ext_method(self, method: str, params: Json) -> Json:
        self.asked.append(method)
        return {"editor": params}

    async def shows(self, text: str) -> str:
        """Waits until an update has the text; gives the update as JSON."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                for one in self.updates:
                    if text in (shown := json.dumps(one)):
                        return shown
                self.news.clear()
                await self.news.wait()


class Agent:
    """The agent, which calls methods of its client as the test says."""

    def __init__(self, connection: Any, session: str, editor: Editor, process: Any) -> None:
        self.connection, self.session, self.editor = connection, session, editor
        self.process = process

    async def __call__(self, name: str, **arguments: Any) -> Json:
        params = {"name": name, "arguments": {"session_id": self.session, **arguments}}
        async with asyncio.timeout(DEADLINE_S):
            found: Json = await self.connection.ext_method("call", params)
        return found

    async def create(self, command: str, **more: Any) -> str:
        made = await self("create_terminal", command=command, **more)
        assert "error" not in made, made
        return str(made["terminalId"])

    async def end(self, terminal: str) -> tuple[Json, Json]:
        """The exit status and the output of a terminal that ends."""
        exit = await self("wait_for_terminal_exit", terminal_id=terminal)
        shown = await self("terminal_output", terminal_id=terminal)
        assert shown["exitStatus"]["exitCode"] == exit["exitCode"]
        return exit, shown

    async def until(self, terminal: str, text: str) -> Json:
        """Polls the output until it has the text."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                shown = await self("terminal_output", terminal_id=terminal)
                if text in shown["output"]:
                    return shown
                assert shown["exitStatus"] is None, shown
                await asyncio.sleep(0.05)  # poll


def words(*more: str) -> list[str]:
    return ["-m", "holdfast", "acp", *more]


@asynccontextmanager
async def connected(hf: Installation, place: Path, *options: str) -> AsyncIterator[Agent]:
    editor = Editor()
    program = words(*options, "--", sys.executable, AGENT)
    async with acp.spawn_agent_process(editor, sys.executable, *program, env=hf.env, cwd=place) as (
        connection,
        process,
    ):
        await connection.initialize(protocol_version=acp.PROTOCOL_VERSION)
        made = await connection.new_session(cwd=str(place), mcp_servers=[])
        yield Agent(connection, made.session_id, editor, process)
