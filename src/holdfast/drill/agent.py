"""An AI agent as a client of `holdfast mcp`: the Model Context Protocol on stdin and stdout."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from holdfast.drill.stage import Broken

if TYPE_CHECKING:
    from holdfast.model.jsontext import Json

VERSION: Final = "2025-11-25"
LINE_BYTES: Final = 1 << 20


class Agent:
    """The process of the face, and the requests of the agent."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None and process.stdout is not None
        self.process, self._in, self._out = process, process.stdin, process.stdout
        self._number = 0

    @classmethod
    async def start(cls, words: Sequence[str], environ: Mapping[str, str], cwd: str) -> Agent:
        process = await asyncio.create_subprocess_exec(
            *words,
            env=environ,
            cwd=cwd,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=LINE_BYTES,
        )
        agent = cls(process)
        client = {"name": "holdfast-drill", "version": "0"}
        await agent._ask("initialize", protocolVersion=VERSION, capabilities={}, clientInfo=client)
        agent._send("notifications/initialized")
        return agent

    async def __call__(self, tool: str, **arguments: object) -> Json:
        """The structured result of a tool."""
        result = await self._ask("tools/call", name=tool, arguments=arguments)
        found = result.get("structuredContent")
        if result.get("isError") or not isinstance(found, dict):
            raise Broken(f"the tool {tool} answered {json.dumps(result)[:200]}")
        return found

    async def leave(self) -> int:
        """Ends the connection as an agent does; the exit code of the face."""
        self._in.close()
        return await self.process.wait()

    def _send(self, method: str, id: int | None = None, **params: object) -> None:
        message = {"jsonrpc": "2.0", "method": method, "params": params}
        self._in.write(
            json.dumps(message if id is None else {**message, "id": id}).encode() + b"\n"
        )

    async def _ask(self, method: str, **params: object) -> Json:
        self._number += 1
        self._send(method, self._number, **params)
        while line := await self._out.readline():
            message = json.loads(line)
            if message.get("id") == self._number and "method" not in message:
                if "error" in message:
                    raise Broken(f"{method}: {message['error'].get('message')}")
                return dict(message["result"])
        raise Broken(f"`holdfast mcp` ended without an answer to {method}")
