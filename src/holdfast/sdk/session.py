"""A session as a program sees it: run, type, look, wait, steer."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Final, Literal

from holdfast.client.engine.engine import Engine
from holdfast.client.engine.parts import Data, Event, Gap, Reply
from holdfast.core.session.graph_news import GraphNews
from holdfast.model.errors import Busy, NotFound, PeerFault, Refused, TimedOut, TurnHeld, Unfinished
from holdfast.sdk.attach import Attachment
from holdfast.sdk.branches import Branch, Difference, Forked, Kept, Left
from holdfast.sdk.files import Files
from holdfast.sdk.forward import Forward
from holdfast.sdk.observed import Change, Entry, Graph
from holdfast.sdk.results import (
    Checkpoint,
    Chunk,
    Ended,
    Halted,
    OnHeld,
    Preflight,
    Restored,
    RunResult,
    Screen,
    Seized,
    Sent,
    SessionInfo,
    TurnState,
    Waited,
    given,
    on_question,
    read,
)
from holdfast.sdk.running import Running, began

TurnRule = Literal["wait", "fail", "seize"]
PAGE: Final = 200  # entries of a record or events in one answer
WAIT_S: Final = 30.0  # for the turn or the prompt, before the act is tried again


class Session:
    """A live session. The `id` is the same for every client, host and machine."""

    def __init__(self, engine: Engine, info: SessionInfo) -> None:
        self._engine, self._info = engine, info
        self.id: Final = info.id
        self.machine: Final = info.machine  # empty: this machine
        self.turn: Final = Turn(engine, info.id)
        self.files: Final = Files(engine, info.id)

    @property
    def name(self) -> str:
        return self._info.name

    @property
    def ref(self) -> str | None:
        """The reference to write into a transcript; `client.resolve` finds its meaning later."""
        return self._info.ref

    def __repr__(self) -> str:
        return f"Session({self.name!r}, {self.id!r})"

    async def info(self) -> SessionInfo:
        """The session as it is now."""
        self._info = read(SessionInfo, await self._engine.ask("get", session=self.id))
        return self._info

    # ------------------------------------------------------------ acting

    async def run(
        self,
        text: str,
        *,
        turn: TurnRule = "wait",
        timeout: float | None = None,
        hold: float | None = None,
        once: str | None = None,
        intent: str | None = None,
        expects: str | None = None,
        prompt: str | None = None,
        on_held: OnHeld | None = None,
    ) -> RunResult:
        """Runs a command in the session's shell; gives the output and the exit code.

        `turn`: `wait` for the turn and a free prompt, `fail` if there is none, or `seize` the turn.
        `timeout`: after so many seconds the result has the state `running`; the command goes on.
        `hold`: seconds to wait for an approval, if the policy asks for one. `once`: an idempotency
        key; any client that repeats the act with the key gets the outcome of the first. `on_held`:
        called when the act begins to wait for an approval. `intent` and `expects`: the purpose and
        the expected effect, for the record; `prompt`: a reference to the prompt behind the act.
        """
        async with self._engine.one_at_a_time(self.id):
            running = await self.start(
                text,
                turn=turn,
                timeout=timeout,
                hold=hold,
                once=once,
                intent=intent,
                expects=expects,
                prompt=prompt,
                on_held=on_held,
            )
            try:
                return await running.wait()
            finally:
                await running.leave()

    async def start(
        self,
        text: str,
        *,
        turn: TurnRule = "wait",
        timeout: float | None = None,
        hold: float | None = None,
        once: str | None = None,
        intent: str | None = None,
        expects: str | None = None,
        prompt: str | None = None,
        on_held: OnHeld | None = None,
    ) -> Running:
        """Starts a command and returns at once; the handle can stream, wait, or leave."""
        end = None if timeout is None else time.monotonic() + timeout
        inherits: Mapping[str, Any] = {}
        while True:
            parts = self._engine.stream(
                "run",
                session=self.id,
                text=text,
                timeout=_left(end) or 0.0,
                resume=None,
                hold=hold,
                **given(once=once, intent=intent, expects=expects, prompt=prompt),
            )
            try:
                return await began(parts, on_held, inherits)
            except (TurnHeld, Busy, Unfinished) as e:
                if turn == "fail":
                    raise
                inherits = await self._await_turn(e, turn, end) or inherits

    async def _await_turn(
        self, why: Refused, turn: TurnRule, end: float | None
    ) -> Mapping[str, Any]:
        """Waits until the act that was refused may be tried again, or raises the refusal.

        Returns the state that passed with the turn: the host reports it once.
        """
        left = _left(end)
        if left is not None and left <= 0:
            raise why
        wait_s = WAIT_S if left is None else min(left, WAIT_S)
        if turn == "seize" and not isinstance(why, Busy):
            return (await self.seize()).inherits
        if isinstance(why, TurnHeld):
            state = await self.turn.request(wait_s)
            return {} if state is None else state.inherits
        with contextlib.suppress(TimedOut):
            await self.wait("idle", timeout=wait_s)
        return {}

    async def send(
        self,
        text: str = "",
        *,
        keys: Sequence[str] = (),
        enter: bool = False,
        paste: bool = False,
        hold: float | None = None,
        once: str | None = None,
        intent: str | None = None,
        prompt: str | None = None,
    ) -> Sent:
        """Types text, then named keys (`C-c`, `Up`, `Escape` …); `enter` presses Enter last."""
        body = await self._engine.ask(
            "send",
            session=self.id,
            text=text,
            keys=[*keys, *(["Enter"] if enter else [])],
            paste=paste,
            hold=hold,
            **given(once=once, intent=intent, prompt=prompt),
        )
        return read(Sent, body)

    async def signal(self, pid: int, signal: str = "TERM", *, tree: bool = False) -> int:
        """Signals a process, or the process and all below; gives the number of processes."""
        body = await self._engine.ask("signal", session=self.id, pid=pid, signal=signal, tree=tree)
        return int(body["count"])

    async def seize(self, *, stop: bool = False) -> Seized:
        """Takes the turn at once, without the consent of its holder.

        `stop`: also stop the processes of the former holder, and refuse its further acts.
        """
        more = {"stop": True} if stop else {}
        return read(Seized, await self._engine.ask("seize", session=self.id, **more))

    async def halt(self, *, operator: str | None = None) -> Halted:
        """Stops every process of the session.

        `operator`: only the processes that acts of this operator started; its further acts in the
        session are refused.
        """
        return await self._halting("halt", operator)

    async def resume(self, *, operator: str | None = None) -> Halted:
        """Lets a halted session go on; `operator`: only the processes of this operator."""
        return await self._halting("resume", operator)

    async def _halting(self, op: str, operator: str | None) -> Halted:
        more: dict[str, Any] = {} if operator is None else {"operator": operator}
        return read(Halted, await self._engine.ask(op, session=self.id, **more))

    async def preflight(self) -> Preflight:
        """What `checkpoint` would save and lose; nothing stops."""
        body = await self._engine.ask("checkpoint", session=self.id, stop=False, check=True)
        return read(Preflight, body["found"])

    async def checkpoint(self, *, stop: bool = False, hold: float | None = None) -> Checkpoint:
        """Saves the session with its processes to disk; the session goes on.

        `stop`: the processes end once they are saved. Raises `Impossible` with the reasons if the
        session cannot be saved.
        """
        body = await self._engine.ask(
            "checkpoint", None, session=self.id, stop=stop, check=False, hold=hold
        )
        return read(Checkpoint, body["saved"])

    async def checkpoints(self) -> list[Checkpoint]:
        """The checkpoints of the session, oldest first."""
        body = await self._engine.ask("checkpoints", session=self.id)
        return [read(Checkpoint, one) for one in body["checkpoints"]]

    async def restore(
        self,
        checkpoint: str | None = None,
        *,
        fallback: bool | None = None,
        hold: float | None = None,
    ) -> Restored:
        """Brings the ended session back, from a checkpoint or from its newest.

        If that fails, it comes back without its memory, and the result says so; `fallback=False`
        raises `Impossible` instead.
        """
        more = given(checkpoint=checkpoint, fallback=fallback)
        body = await self._engine.ask("restore", None, session=self.id, hold=hold, **more)
        await self.info()
        return read(Restored, body)

    async def can_fork(self, n: int = 1) -> Preflight:
        """Whether `fork` is possible, and what the branches would lack; nothing stops."""
        body = await self._engine.ask("fork", session=self.id, n=n, check=True)
        return read(Preflight, body["found"])

    async def fork(
        self,
        n: int = 1,
        *,
        name: str | None = None,
        once: str | None = None,
        hold: float | None = None,
        on_held: OnHeld | None = None,
    ) -> Forked:
        """Makes live branches of the session, which goes on: each branch is a session.

        `name`: of a single branch; several are NAME-1, NAME-2 and so on.
        """
        more = given(name=name, once=once)
        body = await self._asked("fork", on_held, n=n, check=False, hold=hold, **more)
        return read(Forked, body)

    async def branches(self) -> list[Branch]:
        """The branches that began with this session; of a branch, those of its fork."""
        body = await self._engine.ask("branches", session=self.id)
        return [read(Branch, one) for one in body["branches"]]

    async def diff(
        self, path: str | None = None, *, every: bool = False, texts: bool = True
    ) -> Difference:
        """The changes of this branch since the fork. `every`: home, /tmp and /run too."""
        more = given(path=path)
        body = await self._engine.ask("diff", session=self.id, every=every, texts=texts, **more)
        return read(Difference, body)

    async def keep(
        self,
        *,
        take: Sequence[str] = (),
        leave: Sequence[str] = (),
        others: bool = False,
        check: bool = False,
        hold: float | None = None,
        on_held: OnHeld | None = None,
    ) -> Kept:
        """Commits the files of this branch to its parent's directories; discards the others.

        With conflicts nothing is written, and `done` is False: `take` the file of the branch, or
        `leave` the file as it is. `others`: does not discard them. `check`: writes nothing.
        """
        decided = {"take": [*take], "leave": [*leave], "others": others, "check": check}
        body = await self._asked("keep", on_held, hold=hold, **decided)
        return read(Kept, body)

    async def discard(self, *, hold: float | None = None, on_held: OnHeld | None = None) -> Left:
        """Ends this branch and removes its files; gives what left it."""
        body = await self._asked("discard", on_held, hold=hold)
        return read(Left, body["left"])

    async def _asked(self, op: str, on_held: OnHeld | None, **fields: Any) -> dict[str, Any]:
        """The reply to an act that may have to wait for an approval."""
        held = on_question(on_held)
        asked = self._engine.stream(op, None, session=self.id, **fields)
        async with contextlib.aclosing(asked) as parts:
            async for part in parts:
                if isinstance(part, Event) and part.name == "held":
                    held(part.body)
                if isinstance(part, Reply):
                    return part.body
        raise PeerFault("an answer without a reply")

    async def reap(self, choice: Literal["default", "never", "evict", "end"]) -> None:
        """Chooses what the reaper may do with the session when it is idle."""
        await self._engine.ask("reap", session=self.id, choice=choice)

    async def rename(self, name: str) -> None:
        """Gives the session a new name; the id stays."""
        await self._engine.ask("rename", session=self.id, name=name)
        await self.info()

    async def end(self) -> Ended:
        """Ends every process of the session."""
        return read(Ended, await self._engine.ask("end", None, session=self.id))

    def attach(self, size: tuple[int, int] = (80, 24), *, observe: bool = False) -> Attachment:
        """A terminal attached to the session, within a `with` block; `observe`: without typing."""
        return Attachment(self._engine, self.id, size, observe)

    def forward(
        self,
        port: int,
        listen: str | None = None,
        *,
        expose: bool = False,
        intent: str | None = None,
        on_held: OnHeld | None = None,
    ) -> Forward:
        """A listening TCP port of the session at an address of this machine, within a `with` block.

        `listen`: ADDRESS, ADDRESS:PORT or PORT; by default 127.0.0.1 with the same port, or with a
        free port. `expose`: allow an address that other machines can reach. `intent`: the purpose,
        for the record. `on_held`: called when the forward waits for an approval.
        """
        more = given(intent=intent)
        return Forward(self._engine, self.id, port, listen, expose, on_held, **more)

    # ------------------------------------------------------------ looking

    async def view(self, *, history: int = 0) -> Screen:
        """The screen now; `history`: lines of scrollback."""
        body = await self._engine.ask("view", session=self.id, history=history)
        return read(Screen, body)

    async def read(
        self, start: int | None = None, *, follow: bool = False
    ) -> AsyncGenerator[Chunk, None]:
        """Raw output from an absolute offset, the oldest kept by default; `follow`: until the end.

        The iteration survives the death of the host: no byte is missing and none comes twice.
        """
        fields: dict[str, Any] = {"session": self.id, "from": start, "follow": follow}
        async with contextlib.aclosing(
            self._engine.stream("read", patient=follow, **fields)
        ) as parts:
            async for part in parts:
                if isinstance(part, Gap):
                    yield Chunk(part.end, b"", part.end - part.start, part.end)
                elif isinstance(part, Data):
                    yield Chunk(part.start, part.data, end=part.end)

    async def wait(
        self, *conditions: str, timeout: float | None = None, since: int | str | None = None
    ) -> Waited:
        """Returns when one of the conditions holds; raises `TimedOut` after `timeout` seconds.

        Conditions: idle, input, secret, exit, command, `text:REGEX`, `port:NUMBER`. `since`: look
        for text in the output from there on, and not on the screen. An offset, a reference to a
        range of output, or the `ref` of a command that runs or has run.
        """
        fields = {"session": self.id, "for": list(conditions), "timeout": timeout or 0.0}
        more = {} if since is None else {"since": str(since)}
        return read(Waited, await self._engine.ask("wait", None, **fields, **more))

    async def graph(self) -> Graph:
        """Processes with their operators, open files, sockets and the terminal."""
        body = await self._engine.ask("graph", session=self.id)
        return read(Graph, body, raw=body)

    async def changes(self) -> AsyncGenerator[Change, None]:
        """Changes of the graph until the session ends; present processes and ports come first.

        The iteration survives the death of the host: an exit that no host saw comes with an unknown
        exit code, and no change comes twice.
        """
        known, began = GraphNews(), False
        stream = self._engine.stream("graph", patient=True, session=self.id, follow=True)
        async with contextlib.aclosing(stream) as parts:
            try:
                async for part in parts:
                    if not isinstance(part, Event) or part.name not in ("present", "changed"):
                        continue
                    began, present = True, part.name == "present"
                    for change in known.returned(part.body) if present else (part.body,):
                        if known.is_news(change):
                            yield read(Change, change)
            except NotFound:  # the session ended while no host was there
                if not began:
                    raise

    async def log(self, after: int = 0, *, follow: bool = False) -> AsyncGenerator[Entry, None]:
        """Entries of the record, the oldest first; `follow`: each new entry too.

        `after`: the number of an entry; a negative one begins with that many of the newest.
        """
        found = entries(self._engine, "log", "entries", "recorded", follow, after, session=self.id)
        async with contextlib.aclosing(found):
            async for entry in found:
                yield read(Entry, entry, time=entry["time"] / 1e9)


class Turn:
    """The right to write now."""

    def __init__(self, engine: Engine, session: str) -> None:
        self._engine, self._session = engine, session

    async def _do(self, act: str, wait: float = 0.0, to: str | None = None) -> TurnState | None:
        body = await self._engine.ask(
            "turn", None, session=self._session, act=act, wait=wait, to=to
        )
        if body.get("turn") is None:
            return None
        return read(TurnState, {**body["turn"], "inherits": body.get("inherits") or {}})

    async def state(self) -> TurnState | None:
        """The holder; None if the turn is free."""
        return await self._do("show")

    async def request(self, wait: float = 0.0) -> TurnState | None:
        """Asks for the turn, and waits at most `wait` seconds."""
        return await self._do("request", wait)

    async def release(self) -> TurnState | None:
        return await self._do("release")

    async def hand(self, operator: str) -> TurnState | None:
        """Hands the turn to another operator."""
        return await self._do("hand", to=operator)


async def entries(
    engine: Engine, op: str, key: str, event: str, follow: bool, after: int, **fields: Any
) -> AsyncGenerator[dict[str, Any], None]:
    """Numbered entries after a number, page by page, or as they come."""
    if after < 0:
        page = (await engine.ask(op, after=None, limit=-after, **fields))[key]
        for entry in page:
            yield entry
        after = page[-1].get("seq", page[-1].get("number")) if page else 0
    if follow:
        stream = engine.stream(op, patient=True, after=after, follow=True, **fields)
        async with contextlib.aclosing(stream) as parts:
            async for part in parts:
                if isinstance(part, Event) and part.name == event:
                    body = part.body["body"]
                    yield body.get("entry", body)
        return
    while True:
        page = (await engine.ask(op, after=after, limit=PAGE, **fields))[key]
        for entry in page:
            after = entry.get("seq", entry.get("number"))
            yield entry
        if len(page) < PAGE:
            return


def _left(end: float | None) -> float | None:
    return None if end is None else max(0.0, end - time.monotonic())
