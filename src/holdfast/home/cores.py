"""No core files of processes that have keys in memory: a core file would put the keys on disk.

Only the soft limit changes, so programs started for users (a host, the nursery and thereby all
sessions) get the original limit. Crash collectors that receive cores from the kernel obey the same
limit (systemd-coredump does). The process stays dumpable: the host inspects the processes of this
account, including a client in a session, and cannot inspect an undumpable process.
"""

from __future__ import annotations

import resource

_before: list[tuple[int, int]] = []


def forbid() -> None:
    """Forbid core files of this process from now on."""
    limit = resource.getrlimit(resource.RLIMIT_CORE)
    if limit[0] != 0 and _set(limit=(0, limit[1])):
        _before.append(limit)


class original_limit:
    """Restores the limit while this process starts a program for a user."""

    def __enter__(self) -> None:
        if _before:
            _set(limit=_before[0])

    def __exit__(self, *_: object) -> None:
        if _before:
            _set(limit=(0, _before[0][1]))


def _set(limit: tuple[int, int]) -> bool:
    try:
        resource.setrlimit(resource.RLIMIT_CORE, limit)
    except (ValueError, OSError):
        return False
    return True
