"""A command that has begun in a session."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any

from holdfast.client.engine.parts import Data, Event, Gap, Part, Reply
from holdfast.model.errors import TimedOut
from holdfast.sdk.results import Chunk, OnHeld, Range, RunResult, on_question


async def began(
    parts: AsyncGenerator[Part, None],
    on_held: OnHeld | None = None,
    inherits: Mapping[str, Any] | None = None,
) -> Running:
    """The handle of a command, once its shell has begun it.

    `inherits`: the state that came with the turn, before the command was tried again.
    """
    running = Running(parts, on_held, inherits)
    try:
        while running.ref is None and not running.over and not running.heard:
            await running.step()
    except BaseException:
        await running.leave()
        raise
    return running


class Running:
    """A command under way. The `ref` outlives this object and this process.

    Iterate for the output as it comes, or `wait` for the result. `leave` stops following; the
    command goes on, and `client.resolve(ref)` gives the exit code later.
    """

    def __init__(
        self,
        parts: AsyncGenerator[Part, None],
        on_held: OnHeld | None = None,
        inherits: Mapping[str, Any] | None = None,
    ) -> None:
        self._parts, self._on_held = parts, on_question(on_held)
        self.ref: str | None = None
        self.over: bool = False
        self._unread: list[Chunk] = []
        self._data: list[bytes] = []
        self._lost = 0
        self._state, self._code = "running", None
        self._offsets: Range | None = None
        self._inherits: Mapping[str, Any] = inherits or {}

    @property
    def heard(self) -> bool:
        """Whether output has come that no caller has read."""
        return bool(self._unread)

    async def step(self) -> None:
        """Takes the next part of the answer."""
        try:
            part = await anext(self._parts)
        except TimedOut:
            self.over = True
            return
        if isinstance(part, Event) and part.name == "began":
            self.ref = part.body.get("ref")
        elif isinstance(part, Event) and part.name == "held":
            self._on_held(part.body)
        elif isinstance(part, Gap):
            self._lost += part.end - part.start
        elif isinstance(part, Data):
            self._unread.append(Chunk(part.start, part.data, end=part.end))
            self._data.append(part.data)
        elif isinstance(part, Reply):
            self.over = True
            body = part.body
            self.ref = body.get("ref") or self.ref
            self._code = body.get("exit_code")
            self._inherits = body.get("inherits") or self._inherits
            self._state = "ended" if body.get("ended") else "done"
            self._lost = int(body.get("lost") or self._lost)
            if isinstance(output := body.get("output"), dict):
                self._offsets = Range(int(output["start"]), int(output["end"]))

    async def __aiter__(self) -> AsyncGenerator[Chunk, None]:
        while True:
            while self._unread:
                yield self._unread.pop(0)
            if self.over:
                return
            await self.step()

    async def wait(self) -> RunResult:
        """The result, with all output so far."""
        while not self.over:
            await self.step()
        data = b"".join(self._data)
        return RunResult(
            exit_code=self._code,
            output=data.decode("utf-8", "replace"),
            ref=self.ref,
            state=self._state,
            data=data,
            lost=self._lost,
            offsets=self._offsets,
            inherits=self._inherits,
        )

    async def leave(self) -> None:
        """Stops following. The command goes on."""
        await self._parts.aclose()
