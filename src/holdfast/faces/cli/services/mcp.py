"""mcp: the tools of an AI agent."""

from __future__ import annotations

import os
import sys

from holdfast.faces.cli.arguments import usage
from holdfast.faces.cli.connect import home_here, operator_name
from holdfast.faces.cli.output import put
from holdfast.model.errors import Impossible, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import AsyncGenerator, Callable

    from mcp.server.lowlevel import Server

    from holdfast.faces.mcp.calls import Calls
    from holdfast.faces.mcp.server import Lines

mcp_parser = usage("""
    serve the tools of an AI agent by the Model Context Protocol on stdin and stdout. The agent acts
    as the operator that --as names, with that operator's rights; it never approves its own acts.

    --session SESSION  where the agent works unless a call names another session (default: a new
        session of its own)
    --tools SETS  further tools: files, branches, forward, with commas (default:
        none)
    --listen ADDR:PORT  serve streamable HTTP on this loopback address instead; every request needs
        the token in the file that is shown
    --json  with --listen: one object with the address and the file of the token
""")


def mcp(args: Namespace) -> int:
    from holdfast import __version__
    from holdfast.faces.mcp.tools import chosen

    sets = tool_sets(args.tools)
    if args.listen is not None:
        return _listen(args, __version__, sets)
    from holdfast.faces.mcp.front import Front

    # Programs that this process starts must not write between the messages.
    lines = os.fdopen(os.dup(0), "r", encoding="utf-8", errors="replace")
    output = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)

    def write(line: str) -> None:
        data = memoryview(line.encode() + b"\n")
        while data:
            data = data[os.write(output, data) :]

    def load(write: Callable[[str], None]) -> Lines:
        from holdfast.faces.mcp.server import Lines

        return Lines(_server(args, __version__, sets), write)

    try:
        Front(__version__, load, write, chosen(sets)).serve(lines)
    except BrokenPipeError:
        pass  # the client has gone
    return 0


def tool_sets(text: str | None) -> tuple[str, ...]:
    """The names in a list like `files,forward`; Usage if one is not known."""
    from holdfast.faces.mcp.tools import SETS

    found = tuple(dict.fromkeys(text.split(","))) if text else ()
    for name in found:
        if name not in SETS:
            raise Usage(f"there is no tool set {name[:40]!a}", f"there are {', '.join(SETS)}")
    return found


def _listen(args: Namespace, version: str, sets: tuple[str, ...]) -> int:
    server = _server(args, version, sets)
    from holdfast.faces.mcp import http

    operator = operator_name(args)
    token, path = http.token(home_here(), operator)
    made, url = http.listening(args.listen)
    put(args, {"url": url, "token_file": path}, f"{operator} serves {url}; the token is in {path}")
    sys.stdout.flush()
    http.serve(made, server, token)
    return 0


def _server(args: Namespace, version: str, sets: tuple[str, ...]) -> Server[Calls]:
    from contextlib import asynccontextmanager

    try:
        from holdfast.faces.mcp.server import made
    except ImportError as e:
        raise Impossible(
            f"the library for MCP is not installed ({e.name})", "`pip install 'holdfast[mcp]'`"
        ) from e
    from holdfast.faces.mcp.calls import Calls
    from holdfast.faces.mcp.text import secrets
    from holdfast.faces.mcp.tools import chosen
    from holdfast.sdk.client import connect

    @asynccontextmanager
    async def connected() -> AsyncGenerator[Calls, None]:
        name = operator_name(args)
        async with connect(operator=name, modality="mcp") as client:
            calls = Calls(client, name, args.session, secrets(os.environ), sets)
            try:
                yield calls
            finally:
                await calls.close()

    return made(connected, version, chosen(sets))
