"""Looks through shared directories for sockets, pipes and git directories.

A read-only mount does not stop code from connecting to a socket or writing to a pipe in it. Those
that exist when a session starts are covered. A server that begins to listen in a shared directory
later is reachable (docs/reference/containment.md says so).

A directory counts as a repository by its name, `.git`, or by two of the names `hooks`, HEAD and
`objects`. An earlier session of an agent may have renamed HEAD, so that git no longer recognises
the repository; `objects` and `hooks` of a repository cannot be renamed there.

Earlier sessions can fill a directory on purpose, or close it (`chmod 000`). So an incomplete look
says so. An agent's session is then refused, and a person's is closed to agents (plan.py). A closed
directory of another user is no obstacle: code inside cannot open it either.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from typing import Final, NamedTuple

from holdfast.core.containment.workspace import is_repository

ENTRIES_MAX: Final = 500_000  # looked at in all shared directories together, the highest first
TOOL_ENTRIES_MAX: Final = 5_000  # in the trees behind PATH
FOUND_MAX: Final = 64  # sockets and pipes; as many repositories, and linked work trees
POINTERS_MAX: Final = 1024  # files named .git


class Found(NamedTuple):
    """`complete`: everything was looked at, and everything found is in the lists."""

    paths: tuple[str, ...]  # sockets and pipes
    repositories: tuple[str, ...]
    linked: tuple[str, ...]  # COMMON/worktrees/NAME
    pointers: tuple[str, ...]  # files named .git, which name a git directory
    closed: tuple[str, ...]  # directories that cannot be read, but code inside could open them
    complete: bool


def find(tops: list[str], most: int = ENTRIES_MAX) -> Found:
    """Look below these directories, on whatever file system they are; the highest places first."""
    waiting, seen = deque(tops), 0
    paths, repositories, linked, pointers = list[str](), list[str](), list[str](), list[str]()
    closed = list[str]()
    while waiting and seen <= most:
        place = waiting.popleft()
        names = set[str]()
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    seen += 1
                    if seen > most:
                        break
                    names.add(entry.name)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif entry.name == ".git":
                        pointers.append(entry.path)
                    elif not entry.is_file(follow_symlinks=False) and _takes_orders(entry):
                        paths.append(entry.path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            if _could_be_opened(place):
                closed.append(place)
            continue
        if is_repository(place, names):
            repositories.append(place)
        if "commondir" in names:
            linked.append(place)
    bounds = [(found, FOUND_MAX) for found in (paths, repositories, linked, closed)]
    full = any(len(found) > bound for found, bound in (*bounds, (pointers, POINTERS_MAX)))
    return Found(
        tuple(paths[:FOUND_MAX]),
        tuple(repositories[:FOUND_MAX]),
        tuple(linked[:FOUND_MAX]),
        tuple(pointers[:POINTERS_MAX]),
        tuple(closed[:FOUND_MAX]),
        seen <= most and not full,
    )


def _could_be_opened(place: str) -> bool:
    """Whether code of this account may open a directory that it cannot read now."""
    try:
        return os.lstat(place).st_uid == os.geteuid()
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _takes_orders(entry: os.DirEntry[str]) -> bool:
    try:
        mode = entry.stat(follow_symlinks=False).st_mode
    except OSError:
        return False
    return stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode)
