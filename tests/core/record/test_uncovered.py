"""P1: a signature covers exactly a range of keys, the same on both sides."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.record import record
from holdfast.core.record.uncovered import KEPT_BYTES, KEPT_KEYS, Range, Uncovered

SALT = bytes(16)


def said(taken: Range) -> dict[str, object]:
    return {
        "first": taken.first,
        "number": taken.last,
        "commit": record.commit(SALT, taken.content),
    }


@given(
    st.lists(
        st.tuples(st.binary(min_size=1, max_size=6), st.integers(1, 3)), min_size=1, max_size=200
    ),
    st.integers(0, 300),
)
def test_p1_client_and_host_commit_to_the_same_keys(
    typed: list[tuple[bytes, int]], spoiled: int
) -> None:
    """Keys with gaps for other acts; a key may have arrived changed."""
    client, host, number = Uncovered(), Uncovered(), 0
    for n, (data, step) in enumerate(typed):
        number += step
        client.add(number, data, n)
        host.add(number, data + b"!" if n == spoiled else data, n)
    right = []
    while taken := client.take():
        assert taken.last - taken.first < record.COVER_KEYS
        right.append(host.cover(said(taken), SALT))
    assert all(right) == (spoiled >= len(typed))
    assert right.count(False) <= 1
    assert (len(host) == 0) or spoiled < len(typed)


def test_p1_a_signature_is_due_after_64_keys_or_a_second() -> None:
    keys = Uncovered()
    assert keys.deadline() is None and not keys.due(10**18) and keys.take() is None
    keys.add(1, b"a", 1_000)
    assert keys.deadline() == 1_000 + 1_000_000_000
    assert not keys.due(1_000_000_999) and keys.due(1_000_001_000)
    for number in range(2, 65):
        keys.add(number, b"a", 1_000)
    assert keys.due(1_000)
    taken = keys.take()
    assert taken is not None and (taken.first, taken.last) == (1, 64)


def test_uncovered_keys_are_bounded() -> None:
    keys = Uncovered()
    for number in range(10 * KEPT_KEYS):
        keys.add(number, b"x" * 100, 0)
    assert len(keys) <= KEPT_KEYS
    for number in range(10):
        keys.add(10**6 + number, b"x" * KEPT_BYTES, 0)
    assert len(keys) == 1


def test_p1_a_statement_about_other_keys_covers_nothing() -> None:
    keys = Uncovered()
    for number in (5, 6, 7):
        keys.add(number, b"k", 0)
    content = record.keys_content([(5, b"k"), (6, b"k"), (7, b"k")])
    right = {"first": 5, "number": 7, "commit": record.commit(SALT, content)}
    for wrong in (
        {**right, "first": 4},
        {**right, "number": 8},
        {**right, "number": 1 << 63},
        {**right, "commit": "0" * 64},
        {**right, "first": None},
        {"number": 7, "commit": right["commit"]},
    ):
        assert not keys.cover(wrong, SALT) and len(keys) == 3
    assert not keys.cover(right, b"short") and not keys.cover(right, bytes(15) + b"x")
    assert keys.cover(right, SALT) and len(keys) == 0
    assert not keys.cover(right, SALT)
