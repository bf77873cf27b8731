"""Rate limits: a bucket of acts that refills steadily.

An act takes a token from the buckets of all links of the envelope, or from none. So an operator who
hands on a rate shares the rate instead of multiplying. A clock that goes back refills no bucket. A
clock that jumps ahead fills the bucket, but never more. Buckets are not saved: a new host begins
with full buckets.
"""

from __future__ import annotations

from collections.abc import Sequence


class Bucket:
    """A bucket of `count` tokens that refills within `seconds`."""

    __slots__ = ("_at", "_left", "count", "seconds")

    def __init__(self, count: int, seconds: int, now: float) -> None:
        self.count, self.seconds = count, seconds
        self._left, self._at = float(count), now

    def wait(self, now: float) -> float:
        """Return the seconds until there is a token; 0 if there is one."""
        if now > self._at:
            self._left = min(
                float(self.count), self._left + (now - self._at) * self.count / self.seconds
            )
        self._at = now
        return max(0.0, (1.0 - self._left) * self.seconds / self.count)

    def _take(self) -> None:
        self._left -= 1.0


def take(buckets: Sequence[Bucket], now: float) -> float:
    """Take a token from every bucket; or take none and return the seconds to wait."""
    wait = max((bucket.wait(now) for bucket in buckets), default=0.0)
    if wait <= 0.0:
        for bucket in buckets:
            bucket._take()
    return wait
