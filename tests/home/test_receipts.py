"""Receipts: bounded, private, and only of what the machine signed (P2)."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from holdfast.core.record import audit, record
from holdfast.core.record.record import Signed
from holdfast.home import Home, receipts
from tests.support.checkers.records import Scribe


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(str(tmp_path), f"{tmp_path}/config.toml", True)


def keep(home: Home, scribe: Scribe, kind: str, signed: Signed) -> bool:
    body, signature = signed.body.decode(), signed.signature.hex()
    return receipts.keep(home, scribe.machine, kind, body, signature)


def test_p2_receipts_are_private_and_verify_a_record(home: Home) -> None:
    scribe = Scribe()
    scribe.act(scribe.ann, b"make")
    assert keep(home, scribe, "ack", scribe.ack(0)) and keep(home, scribe, "head", scribe.head())
    file = receipts.path(home, scribe.machine)
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(os.path.dirname(file)).st_mode) == 0o700
    kept = receipts.of(receipts.snapshot(home), scribe.machine, scribe.session)
    assert len(kept) == 2 and audit.verify(scribe.export(), kept) == []
    assert len(receipts.of(receipts.snapshot(home), scribe.machine, scribe.session, first=2)) == 1
    at = scribe.now
    assert len(receipts.of(receipts.snapshot(home), scribe.machine, scribe.session, 1, at - 1)) == 0
    other = Scribe()  # the machine itself writes another record with the same keys
    other.act(other.ann, b"true")
    found = audit.verify(other.export(), kept)
    assert [(f.level, f.code, f.seq) for f in found] == [
        ("broken", "kept", 1),
        ("broken", "kept", 2),
    ]
    assert f"for act 1 of client {scribe.ann.client}" in found[0].text
    del other.written[:]
    assert {f.code for f in audit.verify(other.export(()), kept)} == {"truncated"}


def test_p2_a_receipt_that_the_machine_did_not_sign_is_not_kept(home: Home) -> None:
    scribe, other = Scribe(), Scribe(b"other")
    scribe.act(scribe.ann, b"make")
    forged = scribe.head()._replace(signature=bytes(64))
    assert not keep(home, scribe, "head", forged) and not keep(home, other, "head", scribe.head())
    assert not receipts.keep(home, "../../etc", "head", "{}", "00")
    assert receipts.of(receipts.snapshot(home), scribe.machine, scribe.session) == []


def test_p2_a_full_file_keeps_the_newest_receipt_of_each_session(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receipts, "FILE_BYTES", 4096)
    quiet, busy = Scribe(session="quiet0000000"), Scribe(session="busy00000000")
    for scribe in (quiet, busy):
        scribe.act(scribe.ann, b"make")
    keep(home, quiet, "head", quiet.head())
    newest = b""
    for n in range(40):
        signed = record.head(busy.private, busy.session, n + 1, "00" * 32, n)
        keep(home, busy, "head", signed)
        newest = record.signed_line("head", signed)
    assert os.path.getsize(receipts.path(home, busy.machine)) <= 4096
    assert len(receipts.of(receipts.snapshot(home), busy.machine, quiet.session)) == 1
    assert receipts.of(receipts.snapshot(home), busy.machine, busy.session)[-1] == newest


def test_p2_a_home_that_cannot_be_written_costs_proof_and_nothing_else(tmp_path: Path) -> None:
    scribe = Scribe()
    scribe.act(scribe.ann, b"make")
    nowhere = Home(f"{tmp_path}/missing", "", True)
    assert not keep(nowhere, scribe, "head", scribe.head())
    assert receipts.of(receipts.snapshot(nowhere), scribe.machine, scribe.session) == []
