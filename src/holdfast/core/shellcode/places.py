"""Resolution of the paths of a command, from the text and the working directory.

`rm -rf ./logs` is three different acts in /, in a project and in an unknown directory. A path is
therefore resolved against every directory in which the shell may be at that point. If that set is
unknown, the place is unknown. A text cannot settle two things, which are marked instead of guessed:
`..` after a name (the kernel follows links there) and patterns (kept as written below their
directory).

`real` resolves links if the caller can ask the file system. Then both spellings are places, and a
rule sees both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

CWDS_MAX: Final = 8
"""Directories in which one command may be; with more, its directory counts as unknown."""
Cwds = frozenset[str] | None
Real = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Place:
    path: str  # absolute, without `.`, `..`, doubled or trailing slashes
    sure: bool = True  # False: links decide, because `..` follows a name
    glob: bool = False  # `path` ends with a pattern, after the last known directory


def same(path: str) -> str:
    return path


def normalise(path: str, base: str = "/") -> Place:
    """Resolve `path` against `base`; `base` is not checked."""
    stack = [] if path.startswith("/") else [p for p in base.split("/") if p]
    floor = len(stack)
    sure = True
    for part in path.split("/"):
        if part in ("", "."):
            continue
        if part == "..":
            if len(stack) > floor:
                sure = False
            if stack:
                stack.pop()
            floor = min(floor, len(stack))
        else:
            stack.append(part)
    return Place("/" + "/".join(stack), sure)


def locate(text: str, glob_at: int, cwds: Cwds, real: Real = same) -> tuple[Place, ...] | None:
    """Return all places that this path may mean; None if the starting directory is unknown."""
    if not text.startswith("/") and cwds is None:
        return None
    found: dict[Place, None] = {}
    for base in ("/",) if text.startswith("/") else sorted(cwds or ()):
        place = normalise(text, base)
        if glob_at >= 0:
            place = Place(place.path, place.sure and "/.." not in text[glob_at:], True)
        found[place] = None
        actual = _real(place, text, glob_at, base, real)
        if actual is not None and actual.path != place.path:
            found[actual] = None
    return tuple(found)


def _real(place: Place, text: str, glob_at: int, base: str, real: Real) -> Place | None:
    if real is same:
        return None
    if not place.glob:
        # not the normalised path: the kernel follows links before going up
        return Place(real(text if text.startswith("/") else f"{base.rstrip('/')}/{text}"))
    stem, _, _ = text[:glob_at].rpartition("/")
    tail = text[len(stem) :].lstrip("/") if stem else text.lstrip("/")
    above = real((stem or "/") if text.startswith("/") else f"{base.rstrip('/')}/{stem}")
    return Place(f"{above.rstrip('/')}/{tail}", place.sure, True)


def under(path: str, directory: str) -> bool:
    """Say whether a path is the directory or inside; with a trailing slash: inside only."""
    inside = directory.rstrip("/")
    if path.startswith(f"{inside}/") and path != "/":
        return True
    return not (directory.endswith("/") and inside) and path == (inside or "/")


def join(cwds: Cwds, more: Cwds) -> Cwds:
    if cwds is None or more is None:
        return None
    both = cwds | more
    return both if len(both) <= CWDS_MAX else None


def base(place: Place) -> str:
    """Return the directory that contains all matches of a pattern."""
    if not place.glob:
        return place.path
    at = min((n for c in "*?[" if (n := place.path.find(c)) >= 0), default=len(place.path))
    return place.path[:at].rpartition("/")[0] or "/"
