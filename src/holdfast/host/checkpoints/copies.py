"""Copies of checkpoints: sends stored files to a machine, and receives files of a machine.

No file is opened on the way. The sender lists the files of a checkpoint (`header`) and reads them;
the receiver begins with the manifest, asks which files are `missing`, and writes them in groups,
checked against the manifest's hashes. `commit` gives the checkpoint its name when all are there. A
copy that was cut goes on with `missing`: its manifest protects the files that have arrived. Every
step is repeatable. To restore the copy, its key must be sealed to this machine (image_keys.py).

The functions block: call them in a thread. The caller has the session (`Checkpoints.using`)
while it writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from holdfast.core.checkpoint import manifest as forms
from holdfast.core.checkpoint import pieces
from holdfast.core.checkpoint.manifest import Header, Unreadable
from holdfast.host.checkpoints import sealing
from holdfast.host.checkpoints.objects import write_whole
from holdfast.host.checkpoints.store import Checkpoints
from holdfast.model.errors import Impossible

FILE_MAX: Final = pieces.OBJECT_MAX  # bytes of a stored file


class Copies:
    """The stored files of one session's checkpoints."""

    def __init__(self, checkpoints: Checkpoints, session: str) -> None:
        self._checkpoints, self._session = checkpoints, session
        self._files, self._top = checkpoints.files, f"{checkpoints.top}/{session}"
        self._objects = checkpoints.objects(session)

    # ------------------------------------------------------------ sending

    def manifest(self, checkpoint: str) -> bytes:
        """The manifest to send. `files` of its header is the complete list of other files."""
        return self._checkpoints.manifest(self._session, checkpoint)

    def header(self, checkpoint: str) -> Header:
        return self._checkpoints.header(self._session, checkpoint)

    def read(self, path: str) -> bytes:
        """A stored file. Impossible if it is missing."""
        if not forms.is_file(path):
            raise Impossible(f"{path[:80]!a} is no file of a checkpoint")
        try:
            return self._files.read(f"{self._top}/{path}", FILE_MAX)
        except OSError as e:
            raise Impossible(f"{path} cannot be read: {e.strerror}") from e

    # ------------------------------------------------------------ receiving

    def expect(self, data: bytes) -> Header:
        """Begin a copy with the manifest. Refused if its maker is not trusted here."""
        if len(data) > forms.BYTES_MAX:
            raise Impossible("its manifest is too long")
        try:
            found = forms.header(data)
        except Unreadable as e:
            raise Impossible(f"the checkpoint cannot be taken: {e}") from e
        if found.session != self._session:
            raise Impossible("the checkpoint is of another session")
        if not self._checkpoints.trusted(bytes.fromhex(found.maker)):
            raise Impossible("the machine that made the checkpoint is not trusted here")
        place = f"{self._top}/{found.id}"
        self._files.make_directory(place)
        if forms.NAME not in self._files.listdir(place):
            write_whole(self._files, place, forms.COMING, data)
            self._files.sync_path(self._top)
        self._objects.begin()
        return found

    def missing(self, expected: Header) -> list[str]:
        """Files that are not here, or not as they were written."""
        return [
            path
            for path, (_, name) in sorted(expected.files.items())
            if not self._objects.intact(name)
        ]

    def write(self, expected: Header, files: Mapping[str, bytes]) -> None:
        """Store some files on the disk. Impossible if one is not what the manifest names."""
        for path, data in files.items():
            if path not in expected.files:
                raise Impossible(f"{path[:80]!a} is no file of {expected.id}")
            if (len(data), sealing.name(data)) != expected.files[path]:
                raise Impossible(f"{path} of {expected.id} was damaged on the way", "send it again")
        names = {expected.files[path][1]: data for path, data in files.items()}
        for name, data in names.items():
            self._objects.add(name, data)
        self._objects.keep(names)

    def commit(self, expected: Header) -> None:
        """Give the checkpoint its name. Every file is read once more."""
        if missing := self.missing(expected):
            raise Impossible(f"{len(missing)} files of {expected.id} are missing: {missing[0]}")
        place = f"{self._top}/{expected.id}"
        if forms.NAME not in self._files.listdir(place):
            self._files.rename(f"{place}/{forms.COMING}", f"{place}/{forms.NAME}")
        for directory in (place, self._top, str(self._checkpoints.top)):
            self._files.sync_path(directory)
