"""The advice in an error, for a program: names of this API instead of commands.

An error's `name` is the typed value: the table has the advice that a program gets where the text of
the host names a command or an option (model/advice.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from holdfast.model.advice import without_commands
from holdfast.model.errors import HoldfastError

ADVICE: Final = {  # an error without a row has the advice of the error above it
    "error": "the message has the reason",
    "usage": "look at the arguments of the call in docs/reference/python.md",
    "ambiguous": "give the whole id, or MACHINE/NAME",
    "not_found": "sessions.list(all=True) lists what exists; machines.list() lists the machines",
    "refused": "the message has the reason; session.info() shows the session as it is",
    "not_allowed": "an operator with the right can grant it",
    "turn_held": "turn.request(wait=…) asks its holder, seize() takes it; run waits by itself",
    "busy": 'session.wait("idle") waits for the program; session.send() steers it',
    "gate_refused": "the policy of the machine has the rule; an operator can change it",
    "held": "approvals.list() has the act; repeat the call after the decision",
    "operator_stopped": "another operator has to let this operator go on",
    "unfinished": "wait until the line is entered or cleared, or session.seize()",
    "from_inside": "run the program outside of every session",
    "once_used": "use a new key for a new act",
    "fenced": "the message has the reason; wait, or ask where the session lives now",
    "nested": "use another session",
    "saved": "session.restore() brings it back",
    "unavailable": "try again; connect(start=True) starts a local host, and sessions keep running",
    "peer_fault": "run the same release on both sides",
    "contradicted": "keep the receipts of the home, and ask the administrator of the machine",
    "wrong_pin": "compare the address of the relay with the address that the relay prints",
    "lost": "session.info().output has the range that is still kept",
    "impossible": "the message has the reason; the machine's administrator can run its checks",
    "outcome_unknown": "look first (session.view(), session.log()), or repeat with the same once=",
    "timed_out": "try again with a longer timeout",
}


def for_programs(error: HoldfastError) -> HoldfastError:
    """The same error, with advice that a program can follow."""
    return without_commands(error, ADVICE)


@contextlib.contextmanager
def advice() -> Iterator[None]:
    """Errors of the block get advice for programs."""
    try:
        yield
    except HoldfastError as e:
        for_programs(e)
        raise
