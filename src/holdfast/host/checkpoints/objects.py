"""The stored objects of a session: sealed pieces that its checkpoints share.

    objects/SHA-256         complete and on the disk
    objects/.new-SHA-256    being written; a crash leaves it, and `sweep` removes it

A name is the SHA-256 of the content. An object gets its name after its content is on the disk. So
whatever has a name is complete, unless the disk lost it. Files are synced together, because each
sync alone takes milliseconds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable
from typing import Final

from holdfast.core.checkpoint import manifest as forms
from holdfast.core.checkpoint import pieces
from holdfast.host.checkpoints import sealing
from holdfast.host.storage.spool_files import Files

_NEW: Final = ".new-"


class Objects:
    def __init__(self, files: Files, session: str) -> None:
        """`session`: the directory of the session's checkpoints."""
        self._files, self._place = files, f"{session}/{forms.OBJECTS}"

    def begin(self) -> None:
        self._files.make_directory(self._place)

    def add(self, name: str, stored: bytes) -> None:
        """Write an object, which is not there before `keep`. Threads may call this."""
        write_file(self._files, f"{self._place}/{_NEW}{name}", stored, sync=False)

    def keep(self, names: Iterable[str]) -> None:
        """Put the written objects on the disk, under their names."""
        written = [*names]
        if written:
            self._files.sync_all(self._place)
            for name in written:
                self._files.rename(f"{self._place}/{_NEW}{name}", f"{self._place}/{name}")
        self._files.sync_path(self._place)

    def read(self, name: str) -> bytes:
        return self._files.read(f"{self._place}/{name}", pieces.OBJECT_MAX + 1)

    def intact(self, name: str) -> bool:
        """Whether the object is there as it was written."""
        try:
            return sealing.name(self.read(name)) == name
        except OSError:
            return False

    def present(self) -> set[str]:
        with contextlib.suppress(OSError):
            return {name for name in self._files.listdir(self._place) if sealing.is_name(name)}
        return set()

    def sweep(self, used: Collection[str]) -> None:
        """Remove all objects but these, and unfinished ones."""
        with contextlib.suppress(FileNotFoundError):
            for name in self._files.listdir(self._place):
                if name not in used:
                    self._files.unlink(f"{self._place}/{name}")


def write_file(files: Files, path: str, data: bytes, sync: bool = True) -> None:
    """Write a new file; the caller renames it, or syncs it with others."""
    fd = files.create(path)
    try:
        view = memoryview(data)
        while view:
            view = view[files.write(fd, bytes(view)) :]
        if sync:
            files.sync(fd)
    finally:
        files.close(fd)


def write_whole(files: Files, directory: str, name: str, data: bytes) -> None:
    """Write a file that is there completely, on the disk, or not at all."""
    write_file(files, f"{directory}/{_NEW}{name}", data)
    files.rename(f"{directory}/{_NEW}{name}", f"{directory}/{name}")
    files.sync_path(directory)
