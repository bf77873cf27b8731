"""Answers to what a program asks its terminal: one, from the host, whoever watches. Keyed by the question's offset, so that a restarted host
does not answer again."""

from __future__ import annotations

import termios
from typing import TYPE_CHECKING

from holdfast.model.errors import Refused, Unavailable
from holdfast.model.probe import probe

if TYPE_CHECKING:
    from holdfast.host.session import Session


class Answers:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._waiting: list[tuple[int, bytes]] = []  # until it is known who reads

    def give(self, offset: int, data: bytes) -> None:
        self._waiting.append((offset, data))
        if len(self._waiting) == 1:
            self._session.spawn(self._give())

    async def _give(self) -> None:
        """Not in line mode, where nobody could read it (an answer has no line end) and the terminal would echo it into the output:
        what a binary file happens to ask is not answered. Nor at a prompt that came after the question: who asked is gone.
        The keeper is asked once for all questions that have come together."""
        session, commands = self._session, self._session.commands
        try:
            line_mode = bool((await session.terminal()).lflag & termios.ICANON)
        except Unavailable:
            line_mode = True
        answers, self._waiting = self._waiting, []
        for offset, data in answers:
            if line_mode or (commands.shell.at_prompt and offset < commands.prompted_at):
                continue
            try:
                session.reply(offset, data)
            except Refused:
                return  # a program that asks without reading the answers
            probe("host.query.answered")
