"""The workspace: the directory in which a contained session may change the user's files.

The workspace is the git work tree around the working directory, or the working directory itself.
Holdfast runs no program to find the work tree, because the repository's own configuration may name
programs.

A linked work tree (`git worktree`) has its objects in the common directory of the main repository,
which then belongs to the workspace. Code inside could write any path into a `.git` file. So the
link counts only if the common directory points back to the work tree, as git leaves it: a file of
the workspace alone opens nothing.
"""

from __future__ import annotations

import itertools
import posixpath
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Final, NamedTuple

from holdfast.core.containment import git_identity
from holdfast.core.containment.entries import Entry, Files, Kind, shares, within
from holdfast.core.containment.system import CLOSED, OPTIONAL

PARENTS_MAX: Final = 64
MODULES_MAX: Final = 64  # repositories of submodules in one git directory
MODULE_DEPTH: Final = 4
MEMORY_OF_ALL: Final = ("/tmp", "/var/tmp", "/dev/shm")

# Files that people's tools execute, or that name programs which they execute, when the human works
# in the same directory later. Directories count with all files below.
TOOL_FILES: Final = (
    *(".gitmodules", ".envrc", ".mise.toml", "mise.toml", ".tool-versions", ".exrc", ".nvim.lua"),
    *(".mise.local.toml", "mise.local.toml", ".mise/config.toml", ".config/mise.toml"),
    *(".vimrc", ".nvimrc", ".gdbinit", ".hg/hgrc", ".jj/repo/config.toml"),
    *(".dir-locals.el", ".pre-commit-config.yaml", ".husky", "lefthook.yml", ".lefthook"),
    *("lefthook.yaml", "lefthook-local.yml", ".vscode/mcp.json", ".cargo/config.toml"),
    *(".vscode/tasks.json", ".vscode/settings.json", ".vscode/launch.json"),
    *(".vscode/extensions.json", ".idea/runConfigurations", ".idea/workspace.xml"),
    *(".idea/externalDependencies.xml", ".idea/watcherTasks.xml", ".devcontainer"),
    *(".zed/tasks.json", ".zed/settings.json", ".claude/settings.json", ".mcp.json"),
    *(".claude/settings.local.json", ".cursor/mcp.json", ".codex", "opencode.json"),
    *("opencode.jsonc", ".opencode/opencode.json", ".opencode/plugin", ".opencode/plugins"),
    *(".opencode/tool", ".opencode/tools"),
)


# Of a git directory. `commondir` makes git read configuration and hooks elsewhere. A rebase that is
# under way may have lines that execute programs.
GIT_FILES: Final = ("hooks", "config", "config.worktree", "commondir", "gitdir", "rebase-merge")
# Of COMMON/worktrees/NAME: files that lead the git of that work tree to its configuration.
LINK_FILES: Final = ("commondir", "gitdir", "config.worktree")


class Protected(NamedTuple):
    """Paths of this installation and account, without links."""

    home: str
    state: str
    config: str  # the directory
    installation: Sequence[str]  # the programs of the host and the keepers


class WorkTree(NamedTuple):
    """A workspace; `top` is "" if there is none.

    `git`: the git directory, or the common directory of a linked work tree, with `linked`, the
    entry of the work tree there. `nested`: other git directories in the workspace. `others`:
    entries of linked work trees that lie outside. `pointers`: files named .git. `shares`: other
    directories that the session may write. `named`: directories there that `core.hooksPath` names.
    """

    top: str
    git: str = ""
    linked: str = ""
    nested: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    pointers: tuple[str, ...] = ()
    shares: tuple[str, ...] = ()
    named: tuple[str, ...] = ()

    @property
    def tops(self) -> tuple[str, ...]:
        """The directories whose tool files count: the workspace and the shares."""
        return (*([self.top] if self.top else []), *self.shares)


class Outside(NamedTuple):
    """Why a directory cannot be a workspace. `harmless`: the session can begin without one."""

    reason: str
    harmless: bool = False


def outside(path: str, protected: Protected) -> Outside | None:
    """Why this directory cannot be the workspace, or None."""
    for closed in (*CLOSED, OPTIONAL):
        if within(path, closed):
            return Outside(f"{closed} is read-only in contained sessions", harmless=True)
    if path in MEMORY_OF_ALL:
        return Outside(f"a contained session has its own {path}", harmless=True)
    if path == "/":
        return Outside("it is the whole file system")
    if within(protected.home, path):
        return Outside("it contains the whole home directory")
    if found := holdfast(path, protected):
        return Outside(found)
    if path.count("/") < 2:  # /home, /srv, /var, /mnt
        return Outside("it is a directory of the system")
    return None


def holdfast(path: str, protected: Protected) -> str:
    """How a writable directory would reach Holdfast itself; "" if it would not."""
    named = [(protected.state, "state"), (protected.config, "configuration")]
    named += [(place, "installation") for place in protected.installation]
    for place, what in named:
        if within(place, path):
            return f"it contains Holdfast's {what} ({place})"
        if within(path, place):
            return f"it lies in Holdfast's {what} ({place})"
    return ""


def work_tree(files: Files, directory: str, allowed: Callable[[str], bool]) -> WorkTree:
    """The work tree that contains a directory, as far up as allowed; else the directory."""
    place = directory
    for _ in range(PARENTS_MAX):
        if place != directory and not allowed(place):
            break
        dot = f"{place}/.git"
        match files.kind(dot):
            case "dir":
                if files.kind(f"{dot}/HEAD"):
                    return WorkTree(place, dot)
            case "file":
                if git := _linked(files, dot):
                    return WorkTree(place, posixpath.dirname(posixpath.dirname(git)), git)
        if place == "/":
            break
        place = posixpath.dirname(place)
    return WorkTree(directory)


def _linked(files: Files, dot: str) -> str:
    """COMMON/worktrees/NAME of a linked work tree, if it confirms the link; else ""."""
    word, _, named = files.read(dot).partition(":")
    if word != "gitdir" or not named.strip():
        return ""
    git = files.real(posixpath.join(posixpath.dirname(dot), named.strip()))
    above = files.read(f"{git}/commondir").strip()
    back = files.read(f"{git}/gitdir").strip()
    if not above or not back:
        return ""
    common = files.real(posixpath.join(git, above))
    back = files.real(posixpath.join(git, back))
    if back != dot or posixpath.dirname(git) != f"{common}/worktrees":
        return ""
    good = files.kind(f"{common}/HEAD") and files.kind(f"{common}/objects") == "dir"
    return git if good else ""


def entries(tree: WorkTree) -> list[Entry]:
    """The workspace, writable."""
    return [shares(place, True) for place in ((tree.top, tree.git) if tree.linked else (tree.top,))]


def leads_outside(files: Files, link: str, writable: Iterable[str]) -> bool:
    """Whether COMMON/worktrees/NAME belongs to a work tree that code inside cannot write anyway."""
    named = files.read(f"{link}/gitdir").strip()
    place = posixpath.normpath(posixpath.join(link, named))
    return not named or not any(within(place, top) for top in writable)


def repositories(files: Files, tree: WorkTree) -> list[str]:
    """The git directories of the workspace, of submodules and of nested repositories."""
    own = [tree.git, *_modules(files, f"{tree.git}/modules", MODULE_DEPTH)] if tree.git else []
    return list(dict.fromkeys((*own, *tree.nested)))


def hooks(files: Files, tree: WorkTree) -> list[str]:
    """The hook directories of the workspace and of submodules; some may be missing."""
    return [*(f"{git}/hooks" for git in repositories(files, tree)), *tree.named]


def is_repository(place: str, names: Container[str]) -> bool:
    """Whether a directory with these entries is a git directory, or an earlier session hid it."""
    known = sum(name in names for name in ("hooks", "HEAD", "objects"))
    return posixpath.basename(place) == ".git" or known > 1


def git_above(files: Files, path: str) -> str:
    """The git directory in which a path lies, or ""."""
    place = posixpath.dirname(path)
    while place != "/":
        if files.kind(place) == "dir" and is_repository(
            place, [name for name in ("hooks", "HEAD", "objects") if files.kind(f"{place}/{name}")]
        ):
            return place
        place = posixpath.dirname(place)
    return ""


def tools_above(path: str) -> bool:
    """Whether a path lies in a directory of TOOL_FILES, or is one that has such files."""
    parts = path.split("/")
    for at in range(1, len(parts)):
        rest = parts[at:]
        for name in TOOL_FILES:
            tool = name.split("/")
            if rest[: len(tool)] == tool[: len(rest)]:
                return True
    return False


def named_hooks(files: Files, tree: WorkTree, writable: Sequence[str], home: str) -> list[str]:
    """The directories that `core.hooksPath` of a repository names, as far as code could write them.

    git reads a relative path from the top of the work tree, or from a bare repository itself.
    """
    found = list[str]()
    for git in repositories(files, tree):
        texts = [files.read(f"{git}/{name}") for name in ("config", "config.worktree")]
        path, worktree = git_identity.hooks_path(texts)
        if path.startswith("~/"):
            path = home + path[1:]
        bare = git if posixpath.basename(git) != ".git" else posixpath.dirname(git)
        bases = [posixpath.join(git, worktree) if worktree else bare]
        if git == tree.git:
            bases.append(tree.top)
        places = (posixpath.normpath(posixpath.join(base, path)) for base in bases if path)
        found += [p for p in places if any(within(p, top) or within(top, p) for top in writable)]
    return list(dict.fromkeys(found))


def _modules(files: Files, top: str, depth: int) -> list[str]:
    found = list[str]()
    for name in files.names(top) if depth and files.kind(top) == "dir" else ():
        place = f"{top}/{name}"
        if files.kind(place) != "dir":
            continue
        if files.kind(f"{place}/HEAD") or files.kind(f"{place}/hooks"):
            found += [place, *_modules(files, f"{place}/modules", depth - 1)]
        else:  # the name of a submodule may have slashes
            found += _modules(files, place, depth - 1)
    return found[:MODULES_MAX]


def guards(
    files: Files,
    tree: WorkTree,
    read_only: Iterable[str],
    writable: Sequence[str],
    spared: Container[str] = (),
) -> list[Entry]:
    """The entries that keep a session from what the human's git executes later.

    `writable` are the workspace and the directories that are shared to be written. `spared` are
    hooks that stay writable, because a person shares them by name.

    The hooks are read-only, and so are the paths of `read_only` that exist. Every directory between
    such a path and the workspace becomes a mount point, because a mount point cannot be renamed in
    the session's mount namespace. A FIXED entry also forbids programs inside to make further ones.
    The objects of a repository become a mount point too: objects and hooks together tell the next
    session that the directory is a repository.
    """
    kept = (place for place in hooks(files, tree) if place not in spared)
    fixed = [place for place in kept if files.kind(place) == "dir"]
    links = (f"{one}/{name}" for one in tree.others for name in LINK_FILES)
    fixed += [place for place in links if files.kind(place) == "file"]
    fixed += [place for place in read_only if files.kind(place) in ("dir", "file")]
    pinned = dict[str, Entry]()
    if tree.linked:
        fixed.append(f"{tree.top}/.git")
    elif tree.git:
        pinned[tree.git] = shares(tree.git, True)
    for git in repositories(files, tree):
        objects = f"{git}/objects"
        if posixpath.basename(git) != ".git" and files.kind(objects) == "dir":
            pinned[objects] = shares(objects, True)
    for place in fixed:
        top = max((one for one in writable if within(place, one)), key=len, default=place)
        for parent in _between(top, place):
            pinned.setdefault(parent, shares(parent, True))
    found = {**pinned, **{place: Entry(Kind.FIXED, place, place) for place in fixed}}
    return sorted(found.values(), key=lambda entry: entry.target.count("/"))


def _between(top: str, place: str) -> list[str]:
    """The directories below `top` and above `place`, the highest first."""
    found = list[str]()
    parent = posixpath.dirname(place)
    while parent != top and within(parent, top):
        found.insert(0, parent)
        parent = posixpath.dirname(parent)
    return found


def tool_files(files: Files, tree: WorkTree) -> list[str]:
    """The paths of TOOL_FILES in this workspace, and GIT_FILES of the repositories."""
    places = [*([tree.linked] if tree.linked else []), *tree.others]
    places += repositories(files, tree)
    found = [f"{git}/{name}" for git in places for name in GIT_FILES]
    found += [f"{top}/{name}" for top in tree.tops for name in TOOL_FILES]
    if tree.top and (not tree.git or tree.linked):
        found.append(f"{tree.top}/.git")  # a file or a link that can name another git directory
    return list(dict.fromkeys((*found, *tree.pointers)))


def placeholders(files: Files, tree: WorkTree, made: Container[str] = ()) -> dict[str, str | None]:
    """What takes the names of absent tool files, so that a read-only mount can cover each name.

    The value is the content of a file, or None for an empty directory. git does not list empty
    directories, so no `git add` takes them. A git directory has no such rule: there an empty
    `config.worktree` and a `commondir` with `.` mean the same to git as none. `made`: placeholders
    that exist already. A rebase would fail at a placeholder, so `rebase-merge` has none.
    """
    found = dict[str, str | None]()
    for git in repositories(files, tree):
        found |= {f"{git}/commondir": ".\n", f"{git}/config.worktree": ""}
    for link in (*tree.others, *([tree.linked] if tree.linked else [])):
        found[f"{link}/config.worktree"] = ""
    for top, name in itertools.product(tree.tops, TOOL_FILES):
        place = top
        for part in name.split("/"):
            place = f"{place}/{part}"
            if files.kind(place) != "dir" or place in made:
                break
        found[place] = None
    return {place: text for place, text in found.items() if place in made or not files.kind(place)}


def cannot_be_fixed(files: Files, tree: WorkTree) -> str:
    """A tool file behind a link, which no mount can cover; "" if there is none."""
    for path in tool_files(files, tree):
        if link := behind_link(files, path, (*tree.tops, *([tree.git] if tree.git else []))):
            return link
    return ""


def behind_link(files: Files, path: str, tops: Sequence[str]) -> str:
    """The link on the way from one of these directories to a path, or the path itself; or ""."""
    top = max((one for one in tops if within(path, one)), key=len, default=path)
    places = (*_between(top, path), path)
    return next((place for place in places if files.kind(place) == "link"), "")
