"""The MCP server over stdio and streamable HTTP, on the official library.

Over stdio the program reads and writes the lines itself (`front.py`), because discovery is answered
before the library is loaded. Over HTTP each request carries a token of `holdfast http token`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.shared.message import SessionMessage

from holdfast.faces.mcp import tools
from holdfast.faces.mcp.calls import Calls
from holdfast.faces.mcp.resources import RESOURCES, resource

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

    from holdfast.model.jsontext import Json

    Context = ServerRequestContext[Calls]

QUEUED_MAX: Final = 1024  # lines of the client that wait for the server
Connect = Callable[[], Any]  # an asynchronous context manager with the agent's Calls


def made(connect: Connect, version: str, listed: tuple[Json, ...]) -> Server[Calls]:
    """Makes the server, which connects to the host with the first message. `listed`: the tools."""

    @asynccontextmanager
    async def lifespan(server: Server[Calls]) -> AsyncGenerator[Calls, None]:
        async with connect() as calls:
            yield calls

    async def list_tools(ctx: Context, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[types.Tool.model_validate(one) for one in listed])

    async def call_tool(ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        body = await ctx.lifespan_context.call(params.name, params.arguments or {})
        # Some clients read only the text, some only the structure: both have everything.
        text = types.TextContent(type="text", text=json.dumps(body, ensure_ascii=False))
        return types.CallToolResult(
            content=[text], structured_content=body, is_error="error" in body
        )

    async def list_resources(ctx: Context, params: Any) -> types.ListResourcesResult:
        found = [types.Resource.model_validate(one) for one in RESOURCES]
        return types.ListResourcesResult(resources=found)

    async def read_resource(
        ctx: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        kind, text = resource(str(params.uri))
        return types.ReadResourceResult(
            contents=[types.TextResourceContents(uri=params.uri, mime_type=kind, text=text)]
        )

    return Server(
        tools.NAME,
        version=version,
        instructions=tools.INSTRUCTIONS,
        lifespan=lifespan,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_read_resource=read_resource,
    )


class Lines:
    """Runs a server in a thread; another thread feeds lines to the server."""

    def __init__(self, server: Server[Calls], write: Callable[[str], None]) -> None:
        self._server, self._write = server, write
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queue: asyncio.Queue[str | None] | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mcp", daemon=True)
        self._thread.start()
        self._ready.wait()

    def feed(self, line: str | None) -> None:
        """Gives the server a line; None: there are no more."""
        assert self._loop is not None and self._queue is not None
        asyncio.run_coroutine_threadsafe(self._queue.put(line), self._loop).result()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._queue = asyncio.get_running_loop(), asyncio.Queue(QUEUED_MAX)
        self._ready.set()
        to_server, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        write, from_server = anyio.create_memory_object_stream[SessionMessage](0)

        async def reading() -> None:
            async with to_server:
                assert self._queue is not None
                while (line := await self._queue.get()) is not None:
                    await to_server.send(_message(line))

        async def writing() -> None:
            async for one in from_server:
                self._write(one.message.model_dump_json(by_alias=True, exclude_unset=True))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reading)
            tasks.start_soon(writing)
            await self._server.run(read, write, self._server.create_initialization_options())


def _message(line: str) -> SessionMessage | Exception:
    try:
        return SessionMessage(types.jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as e:
        print(f"holdfast mcp: a line that is no message: {line[:80]!a}", file=sys.stderr)
        return e
