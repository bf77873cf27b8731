"""Follow which sessions wait for a person, for every face: command line, chats, web pages.

The host reports the present state, then every change. While the host is dead, being upgraded or
unreachable, the state of the sessions is unknown. This module reports that if the outage lasts
(client/following.py). After the return, a state that did not change is not reported again. Session
names are resolved once at the start: a later session with the same name is a different session.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from holdfast.client.following import follow
from holdfast.client.link import Link
from holdfast.core.session.notices import OVER, Notice, news

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.model.jsontext import Json

AWAY: Final = "{} cannot be reached"

Told = Callable[[Notice], None]


def now(link: Link, sessions: Sequence[str] = ()) -> list[Notice]:
    """The waits of these sessions; without names, of all that this operator may observe."""
    return [_notice(one) for one in link.request("attention", sessions=list(sessions))["attention"]]


def _notice(body: Json) -> Notice:
    """A notice from the wire; fields that only a newer host knows are ignored."""
    return Notice(**{name: body[name] for name in Notice._fields})


class Following:
    """Calls `told` with each state and change, until all named sessions have ended or for ever."""

    def __init__(
        self,
        link: Link,
        sessions: Sequence[str],
        told: Told,
        missed: Callable[[int], None] = lambda count: None,
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._link, self._sessions, self._told, self._missed = link, list(sessions), told, missed
        self._lost = lost
        self._known: dict[str, Notice] = {}

    def follow(self) -> None:
        first = now(self._link, self._sessions)
        if self._sessions:
            self._sessions = [one.session for one in first]
        for notice in first:
            self._tell(notice)
        follow(self._link, "attention", self._away, on_event=self._event, sessions=self._sessions)

    def _event(self, event: Json) -> None:
        if event.get("event") == "attention":
            self._tell(_notice(event["body"]))
        elif event.get("event") == "over":
            # The session ended before the first report, perhaps while no host ran.
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
        """Report all sessions as unknown: the last known state may no longer hold."""
        self._lost()
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
