"""Answers a program's queries to its terminal: once, by the host, however many clients watch.

An answer is numbered by the query's offset in the output, so that a restarted host does not answer
again. docs/reference/terminal.md lists the queries that are answered.
"""

from __future__ import annotations

import termios
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from holdfast.host.session.lane import INPUT_WINDOW_BYTES
from holdfast.model.errors import Refused, Unavailable
from holdfast.model.probe import probe

if TYPE_CHECKING:
    from holdfast.host.session.session import Session


class TerminalReplies:
    def __init__(self, session: Session) -> None:
        self._session = session
        # Answers (query's offset, bytes) that wait for the keeper's word on the terminal's mode.
        self._waiting: list[tuple[int, bytes]] = []
        self._waiting_bytes = 0

    def give(self, offset: int, data: bytes) -> None:
        if offset < self._session.begins_at:
            return  # a program of a lost incarnation asked
        if self._waiting_bytes + len(data) > INPUT_WINDOW_BYTES:
            return  # the lane would refuse them: the program asks without reading the answers
        self._waiting.append((offset, data))
        self._waiting_bytes += len(data)
        if len(self._waiting) == 1:
            self._session.spawn(self._give())

    async def _give(self) -> None:
        """Sends the waiting answers, after a single question to the keeper.

        No answer is sent in line mode. No program could read an answer there (it has no line end),
        and the terminal would echo it: queries in a printed binary file get no answer. Nor is an
        answer sent at a prompt that came after the query: the program that asked is gone.
        """
        session, commands = self._session, self._session.commands
        line_mode = await self._in_line_mode()
        answers, self._waiting, self._waiting_bytes = self._waiting, [], 0
        for offset, same in groupby(answers, itemgetter(0)):
            data = b"".join(data for _, data in same)  # one number is one act
            if line_mode or (commands.shell.at_prompt and offset < commands.prompted_at):
                continue
            try:
                session.reply(offset, data)
            except Refused:
                return  # the program asks without reading the answers
            probe("host.query.answered")

    async def _in_line_mode(self) -> bool:
        """Asks the keeper until it answers: on a busy machine, or stopped, it may take long."""
        while not self._session.ended.done() and not self._session.link.closed:
            try:
                return bool((await self._session.terminal()).lflag & termios.ICANON)
            except Unavailable:
                continue
        return True
