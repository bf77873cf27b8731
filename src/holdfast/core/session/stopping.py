"""What a stopped operator may still do in a session (A4, A8).

Seize and halt are the acts of safety: a person can always do both, and depends on no other
operator. So a stop does not take them from a person. An agent or a service loses them too: a stop
of an agent must hold against the agent. A stopped person who seized the turn still cannot type:
the turn only keeps all others from typing until the person releases the turn or is resumed.
"""

from __future__ import annotations

from typing import Final

SAFETY_ACTS: Final = frozenset(("seize", "halt"))


def refused(act: str, operator: str, kind: str, stopped_by: str | None) -> bool:
    """Say whether an act of this operator is refused, given which operator stopped it."""
    if stopped_by is None or stopped_by == operator:  # not stopped, or stopped by itself
        return False
    return not (kind == "human" and act in SAFETY_ACTS)
