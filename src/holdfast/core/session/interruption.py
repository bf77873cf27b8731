"""Whether the end of a session was an interruption, so that the session comes back (R1).

At a shutdown, the shells often get their signals while the host still runs. The host then sees ends
that look like those of `kill -HUP` on a machine that goes on. The order tells them apart:

1. An end by such a signal, which no operator asked for, is unsettled for SETTLED_S. So is the loss
   of a keeper.
2. If the host still runs then, the machine goes on, and the end is final.
3. If the host is gone before, the next host treats the end as an interruption. `down`, and a
   restart by the service manager, are no such case: they settle every end first.

A keeper that is killed alone is replaced at once, but not again and again.
"""

from __future__ import annotations

from typing import Final

SETTLED_S: Final = 10.0  # a shutdown ends the host this long after the shells, at the latest
SIGNALS: Final = frozenset((1, 15, 9))  # SIGHUP, SIGTERM, SIGKILL
ZSH_HUNG_UP: Final = 1  # zsh catches SIGHUP, and exits with this code
STEADY_S: Final = 60.0  # an incarnation that was brought back lives longer, if all is well


def perhaps(code: int, shell: str | None, known: bool) -> bool:
    """Say whether an end may belong to a shutdown.

    `code`: the exit code of the first program; of a signal the negative number. `shell`: the kind
    of shell that it was. `known`: an operator caused the end.
    """
    return not known and (-code in SIGNALS or (shell == "zsh" and code == ZSH_HUNG_UP))


def left_s(ended: float, now: float) -> float:
    """Return the time until the end is settled, whatever the clock has done since."""
    return min(max(ended + SETTLED_S - now, 0.0), SETTLED_S)


def at_once(lived_s: float | None) -> bool:
    """Say whether a session whose keeper died comes back at once.

    `lived_s`: the age of the incarnation if it was itself brought back so.
    """
    return lived_s is None or lived_s >= STEADY_S
