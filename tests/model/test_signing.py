"""Keys and signatures: bound to bytes and purpose, checked against the vectors of RFC 8032."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model import signing

# RFC 8032, 7.1: (secret, public)
VECTORS = [
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
    ),
]
KEY = bytes.fromhex(VECTORS[0][0])


@pytest.mark.parametrize("secret, public", VECTORS)
def test_public_keys_are_those_of_the_standard(secret: str, public: str) -> None:
    assert signing.public(bytes.fromhex(secret)).hex() == public


@given(st.binary(max_size=200), st.integers(0, 10_000))
def test_p1_any_flipped_bit_is_refused(message: bytes, at: int) -> None:
    signature = signing.sign(KEY, "test", message)
    public = signing.public(KEY)
    assert signing.verify(public, "test", message, signature)
    assert not signing.verify(public, "other", message, signature)
    assert not signing.verify(public, "test", message, flipped(signature, at))
    assert not signing.verify(flipped(public, at), "test", message, signature)
    assert not message or not signing.verify(public, "test", flipped(message, at), signature)


def flipped(data: bytes, at: int) -> bytes:
    bit = at % (8 * len(data) or 1)
    return bytes(byte ^ (1 << bit % 8) * (i == bit // 8) for i, byte in enumerate(data))


def test_malformed_keys_and_signatures_are_just_wrong() -> None:
    assert not signing.verify(b"", "test", b"", b"")
    assert not signing.verify(b"\xff" * 32, "test", b"", b"\0" * 64)
    assert not signing.verify(signing.public(KEY), "test", b"", b"short")


@given(st.binary(min_size=32, max_size=32))
def test_a_key_has_one_spelling(key: bytes) -> None:
    text = signing.show(key)
    assert signing.read(text) == key
    for other in (
        text + "=",
        text.upper(),
        text[:-1],
        text[8:],
        text + "A",
        text.replace("ed", "Ed"),
    ):
        if other != text:
            with pytest.raises(ValueError):
                signing.read(other)


def test_without_the_compiled_part_where_it_is_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    signature = signing.sign(KEY, "test", b"m")
    monkeypatch.setattr(signing, "_library", lambda: None)
    assert signing.sign(KEY, "test", b"m") == signature
    assert signing.verify(signing.public(KEY), "test", b"m", signature)


def test_signing_does_not_load_the_whole_library() -> None:
    """An attach signs once; the high-level modules import three times as slowly as the rest."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from holdfast.model import signing; signing.sign(b'k' * 32, 'd', b'm'); "
            "print('cryptography.hazmat.primitives.serialization' in sys.modules)",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False\n"
