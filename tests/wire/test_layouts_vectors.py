"""Shared memory, bodies and kernel structures, byte for byte as in tests/vectors/layouts.json."""

from __future__ import annotations

import os
from typing import Any

import pytest

from holdfast.keeper import ring as keeper_ring
from holdfast.wire import body, exec_filter, notification, ring, snapshot
from tests.vectors import cases

FILE = "layouts.json"
PAGE = 4096
HEAD = 80  # bytes of a page that have a meaning


def memfd(pieces: dict[int, bytes], size: int = 0) -> int:
    fd = os.memfd_create("vectors")
    os.ftruncate(fd, size)
    for at, data in pieces.items():
        os.pwrite(fd, data, at)
    return fd


def ring_made(given: dict[str, Any]) -> dict[str, Any]:
    """The header and the data of a ring as a keeper makes it."""
    fd = keeper_ring.create(
        given["size"],
        given["base"],
        bytes.fromhex(given["tail"]),
        given["accepted"],
        given["exited"],
        given["cols"],
        given["rows"],
    )
    try:
        return {
            "head": os.pread(fd, HEAD, 0).hex(),
            "data": os.pread(fd, PAGE, PAGE).hex(),
            "bytes": os.fstat(fd).st_size,
        }
    finally:
        os.close(fd)


def snapshots(given: dict[str, Any]) -> dict[str, Any]:
    """The content of the file after these screens were stored, one after the other."""
    fd = memfd({})
    try:
        for offset, data in given["stored"]:
            snapshot.store(fd, offset, bytes.fromhex(data))
        found = snapshot.load(fd)
        head = os.pread(fd, HEAD, 0)
        slots = [int.from_bytes(head[at + 24 : at + 32], "little") for at in (16, 48)]
        return {
            "head": head.hex(),
            "slots": slots,
            "loaded": cases.bare(found),
            "bytes": os.fstat(fd).st_size,
        }
    finally:
        os.close(fd)


def sealed(given: dict[str, Any]) -> str:
    words = {"rekey": body.REKEY, "end": body.END, "ask": body.ASK, "yes": body.YES}
    if "word" in given:
        return words[given["word"]].hex()
    return body.data(bytes.fromhex(given["byte"]) * given["length"])[:8].hex()


def filtering(given: dict[str, Any]) -> dict[str, Any]:
    """The filter program that the kernel gets, and its form in a saved image."""
    code = exec_filter.program(given["machine"], given["cookie"])
    plain = exec_filter.neutral(code)
    assert plain is not None
    return {"program": code.hex(), "neutral": plain.hex()}


def kernel(given: dict[str, Any]) -> str:
    layout = {
        "notification": notification.NOTIFICATION,
        "answer": notification.ANSWER,
        "id": notification.ID,
    }[given["layout"]]
    return layout.pack(*given["fields"]).hex()


def numbers(given: dict[str, Any]) -> dict[str, int]:
    return {
        "recv": notification.RECV,
        "send": notification.SEND,
        "id_valid": notification.ID_VALID,
        "continue": notification.CONTINUE,
    }


MAKE = {
    "ring": ring_made,
    "snapshot": snapshots,
    "body": sealed,
    "sieve": filtering,
    "kernel": kernel,
    "numbers": numbers,
}


@pytest.mark.parametrize("case", cases.load(FILE), ids=cases.name)
def test_a_layout_does_not_change(case: cases.Case) -> None:
    assert cases.made(MAKE, case) == case["expected"]


@pytest.mark.parametrize("case", cases.load(FILE, "ring"), ids=cases.name)
def test_a_ring_is_read_from_its_bytes(case: cases.Case) -> None:
    given, found = case["input"], case["expected"]
    pieces = {0: bytes.fromhex(found["head"]), PAGE: bytes.fromhex(found["data"])}
    fd = memfd(pieces, found["bytes"])
    reader = ring.RingReader(fd)
    os.close(fd)
    tail = bytes.fromhex(given["tail"])[-given["size"] :]
    try:
        assert (reader.size, reader.head, reader.start) == (
            given["size"],
            given["base"],
            given["base"] - len(tail),
        )
        assert (reader.accepted, reader.written, reader.flags) == (
            given["accepted"],
            given["accepted"],
            2 if given["exited"] else 0,
        )
        assert reader.resized == (given["base"], given["cols"], given["rows"])
        assert reader.copy(reader.start, reader.head) == tail
    finally:
        reader.close()


@pytest.mark.parametrize("case", cases.load(FILE, "snapshot"), ids=cases.name)
def test_a_snapshot_is_loaded_from_its_bytes(case: cases.Case) -> None:
    """Only the head is in the vector: the screens are put at the offsets of the head."""
    found = case["expected"]
    screens = [bytes.fromhex(data) for _, data in case["input"]["stored"][-2:]]
    if len(case["input"]["stored"]) % 2 and len(screens) == 2:
        screens.reverse()  # the newest is in the first slot
    pieces = dict(zip((at for at in found["slots"] if at), screens, strict=False))
    fd = memfd({0: bytes.fromhex(found["head"]), **pieces})
    try:
        assert cases.bare(snapshot.load(fd)) == found["loaded"]
    finally:
        os.close(fd)


@pytest.mark.parametrize("case", cases.load(FILE, "body"), ids=cases.name)
def test_a_body_is_read_back_unchanged(case: cases.Case) -> None:
    given, head = case["input"], bytes.fromhex(case["expected"])
    if "word" in given:
        assert body.read(head) is None
    else:
        plain, length = bytes.fromhex(given["byte"]) * given["length"], given["length"]
        begins = 2 if length < 0x80 else 3 if length < 0x4000 else 4
        assert body.read(head[:begins] + plain) == plain


def test_the_words_of_the_ring_have_their_numbers() -> None:
    """A reader of another release finds each word at its place."""
    assert ring.MAGIC.to_bytes(8, "little") == b"HLFRING1"
    assert snapshot.MAGIC.to_bytes(8, "little") == b"HLFSNAP1"
    assert (ring.FLAG_EOF, ring.FLAG_EXITED, ring.FLAG_ROLLING, ring.FLAG_FENCED) == (1, 2, 4, 8)
