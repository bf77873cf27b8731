"""Lines that are typed key by key name their originators too (P3): once a line is entered it is looked at what it touches, beside its way to the shell.

A person at the keyboard is not held up by that, so the record of it follows the keys: an entry `entered`, the host's testimony, with the number of the key that entered the line. It has no
content. There is none if everything the line touches is as it was when the shell began, or the enterer's own doing; and none for what a program reads: those bytes are no command. Where the
shell itself is all the enterer's, only files are left: then there is one if somebody is known to have written them, not for each file whose writer nobody knows.

What a policy says of lines typed by others than people is asked before (host/keyboard.py, `keys`); `send --enter` and `run` go through the door and are told everything first.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from holdfast.core import record
from holdfast.core.conditions import Request
from holdfast.core.originators import UNKNOWN, foreign, names
from holdfast.core.shaping import View
from holdfast.core.staged import PASTE, TEXT_BYTES
from holdfast.host.connection import Connection
from holdfast.host.gate import Gate
from holdfast.host.journal import Journal, Typist
from holdfast.host.situation import line_request
from holdfast.model.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.host.session import Session

ENTERED: Final = "entered"
LOOKS_MAX: Final = 4  # of one session at a time: who enters lines faster has some of them unknown
_looking: dict[str, int] = {}


def look(
    session: Session,
    conn: Connection,
    gate: Gate,
    journal: Journal,
    typist: Typist,
    number: int,
    data: bytes,
    several: bool,
) -> None:
    """Before the keys that enter the line are sent: what stands there is still known. `several`: there are others who could have written a file."""
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
    view = commands.shaping.view
    others = [who for who in session.turn.begun_by() if who != conn.operator]
    own = (
        not others
        and not view.blind
        and all(hand.actor == conn.operator for author in view.authors.values() for hand in author)
    )
    if own and not several:
        return
    whole = len(begun) < TEXT_BYTES
    session.spawn(
        _note(
            session,
            conn,
            gate,
            journal,
            typist,
            number,
            line_request(session, conn, line) if whole else None,
            view,
            own,
        )
    )


def _entered(data: bytes) -> bytes:
    """Up to the last key that enters a line; of a paste between brackets, which enters none, only if that is the last of all."""
    end = max(data.rfind(b"\r"), data.rfind(b"\n"))
    return b"" if PASTE in data and end < len(data) - 1 else data[: end + 1]


async def _note(
    session: Session,
    conn: Connection,
    gate: Gate,
    journal: Journal,
    typist: Typist,
    number: int,
    request: Request | None,
    view: View,
    own: bool,
) -> None:
    """`request` is None if the line is longer than what is kept of it."""
    busy, found = _looking.get(session.id, 0), None
    if busy < LOOKS_MAX and request is not None:
        _looking[session.id] = busy + 1
        try:
            found = await asyncio.wait_for(
                session.in_thread(gate.shaped, request, view), gate.judge_s
            )
        except (
            Exception
        ) as e:  # nobody is kept from typing by it, and what was not found is unknown
            if not isinstance(e, (HoldfastError, TimeoutError)):
                session.loop.call_exception_handler(
                    {"message": f"what a line of {session.id} touches", "exception": e}
                )
        finally:
            if left := _looking[session.id] - 1:
                _looking[session.id] = left
            else:
                del _looking[session.id]
    if own and not any(one.actor != UNKNOWN for one in foreign(found or (), conn.operator)):
        return
    if found is not None and not foreign(found, conn.operator):
        return
    shaped = {} if found is None else {"shaped": [one.show(session.ref) for one in found]}
    journal.post(
        record.Draft(
            typist.session,
            typist.epoch,
            "fact",
            ENTERED,
            typist.actor,
            typist.modality,
            record.HOST,
            typist.key,
            typist.client,
            number=number,
            originators=("unknown",) if found is None else names(found, conn.operator),
            facts=shaped,
        )
    )
