"""The checkpoints on the disk: core/checkpoint/manifest.py describes the files.

The host makes a checkpoint in a directory whose name begins with a dot, and renames the complete
directory. So a crash at any step leaves no half checkpoint.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
from pathlib import Path
from typing import Final

from holdfast.core.checkpoint import manifest as forms
from holdfast.core.checkpoint.manifest import Manifest, Unreadable
from holdfast.home import Home
from holdfast.model.errors import Impossible, NotFound
from holdfast.wire import keeper as wire

DIRECTORY: Final = "checkpoints"
PLAN: Final = "plan"  # in the directory of files for the next host
_NEW, _THAW = ".new-", ".thaw-"
_PIECE_BYTES: Final = 1 << 20


class Checkpoints:
    def __init__(self, home: Home, criu: str) -> None:
        """`criu`: the value of HOLDFAST_CRIU."""
        self.top = Path(home.state) / DIRECTORY
        self.criu = criu
        self.busy = set[str]()  # sessions that are being saved or restored

    # ------------------------------------------------------------ finding

    def of(self, session: str) -> list[Manifest]:
        """The readable checkpoints of a session, oldest first."""
        found = []
        with contextlib.suppress(OSError):
            for name in os.listdir(self.top / session):
                if forms.is_id(name):
                    with contextlib.suppress(OSError, Unreadable):
                        found.append(self.read(session, name))
        return sorted(found, key=lambda one: one.at)

    def all(self) -> list[Manifest]:
        with contextlib.suppress(OSError):
            return [one for session in sorted(os.listdir(self.top)) for one in self.of(session)]
        return []

    def keep(self, session: str) -> bool:
        """Whether the session has a checkpoint, so that its directories must stay."""
        with contextlib.suppress(OSError):
            return any(map(forms.is_id, os.listdir(self.top / session)))
        return False

    def read(self, session: str, checkpoint: str) -> Manifest:
        data = (self.place(session, checkpoint) / forms.NAME).read_bytes()
        if len(data) > forms.BYTES_MAX:
            raise Unreadable("its manifest is too long")
        return forms.decode(data)

    def chosen(self, session: str, word: str) -> Manifest:
        """A checkpoint by the beginning of its id, or the newest."""
        found = [one for one in self.of(session) if one.id.startswith(word)]
        if word and len(found) > 1 and not any(one.id == word for one in found):
            raise NotFound(f"{word[:40]} is the beginning of {len(found)} checkpoints")
        newest = forms.newest(found)
        if newest is None:
            raise NotFound(
                f"no checkpoint {word[:40]}" if word else "the session has no checkpoint",
                "`holdfast checkpoint --list` lists them",
            )
        return newest

    def place(self, session: str, checkpoint: str) -> Path:
        return self.top / session / checkpoint

    # ------------------------------------------------------------ making

    def begin(self, session: str) -> tuple[str, Path]:
        """An id, and a new directory for the checkpoint."""
        chosen = forms.PREFIX + secrets.token_hex(6)
        place = self.top / session / f"{_NEW}{chosen}"
        for one in (self.top, self.top / session, place, place / forms.IMAGES):
            one.mkdir(mode=0o700, exist_ok=True)
        return chosen, place

    def commit(self, place: Path, manifest: Manifest, parts: dict[str, bytes]) -> None:
        """Write the host's parts and the manifest, and give the checkpoint its name."""
        for name, data in (*parts.items(), (forms.NAME, forms.encode(manifest))):
            _write(place / name, data)
        _sync(place)
        place.rename(self.place(manifest.session, manifest.id))
        _sync(place.parent)

    def free(self) -> int:
        self.top.mkdir(mode=0o700, exist_ok=True)
        disk = os.statvfs(self.top)
        return disk.f_bavail * disk.f_frsize

    def remove(self, session: str, checkpoint: str = "") -> None:
        """Remove a checkpoint, or the session's all."""
        place = self.top / session / checkpoint if checkpoint else self.top / session
        shutil.rmtree(place, ignore_errors=True)

    # ------------------------------------------------------------ restoring

    def verify(self, manifest: Manifest) -> None:
        """Impossible, with the name, if a file has changed or is missing."""
        place = self.place(manifest.session, manifest.id)
        for name, (size, wanted) in manifest.files.items():
            digest, length = hashlib.sha256(), 0
            try:
                with open(place / name, "rb") as f:
                    while piece := f.read(_PIECE_BYTES):
                        digest.update(piece)
                        length += len(piece)
            except OSError as e:
                raise Impossible(f"{manifest.id} is incomplete: {name}: {e.strerror}") from e
            if length != size or digest.hexdigest() != wanted:
                raise Impossible(
                    f"{manifest.id} is damaged: {name} is not what was saved",
                    "choose an older checkpoint: `holdfast checkpoint --list`",
                )

    def copy_for_thaw(self, manifest: Manifest, epoch: int, output: bytes) -> Path:
        """A directory of links to the images. The restore replaces files that need an edit."""
        images = self.place(manifest.session, manifest.id) / forms.IMAGES
        place = self.top / manifest.session / f"{_THAW}{epoch}"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(mode=0o700)
        for one in images.iterdir():
            os.link(one, place / one.name)
        (place / "output").write_bytes(output)
        return place

    def clear_thaw(self, place: Path, keep: Path | None) -> None:
        """Remove the copy; `keep`: the place for the archive of replaced file contents."""
        with contextlib.suppress(OSError):
            if keep is not None:
                os.replace(place / "replaced.tar", keep)
        shutil.rmtree(place, ignore_errors=True)

    def last_output(self, session: str) -> Path:
        """The file with the output of an incarnation that was lost."""
        return self.top / session / "last-output"

    def sweep(self) -> None:
        """Remove directories that an earlier host did not finish."""
        with contextlib.suppress(OSError):
            for session in self.top.iterdir():
                for one in session.iterdir():
                    if one.name.startswith((_NEW, _THAW)):
                        shutil.rmtree(one, ignore_errors=True)


def write_plan(directory: str, request: wire.Spawn) -> None:
    """Store how a session was made, without the environment, which may have secrets."""
    plan = request._replace(argv=(b"saved",), env=(), label=b"", cwd=b"/")
    Path(directory, PLAN).write_bytes(wire.spawn(plan))


def read_plan(data: bytes) -> wire.Spawn:
    """How a session was made; Impossible if that cannot be read."""
    try:
        return wire.read_spawn(data[wire.SPAWN_HEADER.size :])
    except wire.Malformed as e:
        raise Impossible(f"how the session was made cannot be read: {e}") from e


def _write(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(fd)


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
