"""Bounds that depend on each other."""

from __future__ import annotations

from holdfast.model import limits


def test_every_bound_is_a_positive_number() -> None:
    for name, value in vars(limits).items():
        if name.isupper():
            assert all(
                isinstance(one, int | float) and one >= 0
                for one in (value if isinstance(value, tuple) else (value,))
            ), name


def test_bounds_fit_into_each_other() -> None:
    assert limits.REQUEST_BYTES <= limits.FRAME_BYTES
    assert limits.RUN_TEXT_BYTES < limits.REQUEST_BYTES
    assert limits.SNAPSHOT_EVERY_BYTES < limits.RING_BYTES / 2, (
        "the keeper never rolls past the last snapshot"
    )
    assert limits.INPUT_CHUNK_BYTES < limits.KEEPER_PACKET_BYTES
    assert limits.OUTPUT_CHUNK_BYTES < limits.FRAME_BYTES <= limits.REPLY_QUEUE_BYTES
    assert limits.REQUEST_BYTES < limits.SPAWN_BYTES
    assert (
        limits.COLS_MIN <= limits.COLS_DEFAULT <= limits.COLS_MAX
        and limits.ROWS_MIN <= limits.ROWS_DEFAULT <= limits.ROWS_MAX
    )
    assert limits.SPOOL_BYTES_MIN <= limits.SPOOL_BYTES <= limits.SPOOL_BYTES_MAX
    assert limits.SPOOL_PASS_BYTES < limits.SPOOL_BYTES / limits.SPOOL_SEGMENTS
    assert limits.RING_BYTES_MIN <= limits.RING_BYTES <= limits.RING_BYTES_MAX
    assert limits.HELLO_WAIT_S <= limits.CONNECT_WAIT_S <= limits.HOST_AWAY_S
