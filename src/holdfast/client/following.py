"""Follow a host through its deaths: one request that begins again where it stopped (S4, S5).

`read`, `log`, `events`, `attention`, `approvals` and `graph` with `--follow` use `follow`. Output
and the record have a position in the request (`from`, `after`), which grows with each part that
arrives. A repeat of the request therefore has no hole and no doubled part. The other requests begin
with the present state; their callers compare this state with the state that they reported last.

A host that was reached once is tried again without limit, as `attach` does. `holdfast down`, a
revoked right and every other answer of a living host end the following.
"""

from __future__ import annotations

import os
import time

from holdfast.client.gone import HostGone, NoRoute
from holdfast.client.link import SETTLED_S
from holdfast.core.sealed.backoff import STEADY_S, Patience
from holdfast.model.errors import NotFound, PeerFault, TimedOut, Unavailable
from holdfast.model.limits import RECONNECT_FIRST_S, RECONNECT_MAX_S, REMOTE_AGAIN_MAX_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Final

    from holdfast.client.link import Link
    from holdfast.model.jsontext import Json

AWAY_AFTER_S: Final = 1.0  # an outage that is longer than this is reported


def follow(
    link: Link,
    op: str,
    away: Callable[[], None],
    on_data: Callable[[int, int, bytes], None] | None = None,
    on_gap: Callable[[int, int], None] | None = None,
    on_event: Callable[[Json], None] | None = None,
    **fields: Any,
) -> Json:
    """Request `op` with `follow` until the answer; parts of the answer go to the callbacks.

    A session is named by its id: a later session with the same name is another session. `away` is
    called once in each outage that lasts. If the named session ended without a host, the result is
    the description of the ended session (`get`).
    """
    remote = link.away is not None
    patience = Patience(
        RECONNECT_FIRST_S,
        REMOTE_AGAIN_MAX_S if remote else RECONNECT_MAX_S,
        STEADY_S if remote else 0.0,
    )
    fields["follow"] = True
    if link.sock is None:
        link.request("ping")
    lost_at: float | None = None  # when the outage began
    lost = reported = False
    while True:
        asked_at: float | None = None
        try:
            if link.sock is None:
                link.connect()
            asked_at = time.monotonic()
            patience.reached(asked_at)
            return link.ask(op, (on_data, on_gap, on_event), fields)
        except PeerFault:
            raise  # another release, or another machine
        except NotFound:
            if not lost or "session" not in fields:
                raise
            return link.request("get", session=fields["session"])
        except (Unavailable, TimedOut, NoRoute) as e:
            gone = isinstance(e, HostGone)
            if (isinstance(e, HostGone) and e.reason == "down") or not (gone or lost):
                raise
            now, lost = time.monotonic(), True
            if asked_at is not None and now - asked_at >= SETTLED_S:
                lost_at, reported = None, False
            lost_at = now if lost_at is None else lost_at
            if now - lost_at > AWAY_AFTER_S and not reported:
                reported = True
                away()
            link.close()
            time.sleep(patience.pause(now, os.urandom(1)[0] / 255 if remote else 0.5))
