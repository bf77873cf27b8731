"""The two directories of a session, and the names under which its programs see them.

    readable   only the host writes: shell integration files, the text of a `run`, `bodies`, `token`
    writable   the shell writes: snapshots of its state, its last history entry; also the agent link

The host uses the paths outside. Shell files, the environment and arguments name the paths inside,
which differ if the session has a file tree of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

TOKEN: Final = "token"  # the fencing token, in the readable directory


class SessionDirectories(NamedTuple):
    readable: Path
    writable: Path
    readable_inside: Path
    writable_inside: Path

    @property
    def token_inside(self) -> Path:
        return self.readable_inside / TOKEN

    @property
    def split(self) -> bool:
        """Whether the host's files are apart, so that a contained session has them read-only."""
        return self.readable != self.writable

    @classmethod
    def as_outside(cls, readable: Path, writable: Path) -> SessionDirectories:
        """For a session whose programs see the machine's own paths."""
        return cls(readable, writable, readable, writable)
