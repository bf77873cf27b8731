"""The sealed files of the spool: fixed bytes, and refusals of everything else."""

from __future__ import annotations

import pytest

from holdfast.host.storage import spool_format as sealed

KEY, SESSION, SALT = bytes(range(32)), "0123456789ab", bytes(range(16))
# A file of version 1 with two records. Later releases must read it.
FIXED = (
    "484653504f4f4c0a000100010000000000000007000102030405060708090a0b0c0d0e0fa1f4df10f31723fa4a"
    "6e3025be12a7900000000300000000000000003658a7486cc245ffdd49ba91766d9f43c5fb99de0c99e1000000"
    "000000010000000000191f91ad82c0b7eb0d9fc1d2323fbc1ed70b4b75"
)


def made(kind: int = sealed.OUTPUT, epoch: int = 7) -> bytes:
    sealer = sealed.Sealer(KEY, kind, SESSION, epoch, SALT)
    return sealer.header() + sealer.record(0, b"one") + sealer.record(1 << 40, b"")


def test_the_bytes_of_a_file_are_fixed() -> None:
    assert made().hex() == FIXED
    found = sealed.read(KEY, sealed.OUTPUT, SESSION, bytes.fromhex(FIXED))
    assert found == sealed.Contents(7, ((0, b"one"), (1 << 40, b"")), "")


def test_r1_a_file_that_ends_anywhere_gives_its_whole_records() -> None:
    data = made()
    ends = [sealed.HEADER_BYTES, sealed.HEADER_BYTES + sealed.RECORD_EXTRA_BYTES + 3, len(data)]
    for length in range(len(data) + 1):
        for torn in (data[:length], data[:length].ljust(len(data), b"\0")):
            found = sealed.read(KEY, sealed.OUTPUT, SESSION, torn)
            records = () if found is None else found.records
            assert len(records) == sum(length >= end for end in ends[1:])
            assert found is None or found.damage == ""


def test_a_file_opens_only_as_its_own_kind() -> None:
    for kind in (sealed.OUTPUT, 2, 3):
        for other in (sealed.OUTPUT, 2, 3):
            if kind != other:
                with pytest.raises(sealed.Foreign, match="different kind"):
                    sealed.read(KEY, other, SESSION, made(kind))


def test_every_changed_bit_of_the_header_is_refused() -> None:
    for place in range(sealed.HEADER_BYTES):
        for bit in (1, 0x80):
            data = bytearray(made())
            data[place] ^= bit
            with pytest.raises((sealed.Foreign, sealed.OtherVersion)):
                sealed.read(KEY, sealed.OUTPUT, SESSION, bytes(data))
