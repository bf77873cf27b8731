"""The five methods `terminal/*` of the Agent Client Protocol, served from sessions.

A terminal is one command of the agent in a session: an act with a signature, judged by the policy.
A session runs a single command at a time. With a named session, commands wait for each other. Else
each session of the editor gets sessions of its own, and a command that finds them busy gets another
one, because agents leave servers running and go on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from holdfast.core.screen.plain_text import plain
from holdfast.faces.acp.messages import command_text
from holdfast.faces.acp.messages import field as given
from holdfast.faces.mcp.text import hidden
from holdfast.model.errors import HoldfastError, NotFound, Refused
from holdfast.sdk.recovery import for_programs

if TYPE_CHECKING:
    from holdfast.model.jsontext import Json
    from holdfast.sdk.client import Client
    from holdfast.sdk.results import Question
    from holdfast.sdk.session import Session

TERMINALS_MAX: Final = 64  # that the agent has not released
RELEASED_KEPT: Final = 16  # the newest, which the agent may still show in a tool call
OWN_SESSIONS_MAX: Final = 8  # for one session of the editor; further commands wait
DIRECTORIES_MAX: Final = 256  # sessions of the editor whose directory is known
OUTPUT_BYTES: Final = 1 << 20  # the highest `outputByteLimit`, and its default
APPROVAL_WAIT_S: Final = 3600.0  # the host may give up sooner
KILL_AFTER_S: Final = 2.0  # between TERM and KILL
NO_CODE: Final = 255  # a command without an exit code of its own, as in `holdfast run`


class Output:
    """The end of a command's output, at most `limit` bytes as plain text."""

    def __init__(self, limit: int, secrets: Mapping[str, str]) -> None:
        self._limit, self._secrets = limit, secrets
        self._data = bytearray()
        self.lost = False

    def add(self, data: bytes) -> None:
        self._data += data
        if len(self._data) > 4 * OUTPUT_BYTES:
            self.lost = True
            del self._data[: -2 * OUTPUT_BYTES]

    def text(self, note: str) -> tuple[str, bool]:
        """The output and a last line of ours; whether the beginning is missing."""
        text = hidden(plain(bytes(self._data)), self._secrets)
        if note:
            text += f"\n[holdfast: {note}]\n" if text else f"[holdfast: {note}]\n"
        data = text.encode()
        if len(data) <= self._limit:
            return text, self.lost
        return data[len(data) - self._limit :].decode("utf-8", "ignore"), True


@dataclass
class Place:
    """A session, and the number of terminals that use it or wait for it."""

    session: Session
    users: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Terminal:
    """One command of the agent, from the request to the end."""

    def __init__(self, id: str, q: Json, text: str, output: Output, place: Place) -> None:
        self.id, self.command, self.place = id, str(q["command"]), place
        self.asked_by: object = q["sessionId"]
        self._text, self._output = text, output
        self.ref: str | None = None
        self.note = "waits for the session: another command runs, or another operator has the turn"
        self.held = self.released = False
        self.exit: Json | None = None
        self.over = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self._began = self._stopped = False

    def output(self) -> Json:
        text, truncated = self._output.text(self.note)
        status = {} if self.exit is None else {"exitStatus": self.exit}
        return {"output": text, "truncated": truncated, **status}

    async def follow(self, told: Callable[[Terminal], None]) -> None:
        try:
            async with self.place.lock:
                await self._run(told)
        except HoldfastError as e:
            for_programs(e)
            self._end(f"refused: {e.message}; {e.recover}" if e.recover else e.message, NO_CODE)
        except asyncio.CancelledError:
            if not self._stopped:
                raise
            self._end("killed before it began", None, "SIGKILL")
        finally:
            self.place.users -= 1
            told(self)

    async def _run(self, told: Callable[[Terminal], None]) -> None:
        def held(question: Question) -> None:
            self.held = True
            self.note = f"waits for the approval {question.id} of a person: {question.because}"
            told(self)

        session = self.place.session
        running = await session.start(self._text, hold=APPROVAL_WAIT_S, on_held=held)
        try:
            self._began, self.ref, self.note, self.held = True, running.ref, "", False
            async for chunk in running:
                self._output.add(chunk.data)
                self.ref = running.ref or self.ref
            done = await running.wait()
        finally:
            await running.leave()
        self._output.lost |= done.lost > 0
        if done.exit_code is None:
            return self._end(f"no exit code: the session is {done.state}", NO_CODE)
        self._end("", done.exit_code)

    def _end(self, note: str, code: int | None, signal: str | None = None) -> None:
        self.note, self.held = note, False
        self.exit = {"exitCode": code, "signal": signal}
        self.over.set()

    async def kill(self) -> None:
        """Ends the command: withdraws it if it has not begun, else by TERM and then KILL."""
        if self.over.is_set() or self.task is None:
            return
        if not self._began:
            self._stopped = True
            asyncio.get_running_loop().call_soon(self.task.cancel)  # not before its first step
            await self.over.wait()
            return
        if self.ref is not None:
            await stop(self.place.session, self.ref, self.over, KILL_AFTER_S)


async def stop(session: Session, act: str, over: asyncio.Event, patience_s: float) -> None:
    """Ends the processes that an act started, never those of another operator."""
    for signal in ("TERM", "KILL"):
        for one in (await session.graph()).processes:
            if one.act == act and one.state != "zombie":
                with contextlib.suppress(NotFound):
                    await session.signal(one.pid, signal)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await over.wait()
                return


class Terminals:
    """All terminals of one agent."""

    def __init__(
        self,
        client: Client,
        session: str | None,
        secrets: Mapping[str, str],
        told: Callable[[Terminal], None],
    ) -> None:
        """`session`: where all commands run; None: in new sessions of the agent.

        `told`: called when a command is held and when it is over.
        """
        self._client, self._named, self._secrets, self._told = client, session, secrets, told
        self._terminals: dict[str, Terminal] = {}
        self._places: dict[str, list[Place]] = {}
        self._directories: dict[str, str] = {}
        self._choosing = asyncio.Lock()
        self._count = 0

    def works_in(self, session: str, directory: str) -> None:
        """Remembers the directory of a session of the editor."""
        self._directories.pop(session, None)
        self._directories[session] = directory
        for old in list(self._directories)[:-DIRECTORIES_MAX]:
            del self._directories[old]

    def find(self, id: object) -> Terminal | None:
        """The terminal of that id, released terminals included."""
        return self._terminals.get(id) if isinstance(id, str) else None

    async def close(self) -> None:
        """Stops following. Commands that have begun go on."""
        tasks = [one.task for one in self._terminals.values() if one.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ------------------------------------------------------------ the five methods

    async def create(self, q: Json) -> Json:
        asked_by: str = given(q, "sessionId", str, needed=True)
        limit = min(max(0, given(q, "outputByteLimit", int, OUTPUT_BYTES)), OUTPUT_BYTES)
        text = command_text(q, self._directories.get(asked_by))
        if sum(not one.released for one in self._terminals.values()) >= TERMINALS_MAX:
            raise Refused(
                f"{TERMINALS_MAX} terminals are open", "release some with terminal/release"
            )
        place = await self._place(asked_by)
        self._count += 1
        made = Terminal(f"hf-{self._count}", q, text, Output(limit, self._secrets), place)
        self._terminals[made.id] = made
        made.task = asyncio.create_task(made.follow(self._told))
        return {"terminalId": made.id}

    async def output(self, q: Json) -> Json:
        return self._open(q).output()

    async def wait_for_exit(self, q: Json) -> Json:
        terminal = self._open(q)
        await terminal.over.wait()
        return terminal.exit or {}

    async def kill(self, q: Json) -> Json:
        await self._open(q).kill()
        return {}

    async def release(self, q: Json) -> Json:
        terminal = self._open(q)
        terminal.released = True
        await terminal.kill()
        released = [id for id, one in self._terminals.items() if one.released]
        for id in released[:-RELEASED_KEPT]:
            del self._terminals[id]
        return {}

    def _open(self, q: Json) -> Terminal:
        id = given(q, "terminalId", str, needed=True)
        found = self._terminals.get(id)
        if found is None or found.released or found.asked_by != q.get("sessionId"):
            raise NotFound(
                f"this session has no terminal {id[:40]!a}", "make one with terminal/create"
            )
        return found

    # ------------------------------------------------------------ the session

    async def _place(self, asked_by: str) -> Place:
        """The session for one more command, which counts as its user from now on."""
        async with self._choosing:
            place = await (self._only() if self._named else self._own(asked_by))
            place.users += 1
            return place

    async def _only(self) -> Place:
        places = self._places.setdefault("", [])
        if not places:
            places.append(Place(await self._client.sessions.get(self._named or "")))
        return places[0]

    async def _own(self, asked_by: str) -> Place:
        """A session without a user; a new one if there is none, up to the limit."""
        places = self._places.setdefault(asked_by, [])
        for place in [one for one in places if not one.users]:
            if (await place.session.info()).state != "ended":
                return place
            places.remove(place)
        if len(places) == OWN_SESSIONS_MAX:
            return min(places, key=lambda one: one.users)
        made = await self._client.sessions.new(cwd=self._directories.get(asked_by))
        places.append(Place(made))
        return places[-1]


METHODS: Final[Mapping[str, Callable[[Terminals, Json], Awaitable[Json]]]] = {
    "terminal/create": Terminals.create,
    "terminal/output": Terminals.output,
    "terminal/wait_for_exit": Terminals.wait_for_exit,
    "terminal/kill": Terminals.kill,
    "terminal/release": Terminals.release,
}
