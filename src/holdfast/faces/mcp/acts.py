"""The commands of the agent. A task follows each command from the request to the end.

A call returns after `wait_s` and the command goes on. The agent asks again by the reference of the
command. A command that has not begun has no reference of the session; until then `act:N` names the
command, as long as this server lives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from holdfast.faces.mcp.text import Output
from holdfast.model.errors import HoldfastError, OnceUsed, TurnHeld

if TYPE_CHECKING:
    from holdfast.sdk.results import Question
    from holdfast.sdk.session import Session

ACTS_KEPT: Final = 256  # the newest commands of a server
TURN_WAIT_S: Final = 30.0  # for the turn, before the next request for the turn
TURN_TRIES: Final = 240  # two hours
APPROVAL_WAIT_S: Final = 3600.0  # the host may give up sooner


class Act:
    """One command: state, output and exit code."""

    def __init__(
        self,
        name: str,
        session: Session,
        command: str,
        once: str | None = None,
        intent: str | None = None,
        expects: str | None = None,
    ) -> None:
        self.name, self.session, self.command = name, session, command
        self.once, self._intent, self._expects = once, intent, expects
        self.state = "running"
        self.ref: str | None = None
        self.exit_code: int | None = None
        self.approval: Question | None = None
        self.error: HoldfastError | None = None
        self.output = Output()
        self.gap = 0  # bytes of output that rolled off before this server read them
        self.inherits: Mapping[str, Any] = {}  # the state that came with the turn
        self.news = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    @property
    def over(self) -> bool:
        return self.state in ("done", "refused")

    def _become(self, state: str) -> None:
        self.state = state
        self.news.set()

    def _held(self, held: Question) -> None:
        self.approval = held
        self._become("held")

    async def follow(self) -> None:
        """Gets the turn, runs the command and takes its output."""
        try:
            await self._run()
        except HoldfastError as e:
            self.error = e
            self._become("refused")

    async def _run(self) -> None:
        for tries in range(TURN_TRIES + 1):
            try:
                running = await self.session.start(
                    self.command,
                    turn="fail",
                    hold=APPROVAL_WAIT_S,
                    once=self.once,
                    intent=self._intent,
                    expects=self._expects,
                    on_held=self._held,
                )
                break
            except TurnHeld:
                if tries == TURN_TRIES:
                    raise
                self._become("waiting_for_turn")
                turn = await self.session.turn.request(TURN_WAIT_S)
                self.inherits = (turn and turn.inherits) or self.inherits
        self.ref, self.approval = running.ref, None
        self._become("running")
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
        self._become("done")


class Acts:
    """The newest commands, found by name or reference."""

    def __init__(self) -> None:
        self._acts: dict[str, Act] = {}
        self._count = 0

    def begin(
        self, session: Session, command: str, once: str | None = None, **more: str | None
    ) -> Act:
        """Starts a command; a repeat with the key of an earlier command gives that command."""
        if (first := self._keyed(session, once)) is not None:
            if first.command != command:
                raise OnceUsed(f"the key {once!a} belongs to the command {first.command[:80]!a}")
            first.output.again()
            return first
        self._count += 1
        act = Act(f"act:{self._count}", session, command, once, **more)
        self._acts[act.name] = act
        act.task = asyncio.create_task(act.follow())
        for name in [name for name, one in self._acts.items() if one.over][:-ACTS_KEPT]:
            del self._acts[name]
        return act

    def _keyed(self, session: Session, once: str | None) -> Act | None:
        """The command with this key that runs or has run; the host judges a refused one again."""
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
        """Stops following. The commands go on."""
        tasks = [one.task for one in self._acts.values() if one.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
