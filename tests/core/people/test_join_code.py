"""Join codes: lenient reading, noticed mistakes, and a proof bound to the connection."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.people import join_code
from holdfast.core.people.join_code import Code
from holdfast.model import signing
from holdfast.model.errors import Usage

MACHINE, OTHER = signing.public(b"m" * 32), signing.public(b"o" * 32)
CODE = Code("4KQ7", "M2XD9TR")
LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
codes = st.binary(min_size=8, max_size=8).map(join_code.make)


@given(codes)
def test_a_shown_code_is_read_back(code: Code) -> None:
    text = code.show()
    assert len(text) == 14 and text[4] == text[9] == "-"
    for written in (
        text,
        text.lower(),
        text.replace("-", ""),
        f"  {text.replace('-', ' ')}\n",
        text.replace("0", "O").replace("1", "l"),
    ):
        assert join_code.read(written) == (code, None)
    assert join_code.read(join_code.url(code, MACHINE)) == (code, join_code.fingerprint(MACHINE))
    assert join_code.read_id(text[:4].lower()) == code.id


@given(codes, st.integers(0, 11), st.sampled_from(LETTERS))
def test_one_wrong_character_is_noticed(code: Code, at: int, letter: str) -> None:
    text = list(code.show().replace("-", ""))
    if text[at] == letter:
        return
    text[at] = letter
    with pytest.raises(Usage, match="wrong"):
        join_code.read("".join(text))


@given(codes, st.integers(0, 11), st.integers(0, 11))
def test_two_swapped_characters_are_noticed(code: Code, one: int, two: int) -> None:
    text = list(code.show().replace("-", ""))
    if text[one] == text[two]:
        return
    text[one], text[two] = text[two], text[one]
    with pytest.raises(Usage, match="wrong"):
        join_code.read("".join(text))


@given(st.text(max_size=40) | st.text(max_size=40).map(lambda t: "holdfast://" + t))
def test_any_other_text_is_refused_without_an_exception(text: str) -> None:
    try:
        code, _ = join_code.read(text)
    except Usage as e:
        assert e.recover
    else:
        assert join_code.read(code.show()) == (code, None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "4KQ7",
        "4KQ7-M2XD-9TRG-4KQ7",
        "4KQ7-M2XU-9TR8",
        "http://x/join#4KQ7-M2XD-9TRG",
        "holdfast://x/join#4KQ7-M2XD-9TRG",
        "holdfast://0123456789abcdef/leave#4KQ7-M2XD-9TRG",
        "holdfast://0123456789abcdef#4KQ7-M2XD-9TRG",
        "4" * 10_000,
        "٤KQ7-M2XD-9TR8",
    ],
)
def test_no_code(text: str) -> None:
    with pytest.raises(Usage):
        join_code.read(text)


def test_the_example_in_the_help_is_a_code() -> None:
    assert CODE.show() == "4KQ7-M2XD-9TRG"


def test_the_secret_is_not_in_a_traceback() -> None:
    assert CODE.secret not in repr(CODE) + str(CODE) + f"{CODE}"


def test_a_proof_is_for_one_statement_one_machine_one_code() -> None:
    verifier = signing.public(join_code.private(CODE, MACHINE))
    proof = join_code.prove(CODE, MACHINE, b"statement")
    assert join_code.holds(verifier, b"statement", proof)
    assert not join_code.holds(verifier, b"statement!", proof)
    assert not join_code.holds(verifier, b"statement", join_code.prove(CODE, OTHER, b"statement"))
    assert not join_code.holds(
        verifier, b"statement", join_code.prove(Code("4KQ8", CODE.secret), MACHINE, b"statement")
    )
    assert not join_code.holds(
        verifier, b"statement", join_code.prove(Code("4KQ7", "M2XD9TS"), MACHINE, b"statement")
    )
    assert not join_code.holds(
        verifier,
        b"statement",
        signing.sign(join_code.private(CODE, MACHINE), "hello/1", b"statement"),
    )
    assert not join_code.holds(verifier, b"statement", b"") and not join_code.holds(
        verifier, b"statement", bytes(64)
    )


def test_the_key_derived_from_a_code_does_not_change() -> None:
    """Both ends derive the key, and releases may differ."""
    assert (
        signing.show(signing.public(join_code.private(CODE, MACHINE)))
        == "ed25519:YNlI4F3U1KC6Uzuw6Imic7OOBStIZQd7sPV2DJIQekQ"
    )
    assert join_code.fingerprint(MACHINE) == "d356xhnje5811472"
