"""The forks on the disk.

    STATE/branches/FORK/fork.json             what was forked, and the branches (class Fork)
                       /base/N                the snapshot of tree N; the branches share it
                       /layers/BRANCH/N/upper what the branch wrote; `work` belongs to overlayfs
                       /keep/                 a keep that is not over (keep.py, apply.py)
                       /reading-BRANCH        while a keep or discard lets the branch stand still

A fork is `complete` when all its branches run. After a crash of the host the next host ends the
branches of an incomplete fork, and removes its directory. A complete fork goes with its last
branch, unless layers of a later fork lie above it.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from holdfast.home import private
from holdfast.host.lifecycle.contained import removal
from holdfast.model.errors import NotFound

DIRECTORY: Final = "branches"
NAME: Final = "fork.json"
FORMAT: Final = 1
PREFIX: Final = "fk-"
FILES, PRIVATE = (
    "files",
    "private",
)  # roles of a tree: the workspace and shares; home, /tmp and /run


@dataclass(frozen=True, slots=True)
class Tree:
    """A writable directory of the session. `target`: inside. `source`: the parent's directory.

    `below`: the directories under a branch's own layer, the newest first. A tree of a branch of a
    branch has no source.
    """

    number: int
    target: str
    source: str
    role: str
    below: tuple[str, ...]


@dataclass(slots=True)
class Branch:
    """A branch. `kept`: when its files were committed; 0: not. `gone`: it was discarded."""

    id: str
    name: str
    kept: float = 0.0
    gone: bool = False


@dataclass(slots=True)
class Fork:
    """A fork. `epoch`, `seq` and `hash`: the end of the parent's record at that moment.

    `processes`: names of the parent's programs by their pid inside. `ports`: that listened.
    `closed`: the parent's connections, as rows of core/session/connections.py. `servers`: sockets
    of the machine that the branches see. `attributes`: the snapshot has the attributes of all
    files, so a difference is a change; not so of forks of older releases.
    """

    id: str
    at: float
    by: str
    parent: str
    parent_name: str
    epoch: int
    seq: int
    hash: str
    trees: list[Tree] = field(default_factory=list)
    branches: list[Branch] = field(default_factory=list)
    processes: dict[str, str] = field(default_factory=dict)
    ports: list[int] = field(default_factory=list)
    closed: list[dict[str, Any]] = field(default_factory=list)
    frozen_ms: float = 0.0
    complete: bool = False
    servers: list[str] = field(default_factory=list)
    attributes: bool = False

    def branch(self, session: str) -> Branch:
        return next(one for one in self.branches if one.id == session)


def encode(fork: Fork) -> bytes:
    return json.dumps({"format": FORMAT, **asdict(fork)}, indent=1).encode()


def decode(data: bytes) -> Fork:
    """ValueError, KeyError or TypeError for bytes that are no fork of this format."""
    found: dict[str, Any] = json.loads(data)
    if found.pop("format") != FORMAT:
        raise ValueError("another format")
    trees = [Tree(**{**one, "below": tuple(one["below"])}) for one in found.pop("trees")]
    branches = [Branch(**one) for one in found.pop("branches")]
    return Fork(**found, trees=trees, branches=branches)


class Forks:
    def __init__(self, state: str) -> None:
        self.top = Path(state) / DIRECTORY
        self._known: dict[str, Fork] = {}
        self._changing = threading.RLock()  # threads change forks
        self._unknown = False  # layers of a fork that cannot be read may lie above any other

    def load(self) -> list[Fork]:
        """Read all forks; return those that a host did not finish."""
        unfinished = list[Fork]()
        with contextlib.suppress(OSError):
            for place in sorted(self.top.iterdir()):
                try:
                    fork = decode((place / NAME).read_bytes())
                except FileNotFoundError:
                    removal.remove(str(place))
                except (OSError, ValueError, KeyError, TypeError):
                    self._unknown = True  # of a later release, or it cannot be read now
                else:
                    (self._known if fork.complete else {})[fork.id] = fork
                    unfinished += [] if fork.complete else [fork]
        return unfinished

    def all(self) -> list[Fork]:
        return sorted(self._known.values(), key=lambda one: one.at)

    def of_branch(self, session: str) -> Fork | None:
        """The fork that made this session, if its files are still there."""
        return next(
            (
                fork
                for fork in self._known.values()
                for one in fork.branches
                if one.id == session and not one.gone
            ),
            None,
        )

    def found(self, session: str, name: str) -> Fork:
        fork = self.of_branch(session)
        if fork is None:
            raise NotFound(f"{name} is no branch", "`holdfast branches` lists the branches")
        return fork

    # ------------------------------------------------------------ places

    def begin(self) -> str:
        """An id, and a new directory."""
        fork = PREFIX + secrets.token_hex(6)
        place = self.place(fork)
        for one in (self.top, place, place / "base", place / "layers"):
            one.mkdir(mode=0o700, exist_ok=True)
        return fork

    def place(self, fork: str) -> Path:
        return self.top / fork

    def layers(self, fork: str, branch: str) -> Path:
        return self.top / fork / "layers" / branch

    def reading(self, fork: str, branch: str) -> Path:
        return self.top / fork / f"reading-{branch}"

    def seen(self, fork: str, branch: str) -> Path:
        return self.top / fork / f"connections-{branch}"

    # ------------------------------------------------------------ changes

    def write(self, fork: Fork) -> None:
        place = self.place(fork.id)
        fresh = place / f"{NAME}.new"
        with self._changing:
            fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(fd, "wb") as f:
                f.write(encode(fork))
                f.flush()
                os.fsync(fd)
            os.replace(fresh, place / NAME)
            private.sync_directory(place)

    def commit(self, fork: Fork) -> None:
        """All branches run."""
        with self._changing:
            fork.complete = True
            self.write(fork)
            self._known[fork.id] = fork

    def abandon(self, fork: str) -> None:
        removal.remove(str(self.place(fork)))

    def discard(self, fork: Fork, session: str) -> None:
        """Remove the layers of a branch, and forks that nothing needs any more."""
        with self._changing:
            fork.branch(session).gone = True
            self.write(fork)
        self.seen(fork.id, session).unlink(missing_ok=True)
        removal.remove(str(self.place(fork.id) / "layers" / session))
        self.sweep()

    def sweep(self) -> None:
        """Remove forks without branches. The directories of a later fork may lie above one."""
        while not self._unknown:
            with self._changing:
                over = {
                    fork.id
                    for fork in self._known.values()
                    if all(b.gone for b in fork.branches) and not self._above(fork.id)
                }
                for fork in over:
                    del self._known[fork]
            if not over:
                return
            for fork in over:
                removal.remove(str(self.place(fork)))

    def _above(self, fork: str) -> bool:
        """Whether layers of another fork lie above this one."""
        begin = f"{self.place(fork)}/"
        return any(
            path.startswith(begin)
            for other in self._known.values()
            if other.id != fork
            for tree in other.trees
            for path in tree.below
        )
