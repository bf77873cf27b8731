"""Results of forks: branches, their changes, and what left them."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.sdk.results import LostConnection


@dataclass(frozen=True, slots=True)
class NewBranch:
    """A branch: a session with an id of its own."""

    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Forked:
    """A fork. `frozen_ms`: how long the parent stood still.

    `closed`: connections that the branches do not have. `losses`: other things that they lack.
    """

    fork: str
    branches: tuple[NewBranch, ...]
    frozen_ms: float = 0.0
    closed: tuple[LostConnection, ...] = ()
    losses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch that was not discarded. `ref`: the end of the parent's record at the fork,
    "entry N of hf:SESSION@EPOCH".

    `kept`: when its files were committed to the parent's directories. `exit_code`: of an ended
    branch.
    """

    id: str
    name: str
    state: str
    fork: str
    parent: str
    parent_name: str
    ref: str
    at: float
    by: str = ""
    frozen_ms: float = 0.0
    kept: float | None = None
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class FileState:
    """An entry of a directory. `link`: the text of a symbolic link."""

    kind: str
    mode: int
    size: int = 0
    link: str = ""


@dataclass(frozen=True, slots=True)
class FileChange:
    """A changed file. `what`: added, removed, changed, mode, kind or renamed (from `source`).

    `text`: a unified difference; `why`: why there is none.
    """

    path: str
    what: str
    source: str | None = None
    before: FileState | None = None
    after: FileState | None = None
    text: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Program:
    """A process by its number inside the session."""

    pid: int
    name: str


@dataclass(frozen=True, slots=True)
class Difference:
    """The changes of a branch since the fork.

    `private`: how many changes in home, /tmp and /run were left out. `more`: how many beyond the
    bound. `began`, `ended`: processes. `opened`, `closed`: listening ports.
    """

    id: str
    name: str
    parent: str
    state: str
    exit_code: int | None = None
    files: tuple[FileChange, ...] = ()
    private: int = 0
    more: int = 0
    began: tuple[Program, ...] = ()
    ended: tuple[Program, ...] = ()
    opened: tuple[int, ...] = ()
    closed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Left:
    """What left a branch, and no discard can undo.

    `connections`: to the outside at its end. `earlier`: those that the host saw before, and that
    were closed then; `more`: how many further ones. `acts`: how many its record has. `closed`:
    connections of the parent that it never had. `servers`: sockets of the machine's servers
    (doors) that its programs could use.
    """

    id: str
    name: str
    connections: tuple[LostConnection, ...] = ()
    acts: int = 0
    closed: tuple[LostConnection, ...] = ()
    servers: tuple[str, ...] = ()
    earlier: tuple[LostConnection, ...] = ()
    more: int = 0


@dataclass(frozen=True, slots=True)
class Clash:
    """A path that changed in the branch and in the parent's directory, and how."""

    path: str
    why: str


@dataclass(frozen=True, slots=True)
class Remaining:
    """Another branch that was not discarded, and why."""

    id: str
    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Kept:
    """The outcome of `keep`. Paths in `conflicts` stay; unless `done`, nothing was written at all.

    `left`: paths that stay as they are. `resumed`: an interrupted keep was completed.
    """

    id: str
    name: str
    done: bool
    steps: int = 0
    conflicts: tuple[Clash, ...] = ()
    left: tuple[str, ...] = ()
    resumed: bool = False
    discarded: tuple[Left, ...] = ()
    remaining: tuple[Remaining, ...] = ()
