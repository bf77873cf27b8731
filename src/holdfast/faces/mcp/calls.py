"""One function per tool. Each returns a JSON object, within `wait_s` and a moment.

An error is `{state: "refused", error, recover, retry_safe}`: the agent reads how to go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from holdfast.core.screen.plain_text import plain
from holdfast.core.session.inheritance import SHOWN_EACH, in_a_line
from holdfast.faces.mcp import tools
from holdfast.faces.mcp.acts import Act, Acts, Command
from holdfast.faces.mcp.arguments import checked
from holdfast.faces.mcp.branches import BranchTools
from holdfast.faces.mcp.changes import foreign_act
from holdfast.faces.mcp.files import FileTools
from holdfast.faces.mcp.forwards import ForwardTools
from holdfast.faces.mcp.recovery import refused
from holdfast.faces.mcp.text import chars, cut, hidden, unfinished
from holdfast.model.errors import Held, HoldfastError, Lost, NotFound, TimedOut, Usage
from holdfast.sdk.client import Client
from holdfast.sdk.results import Approval, Question, SessionInfo, Waited
from holdfast.sdk.session import Session

if TYPE_CHECKING:
    from holdfast.model.jsontext import Json

PROMPT_WAIT_S: Final = 10.0  # of a new session, for its first prompt
PAGE_WAIT_S: Final = 10.0  # for output that the host has already
QUIET_S: Final = 0.25  # output that pauses this long is a reply
ENTRIES: Final = 100  # processes, ports and files in one answer
OTHERS_SHOWN: Final = 12  # acts of other operators in one result
FACTS_SHOWN: Final = dict.fromkeys(SHOWN_EACH, 12)  # of the inherited state, of each kind
LOOKED_BACK: Final = 100  # entries of the record, for the last act of this agent
TYPED_WAIT_S: Final = 2.0  # after `send`, unless the agent names a time
WHOLE_LINE: Final = (
    "a human decides; or use run for a command, send a whole line with the key Enter in one call, "
    "or stop for the foreground program"
)
WAITING: Final = {"input": "needs_input", "secret": "needs_secret"}


class Acting(Protocol):
    """Begins an act and gives its result, or its state so far."""

    async def __call__(
        self,
        session: str | None,
        what: tuple[object, ...],
        do: Callable[[Act], Awaitable[Json]],
        once: str | None = None,
    ) -> Json: ...


class Calls:
    """The tools of one agent."""

    def __init__(
        self,
        client: Client,
        operator: str,
        session: str | None = None,
        secrets: Mapping[str, str] | None = None,
        sets: tuple[str, ...] = (),
    ) -> None:
        """`session`: where the agent works by default; None: a new session of its own.

        `sets`: the names of further tool sets.
        """
        self._client, self._operator = client, operator
        self._default, self._secrets = session, secrets or {}
        self._schemas = {tool["name"]: tool["inputSchema"] for tool in tools.chosen(sets)}
        self._sets = [SETS[one](self._act, self._secrets) for one in sets]
        self._acts = Acts()
        self._sessions: dict[str, Session] = {}  # by id
        self._mine: Session | None = None  # the session that this server made
        # By id of the session: the last command, or the output's end when text was last typed.
        self._newest: dict[str, Act | int] = {}
        self._seen: dict[str, int] = {}  # last entry of each session's record that was reported
        self._making = asyncio.Lock()

    async def close(self) -> None:
        await self._acts.close()
        for one in self._sets:
            await one.close()

    async def call(self, name: str, given: Mapping[str, object]) -> Json:
        try:
            tool = self._tool(name)
            return await tool(**checked(name, self._schemas[name], given))
        except HoldfastError as e:
            return refused(e)

    def _tool(self, name: str) -> Callable[..., Awaitable[Json]]:
        if name not in self._schemas:
            known = ", ".join(self._schemas)
            raise Usage(f"there is no tool {name[:40]!a}", f"the tools are {known}")
        owner = next(one for one in (*self._sets, self) if hasattr(one, name))
        found: Callable[..., Awaitable[Json]] = getattr(owner, name)
        return found

    # ------------------------------------------------------------ the session

    async def _session(self, name: str | None) -> Session:
        """The session of that id or name. A name can pass to a new session, an id cannot."""
        wanted = name or self._default
        if wanted is None:
            return await self._own()
        if wanted not in self._sessions:
            return await self._met(await self._client.sessions.get(wanted))
        return self._sessions[wanted]

    async def _met(self, found: Session) -> Session:
        """What came after this agent's last act is news, also to a server that starts later."""
        if found.id not in self._sessions:
            self._sessions[found.id] = found
            async for entry in found.log(-LOOKED_BACK):
                if entry.actor == self._operator:
                    self._seen[found.id] = entry.seq
                else:
                    self._seen.setdefault(found.id, entry.seq - 1)
        return self._sessions[found.id]

    async def _own(self) -> Session:
        """A session for an agent that was given none, at its first prompt."""
        async with self._making:
            if self._mine is not None and await _is_over(self._mine):
                self._mine = None
                raise NotFound(
                    "your session has ended, with its directory, variables and jobs",
                    "call again: the next call makes a new session",
                )
            if self._mine is None:
                self._mine = await self._met(await self._client.sessions.new())
                with contextlib.suppress(TimedOut):
                    await self._mine.wait("idle", timeout=PROMPT_WAIT_S)
            return self._mine

    async def _others(self, session: Session) -> list[str]:
        """The acts of other operators since the last result, one line each."""
        lines: list[str] = []
        async for entry in session.log(self._seen.get(session.id, 0)):
            self._seen[session.id] = entry.seq
            line = foreign_act(entry, self._operator)
            if line and line not in lines[-1:]:
                lines.append(line)
        left_out = len(lines) - OTHERS_SHOWN
        return lines if left_out <= 0 else [f"{left_out} earlier acts", *lines[left_out:]]

    # ------------------------------------------------------------ acting

    async def run(
        self,
        command: str,
        session: str | None = None,
        wait_s: float = tools.WAIT_S,
        max_chars: int = tools.CHARS,
        once: str | None = None,
        intent: str | None = None,
        expects: str | None = None,
        prompt: str | None = None,
    ) -> Json:
        at = await self._session(session)
        act = self._acts.begin(Command(at, command, once, intent, expects, prompt))
        self._newest[at.id] = act
        waiting = await self._settled(act, wait_s)
        return await self._shown(act, max_chars, waiting)

    async def _act(
        self,
        session: str | None,
        what: tuple[object, ...],
        do: Callable[[Act], Awaitable[Json]],
        once: str | None = None,
    ) -> Json:
        """Begins an act of another tool set and gives its result, or its state so far."""
        act = self._acts.begin(Act(await self._session(session), what, do, once))
        await self._settled(act, tools.WAIT_S)
        return await self._shown(act, tools.CHARS)

    async def _settled(self, act: Act, wait_s: float) -> str | None:
        """Waits for the end of a command or a reason to return; the need for input, if any."""
        end = time.monotonic() + _bounded(wait_s)
        while (left := end - time.monotonic()) > 0 and not act.over and act.state != "held":
            act.news.clear()
            if isinstance(act, Command) and act.begun:
                if (found := await self._needs(act, left)) is not None:
                    return found
            else:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(act.news.wait(), left)
        return None

    async def _needs(self, act: Act, left: float) -> str | None:
        """Waits until the command is over or its program waits for a person."""
        asked = asyncio.ensure_future(act.session.wait("input", "secret", timeout=left))
        try:
            while not act.over and not asked.done():
                news = asyncio.ensure_future(act.news.wait())
                await asyncio.wait((asked, news), return_when=asyncio.FIRST_COMPLETED)
                news.cancel()
                if act.state != "running":
                    return None
                act.news.clear()
            return None if act.over else WAITING.get(asked.result().for_)
        except TimedOut:
            return None
        finally:
            asked.cancel()

    async def _shown(self, act: Act, max_chars: int, waiting: str | None = None) -> Json:
        if act.error is not None:
            return {**refused(act.error), "ref": act.ref or act.name}
        if not isinstance(act, Command):
            asks = {"approval": _asked(act.approval)} if act.state == "held" else {}
            return {"state": act.state, **act.result, **asks, "ref": act.name}
        if (end := act.output.end) == 0 and not act.over:  # no output so far
            with contextlib.suppress(NotFound):  # the session ends just now
                end = (await act.session.view()).offset
        text = hidden(act.output.news(act.over), self._secrets)
        result: Json = {
            "state": waiting or act.state,
            "exit_code": act.exit_code,
            "output": cut(text, chars(max_chars)),
            "cursor": f"{act.session.id}:{end}",
            "ref": act.ref or act.name,
            "approval": None,
        }
        if act.gap:
            result["gap"] = act.gap
        if act.output.left_out or len(text) > chars(max_chars):
            result["cut"] = True  # output can imitate the note, and no field of a result
        question = await self._question(act)
        if question is not None:
            result |= {"state": "held", "approval": _asked(question)}
        if act.state == "done":
            return {**await self._changes(act.session, act.inherits), **result}
        return result

    async def _changes(self, session: Session, inherits: Mapping[str, Any]) -> Json:
        """`changed_by_others`, if other operators did anything; else nothing."""
        state = in_a_line(inherits, self._operator, FACTS_SHOWN).removeprefix("; ")
        changed = [*await self._others(session), *([state] if state else [])]
        return {"changed_by_others": changed} if changed else {}

    async def _question(self, act: Act) -> Question | Approval | None:
        """The question about the command, or about a program that the running command starts."""
        if act.state == "held":
            return act.approval
        if act.state != "running":
            return None
        asked = await self._client.approvals.list(act.session.machine)
        mine = (act.session.id, self._operator, "exec")
        return next((one for one in asked if (one.session, one.operator, one.act) == mine), None)

    def _text(self, text: str, most: int) -> str:
        return cut(hidden(text, self._secrets), chars(most))

    async def send(
        self,
        text: str = "",
        keys: list[str] | None = None,
        paste: bool = False,
        session: str | None = None,
        wait_s: float = TYPED_WAIT_S,
        once: str | None = None,
        intent: str | None = None,
        prompt: str | None = None,
    ) -> Json:
        at = await self._session(session)
        if not text and not keys:
            raise Usage("send needs text or keys")
        try:
            why: dict[str, Any] = {"once": once, "intent": intent, "prompt": prompt}
            sent = await at.send(text, keys=keys or (), paste=paste, hold=0.0, **why)
        except Held as e:  # the question stays open, and the call does not wait for a person
            whole = {} if "Enter" in (keys or ()) else {"recover": WHOLE_LINE}
            return {**refused(e), **whole, "state": "held"}
        start = sent.offset
        if start is None:
            start = (await at.view()).offset
        self._newest[at.id] = start
        page = await self._output(at, start, _bounded(wait_s), tools.CHARS, settle=True)
        changes = await self._changes(at, sent.inherits) if sent.inherits else {}
        return {**changes, "state": await self._waiting(at), **page, "ref": sent.ref}

    async def _waiting(self, session: Session) -> str:
        try:
            view = await session.view()
        except NotFound:
            return "ended"
        if view.state == "ended":
            return "ended"
        waiting = view.waiting.for_ if view.waiting is not None else "unknown"
        return WAITING.get(waiting, waiting)

    async def stop(
        self, pid: int | None = None, signal: str = "INT", session: str | None = None
    ) -> Json:
        at = await self._session(session)
        if pid is None:
            terminal, state = (await at.graph()).terminal, await self._waiting(at)
            pid = None if terminal is None else terminal.foreground.pgrp
            if pid is None or state in ("idle", "ended"):
                return {"state": state, "signalled": 0}
        count = await at.signal(pid, signal, tree=True)
        return {"state": await self._waiting(at), "signalled": count}

    async def turn(
        self,
        do: str = "show",
        to: str | None = None,
        session: str | None = None,
        wait_s: float = tools.WAIT_S,
    ) -> Json:
        at = await self._session(session)
        if do == "hand" and to is None:
            raise Usage("turn needs `to`, the operator that gets the turn")
        changes: Json = {}
        if do == "request":
            state = await at.turn.request(_bounded(wait_s))
            if state is not None and state.holder == self._operator:
                changes = await self._changes(at, state.inherits)
        elif do == "release":
            state = await at.turn.release()
        elif do == "hand" and to is not None:
            state = await at.turn.hand(to)
        else:
            state = await at.turn.state()
        return {
            **changes,
            "holder": None if state is None else state.holder,
            "waiting": [] if state is None else list(state.waiting),
        }

    # ------------------------------------------------------------ looking

    async def read(
        self,
        cursor: str | None = None,
        ref: str | None = None,
        wait_s: float = 0.0,
        max_chars: int = tools.CHARS,
    ) -> Json:
        if ref is not None:
            found = await self._of_ref(ref, wait_s, max_chars)
            return found if cursor is None else {**found, **await self._from(cursor, 0, max_chars)}
        if cursor is None:
            raise Usage("read needs a cursor or a ref, both from an earlier result")
        at, _ = await self._place(cursor)
        page = await self._from(cursor, _bounded(wait_s), max_chars)
        return {"state": await self._waiting(at), **page}

    async def _from(self, cursor: str, wait_s: float, max_chars: int) -> Json:
        at, offset = await self._place(cursor)
        return await self._output(at, offset, wait_s, max_chars)

    async def _of_ref(self, ref: str, wait_s: float, max_chars: int) -> Json:
        if (act := self._acts.find(ref)) is not None:
            before, end = act.state, time.monotonic() + _bounded(wait_s)
            waiting = None
            while not act.over and act.state == before and (left := end - time.monotonic()) > 0:
                if act.state == "running":
                    waiting = await self._settled(act, left)
                    break
                act.news.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(act.news.wait(), left)
            return await self._shown(act, max_chars, waiting)
        found = await self._client.resolve(ref)
        if not found.known:
            raise NotFound(f"{ref[:80]!a} is not known any more", "sessions lists what there is")
        state = "done" if found.exit_code is not None else "running" if found.under_way else None
        return {
            "state": state or found.state,
            "exit_code": found.exit_code,
            "output": "",
            "ref": ref,
        }

    async def _place(self, cursor: str) -> tuple[Session, int]:
        session, _, offset = cursor.rpartition(":")
        if not session or not offset.isdigit():
            raise Usage(f"{cursor[:60]!a} is not a cursor", "take the cursor of an earlier result")
        return await self._session(session), int(offset)

    async def _output(
        self, session: Session, start: int, wait_s: float, most: int, settle: bool = False
    ) -> Json:
        """A page of output, exactly from an offset; the next page begins at its `cursor`.

        Waits for the first output, then until the output pauses. `settle`: waits for a longer
        pause, because output follows the echo of typed text.
        """
        most = chars(most)
        data, end, gap = bytearray(), start, 0
        deadline = time.monotonic() + wait_s
        chunks = session.read(start, follow=wait_s > 0)
        async with contextlib.aclosing(chunks):
            while len(data) <= most:
                left = deadline - time.monotonic() if wait_s > 0 else PAGE_WAIT_S
                pause = min(left, QUIET_S * (4 if settle else 1)) if data else left
                try:
                    async with asyncio.timeout(max(0.05, pause)):
                        chunk = await anext(chunks)
                except (TimeoutError, StopAsyncIteration):
                    break
                data += chunk.data
                gap += chunk.gap
                end = chunk.end
        page = bytes(data[:most])
        if more := len(data) > most:  # a page has whole characters and sequences
            page = page[: len(page) - unfinished(page)] or page
        return {
            "output": hidden(plain(page), self._secrets),
            "gap": gap,
            "cursor": f"{session.id}:{end - len(data) + len(page)}",
            "more": more,
        }

    async def wait(
        self,
        until: list[str],
        since: str | None = None,
        session: str | None = None,
        wait_s: float = tools.WAIT_S,
    ) -> Json:
        at = await self._session(session)
        place: str | int | None = None
        if since is not None and (act := self._acts.find(since)) is not None:
            since = act.ref or since
        if since is not None:
            place = since if since.startswith("hf:") else (await self._place(since))[1]
        elif any(one.startswith("text:") for one in until):
            place = self._since_newest(at)
        try:
            met = await self._met_of(at, until, wait_s, place, by_agent=since is not None)
        except TimedOut:
            return {"state": await self._waiting(at), "met": None}
        return {
            "state": await self._waiting(at),
            "met": met.for_,
            "seen": self._text(str(met.seen), 1000),
            "exit_code": met.exit_code,
        }

    def _since_newest(self, at: Session) -> str | int | None:
        """The beginning of the agent's last command or input: older text is no answer to it."""
        newest = self._newest.get(at.id)
        return newest.ref if isinstance(newest, Act) else newest

    async def _met_of(
        self, at: Session, until: list[str], wait_s: float, since: str | int | None, by_agent: bool
    ) -> Waited:
        try:
            return await at.wait(*until, timeout=_bounded(wait_s), since=since)
        except Lost:  # the output from there on has rolled off
            if by_agent:
                raise
            return await at.wait(*until, timeout=_bounded(wait_s))

    async def screen(self, session: str | None = None) -> Json:
        at = await self._session(session)
        view = await at.view()
        return {
            "state": await self._waiting(at),
            "text": hidden(view.text, self._secrets),
            "cursor_row": None if view.cursor is None else view.cursor.y,
            "foreground": None if view.waiting is None else view.waiting.foreground,
            "cursor": f"{at.id}:{view.offset}",
        }

    async def sessions(self) -> Json:
        return {"sessions": [_session_row(one) for one in await self._client.sessions.list()]}

    async def graph(
        self, session: str | None = None, port: int | None = None, wrote: bool = False
    ) -> Json:
        graph = await (await self._session(session)).graph()
        listens = [
            {"pid": one.pid, "local": one.local}
            for one in graph.sockets
            if one.state == "listen" and port in (None, one.port)
        ]
        listening = {row["pid"] for row in listens}
        result: Json = {
            "processes": [
                {
                    "pid": one.pid,
                    "ppid": one.ppid,
                    "command": hidden(" ".join(one.argv)[:200], self._secrets),
                    "state": one.state,
                    "operator": one.actor,
                }
                for one in graph.processes[:ENTRIES]
                if port is None or one.pid in listening
            ],
            "listens": listens[:ENTRIES],
            "foreground": None if graph.terminal is None else graph.terminal.foreground.command,
        }
        if wrote:
            written = [one for one in graph.files if "w" in one.mode][:ENTRIES]
            result["writes"] = [{"pid": one.pid, "path": one.path} for one in written]
        return result


SETS: Final[
    dict[str, Callable[[Acting, Mapping[str, str]], BranchTools | FileTools | ForwardTools]]
] = {
    "branches": BranchTools,
    "files": FileTools,
    "forward": ForwardTools,
}


def _asked(question: Question | Approval | None) -> str | None:
    return None if question is None else f"{question.id}: {question.because}"


def _session_row(one: SessionInfo) -> Json:
    return {
        "name": f"{one.machine}/{one.name}" if one.machine else one.name,
        "id": one.id,
        "state": one.state,
        "turn": None if one.turn is None else one.turn.holder,
        "cwd": one.cwd,
        "layout": one.layout,
    }


async def _is_over(session: Session) -> bool:
    try:
        return (await session.info()).state == "ended"
    except NotFound:
        return True


def _bounded(wait_s: float) -> float:
    return max(0.0, min(float(wait_s), tools.WAIT_MAX_S))
