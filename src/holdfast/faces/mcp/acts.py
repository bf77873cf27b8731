"""The acts of the agent. A task follows each act from the request to the end.

A call returns after `wait_s` and the act goes on. The agent asks again by the reference of the act.
A command that has not begun has no reference of the session; until then `act:N` names the command,
as long as this server lives. An act on files and ports has only the name `act:N`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from holdfast.faces.mcp.text import Output
from holdfast.model.errors import HoldfastError, OnceUsed, TimedOut, TurnHeld

if TYPE_CHECKING:
    from holdfast.model.jsontext import Json
    from holdfast.sdk.results import Question
    from holdfast.sdk.session import Session

ACTS_KEPT: Final = 256  # the newest acts of a server
TURN_WAIT_S: Final = 30.0  # for the turn, before the next request for the turn
TURN_TRIES: Final = 240  # two hours
APPROVAL_WAIT_S: Final = 3600.0  # the host may give up sooner


class Act:
    """An act on files or ports: its state and result."""

    def __init__(
        self,
        session: Session,
        what: object,
        do: Callable[[Act], Awaitable[Json]],
        once: str | None = None,
    ) -> None:
        """`what`: by this a repeat with the key `once` is compared."""
        self.session, self.what, self._do, self.once = session, what, do, once
        self.name = ""
        self.state = "running"
        self.ref: str | None = None
        self.approval: Question | None = None
        self.error: HoldfastError | None = None
        self.result: Json = {}
        self.news = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    @property
    def over(self) -> bool:
        return self.state in ("done", "refused")

    def become(self, state: str) -> None:
        self.state = state
        self.news.set()

    def held(self, held: Question) -> None:
        self.approval = held
        self.become("held")

    def again(self) -> None:
        """The agent repeats the call: it may have lost the first answer."""

    async def follow(self) -> None:
        try:
            self.result = await self._do(self)
            self.become("done")
        except Exception as e:  # a task that dies unseen would look like work for ever
            self.error = e if isinstance(e, HoldfastError) else HoldfastError(f"it failed: {e!r}")
            self.become("refused")


class Command(Act):
    """A command: also its output and exit code."""

    def __init__(
        self,
        session: Session,
        command: str,
        once: str | None = None,
        intent: str | None = None,
        expects: str | None = None,
        prompt: str | None = None,
    ) -> None:
        super().__init__(session, command, lambda act: self._run(command), once)
        self._intent, self._expects, self._prompt = intent, expects, prompt
        self.exit_code: int | None = None
        self.output = Output()
        self.gap = 0  # bytes of output that rolled off before this server read them
        self.inherits: Mapping[str, Any] = {}  # the state that came with the turn

    @property
    def begun(self) -> bool:
        """Whether it runs: until then, what the session waits for is not about this command."""
        return self.state == "running" and self.ref is not None

    def again(self) -> None:
        self.output.again()

    async def _run(self, command: str) -> Json:
        """Gets the turn, runs the command and takes its output."""
        for tries in range(TURN_TRIES + 1):
            try:
                running = await self.session.start(
                    command,
                    turn="fail",
                    hold=APPROVAL_WAIT_S,
                    once=self.once,
                    intent=self._intent,
                    expects=self._expects,
                    prompt=self._prompt,
                    on_held=self.held,
                )
                break
            except TurnHeld:
                if tries == TURN_TRIES:
                    raise
                self.become("waiting_for_turn")
                with contextlib.suppress(TimedOut):  # asks again
                    turn = await self.session.turn.request(TURN_WAIT_S)
                    self.inherits = (turn and turn.inherits) or self.inherits
        self.ref, self.approval = running.ref, None
        self.become("running")
        async for chunk in running:
            self.output.add(chunk.offset, chunk.data, chunk.end)
            self.ref = running.ref or self.ref
            self.news.set()
        result = await running.wait()
        self.ref, self.exit_code = result.ref or self.ref, result.exit_code
        if result.offsets is not None and self.output.start is None:
            self.output.start = self.output.end = result.offsets.end
        self.gap = result.lost
        self.inherits = result.inherits or self.inherits
        return {}


AnAct = TypeVar("AnAct", bound=Act)


class Acts:
    """The newest acts, found by name or reference."""

    def __init__(self) -> None:
        self._acts: dict[str, Act] = {}
        self._count = 0

    def begin(self, act: AnAct) -> AnAct:
        """Starts an act; a repeat with the key of an earlier act gives that act."""
        if (first := self._keyed(act.session, act.once)) is not None:
            if not isinstance(first, type(act)) or first.what != act.what:
                raise OnceUsed(f"the key {act.once!a} belongs to {str(first.what)[:80]!a}")
            first.again()
            return first
        self._count += 1
        act.name = f"act:{self._count}"
        self._acts[act.name] = act
        act.task = asyncio.create_task(act.follow())
        for name in [name for name, one in self._acts.items() if one.over][:-ACTS_KEPT]:
            del self._acts[name]
        return act

    def _keyed(self, session: Session, once: str | None) -> Act | None:
        """The act with this key that runs or has run; the host judges a refused one again."""
        if once is None:
            return None
        key, mine = (session.id, once), self._acts.values()
        found = (one for one in mine if (one.session.id, one.once) == key and one.error is None)
        return next(found, None)

    def find(self, ref: str) -> Act | None:
        return self._acts.get(ref) or next(
            (one for one in self._acts.values() if one.ref == ref), None
        )

    async def close(self) -> None:
        """Stops following. Commands go on."""
        tasks = [one.task for one in self._acts.values() if one.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
