"""Takes the names of absent tool files in the workspaces of agents (core/containment/workspace.py).

A read-only mount needs a file or a directory to cover. The host makes these placeholders when a
session starts and removes them after its end, unless another session still covers the same ones.
The session's own directory has the list, so the next host removes them after a crash. A placeholder
that a person has filled meanwhile stays.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import threading
from collections.abc import Iterator, Mapping
from typing import Final

from holdfast.core.containment import workspace
from holdfast.core.containment.workspace import WorkTree
from holdfast.host.lifecycle.contained.disk import Disk, open_directory

FILE: Final = "placeholders.json"
# Code of the session has the same account: where the host cannot write, the session cannot either.
CANNOT: Final = (errno.EEXIST, errno.EACCES, errno.EPERM, errno.EROFS)
_lock = threading.Lock()  # sessions start and end in different threads


def make(base: str, tree: WorkTree) -> list[str]:
    """Make the placeholders of a session. `base`: the session's own directory."""
    with _lock:
        wanted = workspace.placeholders(Disk(), tree, _known(os.path.dirname(base)))
        with open(f"{base}/{FILE}", "w") as file:
            json.dump(wanted, file)
        for path, text in wanted.items():
            try:
                _make(path, text)
            except OSError as e:
                if e.errno not in CANNOT:
                    raise
    return list(wanted)


def remove(base: str) -> None:
    """Remove the placeholders of an ended session."""
    with _lock:
        mine = _listed(base)
        if not mine:
            return
        os.unlink(f"{base}/{FILE}")
        others = _known(os.path.dirname(base))
        for path, text in mine.items():
            if path not in others and intact(path, text):
                with contextlib.suppress(OSError), _above(path) as (place, name):
                    (os.rmdir if text is None else os.unlink)(name, dir_fd=place)


def known(contained: str) -> dict[str, str | None]:
    """The placeholders of all sessions with a directory below `contained`.

    Those of a session that is being removed are either all listed, or all gone from the disk.
    """
    with _lock:
        return _known(contained)


def _known(contained: str) -> dict[str, str | None]:
    found = dict[str, str | None]()
    for session in Disk().names(contained):
        found |= _listed(f"{contained}/{session}")
    return found


def intact(path: str, text: str | None) -> bool:
    """Whether this is still the placeholder that the host made."""
    files = Disk()
    if text is None:
        return files.kind(path) == "dir" and not files.names(path)
    return files.kind(path) == "file" and files.read(path) == text


def _make(path: str, text: str | None) -> None:
    with _above(path) as (place, name):
        if text is None:
            return os.mkdir(name, 0o755, dir_fd=place)
        # git refuses to work with an empty `commondir`: the file appears complete or not at all.
        new = f"{name}.holdfast"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            with open(os.open(new, flags, 0o644, dir_fd=place), "w") as file:
                file.write(text)
            os.link(new, name, src_dir_fd=place, dst_dir_fd=place)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(new, dir_fd=place)
    return None


@contextlib.contextmanager
def _above(path: str) -> Iterator[tuple[int, str]]:
    """The directory that has this path, opened without following a link, and the last name."""
    above, name = os.path.split(path)
    place = open_directory(above)
    try:
        yield place, name
    finally:
        os.close(place)


def _listed(base: str) -> Mapping[str, str | None]:
    try:
        with open(f"{base}/{FILE}") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
