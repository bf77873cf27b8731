"""Objects and keys of checkpoints: only the right key opens what was sealed, unaltered (R2)."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.checkpoint import pieces
from holdfast.core.checkpoint.manifest import Damaged
from holdfast.host.checkpoints import sealing
from holdfast.host.checkpoints.sealing import ImageKey, unwrap
from holdfast.model import agreement

SESSION = "0123456789ab"
KEY = ImageKey(SESSION, bytes(32))


@given(st.binary(max_size=3000))
def test_r2_an_object_opens_to_its_content(content: bytes) -> None:
    mark = KEY.mark(content)
    stored = KEY.seal(mark, content)
    assert KEY.open(mark, stored) == content
    assert KEY.mark(content) == mark != ImageKey.fresh(SESSION).mark(content)
    assert sealing.is_name(sealing.name(stored))


def test_r2_memory_is_compressed() -> None:
    assert len(KEY.seal("", bytes(1 << 18))) < 200


@given(st.data())
def test_r2_an_altered_object_does_not_open(data: st.DataObject) -> None:
    mark = KEY.mark(b"content")
    stored = bytearray(KEY.seal(mark, b"content"))
    stored[data.draw(st.integers(0, len(stored) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Damaged):
        KEY.open(mark, bytes(stored))


def test_r2_an_object_does_not_open_in_the_place_of_another() -> None:
    stored = KEY.seal(KEY.mark(b"one"), b"one")
    for key, mark in ((KEY, KEY.mark(b"two")), (ImageKey.fresh(SESSION), KEY.mark(b"one"))):
        with pytest.raises(Damaged):
            key.open(mark, stored)


def test_r2_an_object_that_unpacks_to_too_much_is_refused() -> None:
    with pytest.raises(Damaged, match="too large"):
        KEY.open("x", KEY.seal("x", bytes(pieces.CONTENT_MAX + 1)))


def test_r2_a_key_is_opened_by_the_machine_that_it_was_sealed_to() -> None:
    private, other = os.urandom(32), os.urandom(32)
    key = ImageKey.fresh(SESSION)
    wrapped = key.wrap(agreement.public(private))
    assert unwrap(private, SESSION, key.id, wrapped).secret == key.secret
    for secret, session, key_id in (
        (other, SESSION, key.id),
        (private, "bbbbbbbbbbbb", key.id),
        (private, SESSION, "0" * 16),
    ):
        with pytest.raises(Damaged, match="another machine"):
            unwrap(secret, session, key_id, wrapped)
    for broken in (wrapped[:-1], bytes(sealing.WRAP_BYTES), wrapped[:-1] + b"\0\0"):
        with pytest.raises(Damaged):
            unwrap(private, SESSION, key.id, broken)
    with pytest.raises(Damaged):
        key.wrap(bytes(32))  # a key of low order
