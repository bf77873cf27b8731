"""How many examples a property test tries: few in every run, many when looking for new ones."""

from __future__ import annotations

import os

EXPLORE = os.environ.get("HYPOTHESIS_PROFILE") == "explore"
SHARE = 5 if EXPLORE else 1 / 4
LEAST = 10


def examples(count: int) -> int:
    """`count` says how much a test is worth beside others; the profile says how much of that."""
    return max(LEAST, int(count * SHARE))
