"""Key names to bytes, as terminals send them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.session.keys import PASTE_END, PASTE_START, encode, paste, prefix_key
from holdfast.model.errors import Usage


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("C-c", b"\x03"),
        ("C-C", b"\x03"),
        ("^C", b"\x03"),
        ("C-@", b"\0"),
        ("C-Space", b"\0"),
        ("C-[", b"\x1b"),
        ("C-\\", b"\x1c"),
        ("C-]", b"\x1d"),
        ("C-^", b"\x1e"),
        ("C-_", b"\x1f"),
        ("C-?", b"\x7f"),
        ("Enter", b"\r"),
        ("return", b"\r"),
        ("Tab", b"\t"),
        ("S-Tab", b"\x1b[Z"),
        ("Escape", b"\x1b"),
        ("Esc", b"\x1b"),
        ("Space", b" "),
        ("BSpace", b"\x7f"),
        ("C-BSpace", b"\x08"),
        ("Up", b"\x1b[A"),
        ("Down", b"\x1b[B"),
        ("Right", b"\x1b[C"),
        ("Left", b"\x1b[D"),
        ("Home", b"\x1b[H"),
        ("End", b"\x1b[F"),
        ("C-Right", b"\x1b[1;5C"),
        ("S-Up", b"\x1b[1;2A"),
        ("M-Up", b"\x1b[1;3A"),
        ("C-S-Left", b"\x1b[1;6D"),
        ("Insert", b"\x1b[2~"),
        ("Delete", b"\x1b[3~"),
        ("C-Delete", b"\x1b[3;5~"),
        ("PageUp", b"\x1b[5~"),
        ("PgDn", b"\x1b[6~"),
        ("F1", b"\x1bOP"),
        ("F4", b"\x1bOS"),
        ("F5", b"\x1b[15~"),
        ("F12", b"\x1b[24~"),
        ("S-F1", b"\x1b[1;2P"),
        ("M-x", b"\x1bx"),
        ("A-x", b"\x1bx"),
        ("M-C-x", b"\x1b\x18"),
        ("C-M-x", b"\x1b\x18"),
        ("M-Enter", b"\x1b\r"),
        ("x", b"x"),
        ("S-x", b"X"),
        ("-", b"-"),
        ("^", b"^"),
        ("C", b"C"),
        ("é", "é".encode()),
        ("😀", "😀".encode()),
    ],
)
def test_a_key_name_gives_the_bytes_of_a_terminal(name: str, data: bytes) -> None:
    assert encode(name) == data


def test_application_mode_changes_unmodified_arrows_only() -> None:
    assert encode("Up", application_cursor=True) == b"\x1bOA" and encode("Home", True) == b"\x1bOH"
    assert encode("C-Up", True) == b"\x1b[1;5A" and encode("F5", True) == b"\x1b[15~"


@pytest.mark.parametrize(
    "name", ["", "C-", "C-Enter", "C-é", "C-1", "F0", "F13", "Nokey", "C-c-c", "xx", "M-", "-x"]
)
def test_unknown_keys_are_refused_with_examples(name: str) -> None:
    with pytest.raises(Usage) as refused:
        encode(name)
    assert "C-c" in refused.value.recover


@given(st.text(max_size=12))
def test_any_name_gives_bytes_or_a_typed_refusal(name: str) -> None:
    try:
        assert encode(name)
    except Usage:
        pass


@pytest.mark.parametrize(
    ("name", "byte"),
    [
        ("C-\\", 0x1C),
        ("C-b", 2),
        ("C-a", 1),
        ("C-]", 0x1D),
        ("C-@", 0),
        ("Escape", 0x1B),
        ("Tab", 9),
    ],
)
def test_a_prefix_key_is_one_control_byte(name: str, byte: int) -> None:
    assert prefix_key(name) == byte


@pytest.mark.parametrize("name", ["x", "F1", "Up", "M-x", "C-?", "BSpace", "Nokey", ""])
def test_invalid_prefixes_are_refused(name: str) -> None:
    with pytest.raises(Usage):
        prefix_key(name)


@given(st.binary(max_size=200), st.booleans())
def test_a_paste_cannot_end_itself(data: bytes, bracketed: bool) -> None:
    sent = paste(data.replace(b"x", PASTE_END).replace(b"y", PASTE_START), bracketed)
    inner = sent[len(PASTE_START) : -len(PASTE_END)] if bracketed else sent
    assert PASTE_END not in inner
    if bracketed:
        assert sent.startswith(PASTE_START) and sent.endswith(PASTE_END)


def test_a_terminator_hidden_in_another_is_removed_too() -> None:
    hidden = PASTE_END[:3] + PASTE_END + PASTE_END[3:] + b"rm -rf /\r"
    assert PASTE_END not in paste(hidden, True)[len(PASTE_START) : -len(PASTE_END)]
