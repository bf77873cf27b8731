"""No core files of programs that have keys in their memory: one would leave them on disk, wherever the program happened to be, for whoever reads that.

It is the soft limit, so what such a program starts for others (a host, the nursery and with it all sessions) gets the limit as it was. Collectors of crashes that
are given cores by the kernel itself go by the same limit (systemd-coredump does). Not made undumpable altogether: the host looks at what
its account runs, a client in a session included, and that would make it blind to these.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator

_before: list[tuple[int, int]] = []


def forbid() -> None:
    """From now on, for this process."""
    limit = resource.getrlimit(resource.RLIMIT_CORE)
    if limit[0] != 0:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_CORE, (0, limit[1]))
            _before.append(limit)


@contextlib.contextmanager
def as_before() -> Iterator[None]:
    """For the moment in which something is started that is not ours."""
    if not _before:
        yield
        return
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, _before[0])
    try:
        yield
    finally:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_CORE, (0, _before[0][1]))
