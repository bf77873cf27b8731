"""The directories on disk that belong to a contained session: home, /tmp, /var/tmp and /run.

    <state>/contained/SESSION/{home,tmp,vartmp,run}      removed after the end of the session
    <state>/kept/OPERATOR+NAME/{home,tmp,vartmp}         with `new NAME --keep-home`

A kept home belongs to the operator that made the session. The same operator gets the home again
with `new NAME --keep-home`; no other operator does. To remove the home, delete the directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Container, Sequence
from typing import Final, NamedTuple

from holdfast.core.containment import git_identity, variables
from holdfast.home import Home
from holdfast.host.lifecycle.contained import placeholders, removal
from holdfast.host.lifecycle.contained.disk import Disk
from holdfast.host.runtime.threads import Pool

CONTAINED, KEPT = "contained", "kept"
SKELETON: Final = "/etc/skel"
SKELETON_FILES: Final = 64
SKELETON_BYTES: Final = 1 << 20
GIT_FILES: Final = (".config/git/config", ".gitconfig")  # in the order in which git reads
_MODES: Final = (("home", 0o700), ("tmp", 0o1777), ("vartmp", 0o1777))


class Own(NamedTuple):
    """`base` ends with the session. `files`: home, tmp and vartmp. `kept`: the files stay."""

    base: str
    files: str
    kept: bool


def own(home: Home, session: str, keep_as: str = "") -> Own:
    """Where a session's directories are. `keep_as`: operator and name, to keep them."""
    base = f"{home.state}/{CONTAINED}/{session}"
    return Own(base, f"{home.state}/{KEPT}/{keep_as}" if keep_as else base, bool(keep_as))


def kept_name(operator: str, name: str) -> str:
    """The directory of an operator's kept home; `+` is in no name."""
    return f"{operator}+{name}"


def kept_home(home: Home, operator: str, name: str) -> str:
    """The directory of a kept home."""
    return f"{home.state}/{KEPT}/{kept_name(operator, name)}"


def placed(home: Home) -> dict[str, str | None]:
    """The placeholders of all sessions."""
    return placeholders.known(f"{home.state}/{CONTAINED}")


def make(place: Own, uid: int, account_home: str, closed: str) -> list[str]:
    """Make the directories; return the files that were written.

    `closed`: where Holdfast's state would be in the new home, or "".
    """
    written: list[str] = []
    for path in (os.path.dirname(place.base), place.base, os.path.dirname(place.files)):
        os.makedirs(path, mode=0o700, exist_ok=True)
    os.makedirs(place.files, mode=0o700, exist_ok=True)
    fresh = not os.path.lexists(f"{place.files}/home")
    for name, mode in _MODES:
        _directory(f"{place.files}/{name}", mode)
    _directory(f"{place.base}/run", 0o755)
    _directory(f"{place.base}/run/lock", 0o1777)
    _directory(f"{place.base}/run/user", 0o755)
    _directory(f"{place.base}/run/user/{uid}", 0o700)
    if fresh:  # in a kept home, links of earlier programs could lead anywhere
        written = _furnish(f"{place.files}/home", account_home)
        if closed:  # a `holdfast` inside then says that the host cannot be reached
            os.makedirs(f"{place.files}/home/{closed}", mode=0o700, exist_ok=True)
            os.chmod(f"{place.files}/home/{closed}", 0o555)
    return written


def _directory(path: str, mode: int) -> None:
    """A directory of this account with this mode. A link or a file there is an OSError."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, mode)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchmod(fd, mode)
    finally:
        os.close(fd)


def _furnish(new: str, account_home: str) -> list[str]:
    """Write the files of a new home: the machine's skeleton, and the person's name for git."""
    written = [*_copy_skeleton(new), *_link_packages(new, account_home)]
    identity = git_identity.read(Disk().read(f"{account_home}/{name}") for name in GIT_FILES)
    if text := git_identity.write(identity):
        with open(f"{new}/.gitconfig", "w") as file:
            file.write(text)
        written.append(file.name)
    return written


def _link_packages(new: str, account_home: str) -> list[str]:
    """Let Python find the account's packages beside packages that are installed inside.

    PYTHONUSERBASE leads to the session's own directory. The account's packages come after, where
    shown: programs in `~/.local/bin` need the packages.
    """
    os.makedirs(f"{new}/{variables.INSTALLED}/bin", exist_ok=True)
    written, files = list[str](), Disk()
    for name in files.names(f"{account_home}/.local/lib"):
        packages = f"{account_home}/.local/lib/{name}/site-packages"
        if not name.startswith("python3.") or files.kind(packages) != "dir":
            continue
        own = f"{new}/{variables.INSTALLED}/lib/{name}/site-packages"
        os.makedirs(own, exist_ok=True)
        with open(f"{own}/account.pth", "w") as file:
            file.write(f"import site; site.addsitedir({packages!a})\n")
        written.append(file.name)
    return written


def _copy_skeleton(new: str) -> list[str]:
    written, left, size = list[str](), SKELETON_FILES, SKELETON_BYTES
    for place, directories, names in os.walk(SKELETON):
        inside = os.path.join(new, os.path.relpath(place, SKELETON))
        for name in directories:
            os.makedirs(os.path.join(inside, name), mode=0o755, exist_ok=True)
        for name in names:
            source = os.path.join(place, name)
            with contextlib.suppress(OSError):
                size -= os.lstat(source).st_size
                left -= 1
                if left < 0 or size < 0:
                    return written
                if os.path.isfile(source) and not os.path.islink(source):
                    shutil.copyfile(source, target := os.path.join(inside, name))
                    written.append(target)
    return written


class OwnDirectories:
    """Removes directories of ended sessions in turn, in a separate thread.

    Programs of a session may have left any number of files there, so the event loop must not wait.
    """

    def __init__(self, home: Home, private: Sequence[str]) -> None:
        """`private`: the directories in the run directory that have a part for each session."""
        self._places = (f"{home.state}/{CONTAINED}", *(f"{home.run}/{one}" for one in private))
        self._pool = Pool(1, "contained")

    async def remove(self, session: str) -> int:
        """Remove the files that end with the session; return how many entries resisted."""
        paths = [f"{place}/{session}" for place in self._places]
        return await asyncio.wrap_future(self._pool.submit(_remove, paths))

    def stale(self, living: Container[str]) -> list[str]:
        """Sessions that no longer exist; a crashed host left the directories."""
        found = set[str]()
        for place in self._places:
            with contextlib.suppress(OSError):
                found.update(os.listdir(place))
        return [name for name in sorted(found) if name not in living]

    async def remove_all(self, sessions: list[str]) -> None:
        for session in sessions:
            await self.remove(session)

    def close(self) -> None:
        """Work that is under way is not waited for; the next host does the rest."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _remove(paths: list[str]) -> int:
    placeholders.remove(paths[0])
    return sum(map(removal.remove, paths))
