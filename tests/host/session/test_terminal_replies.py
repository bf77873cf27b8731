"""Answers to queries reach the program however long the keeper takes (S6)."""

from __future__ import annotations

import asyncio
import termios
from types import SimpleNamespace
from typing import Any, cast

from holdfast.host.session.lane import INPUT_WINDOW_BYTES
from holdfast.host.session.session import Session
from holdfast.host.session.terminal_replies import TerminalReplies
from holdfast.model.errors import Unavailable


class Asked:
    """A session whose keeper does not answer the first questions about the terminal's mode."""

    def __init__(self, silent: int = 0, lflag: int = 0) -> None:
        self.silent, self._lflag = silent, lflag
        self.ended = asyncio.get_running_loop().create_future()
        self.link, self.begins_at = SimpleNamespace(closed=False), 0
        shell = SimpleNamespace(at_prompt=False)
        self.commands = SimpleNamespace(shell=shell, prompted_at=0)
        self.sent: list[tuple[int, bytes]] = []
        self.tasks: list[asyncio.Task[None]] = []

    def spawn(self, work: Any) -> None:
        self.tasks.append(asyncio.create_task(work))

    async def terminal(self) -> Any:
        await asyncio.sleep(0)
        if self.silent:
            self.silent -= 1
            raise Unavailable("the keeper does not answer")
        return SimpleNamespace(lflag=self._lflag)

    def reply(self, offset: int, data: bytes) -> None:
        self.sent.append((offset, data))


async def given(asked: Asked, answers: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    replies = TerminalReplies(cast(Session, asked))
    for offset, data in answers:
        replies.give(offset, data)
    await asyncio.gather(*asked.tasks)
    return asked.sent


def test_s6_a_slow_keeper_delays_answers_and_loses_none() -> None:
    async def scenario() -> list[tuple[int, bytes]]:
        return await given(Asked(silent=3), [(4, b"a"), (9, b"b")])

    assert asyncio.run(scenario()) == [(4, b"a"), (9, b"b")]


def test_s6_two_answers_to_one_sequence_are_one_act() -> None:
    """The lane takes an act once per number, and the number is the query's offset."""

    async def scenario() -> list[tuple[int, bytes]]:
        return await given(Asked(), [(4, b"a"), (4, b"b"), (9, b"c")])

    assert asyncio.run(scenario()) == [(4, b"ab"), (9, b"c")]


def test_s6_no_answer_is_typed_in_line_mode_or_after_the_end() -> None:
    async def scenario(ended: bool) -> list[tuple[int, bytes]]:
        asked = Asked(silent=3 if ended else 0, lflag=termios.ICANON)
        if ended:
            asked.ended.set_result(None)
        return await given(asked, [(4, b"a")])

    assert asyncio.run(scenario(False)) == asyncio.run(scenario(True)) == []


def test_s6_waiting_answers_are_bounded() -> None:
    async def scenario() -> int:
        piece = b"x" * 1024
        sent = await given(Asked(), [(n, piece) for n in range(2 * INPUT_WINDOW_BYTES // 1024)])
        return sum(len(data) for _, data in sent)

    assert asyncio.run(scenario()) == INPUT_WINDOW_BYTES
