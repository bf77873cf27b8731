"""The code of an invitation: read as people write it, mistakes noticed, and worth nothing but on the connection it was proved on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import joincode
from holdfast.core.joincode import Code
from holdfast.model import signing
from holdfast.model.errors import Usage

MACHINE, OTHER = signing.public(b"m" * 32), signing.public(b"o" * 32)
CODE = Code("4KQ7", "M2XD9TR")
LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
codes = st.binary(min_size=8, max_size=8).map(joincode.make)


@given(codes)
def test_what_is_shown_is_read(code: Code) -> None:
    text = code.show()
    assert len(text) == 14 and text[4] == text[9] == "-"
    for written in (
        text,
        text.lower(),
        text.replace("-", ""),
        f"  {text.replace('-', ' ')}\n",
        text.replace("0", "O").replace("1", "l"),
    ):
        assert joincode.read(written) == (code, None)
    assert joincode.read(joincode.url(code, MACHINE)) == (code, joincode.fingerprint(MACHINE))
    assert joincode.read_id(text[:4].lower()) == code.id


@given(codes, st.integers(0, 11), st.sampled_from(LETTERS))
def test_one_wrong_character_is_noticed(code: Code, at: int, letter: str) -> None:
    text = list(code.show().replace("-", ""))
    if text[at] == letter:
        return
    text[at] = letter
    with pytest.raises(Usage, match="wrong"):
        joincode.read("".join(text))


@given(codes, st.integers(0, 11), st.integers(0, 11))
def test_two_swapped_characters_are_noticed(code: Code, one: int, two: int) -> None:
    text = list(code.show().replace("-", ""))
    if text[one] == text[two]:
        return
    text[one], text[two] = text[two], text[one]
    with pytest.raises(Usage, match="wrong"):
        joincode.read("".join(text))


@given(st.text(max_size=40) | st.text(max_size=40).map(lambda t: "holdfast://" + t))
def test_anything_else_is_refused_and_never_breaks(text: str) -> None:
    try:
        code, _ = joincode.read(text)
    except Usage as e:
        assert e.recover
    else:
        assert joincode.read(code.show()) == (code, None)


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
        joincode.read(text)


def test_the_example_in_the_help_is_a_code() -> None:
    assert CODE.show() == "4KQ7-M2XD-9TRG"


def test_the_secret_is_not_in_a_traceback() -> None:
    assert CODE.secret not in repr(CODE) + str(CODE) + f"{CODE}"


def test_a_proof_is_for_one_statement_one_machine_one_code() -> None:
    verifier = signing.public(joincode.private(CODE, MACHINE))
    proof = joincode.prove(CODE, MACHINE, b"statement")
    assert joincode.holds(verifier, b"statement", proof)
    assert not joincode.holds(verifier, b"statement!", proof)
    assert not joincode.holds(verifier, b"statement", joincode.prove(CODE, OTHER, b"statement"))
    assert not joincode.holds(
        verifier, b"statement", joincode.prove(Code("4KQ8", CODE.secret), MACHINE, b"statement")
    )
    assert not joincode.holds(
        verifier, b"statement", joincode.prove(Code("4KQ7", "M2XD9TS"), MACHINE, b"statement")
    )
    assert not joincode.holds(
        verifier,
        b"statement",
        signing.sign(joincode.private(CODE, MACHINE), "hello/1", b"statement"),
    )
    assert not joincode.holds(verifier, b"statement", b"") and not joincode.holds(
        verifier, b"statement", bytes(64)
    )


def test_what_the_key_is_made_of_does_not_change() -> None:
    """Both ends make it; releases differ."""
    assert (
        signing.show(signing.public(joincode.private(CODE, MACHINE)))
        == "ed25519:YNlI4F3U1KC6Uzuw6Imic7OOBStIZQd7sPV2DJIQekQ"
    )
    assert joincode.fingerprint(MACHINE) == "d356xhnje5811472"
