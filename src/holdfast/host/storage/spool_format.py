"""The sealed files of the spool: output of a session, at rest on a disk.

    file   ::= HEADER TAG record*
    HEADER ::= MAGIC(8) version(u16) kind(u16) epoch(u64) salt(16)
    record ::= length(u32) offset(u64) check(u32) sealed(length + 16)

Integers are big-endian. A file of the kind OUTPUT has any number of records: output of the terminal
at absolute offsets. It is the only kind.

The key of a file is HKDF-SHA256 of the installation's spool key with the file's salt, for this
kind, session and epoch. The nonce of AES-256-GCM is the number of the record; TAG is the seal of an
empty text with the last nonce. The header, the session, and number, offset and length of the record
are associated data. So a file that moved to another session and records that changed places do not
open. No file is opened for writing twice, so a nonce is never used twice with a key.

`check` is the CRC-32 of number, length and offset. It tells a torn record from a damaged one: of a
torn record, head or text ends with the file, or only zeros follow. Damage within the last record of
a file therefore counts as torn. Lengths and offsets are not secret.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

MAGIC: Final = b"HFSPOOL\n"
VERSION: Final = 1
OUTPUT: Final = 1
SALT_BYTES: Final = 16
TAG_BYTES: Final = 16
_HEADER: Final = struct.Struct(">8sHHQ16s")
_HEAD: Final = struct.Struct(">IQI")
_CHECKED: Final = struct.Struct(">QIQ")
_TAG_NONCE: Final = (1 << 96) - 1
HEADER_BYTES: Final = _HEADER.size + TAG_BYTES
RECORD_EXTRA_BYTES: Final = _HEAD.size + TAG_BYTES  # of a record, beside its output
OFFSET_MAX: Final = (1 << 63) - 1


class Foreign(Exception):
    """The file is not sealed with this key for this session, or is no such file."""


class OtherVersion(Exception):
    """A different release wrote the file."""

    def __init__(self, version: int) -> None:
        super().__init__(f"version {version} of the format; this release reads {VERSION}")
        self.version = version


class Contents(NamedTuple):
    epoch: int
    records: tuple[tuple[int, bytes], ...]  # (offset, data)
    damage: str  # why the file ends early, in words; empty for a whole file and for a torn end


class Sealer:
    """Makes the bytes of one file, in order."""

    def __init__(self, key: bytes, kind: int, session: str, epoch: int, salt: bytes) -> None:
        self._plain = _HEADER.pack(MAGIC, VERSION, kind, epoch, salt)
        self._aead, self._beside = _opener(key, self._plain, session)
        self._number = 0

    def header(self) -> bytes:
        return self._plain + self._aead.encrypt(_nonce(_TAG_NONCE), b"", self._beside)

    def record(self, offset: int, data: bytes) -> bytes:
        number, self._number = self._number, self._number + 1
        checked = _CHECKED.pack(number, len(data), offset)
        sealed = self._aead.encrypt(_nonce(number), data, self._beside + checked)
        return _HEAD.pack(len(data), offset, zlib.crc32(checked)) + sealed


def read(key: bytes, kind: int, session: str, data: bytes) -> Contents | None:
    """Open a file. None: the file ends within its header, so nothing was ever in it.

    Raises Foreign or OtherVersion if no record can be trusted.
    """
    if len(data) < HEADER_BYTES or _unwritten(data, 0, HEADER_BYTES):
        return None
    plain = data[: _HEADER.size]
    magic, version, found, epoch, _ = _HEADER.unpack(plain)
    if magic != MAGIC:
        raise Foreign("it is no file of the spool")
    if version != VERSION:
        raise OtherVersion(version)
    aead, beside = _opener(key, plain, session)
    try:
        aead.decrypt(_nonce(_TAG_NONCE), data[_HEADER.size : HEADER_BYTES], beside)
    except InvalidTag:
        raise Foreign("another key or session sealed it, or its header is damaged") from None
    if found != kind:
        raise Foreign("it is a different kind of file")
    records = list[tuple[int, bytes]]()
    at, view = HEADER_BYTES, memoryview(data)
    while at < len(data):
        number = len(records)
        if len(data) - at < _HEAD.size:
            break
        length, offset, check = _HEAD.unpack_from(data, at)
        begin, end = at + _HEAD.size, at + _HEAD.size + length + TAG_BYTES
        checked = _CHECKED.pack(number, length, offset)
        if check != zlib.crc32(checked):
            return Contents(epoch, tuple(records), _damage(data, at, begin, number))
        if end > len(data):
            break
        try:
            found_data = aead.decrypt(_nonce(number), view[begin:end], beside + checked)
        except InvalidTag:
            return Contents(epoch, tuple(records), _damage(data, begin, end, number))
        records.append((offset, found_data))
        at = end
    return Contents(epoch, tuple(records), "")


def _unwritten(data: bytes, start: int, end: int) -> bool:
    """Whether a crash left only zeros after some byte between `start` and `end`."""
    return end - start >= len(data[start:].rstrip(b"\0"))


def _damage(data: bytes, start: int, end: int, number: int) -> str:
    if _unwritten(data, start, end):
        return ""
    return f"record {number} and all records after it in this file cannot be opened"


def _opener(key: bytes, plain: bytes, session: str) -> tuple[AESGCM, bytes]:
    """(cipher, associated data) of the file with this header."""
    beside = b"holdfast/spool\0" + session.encode() + b"\0" + plain
    return AESGCM(HKDF(SHA256(), 32, plain[-SALT_BYTES:], beside).derive(key)), beside


def _nonce(number: int) -> bytes:
    return number.to_bytes(12, "big")
