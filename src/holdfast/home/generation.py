"""A number for each registration of this host at a relay, higher than all earlier numbers.

    HOME/generation   the last number used, in decimal

Of two registrations, a relay keeps that with the higher number. The number is the time in
milliseconds, so a home restored from a backup is ahead of the old state. A wrong clock that was
corrected goes backwards, and the relay would refuse the machine until the wrong date has passed.
Therefore the last number is kept. If the file cannot be read or written, the host connects anyway.
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
