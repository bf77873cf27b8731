"""The proxy between an editor and its agent: lines of JSON-RPC in both directions.

Every message passes unchanged, with three exceptions. The editor's `initialize` gets the capability
`terminal`. The agent's requests `terminal/*` are answered here. Terminals in tool calls become
text. A line that is no JSON object is not passed on: its sender gets the error "parse error".

If the agent runs inside a session, its editor offers neither files nor terminals: those would be
acts outside of the session.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from holdfast.faces.acp import messages
from holdfast.faces.acp.beside import Beside
from holdfast.faces.acp.inside import Inside
from holdfast.faces.acp.peer import LINE_BYTES_MAX, Peer, say
from holdfast.faces.acp.terminals import METHODS, Terminal, Terminals
from holdfast.faces.acp.tool_calls import ToolCalls
from holdfast.model.errors import HoldfastError, Usage
from holdfast.sdk.recovery import for_programs

if TYPE_CHECKING:
    from holdfast.model.jsontext import Json
    from holdfast.sdk.client import Client

PENDING_MAX: Final = 256  # requests for terminals that are not answered yet
OPENING_MAX: Final = 64  # requests for sessions that are not answered yet
CANCEL: Final = "$/cancel_request"
OPENS: Final = ("session/new", "session/load", "session/resume", "session/fork")
OUTSIDE: Final = ("fs/", "terminal/")  # acts of the editor for its agent
ENDS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Proxy:
    """Passes lines on, and answers `terminal/*`."""

    def __init__(
        self,
        editor: Peer,
        agent: Peer,
        client: Client,
        session: str | None,
        secrets: Mapping[str, str],
        inside: bool,
    ) -> None:
        self._editor, self._agent, self._inside = editor, agent, inside
        self._terminals = Terminals(client, session, secrets, self._changed)
        self._tool_calls = ToolCalls(self._terminals.find)
        self._pending: dict[str, asyncio.Task[None]] = {}  # by the id, as JSON
        self._opening: dict[str, str] = {}  # directories of sessions that the editor asked for
        self._telling: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        tasks = [*self._pending.values(), *self._telling]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._terminals.close()

    # ------------------------------------------------------------ from the editor

    async def from_editor(self) -> None:
        async for line in self._editor.lines():
            if (message := messages.parsed(line)) is None:
                await self._malformed(self._editor, line)
                continue
            if message.get("method") == "initialize":
                line = messages.written(messages.announced(message, self._inside))
            elif message.get("method") in OPENS:
                self._opens(message)
            await self._agent.send(line)

    def _opens(self, message: Json) -> None:
        """Remembers the directory of a session until the agent answers."""
        params, id = message.get("params"), json.dumps(message.get("id"))
        if isinstance(params, dict) and isinstance(params.get("cwd"), str):
            self._opening[id] = params["cwd"]
            if isinstance(params.get("sessionId"), str):  # of a stored session
                self._terminals.works_in(params["sessionId"], params["cwd"])
        for old in list(self._opening)[:-OPENING_MAX]:
            del self._opening[old]

    # ------------------------------------------------------------ from the agent

    async def from_agent(self) -> None:
        async for line in self._agent.lines():
            if (message := messages.parsed(line)) is None:
                await self._malformed(self._agent, line)
                continue
            method = message.get("method")
            if self._inside and str(method).startswith(OUTSIDE):
                await self._agent.send(messages.written(messages.outside(message)))
            elif method in METHODS:
                await self._asked(message)
            elif method == CANCEL and self._cancelled(message):
                continue
            else:
                if method is None:
                    self._opened(message)
                elif (shown := self._tool_calls.replaced(message)) is not None:
                    line = messages.written(shown)
                await self._editor.send(line)

    def _opened(self, answer: Json) -> None:
        directory = self._opening.pop(json.dumps(answer.get("id")), None)
        result = answer.get("result")
        session = result.get("sessionId") if isinstance(result, dict) else None
        if directory is not None and isinstance(session, str):
            self._terminals.works_in(session, directory)

    async def _asked(self, message: Json) -> None:
        """Answers in a task: a wait for the end of a command delays no other message."""
        id = json.dumps(message.get("id"))
        if "id" not in message:
            return say(f"the agent sent {message['method']} without an id; ignored")
        if id in self._pending or len(self._pending) >= PENDING_MAX:
            why = f"{PENDING_MAX} requests wait, or one with this id"
            refusal = messages.error(message["id"], messages.REFUSED, why)
            return await self._agent.send(messages.written(refusal))
        self._pending[id] = task = asyncio.create_task(self._answer(message))
        task.add_done_callback(lambda _: self._pending.pop(id, None))

    async def _answer(self, message: Json) -> None:
        id, params = message["id"], message.get("params")
        try:
            method = METHODS[message["method"]]
            reply = messages.result(
                id, await method(self._terminals, params if isinstance(params, dict) else {})
            )
        except HoldfastError as e:
            reply = messages.refusal(id, for_programs(e))
        except asyncio.CancelledError:
            reply = messages.error(id, messages.CANCELLED, "cancelled")
        with contextlib.suppress(ConnectionError):  # the agent has gone
            await self._agent.send(messages.written(reply))

    def _cancelled(self, message: Json) -> bool:
        """Cancels a request for a terminal; False if the editor has the request."""
        params = message.get("params")
        id = json.dumps(params.get("requestId") if isinstance(params, dict) else None)
        if (task := self._pending.get(id)) is None:
            return False
        # Not before the first step: a task that never ran would leave no answer.
        asyncio.get_running_loop().call_soon(task.cancel)
        return True

    # ------------------------------------------------------------ to both

    def _changed(self, terminal: Terminal) -> None:
        """Shows the state of a terminal in the tool calls that name it."""
        for update in self._tool_calls.again(terminal):
            task = asyncio.create_task(self._tell(messages.written(update)))
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    async def _tell(self, line: bytes) -> None:
        with contextlib.suppress(ConnectionError):  # the editor has gone
            await self._editor.send(line)

    async def _malformed(self, sender: Peer, line: bytes) -> None:
        say(f"{sender.name} sent a line that is no JSON object: {line[:80]!a}")
        reply = messages.error(None, messages.PARSE_ERROR, "the line is no JSON object")
        await sender.send(messages.written(reply))


# ---------------------------------------------------------------- the processes


async def serve(
    client: Client,
    session: str | None,
    inside: bool,
    secrets: Mapping[str, str],
    command: Sequence[str],
    stdin: int,
    stdout: int,
) -> int:
    """Runs the agent until it ends or the editor leaves; gives the exit code.

    `inside`: the agent's program itself runs in the session.
    """
    place = None if session is None else await client.sessions.get(session)
    editor = await _editor(stdin, stdout)
    program: Beside | Inside
    if inside:
        assert place is not None
        program = await Inside.started(client, place, command)
    else:
        program = await Beside.started(command)
    proxy = Proxy(editor, program.peer, client, session, secrets, inside)
    loop, left = asyncio.get_running_loop(), asyncio.Event()
    for number in ENDS:
        loop.add_signal_handler(number, left.set)
    ended = asyncio.create_task(_unless_gone(proxy.from_agent()))
    leaving = [
        asyncio.create_task(_unless_gone(proxy.from_editor())),
        asyncio.create_task(left.wait()),
    ]
    tasks = [ended, *leaving]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        if ended in done and not any(task in done for task in leaving):
            return await program.own_end()
        return 0
    finally:
        await program.end()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await proxy.close()


async def _unless_gone(pump: object) -> None:
    """Passes lines on until one of both ends is closed."""
    with contextlib.suppress(ConnectionError):
        await pump  # type: ignore[misc]


async def _editor(stdin: int, stdout: int) -> Peer:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    try:
        await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(stdin, "rb", 0)
        )
        flow = asyncio.StreamReaderProtocol(asyncio.StreamReader())
        transport, _ = await loop.connect_write_pipe(lambda: flow, os.fdopen(stdout, "wb", 0))
    except ValueError as e:
        raise Usage("stdin and stdout are no pipes", "let the editor start this command") from e
    return Peer("the editor", reader, asyncio.StreamWriter(transport, flow, None, loop))
