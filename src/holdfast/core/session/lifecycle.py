"""The lifecycle of a session (S9): one table, and nothing else may change a state.

Rule 1: a state is what an operator may rely on, not what a program happens to do. Whether anyone is attached decides between
live and detached; the execution is the same.
Rule 2: every change is an event with the old and the new state; an event that the table does not know is refused.
Rule 3: `ended` and `reaped` are final. What is gone is not brought back under the same incarnation.

The diagram in ARCHITECTURE.md is drawn from this table; a test fails when it is stale.
"""

from __future__ import annotations

from typing import Final

STATES: Final = (
    "creating",
    "live",
    "detached",
    "halted",
    "fenced",
    "checkpointed",
    "restoring",
    "ended",
    "reaped",
)

TABLE: Final[dict[str, dict[str, str]]] = {
    "creating": {"started": "detached", "failed": "ended"},
    "detached": {
        "attached": "live",
        "exited": "ended",
        "lost": "ended",
        "halted": "halted",
        "fence": "fenced",
        "checkpointed": "checkpointed",
        "reaped": "reaped",
    },
    "live": {
        "left": "detached",
        "exited": "ended",
        "lost": "ended",
        "halted": "halted",
        "fence": "fenced",
        "checkpointed": "checkpointed",
    },
    "halted": {
        "resumed": "detached",
        "exited": "ended",
        "lost": "ended",
        "fence": "fenced",
        "checkpointed": "checkpointed",
    },
    "fenced": {"unfenced": "detached", "exited": "ended", "lost": "ended"},
    "checkpointed": {"restore": "restoring", "reaped": "reaped", "lost": "ended"},
    "restoring": {"started": "detached", "failed": "checkpointed", "lost": "ended"},
    "ended": {"reaped": "reaped"},
    "reaped": {},
}


class NotPossible(Exception):
    """The table has no such step."""

    def __init__(self, state: str, event: str) -> None:
        super().__init__(f"a session that is {state} cannot be {event}")
        self.state, self.event = state, event


def step(state: str, event: str) -> str:
    """The state after `event`."""
    try:
        return TABLE[state][event]
    except KeyError:
        raise NotPossible(state, event) from None


def running(state: str) -> bool:
    """Whether processes of the session may exist on this machine."""
    return state in ("creating", "live", "detached", "halted", "fenced", "restoring")


def diagram() -> str:
    """The table as a mermaid state diagram."""
    lines = ["stateDiagram-v2", "    [*] --> creating"]
    lines += [
        f"    {state} --> {after}: {event}"
        for state, row in TABLE.items()
        for event, after in row.items()
    ]
    lines += [f"    {state} --> [*]" for state in ("ended", "reaped")]
    return "\n".join(lines)
