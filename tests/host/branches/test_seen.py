"""The connections that a branch had are known when it is discarded (R5)."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.core.session.connections import KEPT_MAX, Connection
from holdfast.host.branches import seen


def one(number: int) -> Connection:
    local = f"10.0.0.1:{number}"
    return Connection("tcp", local, "10.9.9.9:443", 7, "curl", "ann", None, 0)


def test_r5_closed_connections_are_listed_once(tmp_path: Path) -> None:
    path = tmp_path / "connections"
    assert seen.earlier(path, ()) == seen.Earlier((), 0)
    for number in (1, 2, 1, 3):
        seen.note(path, one(number))
    with path.open("a") as file:
        file.write('{"local": "10.\n')
    found = seen.earlier(path, (one(2)._asdict(),))
    assert [row["local"] for row in found.rows] == ["10.0.0.1:3", "10.0.0.1:1"] and not found.more


def test_r5_connections_beyond_the_bounds_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, count = tmp_path / "connections", 2 * KEPT_MAX
    for number in range(count):
        seen.note(path, one(number))
    size = path.stat().st_size
    monkeypatch.setattr(seen, "FILE_BYTES", size)
    monkeypatch.setattr(seen, "COUNTED_BYTES", size + 3)
    for number in range(count, count + 5):
        seen.note(path, one(number))
    found = seen.earlier(path, ())
    assert len(found.rows) == KEPT_MAX and found.more == count - KEPT_MAX + 3
    assert found.rows[0]["local"] == f"10.0.0.1:{count - 1}"
