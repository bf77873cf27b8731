"""Branches: fork a live session, list the branches, compare, keep and discard them."""

from __future__ import annotations

from holdfast.core.contract.checkpoints import Checked, LostConnection
from holdfast.core.contract.message import ABSENT, Absent, SessionAct, message


@message
class Fork(SessionAct):
    """A session to fork. `n`: the number of branches. `name`: of one branch, or their beginning.

    `check`: run the preflight only; no process stops and no file is written.
    """

    n: int = 1
    name: str | Absent = ABSENT
    check: bool = False


@message
class NewBranch:
    """A branch: a session with an id of its own."""

    id: str
    name: str


@message
class ForkReply:
    """The branches; none if `check` asked for the findings only.

    `frozen_ms`: how long the parent stood still. `closed`: connections that the branches do not
    have. `losses`: other things that they lack.
    """

    id: str
    name: str
    fork: str
    found: Checked | None
    branches: tuple[NewBranch, ...]
    frozen_ms: float
    closed: tuple[LostConnection, ...]
    losses: tuple[str, ...]


@message
class Branches:
    """`session`: only branches that began with this session, or the fork of this branch."""

    session: str | Absent = ABSENT


@message
class Branch:
    """A branch. `state`: of the session; `ended` if it is not known any more. `exit_code`: of an
    ended one, if it is known.

    `parent`: the session that was forked, at this point of its record (`ref`,
    "entry N of hf:SESSION@EPOCH"). `kept`: when its
    files were committed to the parent's directory; null if not.
    """

    id: str
    name: str
    state: str
    fork: str
    parent: str
    parent_name: str
    ref: str
    at: float
    by: str
    frozen_ms: float
    kept: float | None
    exit_code: int | None


@message
class BranchesReply:
    """Branches that the caller may observe and that were not discarded, oldest first."""

    branches: tuple[Branch, ...]


@message
class Diff:
    """A branch to compare with the fork. `path`: only this file, or below this directory.

    `every`: home, /tmp and /run too. `texts`: with differences of texts.
    """

    session: str
    path: str | Absent = ABSENT
    every: bool = False
    texts: bool = True


@message
class FileState:
    """An entry of a directory. `link`: the text of a symbolic link."""

    kind: str
    mode: int
    size: int
    link: str


@message
class FileChange:
    """A changed file, by its path inside. `what`: `added`, `removed`, `changed`, `mode`, `kind`,
    `attributes` or `renamed`. `source`: the path before, of a renamed file. `before` and `after`:
    the kind of the entry, its mode and its size; null if there is none. `text`: a unified
    difference, or the changed attributes; `why`: why there is none.
    """

    path: str
    what: str
    source: str | Absent
    before: FileState | None
    after: FileState | None
    text: str
    why: str


@message
class Program:
    """A process by its number inside the session, which a fork does not change."""

    pid: int
    name: str


@message
class DiffReply:
    """Changes since the fork. `private`: how many changes in home, /tmp and /run were left out.

    `more`: how many changes beyond the bound of an answer. `began` and `ended`: processes.
    `opened` and `closed`: ports that the branch listens on. `exit_code`: null while it runs.
    """

    id: str
    name: str
    parent: str
    state: str
    exit_code: int | None
    files: tuple[FileChange, ...]
    private: int
    more: int
    began: tuple[Program, ...]
    ended: tuple[Program, ...]
    opened: tuple[int, ...]
    closed: tuple[int, ...]


@message
class Keep(SessionAct):
    """A branch whose files are to be committed to the parent's directories.

    `take`, `leave`: the decisions about conflicts, as paths inside or directories above them: the
    version of the branch, or the file as it is. `others`: the other branches are not discarded.
    `check`: only say what would be done.
    """

    take: tuple[str, ...] = ()
    leave: tuple[str, ...] = ()
    others: bool = False
    check: bool = False


@message
class Left:
    """What left a branch: things that no discard can undo.

    `connections`: that it had to the outside at its end. `earlier`: closed connections that the
    host saw; `more`: the number of further ones. `acts`: how many acts its record has.
    `closed`: connections of the parent that it never had. `servers`: sockets of the machine's
    servers (doors) that its programs could use; their requests are not known.
    """

    id: str
    name: str
    connections: tuple[LostConnection, ...]
    acts: int
    closed: tuple[LostConnection, ...]
    servers: tuple[str, ...]
    earlier: tuple[LostConnection, ...] = ()
    more: int = 0


@message
class Clash:
    """A path that changed in both, and how."""

    path: str
    why: str


@message
class Remaining:
    """Another branch that was not discarded, and why."""

    id: str
    name: str
    why: str


@message
class Kept:
    """The outcome. Unless `done`, nothing was written. `steps`: files that were written or removed,
    or would be. `conflicts`: paths that stay as they are until they are decided; with `done` they
    changed meanwhile, and no branch was discarded. `left`: paths that stay by decision. `resumed`:
    an earlier keep of this branch was interrupted, and was completed now. `discarded`: the other
    branches, beside those that remain.
    """

    id: str
    name: str
    done: bool
    steps: int
    conflicts: tuple[Clash, ...]
    left: tuple[str, ...]
    resumed: bool
    discarded: tuple[Left, ...]
    remaining: tuple[Remaining, ...]


@message
class Discard(SessionAct):
    """A branch to end, with its files."""


@message
class Discarded:
    """The branch that ended."""

    id: str
    name: str
    left: Left
