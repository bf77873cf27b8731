"""The tools of `holdfast mcp` as an agent calls them, by the official client library."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.installation import DEADLINE_S, Installation

pytest.importorskip("mcp", reason="the library of the extra [mcp] is not installed")

from mcp import Client, ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp_types import TextContent

Json = dict[str, Any]


class Agent:
    """The tools, and the text of each result, which must say the same as its structure."""

    def __init__(self, session: ClientSession | Client) -> None:
        self.session = session

    async def __call__(self, tool: str, **arguments: Any) -> Json:
        result = await self.session.call_tool(tool, arguments)
        (text,) = result.content
        body: Json | None = result.structured_content
        assert body is not None and isinstance(text, TextContent) and json.loads(text.text) == body
        return body

    async def until(self, ref: str, *states: str) -> Json:
        """Polls the reference until the state is one of these; gives all output since then."""
        output = ""
        async with asyncio.timeout(DEADLINE_S):
            while (body := await self("read", ref=ref, wait_s=5))["state"] not in states:
                output += body.get("output", "")
        return {**body, "output": output + body.get("output", "")}


def program(hf: Installation, *words: str) -> StdioServerParameters:
    return StdioServerParameters(
        command=sys.executable, args=["-m", "holdfast", "mcp", *words], env=hf.env
    )


@asynccontextmanager
async def connected(hf: Installation, *words: str) -> AsyncIterator[Agent]:
    async with stdio_client(program(hf, *words)) as streams, ClientSession(*streams) as session:
        await session.initialize()
        yield Agent(session)


def play(
    house: Installation, name: str, script: Callable[[Agent], Awaitable[None]], *words: str
) -> None:
    """A script of the agent `bot` in a session."""

    async def main() -> None:
        async with connected(house, "--as", "bot", "--session", name, *words) as agent:
            await script(agent)

    asyncio.run(main())
