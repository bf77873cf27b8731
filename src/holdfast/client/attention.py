"""What sessions wait for, followed for as long as somebody wants to know: for every face that tells people (command line, chats, pages).

The host tells what is now, then what changes; it may die, be upgraded or be out of reach meanwhile. Then what was told of its sessions is not known any more, and is said to be unknown
as soon as the first seconds of haste have not brought it back; the way back is looked for with growing pauses, however long it takes, and whatever is still as it was told is not told again. Names are meant as they were at the beginning: another session
that gets the same name later is another one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from holdfast.client.link import HostGone, Link
from holdfast.core.noticing import OVER, Notice, news
from holdfast.core.patience import Patience
from holdfast.model.errors import TimedOut, Unavailable
from holdfast.model.limits import RECONNECT_FIRST_S, REMOTE_AGAIN_MAX_S

AGAIN_MAX_S: Final = 5.0  # between attempts to reach the host of this machine
AWAY: Final = "{} cannot be reached"

Told = Callable[[Notice], None]


def now(link: Link, sessions: Sequence[str] = ()) -> list[Notice]:
    """What these sessions wait for, or all that may be observed."""
    return [_notice(one) for one in link.request("attention", sessions=list(sessions))["attention"]]


def _notice(body: dict[str, Any]) -> Notice:
    """A newer host may say more of it."""
    return Notice(**{name: body[name] for name in Notice._fields})


class Following:
    """Tells `told` what is and then every change, until all the named sessions have ended, or for ever."""

    def __init__(
        self,
        link: Link,
        sessions: Sequence[str],
        told: Told,
        missed: Callable[[int], None] = lambda count: None,
    ) -> None:
        self._link, self._sessions, self._told, self._missed = link, list(sessions), told, missed
        self._known: dict[str, Notice] = {}
        self._patience = Patience(
            RECONNECT_FIRST_S, REMOTE_AGAIN_MAX_S if link.away is not None else AGAIN_MAX_S
        )

    def follow(self) -> None:
        first = now(self._link, self._sessions)
        if self._sessions:
            self._sessions = [one.session for one in first]
        for notice in first:
            self._tell(notice)
        while True:
            try:
                self._link.request(
                    "attention",
                    wait_s=None,
                    on_event=self._event,
                    sessions=self._sessions,
                    follow=True,
                )
                return
            except (Unavailable, TimedOut) as e:
                if isinstance(e, HostGone) and e.reason == "down":
                    raise
                self._away()
                time.sleep(self._patience.pause(time.monotonic(), os.urandom(1)[0] / 255))

    def _event(self, event: dict[str, Any]) -> None:
        self._patience.reached(time.monotonic())
        if event.get("event") == "attention":
            self._tell(_notice(event["body"]))
        elif (
            event.get("event") == "over"
        ):  # ended before this host was asked: while nobody was there to tell, perhaps
            notice = _notice(event["body"])
            if notice.session in self._known:
                self._tell(notice)
        elif event.get("event") == "missed":
            self._missed(int(event["count"]))

    def _tell(self, notice: Notice) -> None:
        if news(self._known.get(notice.session), notice):
            self._known[notice.session] = notice
            self._told(notice)
            if notice.kind in OVER and not self._sessions:
                del self._known[notice.session]

    def _away(self) -> None:
        """Nobody says how they are: that is what is told, not what they were."""
        for one in [one for one in self._known.values() if one.kind not in ("unknown", *OVER)]:
            self._tell(
                one._replace(
                    kind="unknown",
                    why=AWAY.format(self._link.where),
                    pid=None,
                    since=time.time(),
                    foreground="",
                )
            )
