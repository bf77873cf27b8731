"""Whoever watches or types under an envelope that ends soon is told before it does, not by being thrown out.

Told at each of ENDS_SOON_S before the end, or at once if less is left; and again if the end moves. What ends with a revocation cannot be foretold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.host.standing import FOREVER, Standing
from holdfast.model.limits import ENDS_SOON_S, GRANTORS_NAMED

if TYPE_CHECKING:
    from holdfast.host.viewer import Viewer


def warn(standing: Standing, viewer: Viewer, now: float) -> float:
    """Says what is to be said, and gives the moment at which to look again."""
    conn, session, again, watching = viewer.conn, viewer.session.id, FOREVER, FOREVER
    for right in ("observe",) if viewer.observe else ("observe", "input"):
        ends = standing.until(conn.key, right, session, now)
        if ends == FOREVER or ends <= now:
            continue
        if right == "observe":
            watching = ends
        again = min(again, ends, *(ends - before for before in ENDS_SOON_S if ends - before > now))
        passed = min((before for before in ENDS_SOON_S if ends - now <= before), default=None)
        if passed is not None and viewer.warned.get(right) != (ends, passed):
            viewer.warned[right] = (ends, passed)
            if (
                right == "observe" or ends < watching
            ):  # who may not even watch does not type, either
                others = [
                    name for name in standing.grantors(right, session, now) if name != conn.operator
                ]
                conn.event(
                    "ends",
                    session=session,
                    right=right,
                    at=ends,
                    in_s=round(ends - now, 1),
                    grantors=others[:GRANTORS_NAMED],
                )
    return again
