"""The times on which the fence depends. Each rule has a test that breaks the rule and is caught.

The owner counts its term from the moment at which it *sent* the renewal, on its own clock. A
successor counts from the moment at which it *received* the last renewal, on its own clock. So the
successor's wait ends later, whatever the delay between, if their clocks run at the same rate. The
drift covers clocks that run at different rates.

Both clocks are CLOCK_BOOTTIME: steps of the wall clock do not change it, and it advances while the
machine sleeps. The time to live of a lease in the store is not used: a stalled leader may end a
lease that was renewed.
"""

from __future__ import annotations

from typing import Final

RENEWALS_PER_TERM: Final = 3


def valid_until(sent: float, answered: float, term: float) -> float:
    """When the owner's lease ends on the owner's clock, after a renewal that was answered."""
    return sent + term


def wait_s(term: float, drift: float) -> float:
    """How long a successor waits after the last renewal that it saw."""
    return term * (1 + drift)
