"""The directories behind PATH, and the trees that the programs there need.

A program of a version manager is often a link or a small script that starts a program elsewhere.
MANAGERS says for the known managers which trees that takes, and leaves out the places where they
keep credentials. For all others the rule is: `X/bin` shows X if X looks like an installation (it
has a `lib`, `share` …), and otherwise only the directory itself.

Code of a session may have made the links and files of any directory that was a workspace once. So
a link there, or the `pyvenv.cfg` of a virtual environment, leads only to known managers and to what
is shown anyway: it could name a private key. Only links of system directories, of managers, in
`~/bin` and directly in the home are followed to any other place (`_trusted`).
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from holdfast.core.containment.entries import Entry, Files, Kind, overlap, shares, within

DIRECTORIES_MAX: Final = 128  # of PATH, with the directories behind links
LINKS_MAX: Final = 512  # programs looked at in one directory
TREES_MAX: Final = 64


class Manager(NamedTuple):
    """A version manager. Paths are relative to the home."""

    places: tuple[str, ...]  # a PATH directory in one of these is the manager's
    trees: tuple[str, ...]


def _whole(*tops: str) -> tuple[Manager, ...]:
    return tuple(Manager((top,), (top,)) for top in tops)


_LOCAL: Final = (
    *(".local/bin", ".local/lib", ".local/pipx", ".local/share/pipx"),
    # not .local/share/uv itself: uv keeps credentials there
    *(".local/share/uv/tools", ".local/share/uv/python"),
)
MANAGERS: Final[tuple[Manager, ...]] = (
    # .cargo itself has the token of crates.io
    Manager((".cargo",), (".cargo/bin", ".cargo/env", ".rustup")),
    Manager((".rustup",), (".rustup",)),
    Manager(
        (".local/bin", ".local/lib", ".local/pipx", ".local/share/pipx", ".local/share/uv"), _LOCAL
    ),
    Manager((".asdf",), (".asdf", ".tool-versions", ".asdfrc")),
    Manager((".local/share/mise",), (".local/share/mise", ".tool-versions")),
    Manager((".fnm", ".local/share/fnm"), (".fnm", ".local/share/fnm")),
    Manager((".bun",), (".bun/bin", ".bun/install/global")),
    Manager((".deno",), (".deno/bin",)),
    Manager((".cabal", ".ghcup"), (".cabal/bin", ".ghcup")),
    Manager(("go/bin",), ("go/bin",)),
    Manager((".dotnet",), (".dotnet",)),
    Manager((".krew",), (".krew",)),
    *_whole(".nvm", ".pyenv", ".rbenv", ".nodenv", ".goenv", ".jenv", ".phpenv", ".tfenv"),
    *_whole(".volta", ".sdkman", ".juliaup", ".elan", ".opam", ".linuxbrew", ".npm-global"),
    *_whole("miniconda3", "anaconda3", "miniforge3", "mambaforge", "micromamba", ".pixi/bin"),
    *_whole(".local/share/pnpm", ".local/share/claude", ".local/share/rtx", ".yarn/bin"),
)
INSTALLATION: Final = ("lib", "lib64", "libexec", "share", "include", "pyvenv.cfg", "VERSION")
_PROGRAMS: Final = ("bin", "sbin", "shims", "condabin")
# No session writes there. A directory right below the root or /home cannot be a workspace either.
_SYSTEM: Final = ("/usr", "/opt", "/nix", "/snap", "/etc", "/bin", "/sbin", "/lib", "/var/lib")
HOPS_MAX: Final = 40  # links on the way to a file, as in the kernel


class Limits(NamedTuple):
    """`home`: of the account. `closed`: never shown, nor a directory around a closed path.
    `shown`: already in the tree, with all that is below. `writable`: paths that code can change."""

    home: str
    closed: Sequence[str]
    shown: Sequence[str]
    writable: Sequence[str] = ()


def tools(files: Files, path: Iterable[str], limits: Limits) -> list[Entry]:
    """The entries for the directories of PATH, in a fixed order."""
    found: dict[str, Entry] = {}
    waiting = [entry for entry in path if entry.startswith("/")][:DIRECTORIES_MAX]
    seen = set[str]()
    while waiting and len(seen) < DIRECTORIES_MAX:
        entry = posixpath.normpath(waiting.pop(0))
        if entry in seen:
            continue
        seen.add(entry)
        place = files.real(entry)
        if files.kind(place) != "dir" or not _leads(files, entry, limits):
            continue
        for tree in _trees(files, place, limits):
            found.setdefault(tree, shares(tree))
        shown = (*limits.shown, *found)
        if not _below(place, shown):
            continue
        if not _below(entry, shown):  # PATH names a link: the link's own place must exist inside
            found[entry] = Entry(Kind.READ, entry, place)
        waiting += _venv_base(files, place, limits)
        _follow(files, place, limits, found, waiting)
    # A tree may contain a tree that was found earlier.
    whole = [e for e in found.values() if not _below(posixpath.dirname(e.target), found)]
    return whole[:TREES_MAX]


def _below(path: str, tops: Iterable[str]) -> bool:
    return any(within(path, top) for top in tops)


def _allowed(tree: str, limits: Limits) -> bool:
    return (
        tree.count("/") > 1
        and not within(limits.home, tree)
        and not any(overlap(tree, place) for place in limits.closed)
    )


def _trees(files: Files, place: str, limits: Limits) -> list[str]:
    """The trees that the programs of a directory need; none if shown already or forbidden."""
    if _below(place, limits.shown):
        return []
    for manager in MANAGERS:
        if any(within(place, f"{limits.home}/{top}") for top in manager.places):
            trees = [files.real(f"{limits.home}/{tree}") for tree in manager.trees]
            return [t for t in trees if files.kind(t) in ("dir", "file") and _allowed(t, limits)]
    parent, name = posixpath.split(place)
    local = f"{limits.home}/.local"
    if (
        name in _PROGRAMS
        and parent != local
        and _allowed(parent, limits)
        and (name == "shims" or any(files.kind(f"{parent}/{one}") for one in INSTALLATION))
    ):
        return [parent]
    return [place] if _allowed(place, limits) else []


def _venv_base(files: Files, place: str, limits: Limits) -> list[str]:
    """The directory of the Python that a virtual environment was made with."""
    file = f"{posixpath.dirname(place)}/pyvenv.cfg"
    for line in files.read(file).splitlines():
        key, equals, value = line.partition("=")
        base = value.strip()
        if equals and key.strip() == "home" and base.startswith("/"):
            good = _known(files.real(base), limits) or _trusted(file, limits)
            return [base] if good else []
    return []


def _known(place: str, limits: Limits) -> bool:
    """Whether a place is a manager's, of which only fixed trees are shown, or is shown anyway."""
    managers = (f"{limits.home}/{top}" for manager in MANAGERS for top in manager.places)
    return _below(place, limits.shown) or _below(place, managers)


def _trusted(path: str, limits: Limits) -> bool:
    """Whether no code of a session can have made this link or file."""
    parent = posixpath.dirname(path)
    managers = (f"{limits.home}/{top}" for manager in MANAGERS for top in manager.places)
    own = (f"{limits.home}/bin", *managers)
    return (
        parent == limits.home
        or parent.count("/") < 2
        or _below(parent, _SYSTEM)
        or (_below(parent, own) and not _below(parent, limits.writable))
    )


def _leads(files: Files, path: str, limits: Limits) -> bool:
    """Whether the links on this way may be followed: see the module's text."""
    if _known(files.real(path), limits):
        return True
    at, rest, hops = "/", path.split("/"), 0
    while rest:
        name = rest.pop(0)
        here = posixpath.normpath(posixpath.join(at, name))
        if name in ("", ".", "..") or files.kind(here) != "link":
            at = here
            continue
        hops += 1
        if hops > HOPS_MAX or not _trusted(here, limits):
            return False
        text = files.link(here)
        at, rest = "/" if text.startswith("/") else at, [*text.split("/"), *rest]
    return True


def _follow(
    files: Files, place: str, limits: Limits, found: dict[str, Entry], waiting: list[str]
) -> None:
    """Programs that are links out of the directory: the trees behind the links.

    Links of the distribution's own packages stay in the system; looking at them costs 0.1 s.
    """
    if within(place, "/usr") and not within(place, "/usr/local"):
        return
    for name in files.names(place)[:LINKS_MAX]:
        link = f"{place}/{name}"
        if "/" not in files.link(link):  # no link, or a link in the same directory
            continue
        program = files.real(link)
        if files.kind(program) != "file" or _below(program, (*limits.shown, *found)):
            continue
        if not _leads(files, link, limits):
            continue
        directory = posixpath.dirname(program)
        known = any(
            within(program, f"{limits.home}/{top}")
            for manager in MANAGERS
            for top in manager.places
        )
        if known or posixpath.basename(directory) in _PROGRAMS:
            waiting.append(directory)
        elif _allowed(program, limits):  # only the program: the directory may hold secrets
            found[program] = shares(program)
