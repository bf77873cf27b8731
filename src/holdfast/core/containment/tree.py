"""Puts the tree of a contained session together, in the order of the keeper's mounts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from holdfast.core.containment import system as system_tables
from holdfast.core.containment import workspace as workspaces
from holdfast.core.containment.entries import Entry, Files, Kind, overlap, shares, within
from holdfast.core.containment.terms import Share
from holdfast.core.containment.tools import Limits, tools
from holdfast.core.containment.workspace import Protected, WorkTree
from holdfast.model.errors import Refused

# Below the root, which no program can write: a mount point in a writable directory could be renamed
# in a mount namespace that lacks the mount.
RUNTIME, RUNTIME_OWN = "/.holdfast/session", "/.holdfast/session/own"
ENTRIES_MAX: Final = 512


class Parts(NamedTuple):
    """All decisions about a session. Paths are without links.

    `own`: the directory that ends with the session; `files`: of home and temporary files.
    `guarded`: the workspace and the repositories whose hooks are read-only, except for `spared`;
    so are the files in `fixed`. `read`, `written`: the directories of the session's shell files
    that the host and that the session writes.
    """

    protected: Protected
    root: bool
    path: Sequence[str]
    own: str
    files: str
    tree: WorkTree | None
    share: Sequence[Share]
    guarded: WorkTree | None = None
    fixed: Sequence[str] = ()
    spared: Sequence[str] = ()
    doors: Sequence[Entry] = ()
    read: str = ""
    written: str = ""


class Tree(NamedTuple):
    """The entries, and the shown description: tool trees, and writable places."""

    entries: tuple[Entry, ...]
    tools: tuple[str, ...]
    read: tuple[str, ...]
    written: tuple[str, ...]


def shown_trees(parts: Parts) -> list[str]:
    """The trees in which sockets and pipes must be masked: shares and the workspace."""
    found = [share.path for share in parts.share]
    return [*found, *(entry.source for entry in _workspace(parts))]


def check_share(share: Share, files: Files, protected: Protected, door: bool = False) -> None:
    """Refuse a share that would open Holdfast, the whole home, or a server."""
    path, kind = share.path, files.kind(share.path)
    advice = "share a directory below it, or copy what the session needs into the workspace"
    if not kind:
        raise Refused(f"there is no {path} to share", "check the path")
    if kind in ("socket", "fifo") and not door:
        raise Refused(
            f"{path} is a socket or a pipe: code inside could give orders to its server",
            "doors are opened by name: --door ssh-agent, dbus, docker or display",
        )
    if kind == "device":
        raise Refused(f"{path} is a device", "`--door gpu` opens graphics devices")
    if path == "/" or within(protected.home, path):
        raise Refused(f"sharing {path} would share the whole home directory", advice)
    if any(overlap(path, place) for place in (protected.state, protected.config)):
        raise Refused(f"sharing {path} would open Holdfast's own files", advice)
    if any(within(path, top) for top in ("/proc", "/sys", "/dev", "/run")):
        raise Refused(f"{path} cannot be shared: a contained session has its own", advice)
    if share.writable:
        if found := workspaces.holdfast(path, protected):
            raise Refused(f"{path} cannot be shared for writing: {found}", advice)
        if any(within(path, top) for top in system_tables.CLOSED):
            raise Refused(f"{path} cannot be shared for writing: it belongs to the system", advice)


def assemble(files: Files, parts: Parts) -> Tree:
    """The whole tree. Shared places are mounted from the top down: the deeper place counts."""
    protected = parts.protected
    base = system_tables.system(files, parts.root)
    shared = [shares(share.path, share.writable) for share in parts.share]
    workspace = _workspace(parts)
    shown = [e.target for e in (*base, *shared, *workspace) if e.kind is not Kind.EMPTY]
    closed = (protected.state, protected.config)
    writable = [e.target for e in (*shared, *workspace) if e.kind is Kind.WRITE]
    found = tools(files, parts.path, Limits(protected.home, closed, shown, writable))
    own = [Entry(Kind.WRITE, "/run", f"{parts.own}/run")]
    places = ("/tmp", "tmp"), ("/var/tmp", "vartmp"), (protected.home, "home")
    own += [Entry(Kind.WRITE, target, f"{parts.files}/{name}") for target, name in places]
    layers = _from_the_top([*own, *found, *shared, *workspace])
    entries = [*base, *layers, *system_tables.linked_files(files, [*base, *shared])]
    if parts.guarded is not None:
        entries += workspaces.guards(files, parts.guarded, parts.fixed, writable, parts.spared)
    entries += parts.doors
    if parts.read:
        entries.append(Entry(Kind.READ, RUNTIME, parts.read))
        entries.append(Entry(Kind.WRITE, RUNTIME_OWN, parts.written))
    reads = [share.path for share in parts.share if not share.writable]
    writes = [e.target for e in (*workspace, *shared) if e.kind is Kind.WRITE]
    return Tree(
        tuple(entries),
        tuple(entry.target for entry in found),
        tuple(dict.fromkeys(reads)),
        tuple(dict.fromkeys(writes)),
    )


def masked(tree: Tree, masks: Iterable[str]) -> tuple[Entry, ...]:
    """The entries, with these sockets and pipes covered."""
    entries = (*tree.entries, *(Entry(Kind.EMPTY, place) for place in masks))
    if len(entries) > ENTRIES_MAX:
        raise Refused(
            f"the session's file tree would have {len(entries)} entries; {ENTRIES_MAX} are allowed",
            "share fewer directories, or remove old sockets from the shared ones",
        )
    return entries


def visible(tree: Tree, path: str, exists: bool) -> bool:
    """Whether a path of the machine is the same inside. `exists`: the path exists outside."""
    deepest = max(
        (e for e in tree.entries if within(path, e.target) and e.kind is not Kind.LINK),
        key=lambda entry: len(entry.target),
        default=None,
    )
    if deepest is None:
        link = any(e.kind is Kind.LINK and within(path, e.target) for e in tree.entries)
        return link and exists
    return (exists and deepest.source == deepest.target) or path == deepest.target


def _workspace(parts: Parts) -> list[Entry]:
    return [] if parts.tree is None else workspaces.entries(parts.tree)


def _from_the_top(entries: Iterable[Entry]) -> list[Entry]:
    """Sorted by depth; the later of two entries for the same place counts."""
    last = {entry.target: entry for entry in entries}
    return sorted(last.values(), key=lambda e: 0 if e.target == "/" else e.target.count("/"))
