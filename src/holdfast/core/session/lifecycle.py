"""The lifecycle of a session (S9): a table, and the only place that changes a state.

Rule 1: a state tells operators what they can do with the session, not what its programs do. A
session is live while a client is attached, else detached; its programs run in both states.
Rule 2: every change is an event with the old and the new state. An event that is not in the table
is refused.
Rule 3: `reaped` is final. An ended incarnation does not come back; the session can, as the next.
Rule 4: a session that is restored from the disk shows `restoring`, and an event says so. The store
keeps the state before until the next incarnation has started, and so does a restore that fails.
Rule 5: a session whose memory was lost, and that comes back without it, is `interrupted`. It is
restoring until its next incarnation has started.

The diagram in ARCHITECTURE.md is drawn from this table; a test fails when it is stale.
"""

from __future__ import annotations

from typing import Final

from holdfast.model.words import words_of

STATES: Final = words_of("creating live detached halted fenced checkpointed restoring ended reaped")
STANDING: Final = ("halted", "fenced")  # states in which no program may run
_ENDS: Final = {"exited": "ended", "lost": "ended", "interrupted": "restoring"}
_STOPS: Final = {"fence": "fenced", "checkpointed": "checkpointed"}
TABLE: Final[dict[str, dict[str, str]]] = {
    "creating": {"started": "detached", "failed": "ended"},
    "detached": {"attached": "live", **_ENDS, "halted": "halted", **_STOPS, "reaped": "reaped"},
    "live": {"left": "detached", **_ENDS, "halted": "halted", **_STOPS},
    "halted": {"resumed": "detached", **_ENDS, **_STOPS},
    "fenced": {"unfenced": "detached", **_ENDS, "checkpointed": "checkpointed"},
    "checkpointed": {
        "restore": "restoring",
        "interrupted": "restoring",
        "reaped": "reaped",
        "lost": "ended",
    },
    "restoring": {"started": "detached", "lost": "ended", "interrupted": "restoring"},
    "ended": {"restore": "restoring", "interrupted": "restoring", "reaped": "reaped"},
    "reaped": {},
}


class NotPossible(Exception):
    """The table has no such transition."""

    def __init__(self, state: str, event: str) -> None:
        super().__init__(f"a session that is {state} cannot be {event}")
        self.state, self.event = state, event


def step(state: str, event: str) -> str:
    """Return the state after `event`."""
    try:
        return TABLE[state][event]
    except KeyError:
        raise NotPossible(state, event) from None


def running(state: str) -> bool:
    """Say whether processes of the session may exist on this machine."""
    return state in ("creating", "live", "detached", "halted", "fenced", "restoring")


def diagram() -> str:
    """Return the table as a mermaid state diagram."""
    lines = ["stateDiagram-v2", "    [*] --> creating"]
    lines += [
        f"    {state} --> {after}: {event}"
        for state, row in TABLE.items()
        for event, after in row.items()
    ]
    lines += [f"    {state} --> [*]" for state in ("ended", "reaped")]
    return "\n".join(lines)
