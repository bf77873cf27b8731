"""A command of the agent in a session, followed by a task until it ends."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Awaitable
from typing import Final

from openhands.tools.terminal.constants import HISTORY_LIMIT, TMUX_SESSION_HEIGHT

import holdfast

LINES_MAX: Final = HISTORY_LIMIT + TMUX_SESSION_HEIGHT  # of output, as OpenHands keeps with tmux
BYTES_MAX: Final = 8 << 20  # of output that no observation has shown
NOT_ALLOWED: Final = 126  # the exit code of a command that the policy refused; it did not start
INTERRUPTED: Final = 130

# All but colours, which OpenHands keeps too.
_CONTROL = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b\[[0-?]*[ -/]*[@-ln-~]|\x1b[ -/]*[0-Z\\-~]"
)
_PROMPT = re.compile(rb"\x1b\]133;[AD]")  # the shell's mark before a prompt


class Command:
    """A command: its new output, its state and its end."""

    def __init__(self, session: holdfast.Session, text: str, hold: float | None) -> None:
        self._session, self._hold = session, hold
        self.note = "waits for the session: another command runs, or another operator has the turn"
        self.code: int | None = None
        self.over = self.refused = self.ended = self.seen = False
        self.news = asyncio.Event()
        self._data, self._lost, self._began = bytearray(), False, False
        self._at: int | None = None  # in the output, of a typed command
        self._typed = _unfinished(text)
        follow = self._type(text) if self._typed else self._run(text)
        self._task = asyncio.create_task(self._follow(follow))

    def take(self) -> tuple[str, int]:
        """The output since the last call; the number of its lines if the beginning is missing."""
        data = _PROMPT.split(bytes(self._data), maxsplit=1)[0] if self._typed else bytes(self._data)
        self._data.clear()
        text = _CONTROL.sub("", data.decode("utf-8", "replace")).replace("\r\n", "\n")
        lines = text.splitlines(keepends=True)
        cut = self._lost or len(lines) > LINES_MAX
        self._lost, lines = False, lines[-LINES_MAX:]
        return "".join(lines), len(lines) if cut else 0

    async def interrupt(self) -> None:
        """Presses Ctrl-C, or withdraws a command that has not begun."""
        if not self._began:
            self._task.cancel()
            return
        await self._session.send(keys=["C-c"])
        if self._typed:  # an unfinished line is no command, and has no end of its own
            await self._session.wait("idle")
            self._task.cancel()

    async def leave(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    # ------------------------------------------------------------ the task

    async def _follow(self, way: Awaitable[None]) -> None:
        try:
            await way
        except holdfast.HoldfastError as e:
            self.note, self.code, self.refused = f"not run: {e.message}", NOT_ALLOWED, True
        except asyncio.CancelledError:
            self.note, self.code = "" if self._began else "withdrawn", INTERRUPTED
        finally:
            self.over = True
            self.news.set()

    def _held(self, question: holdfast.Question) -> None:
        self.note = f"waits for the approval {question.id} of a person: {question.because}"
        self.news.set()

    def _add(self, data: bytes) -> None:
        self._data += data
        if len(self._data) > BYTES_MAX:
            del self._data[: -BYTES_MAX // 2]
            self._lost = True
        self.news.set()

    async def _run(self, text: str) -> None:
        running = await self._session.start(text, hold=self._hold, on_held=self._held)
        self._began, self.note = True, ""
        try:
            async for chunk in running:
                self._add(chunk.data)
            done = await running.wait()
        finally:
            await running.leave()
        self.code, self.ended = done.exit_code, done.state == "ended"

    async def _type(self, text: str) -> None:
        """Types an unfinished command, which `run` would end at once. The agent types the rest."""
        finished = asyncio.create_task(self._session.wait("command"))
        try:
            sent = await self._session.send(text, enter=True, hold=self._hold)
            self._began, self.note = True, ""
            self._at = sent.offset
            reading = asyncio.create_task(self._read(follow=True))
            try:
                self.code = (await finished).exit_code
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
            await self._read(follow=False)  # the rest
        finally:
            finished.cancel()

    async def _read(self, follow: bool) -> None:
        async for chunk in self._session.read(self._at, follow=follow):
            self._at = chunk.end
            self._add(chunk.data)


def _unfinished(text: str) -> bool:
    """Whether bash expects more lines: an open here-document, quote or block."""
    seen = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
    return "unexpected EOF" in seen.stderr or "delimited by end-of-file" in seen.stderr
