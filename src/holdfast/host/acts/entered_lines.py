"""The originators of lines that are typed key by key (P3).

When a line is entered, the files and shell state that the line uses are found in the background,
with their authors. A person's keys are not delayed, so the record follows the keys: an entry
`entered`, the host's testimony, without content, with the number of the key that entered the line.

There is no entry if the line uses only state that is unchanged since the shell began, or that the
operator changed. There is none for input of a program, because those bytes are no command. If only
files are in question, an entry needs a file that another operator is known to have written: a file
with an unknown writer is not enough.

Lines of agents and services are judged before they are sent (host/acts/keyboard.py); `send --enter`
and `run` pass the door, which knows all originators first.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from holdfast.core.originators.originators import UNKNOWN, foreign, names
from holdfast.core.originators.shell_authors import View
from holdfast.core.policy.conditions import Request
from holdfast.core.session.unfinished_input import PASTE, TEXT_BYTES
from holdfast.host.acts.act_context import line_request
from holdfast.host.policy.gate import Gate
from holdfast.host.runtime.connection import Connection
from holdfast.host.runtime.notify import log_error
from holdfast.host.storage.journal import Journal, Typist
from holdfast.model.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.host.session.session import Session

ENTERED: Final = "entered"
LOOKS_MAX: Final = 4  # of one session at a time; further lines have unknown originators


class EnteredLines:
    """The lines that are entered in a session."""

    def __init__(self, session: Session, gate: Gate, journal: Journal) -> None:
        self._session, self._gate, self._journal = session, gate, journal
        self._looking = 0  # lines whose state is being found

    def look(
        self, conn: Connection, typist: Typist, number: int, data: bytes, several: bool
    ) -> None:
        """Called before the keys are sent, while the text on the line is still known.

        `several`: there are other operators that could have written a file.
        """
        session = self._session
        commands, begun = session.commands, session.turn.begun()
        line = begun + _entered(data)
        if (
            commands.kind is None
            or not commands.shell.at_prompt
            or commands.shell.submitted
            or len(line) == len(begun)
            or not line.strip()
        ):
            return
        view = commands.shell_state.view
        hands = [hand for author in view.authors.values() for hand in author]
        own = (
            not view.blind
            and all(who == conn.operator for who in session.turn.begun_by())
            and all(hand.actor == conn.operator for hand in hands)
        )
        if not own or several:
            whole = len(begun) < TEXT_BYTES
            request = line_request(session, conn, line) if whole else None
            session.spawn(self._note(typist, number, request, view, own))

    async def _note(
        self, typist: Typist, number: int, request: Request | None, view: View, own: bool
    ) -> None:
        """`request` is None if the line is longer than the kept part."""
        session, operator, found = self._session, typist.actor, None
        if self._looking < LOOKS_MAX and request is not None:
            self._looking += 1
            try:
                found = await asyncio.wait_for(
                    session.in_thread(self._gate.shaped, request, view), self._gate.judge_s
                )
            except (HoldfastError, TimeoutError, ProcessLookupError):
                pass  # typing goes on or has ended the session; the originators are unknown
            except Exception as e:
                log_error(f"what a line of {session.id} touches", e)
            finally:
                self._looking -= 1
        if own and not any(one.actor != UNKNOWN for one in foreign(found or (), operator)):
            return
        if found is not None and not foreign(found, operator):
            return
        shaped = {} if found is None else {"shaped": [one.show(session.ref) for one in found]}
        originators = ("unknown",) if found is None else names(found, operator)
        draft = typist.fact(ENTERED, number=number, originators=originators, facts=shaped)
        self._journal.post(draft)


def _entered(data: bytes) -> bytes:
    """The data up to the last key that enters a line.

    A bracketed paste enters no line; it counts only if the line is entered after the paste.
    """
    end = max(data.rfind(b"\r"), data.rfind(b"\n"))
    return b"" if PASTE in data and end < len(data) - 1 else data[: end + 1]
