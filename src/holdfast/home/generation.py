"""A number for each registration of this installation's host at a relay, higher than any before: of two, a relay lets the higher stand.

    HOME/generation   the last one that was used, in decimal

The time in milliseconds, so that a home restored from a backup is ahead of what it was; but a calendar that was wrong and has been put right goes backwards, and a relay would
refuse the machine until the wrong date has come: so the last one is kept. What cannot be read or written costs nobody the line.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final

from holdfast.home import Home

MOST: Final = (1 << 63) - 1


def following(home: Home, now_ms: int) -> int:
    path = f"{home.state}/generation"
    last = 0
    with contextlib.suppress(OSError, ValueError), open(path, "rb") as file:
        last = int(file.read(20))
    made = max(last + 1 if 0 <= last < MOST else 0, now_ms)
    with contextlib.suppress(OSError):
        fresh = f"{path}.{os.getpid()}"
        with open(
            os.open(
                fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            ),
            "wb",
        ) as file:
            file.write(b"%d\n" % made)
        os.rename(fresh, path)
    return made
