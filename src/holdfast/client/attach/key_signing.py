"""Keys of an attached client on their way to a signature (P1). Pure.

Keys are not signed singly: that would double the time to the echo. A statement covers a line,
COVER_KEYS keys, or all keys within COVER_NS after the first. If a host dies before the signature
arrives, the keys that the host took are attested by the channel only; the record says so.
"""

from __future__ import annotations

from holdfast.client.signing import SigningTarget
from holdfast.core.record.statement import COVER_KEYS, COVER_NS
from holdfast.core.record.uncovered import Uncovered
from holdfast.model.errors import Stale

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.client.attach.unacked import Unacked
    from holdfast.core.record.uncovered import Range
    from holdfast.model.jsontext import Json

COVER_S = COVER_NS / 1e9
LINE_S = 0.02  # pause after the end of a line, so that the echo comes first


class KeySigning:
    def __init__(self) -> None:
        self.at: float | None = None  # when the next signature is due
        self.target = SigningTarget("", 0, None)
        self._keys = Uncovered()
        self._sent: dict[int, tuple[SigningTarget, Range]] = {}  # by request number
        self._refused: list[Range] = []

    def begin(self, target: SigningTarget) -> None:
        """After an attach the host knows only the keys that are sent from now on."""
        self.target, self.at = target, None
        self._keys, self._refused = Uncovered(), []
        self._sent.clear()

    def lost(self, answer: Json, unacked: Unacked) -> bool:
        """Whether the answer to an attach is that of a later incarnation of the same session.

        Then input for the lost one is dropped: it may have taken effect already, and another
        program reads now.
        """
        before = self.target
        lost = before.session == answer["id"] and before.epoch <= int(answer.get("lost") or 0)
        if lost:
            unacked.clear()
        return lost

    def typed(self, number: int, data: bytes, now: float) -> None:
        keys = self._keys
        if self.at is None:
            self.at = now + COVER_S
        keys.add(number, data, 0)
        if len(keys) >= COVER_KEYS:
            self.at = now
        elif data[-1] == 13:
            self.at = min(self.at, now + LINE_S)

    def unsigned(self) -> Iterator[Range]:
        """Take all ranges that have no signature yet."""
        self.at = None
        refused, self._refused = self._refused, []
        yield from refused
        while (keys := self._keys.take()) is not None:
            yield keys

    def sent(self, number: int, keys: Range) -> None:
        self._sent[number] = (self.target, keys)

    def answered(self, number: int, ok: bool, body: Json) -> bool:
        """The host's answer to a signature. True: the target must be read again, to sign anew.

        That happens when the record has grown too much since the target was read.
        """
        target, keys = self._sent.pop(number, (None, None))
        if target is None or keys is None:
            return False
        if ok:
            target.acknowledged(body)
        elif target is self.target and body.get("name") == Stale.name:
            self._refused.append(keys)
            return True
        return False
