"""Tells the next host whether an operator is in the middle of a line.

A `run` must not be typed behind half of an operator's `rm -rf`. The host remembers typed input
until the shell's next prompt. If the host dies in between, that knowledge is lost: the screen's
snapshot is taken after a second of quiet, and typing leaves no mark in the output. So the host
writes a note before sending the keys, only when the answer changes: once or twice per line. A file
outlives the process, which is enough. The file is in the directory that only hosts can write:
programs of a contained session cannot forge it.

    file ::= crc32 u32, length u32, JSON [newest, one before]
    note ::= [act, scanned, dirty, ahead]   of act number `act`, output being known up to `scanned`

The newest note counts if its act was applied, else the note before: a host may die between writing
the note and sending the act. If the file cannot be written or read, only this caution is lost, not
the session.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import zlib
from typing import NamedTuple

from holdfast.host.runtime import handover_file

FILE = "halfline"
_HEAD = struct.Struct("<II")
_BYTES = 4096


class Note(NamedTuple):
    act: int
    scanned: int
    dirty: bool  # keys were typed at the prompt
    ahead: bool  # keys were typed before the prompt, and did not end a line


class UnfinishedLineFile:
    def __init__(self, host_only: str) -> None:
        self._path = f"{host_only}/{FILE}"
        self._fd = -1
        self._notes = self._read()

    def write(self, note: Note) -> None:
        self._notes = [note, *self._notes[:1]]
        body = json.dumps(self._notes).encode()
        with contextlib.suppress(OSError):
            if self._fd < 0:
                flags = os.O_WRONLY | os.O_CREAT | handover_file.CAREFUL
                self._fd = os.open(self._path, flags, 0o600)
            os.pwrite(self._fd, _HEAD.pack(zlib.crc32(body), len(body)) + body, 0)

    def last(self, accepted: int) -> Note | None:
        """The note that held when the last host died, if the keeper took acts up to `accepted`."""
        return next((note for note in self._notes if note.act <= accepted), None)

    def _read(self) -> list[Note]:
        try:
            data = handover_file.read(self._path, _BYTES)
            crc, length = _HEAD.unpack_from(data)
            body = data[_HEAD.size : _HEAD.size + length]
            if zlib.crc32(body) == crc:
                return [Note(int(a), int(s), bool(d), bool(h)) for a, s, d, h in json.loads(body)]
            return []
        except (OSError, ValueError, TypeError, struct.error):
            return []

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def remove_leftover(writable: str) -> None:
    """Removes the note of an earlier build, which programs of the session could forge, unread."""
    with contextlib.suppress(OSError):
        os.unlink(f"{writable}/{FILE}")
