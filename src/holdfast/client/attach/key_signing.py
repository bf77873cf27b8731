"""Keys of an attached client on their way to a signature (P1).

A key is not signed by itself: that would double its echo. When its line is done, COVER_NS after the first of a range or after COVER_KEYS of
them, one statement covers them all. A host that died before it had the signature leaves the keys it took covered by their channel; the record says so.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.client.acting import Acting, Place
from holdfast.core.statement import COVER_KEYS, COVER_NS
from holdfast.core.uncovered import Range, Uncovered
from holdfast.model.errors import HoldfastError, Stale
from holdfast.wire import frames

if TYPE_CHECKING:
    from holdfast.client.link import Link

COVER_S = COVER_NS / 1e9
LINE_S = 0.02  # after a line: its echo comes first
FAREWELL_S = 0.5  # on the way out: for the host to take the signature over the last keys
DETACH, COVER, PLACE = 2, 6, 7  # what is asked of the host


class Covering:
    def __init__(self, acting: Acting, ask: Callable[[int, dict[str, Any]], int]) -> None:
        self.at: float | None = None  # when something is to be signed
        self.place = Place("", 0, None)
        self._acting, self._ask = acting, ask
        self._keys = Uncovered()
        self._under_way: dict[int, tuple[Place, Range]] = {}  # by request number
        self._again: list[Range] = []

    @property
    def uncovered(self) -> bool:
        return bool(self._keys) or bool(self._under_way) or bool(self._again)

    def begin(self, place: Place) -> None:
        """Attached, there or anew: the host knows of no keys but those that come now."""
        self.place, self.at = place, None
        self._keys, self._again = Uncovered(), []
        self._under_way.clear()

    def typed(self, number: int, data: bytes, now: float) -> None:
        keys = self._keys
        if self.at is None:
            self.at = now + COVER_S
        keys.add(number, data, 0)
        if len(keys) >= COVER_KEYS:
            self.at = now
        elif data[-1] == 13:
            self.at = min(self.at, now + LINE_S)

    def cover(self) -> None:
        """Signs for everything that has no signature yet."""
        self.at = None
        again, self._again = self._again, []
        while (found := again.pop(0) if again else self._keys.take()) is not None:
            number = self._ask(
                COVER,
                {
                    "op": "cover",
                    "session": self.place.session,
                    "signed": self._acting.cover(self.place, found),
                },
            )
            self._under_way[number] = (self.place, found)

    def covered(self, number: int, ok: bool, body: dict[str, Any]) -> None:
        """The host's answer. It may have recorded so much since that we must look again, and sign anew."""
        place, keys = self._under_way.pop(number, (None, None))
        if place is None or keys is None:
            return
        if ok:
            self._acting.acknowledged(place, body)
        elif place is self.place and body.get("name") == Stale.name:
            self._again.append(keys)
            self._ask(PLACE, {"op": "place", "session": place.session})

    def placed(self, ok: bool, body: dict[str, Any]) -> None:
        """The session as it is now; what was refused is signed once more."""
        if ok:
            self.place.seen = body.get("seen")
            self.cover()

    def farewell(self, link: Link) -> None:
        """The last keys are signed for before we are gone; a host that does not answer is not waited for."""
        with contextlib.suppress(HoldfastError):
            self.cover()
            last = self._ask(DETACH, {"op": "detach"})
            deadline = time.monotonic() + FAREWELL_S
            while (left := deadline - time.monotonic()) > 0:
                kind, payload = link.receive(left)
                if kind == frames.REPLY and frames.read_reply(payload)[0] == last:
                    return
