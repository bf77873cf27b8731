"""How one request is repeated over several connections; pure, for the link and for the engine.

A request that the host does not take twice is repeated after a lost connection: a look, an act
that is known by its number, or an act with an idempotency key. Where a request goes on after its
last part stands in `fields`, so that no part is delivered twice. An act that was sent and not
answered is OutcomeUnknown.
"""

from __future__ import annotations

from holdfast.client.gone import HostGone
from holdfast.core.contract.table import OPERATIONS
from holdfast.core.record import acts
from holdfast.model.errors import Busy, HoldfastError, OutcomeUnknown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from holdfast.model.errors import Stale
    from holdfast.model.jsontext import Json

LEAST_WAIT_S: Final = 0.001  # 0 would be no time limit
# By an older host, of an act whose first request is under way on a connection that is dead.
UNDER_WAY: Final = "this very act is under way"
UNDER_WAY_MAX: Final = 120  # repeats of such an act, half a second apart


class Repeating:
    """A request until its answer. The caller tells what happened; `fields` are made ready."""

    def __init__(self, op: str, fields: Json, now: float) -> None:
        self.op, self.fields = op, fields
        self.sent = False  # as a whole, on the present connection
        self._unanswered = self._stale = False
        self._lost = False  # a connection on which it was sent
        self._since, self._under_way = now, 0
        operation = OPERATIONS[op]
        self._repeatable = operation.repeatable or fields.get("once") is not None
        self._numbered_anew = operation.act and not operation.same_number

    def connecting(self) -> None:
        self.sent = False

    def is_sent(self) -> None:
        self.sent, self._unanswered = True, acts.changes(self.op, self.fields)

    def answered(self) -> None:
        self._unanswered = False

    def lost(self, error: HostGone, now: float) -> None:
        """The connection ended: raises the error unless the request may be sent again.

        A number that is missing in `fields` afterwards is to be made anew.
        """
        if error.stays or self.op == "down" or (self.sent and not self._repeatable):
            raise error
        self._lost = self._lost or self.sent
        fields = self.fields
        if self._numbered_anew:  # a repeat is done again, or was done already
            fields.pop("seq", None)
        if self.op == "end":
            fields["again"] = True
        if self.op == "wait" and fields.get("timeout"):
            fields["timeout"] = max(LEAST_WAIT_S, fields["timeout"] - (now - self._since))
            self._since = now

    def stale(self, error: Stale) -> None:
        """The record grew too much since the caller looked: once, the act is signed anew."""
        if self._stale:
            raise error
        self._stale, self._unanswered = True, False
        if self.op != "send":  # the number of a `send` is still free; other numbers are used
            self.fields.pop("seq", None)

    def busy(self, error: Busy) -> None:
        """Raises the error, unless it means that the first request of this act is under way."""
        if not self._lost or error.message != UNDER_WAY:
            self._unanswered = False
            raise error
        self._under_way, self._unanswered = self._under_way + 1, True
        if self._under_way > UNDER_WAY_MAX:
            raise error

    def failed(self, error: HoldfastError) -> HoldfastError:
        """The error for the caller."""
        # The end of the host answers a `down`.
        if not self._unanswered or (self.op == "down" and isinstance(error, HostGone)):
            return error
        return OutcomeUnknown(
            f"`{self.op}` was sent and not answered ({error.message}); it may have taken effect"
        )

    # ------------------------------------------------------------ parts of the answer

    def delivered(self, offset: int) -> None:
        """Output up to there has come."""
        for name in ("resume", "from"):
            if name in self.fields:
                self.fields[name] = offset

    def told(self, event: Json) -> None:
        """An event has come."""
        if event.get("event") == "began" and "version" in self.fields:
            # A download continues the same file.
            self.fields["version"] = event.get("version", "")
        elif "after" in self.fields and isinstance(event.get("body"), dict):
            self.fields["after"] = event["body"].get("number", self.fields["after"])
