"""Files that the host writes for the shell of a session: private, and never partial.

Their directories hold the text of runs, and for a moment the key of the shell's marks. So each must
be closed to other users before any file is put there. Quoting is here too: every value reaches a
shell as one single-quoted word, which has the same meaning in bash, zsh and every POSIX shell.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from holdfast.model.errors import Impossible, Usage


def check_private(directory: Path) -> None:
    """Refuses a directory that another user could read or change."""
    info = os.stat(directory)
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o077:
        raise Impossible(
            f"{directory} must be a directory that only its owner can enter",
            f"chmod 700 {directory}",
        )


def write_private(path: Path, content: bytes) -> None:
    """Replaces a file in one step: a shell that reads it sees all of the old or all of the new."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(
        fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
    )
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o600)  # independent of the umask
        file.write(content)
    os.replace(fresh, path)


def quoted(value: str) -> str:
    """The value as one word of shell text."""
    if "\0" in value:
        raise Usage("a shell cannot take a NUL byte", "remove the NUL byte from the text or path")
    return "'" + value.replace("'", "'\\''") + "'"


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
