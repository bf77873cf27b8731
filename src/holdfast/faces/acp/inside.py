"""The agent's program inside a session: one command of its operator, for as long as the agent runs.

The agent reads the input of a `run`, which is a FIFO, so that no terminal edits or cuts a line. It
writes to the session's terminal, and the client gets these bytes unchanged. Its errors go to LOG
inside the session. The terminal's echo is off meanwhile: typed keys would mix with messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from holdfast.client.engine.parts import Data, Event, Gap, Reply
from holdfast.faces.acp.peer import LEAVE_S, LINE_BYTES_MAX, Peer, say
from holdfast.faces.acp.terminals import APPROVAL_WAIT_S, NO_CODE, stop
from holdfast.model.errors import Busy, HoldfastError, Lost, Refused, TimedOut, TurnHeld, Unfinished

if TYPE_CHECKING:
    from holdfast.client.engine.engine import Engine
    from holdfast.client.engine.wire import Exchange
    from holdfast.sdk.client import Client
    from holdfast.sdk.session import Session

LOG: Final = "/tmp/holdfast-acp.log"  # of the session: a contained one has a /tmp of its own
READ_BYTES: Final = 64 * 1024
ASK_S: Final = 30.0  # for the turn or the prompt, before the next try


class Inside:
    """The agent as a command in a session."""

    def __init__(self, engine: Engine, session: Session, text: str) -> None:
        self._engine, self._session, self._text = engine, session, text
        self._ref: str | None = None
        self._code: int | None = None
        self._unsent = b""  # a message of the editor that no host has taken
        self._over = asyncio.Event()

    @classmethod
    async def started(cls, client: Client, session: Session, command: Sequence[str]) -> Inside:
        if (await session.info()).layout != "contained":
            raise Refused(
                f"{session.name} is not contained: it would be no wall around the agent",
                "make a session with `holdfast new NAME --contained`",
            )
        made = cls(client.engine(session.machine), session, text(command))
        await made._start()
        return made

    async def _start(self) -> None:
        ours, agents = socket.socketpair()
        self._reader, self._writer = await asyncio.open_connection(sock=ours, limit=READ_BYTES)
        reader, writer = await asyncio.open_connection(sock=agents, limit=LINE_BYTES_MAX)
        self.peer = Peer("the agent", reader, writer)
        self._running = asyncio.create_task(self._run())

    async def own_end(self) -> int:
        """The exit code of the agent; raises the reason if it could not run."""
        await self._running
        return NO_CODE if self._code is None else self._code

    async def end(self) -> None:
        """Ends the agent and all that it started: closed input and TERM, then KILL."""
        self.peer.close()
        if self._ref is not None:
            await stop(self._session, self._ref, self._over, LEAVE_S)
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        with contextlib.suppress(HoldfastError):  # the session has ended, or a person has the turn
            await self._session.turn.release()

    # ------------------------------------------------------------ the command

    async def _run(self) -> None:
        try:
            while not self._over.is_set():
                try:
                    await self._follow()
                except TurnHeld as e:
                    say(f"the agent waits for the turn: {e.message}")
                    await self._session.turn.request(ASK_S)
                except (Busy, Unfinished) as e:
                    say(f"the agent waits for the session: {e.message}")
                    with contextlib.suppress(TimedOut):
                        await self._session.wait("idle", timeout=ASK_S)
        except ConnectionError:  # the proxy has gone
            pass
        finally:
            self._over.set()
            self._writer.close()

    async def _follow(self) -> None:
        asked = self._engine.stream(
            "run",
            feed=self._feed,
            session=self._session.id,
            text=self._text,
            timeout=0.0,
            resume=None,
            hold=APPROVAL_WAIT_S,
            stdin=True,
        )
        async with contextlib.aclosing(asked) as parts:
            async for part in parts:
                if isinstance(part, Event) and part.name == "began":
                    self._ref = part.body.get("ref")
                elif isinstance(part, Event) and part.name == "held":
                    say(f"the agent waits for the approval {part.body['id']} of a person")
                elif isinstance(part, Gap):
                    raise Lost(f"{part.end - part.start} bytes of the agent rolled off unread")
                elif isinstance(part, Data):
                    self._writer.write(part.data)
                    await self._writer.drain()
                elif isinstance(part, Reply):
                    self._code = part.body.get("exit_code")
                    self._over.set()

    async def _feed(self, exchange: Exchange) -> None:
        """The editor's messages, as far as the agent reads."""
        if self._ref is not None:  # it runs, and has read the end of its input
            return say("the connection to the host was lost, and with it the agent's input")
        while self._unsent or (data := await self._reader.read(READ_BYTES)):
            self._unsent = self._unsent or data
            if not await exchange.send(self._unsent):
                return
            self._unsent = b""
        await exchange.send(b"")


def text(command: Sequence[str]) -> str:
    """The agent as shell text, without echo; its exit code is that of the text."""
    echo = "stty {}echo </dev/tty"
    lines = echo.format("-"), f"{shlex.join(command)} 2>>{LOG}", f"code=$?; {echo.format('')}"
    return "(" + "; ".join(lines) + "; exit $code)"
