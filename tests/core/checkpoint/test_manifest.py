"""The manifest of a checkpoint: read as it was written, or refused with the reason (R2)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from holdfast.core.checkpoint.manifest import (
    FORMAT,
    Manifest,
    Unreadable,
    decode,
    encode,
    is_id,
    newest,
)

MADE = Manifest(
    id="cp-0123456789ab",
    session="0123456789ab",
    name="work",
    epoch=2,
    at=1700000000.5,
    by="ann",
    ended=True,
    bytes=4711,
    head=100,
    sequence=7,
    size=(80, 24),
    label={"name": "work"},
    row={"argv": ["bash"]},
    files={"images/pstree.img": (10, "ab" * 32)},
    machine={"processor": "x86_64"},
    terminal=(1, 2, 3, 4),
    origins=((9, 3, 7),),
    losses=("a loss",),
    written=("/w/file",),
)


def test_r2_a_manifest_is_read_as_it_was_written() -> None:
    assert decode(encode(MADE)) == MADE


def test_r2_keys_of_a_later_release_are_ignored() -> None:
    later = {**json.loads(encode(MADE)), "sealed": "by a later release"}
    assert decode(json.dumps(later).encode()) == MADE


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": FORMAT + 1}, "reads up to 1"),
        ({"compression": "zstd"}, "compressed by zstd"),
        ({"files": {"a": 5}}, "damaged"),
        ({"size": None}, "damaged"),
    ],
)
def test_r2_a_manifest_that_cannot_be_used_is_refused(change: dict[str, object], says: str) -> None:
    with pytest.raises(Unreadable, match=says):
        decode(json.dumps({**json.loads(encode(MADE)), **change}).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", encode(MADE)[:100]])
def test_r2_a_damaged_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(Unreadable, match="damaged"):
        decode(data)


def test_the_newest_is_chosen_by_time() -> None:
    older = replace(MADE, id="cp-ffffffffffff", at=1.0)
    assert newest([MADE, older]) == MADE and newest([]) is None


@pytest.mark.parametrize("text", ["cp-0123456789ab", "cp-0123", "../cp-0123456789ab", "work"])
def test_an_id_is_recognised(text: str) -> None:
    assert is_id(text) == (text == "cp-0123456789ab")
