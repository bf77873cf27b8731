"""Whether somebody is in the middle of a line, for the next host to know.

A `run` must not be typed behind half of somebody's `rm -rf`. The host knows what was typed, the shell's prompts clear it, but a host that
dies between the two takes that knowledge with it: the screen's snapshot is taken after a second of quiet, and what is
typed leaves no mark in the output. So it is written down before the keys are sent, in the session's private directory,
only when the answer changes: once or twice per line. A file, because it must outlive a process, not the machine.

    file ::= crc32 u32, length u32, JSON [newest, one before]
    note ::= [act, scanned, dirty, ahead]     with act number `act`, when output was known up to `scanned`

The newest note counts if its act was applied, else the one before: a host may die before it sends what it wrote down.
A file that cannot be written or read costs the caution, not the session.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import zlib
from typing import NamedTuple

FILE = "halfline"
_HEAD = struct.Struct("<II")
_BYTES = 4096


class Note(NamedTuple):
    act: int
    scanned: int
    dirty: bool  # a key was typed at the prompt
    ahead: bool  # or before it, and did not end a line


class HalfLine:
    def __init__(self, directory: str) -> None:
        self._path = f"{directory}/{FILE}"
        self._fd = -1
        self._notes = self._read()

    def write(self, note: Note) -> None:
        self._notes = [note, *self._notes[:1]]
        body = json.dumps(self._notes).encode()
        with contextlib.suppress(OSError):
            if self._fd < 0:
                self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.pwrite(self._fd, _HEAD.pack(zlib.crc32(body), len(body)) + body, 0)

    def last(self, accepted: int) -> Note | None:
        """What was so when the last host died, if the keeper had taken acts up to `accepted`."""
        return next((note for note in self._notes if note.act <= accepted), None)

    def _read(self) -> list[Note]:
        try:
            with open(self._path, "rb") as f:
                data = f.read(_BYTES)
            crc, length = _HEAD.unpack_from(data)
            body = data[_HEAD.size : _HEAD.size + length]
            return (
                [Note(int(a), int(s), bool(d), bool(h)) for a, s, d, h in json.loads(body)]
                if zlib.crc32(body) == crc
                else []
            )
        except (OSError, ValueError, TypeError, struct.error):
            return []

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
