"""Where a path of a command leads, as far as the text and the working directory say.

`rm -rf ./logs` is three different acts in /, in a project and in a directory nobody knows. So a path is resolved against every
directory the shell may be in at that point, and stays unknown if that set is. Two things a text cannot settle are marked rather
than guessed: `..` after a name (the kernel follows links there, the eye does not) and patterns (kept as they are below their
directory).

`real` gives the path behind links if the caller can ask the file system; then both spellings are places, and a rule sees both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

CWDS_MAX: Final = (
    8  # directories one command may be in; a text with more is one whose directory is unknown
)
Cwds = frozenset[str] | None
Real = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Place:
    path: str  # absolute, without `.`, `..`, doubled or trailing slashes
    sure: bool = True  # False: links decide, because `..` follows a name
    glob: bool = False  # its last known directory is in `path`, then a pattern


def same(path: str) -> str:
    return path


def normalise(path: str, base: str = "/") -> Place:
    """`path` seen from `base`, which is taken as it is."""
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
    """All places this path may mean; None if the directory it starts from is unknown."""
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
        # not the normalised path: the kernel goes through links before it goes up
        return Place(real(text if text.startswith("/") else f"{base.rstrip('/')}/{text}"))
    stem, _, _ = text[:glob_at].rpartition("/")
    tail = text[len(stem) :].lstrip("/") if stem else text.lstrip("/")
    above = real((stem or "/") if text.startswith("/") else f"{base.rstrip('/')}/{stem}")
    return Place(f"{above.rstrip('/')}/{tail}", place.sure, True)


def under(path: str, directory: str) -> bool:
    """Inside of the directory, or the directory itself; with a trailing slash: inside only."""
    inside = directory.rstrip("/")
    if path.startswith(f"{inside}/") and path != "/":
        return True
    return not (directory.endswith("/") and inside) and path == (inside or "/")


def join(cwds: Cwds, more: Cwds) -> Cwds:
    if cwds is None or more is None:
        return None
    both = cwds | more
    return both if len(both) <= CWDS_MAX else None
