"""A machine that may bring copies touches no session that it did not bring (host/copies)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.model.errors import HoldfastError, NotFound, Refused
from tests.support.installation import Installation, installation
from tests.support.peers.hostile_client import Lines, Wire

CHECKPOINT = "cp-0123456789ab"


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home")) as made:
        made.people("desk", rights="store")
        yield made


def test_t4_a_machine_neither_withdraws_nor_claims_a_session_of_this_machine(
    hf: Installation,
) -> None:
    Lines(hf, "target")
    before = hf.get("target")
    lease = hf.ok("lease", "show", "target").out
    desk = Wire(hf, "desk", 80)
    named = {"id": before["id"], "checkpoint": CHECKPOINT}
    said = desk.request("copies.withdraw", **named, seq=desk.next_sequence())
    assert said["epoch"] == 0
    assert desk.request("copies.taken", id=before["id"])["epoch"] == 0
    offer = {**named, "name": "target", "epoch": 99, "sha256": "ab" * 32, "length": 10}
    for op, fields in (("copies.offer", offer), ("copies.take", named), ("copies.commit", named)):
        with pytest.raises((Refused, NotFound)):
            desk.request(op, **fields, seq=desk.next_sequence())
    for op in ("copies.missing", "copies.put"):
        with pytest.raises(HoldfastError):
            desk.request(op, **named)
    desk.close()
    after = hf.get("target")
    assert {n: after[n] for n in ("id", "state", "epoch")} == {
        n: before[n] for n in ("id", "state", "epoch")
    }
    assert hf.ok("lease", "show", "target").out == lease
    assert not (hf.home / "copies").exists()
