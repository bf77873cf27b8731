"""The manifest of a checkpoint: read as it was written, or refused with the reason (R2)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.checkpoint.manifest import (
    Unreadable,
    decode,
    encode,
    header,
    is_file,
    is_id,
    newest,
)
from holdfast.host.checkpoints.sealing import ImageKey
from holdfast.model import signing
from tests.support.recovery.manifests import KEY, MACHINE, MADE

DATA = encode(MADE, KEY, MACHINE)


def signed(change: Callable[[dict[str, object]], object]) -> bytes:
    """The manifest with a change that its maker signed."""
    found = json.loads(DATA.splitlines()[0])
    change(found)
    line = json.dumps(found).encode()
    return line + b"\n" + signing.sign(MACHINE, "checkpoint/2", line).hex().encode() + b"\n"


def test_r2_a_manifest_is_read_as_it_was_written() -> None:
    assert decode(DATA, KEY) == MADE
    plain = header(DATA)
    assert (plain.id, plain.stored, plain.files) == (MADE.id, 10, MADE.files)


def test_r2_secrets_are_not_in_the_readable_part() -> None:
    for word in (b"work", b"ann", b"bash", b"pstree", b"x86_64", b"/w/file"):
        assert word not in DATA


def test_r2_keys_of_a_later_release_are_ignored() -> None:
    assert decode(signed(lambda found: found.update(later=1)), KEY) == MADE


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": 4}, "format 4, and this release reads 2 to 3"),
        ({"objects": {"../../etc/passwd": 5}}, "damaged"),
        ({"objects": {"ab" * 32: 1 << 40}}, "damaged"),
        ({"session": "../0123456789"}, "damaged"),
        ({"key": "../keys"}, "damaged"),
        ({"sealed": "AAAA"}, "cannot be opened"),
    ],
)
def test_r2_a_manifest_that_cannot_be_used_is_refused(change: dict[str, object], says: str) -> None:
    with pytest.raises(Unreadable, match=says):
        decode(signed(lambda found: found.update(change)), KEY)


def test_r2_format_2_is_read() -> None:
    assert decode(signed(lambda found: found.update(format=2)), KEY) == MADE


def test_r2_format_1_is_refused_by_its_name() -> None:
    with pytest.raises(Unreadable, match="format 1, and this release reads 2 to 3"):
        header(json.dumps({"format": 1, "compression": "none"}, indent=1).encode())


def test_r2_another_key_does_not_open_it() -> None:
    with pytest.raises(Unreadable, match="cannot be opened"):
        decode(DATA, ImageKey.fresh("0123456789ab"))
    with pytest.raises(Unreadable, match="cannot be opened"):
        decode(DATA, ImageKey("bbbbbbbbbbbb", bytes(32)))


@given(st.integers(0, len(DATA) - 1), st.integers(1, 255))
def test_r2_every_altered_byte_is_noticed(at: int, by: int) -> None:
    altered = DATA[:at] + bytes([DATA[at] ^ by]) + DATA[at + 1 :]
    try:
        assert decode(altered, KEY) == MADE  # a white space after the signature, or its case
    except Unreadable:
        return
    assert at > DATA.index(b"\n")


@given(st.binary(max_size=300) | st.integers(0, len(DATA) - 2).map(lambda n: DATA[:n]))
def test_r2_a_damaged_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(Unreadable):
        decode(data, KEY)


def test_the_newest_is_chosen_by_time() -> None:
    older = replace(MADE, id="cp-ffffffffffff", at=1.0)
    assert newest([MADE, older]) == MADE and newest([]) is None


@pytest.mark.parametrize("text", ["cp-0123456789ab", "cp-0123", "../cp-0123456789ab", "work"])
def test_an_id_is_recognised(text: str) -> None:
    assert is_id(text) == (text == "cp-0123456789ab")


def test_only_objects_are_files_of_a_checkpoint() -> None:
    assert is_file(f"objects/{'a' * 64}")
    assert not any(map(is_file, ("objects/../x", "manifest.json", f"objects/{'A' * 64}", "")))
