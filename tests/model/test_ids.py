"""Identities and references: made ids can be read again, malformed ids are refused."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model import ids, references
from holdfast.model.errors import Usage
from holdfast.model.limits import NAME_CHARS

IDS = st.binary(min_size=8, max_size=16).map(ids.session_id)
NUMBERS = st.integers(0, 10**18 - 1)


@given(st.binary(min_size=8, max_size=32))
def test_s1_an_id_is_well_formed_and_depends_on_its_randomness_only(data: bytes) -> None:
    made = ids.session_id(data)
    assert ids.is_session_id(made) and made == ids.session_id(data[:8] + b"other")
    assert set(made) <= set(ids.ALPHABET) and len(made) == ids.ID_CHARS


def test_s1_ids_use_sixty_bits() -> None:
    assert ids.session_id(b"\xff" * 8) == "z" * 12 and ids.session_id(b"\0" * 8) == "0" * 12
    assert ids.session_id(b"\1" + b"\0" * 7) != ids.session_id(b"\0" * 8)


@given(IDS, NUMBERS, NUMBERS, NUMBERS, NUMBERS)
def test_s8_references_round_trip(session: str, epoch: int, act: int, a: int, b: int) -> None:
    for ref in (
        references.Ref(session),
        references.Ref(session, epoch),
        references.Ref(session, epoch, act),
        references.Ref(session, epoch, None, (min(a, b), max(a, b))),
    ):
        assert references.parse_ref(str(ref)) == ref
        assert str(ref).startswith("hf:") and str(ref).isascii()


@given(st.text(max_size=60) | st.text(alphabet="hf:@#-0123456789abcxyz ", max_size=60))
def test_s8_a_parsed_reference_prints_as_itself(text: str) -> None:
    try:
        ref = references.parse_ref(text)
    except Usage as e:
        assert e.message and e.message.isascii()
        return
    assert references.parse_ref(str(ref)) == ref


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hf:",
        "hf:0123456789a",
        "hf:0123456789abc",
        "HF:0123456789ab",
        "hf:0123456789ab@",
        "hf:0123456789ab@1#",
        "hf:0123456789ab@1:5-4",
        "hf:0123456789ab@1:5",
        "hf:0123456789ab#3",
        "hf:0123456789ab@1 ",
        "hf:0123456789ab@1\n",
        "hf:0123456789ab@-1",
        "hf:0123456789ab@1#2:3-4",
        "hf:0123456789ab@" + "9" * 19,
        "hf:ilou56789abc",
        "hf:0123456789ab@１",
    ],
)
def test_s8_malformed_references_are_refused(text: str) -> None:
    with pytest.raises(Usage):
        references.parse_ref(text)


@given(
    st.text(alphabet=string.ascii_letters + string.digits + "._-", min_size=1, max_size=NAME_CHARS)
)
def test_names_of_allowed_characters_are_names(name: str) -> None:
    if name.startswith("-") or ids.is_session_id(name):
        with pytest.raises(Usage):
            ids.check_name(name)
    else:
        assert ids.check_name(name) == name


@given(st.text(max_size=NAME_CHARS + 5))
def test_any_other_name_is_refused_in_printable_words(name: str) -> None:
    allowed = set(string.ascii_letters + string.digits + "._-")
    good = (
        0 < len(name) <= NAME_CHARS
        and set(name) <= allowed
        and not name.startswith("-")
        and not ids.is_session_id(name)
    )
    try:
        assert ids.check_name(name) == name and good
    except Usage as e:
        assert not good and e.message.isascii() and e.message.isprintable() and e.recover


@pytest.mark.parametrize(
    "name",
    [
        "",
        "-a",
        "a b",
        "a/b",
        "a\n",
        "a\0",
        "é",
        "x" * 65,
        "0123456789ab",
        "a:b",
        "a@b",
        "~",
        "$x",
        "*",
    ],
)
def test_odd_names_are_refused(name: str) -> None:
    with pytest.raises(Usage):
        ids.check_name(name)
