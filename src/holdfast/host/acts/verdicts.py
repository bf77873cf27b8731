"""The verdict of an act that is over, for metrics and traces."""

from __future__ import annotations

from typing import Final

from holdfast.core.record import record
from holdfast.model.errors import Held, Lost, OutcomeUnknown, Refused, TimedOut

VERDICTS: Final = (record.APPLIED, "held", "refused", "failed", record.UNKNOWN, "abandoned")


def verdict_of(error: BaseException) -> str:
    """The verdict, one of VERDICTS, of an act that ended with this error."""
    if isinstance(error, Held):
        return "held"
    if isinstance(error, Refused):
        return "refused"
    if isinstance(error, Lost | TimedOut | OutcomeUnknown):
        return record.UNKNOWN
    return "failed" if isinstance(error, Exception) else "abandoned"
