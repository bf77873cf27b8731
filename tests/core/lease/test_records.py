"""Records of the store: what is written can be read; anything else is refused in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.lease import records
from holdfast.core.lease.records import HELD, Lease, Machine, Stored, Unreadable


@given(st.integers(1, 1 << 62), st.booleans(), st.floats(0, 1e6), st.text(max_size=20))
def test_r3_a_record_is_read_as_written(epoch: int, on: bool, wait: float, by: str) -> None:
    made = Lease(epoch, "machine-1", HELD, on, 3, wait, by, 1.5)
    assert records.lease(Stored(records.encode(made), 7)) == made
    machine = Machine(3, 9, wait)
    assert records.machine(Stored(records.encode(machine), 7)) == machine


def test_no_record_is_no_lease() -> None:
    assert records.lease(Stored(b"", 0)) is None
    assert records.machine(Stored(b"", 0)) == Machine()


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    for read in (records.lease, records.machine):
        try:
            read(Stored(data, 1))
        except Unreadable:
            pass


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        '{"epoch":0,"owner":"a"}',
        '{"epoch":1,"owner":""}',
        '{"epoch":true,"owner":"a"}',
        '{"epoch":1,"owner":"a","state":"x"}',
        '{"epoch":1,"owner":"a","wait_s":NaN}',
        '{"epoch":1,"owner":"a","wait_s":-1}',
        '{"epoch":1,"owner":"a","by":"' + "x" * 5000 + '"}',
    ],
)
def test_a_wrong_record_is_refused(text: str) -> None:
    with pytest.raises(Unreadable):
        records.lease(Stored(text.encode(), 1))


def test_a_later_release_may_add_keys() -> None:
    assert records.lease(Stored(b'{"epoch":1,"owner":"a","new":[]}', 1)) == Lease(1, "a")


@pytest.mark.parametrize("name", ["", "a/b", "a b", "x" * 200])
def test_a_name_that_is_no_key_is_refused(name: str) -> None:
    with pytest.raises(Unreadable):
        records.session_key(name)
