"""How often: a bucket of acts that refills steadily.

An act takes one from the bucket of every link on its way, or from none: whoever hands on a rate shares it with those it is handed to, instead of
multiplying it. A clock that goes back refills nothing; one that jumps ahead fills the bucket, never more. Buckets are not saved: a new host
begins with full ones.
"""

from __future__ import annotations

from collections.abc import Sequence


class Bucket:
    __slots__ = ("_at", "_left", "count", "seconds")

    def __init__(self, count: int, seconds: int, now: float) -> None:
        self.count, self.seconds = count, seconds
        self._left, self._at = float(count), now

    def wait(self, now: float) -> float:
        """Seconds until it holds one act; 0 if it does."""
        if now > self._at:
            self._left = min(
                float(self.count), self._left + (now - self._at) * self.count / self.seconds
            )
        self._at = now
        return max(0.0, (1.0 - self._left) * self.seconds / self.count)

    def _take(self) -> None:
        self._left -= 1.0


def take(buckets: Sequence[Bucket], now: float) -> float:
    """One act from all of them; or from none, and how many seconds to wait."""
    wait = max((bucket.wait(now) for bucket in buckets), default=0.0)
    if wait <= 0.0:
        for bucket in buckets:
            bucket._take()
    return wait
