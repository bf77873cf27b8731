"""Ids of sessions, checkpoints, contents and machines that a client or another machine invents.

The list is made from the table of operations, so a new operation is tried automatically.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from holdfast.core.contract.codec import decode, request_fields
from holdfast.core.contract.table import OPERATIONS
from holdfast.model import ids
from holdfast.model.errors import (
    HoldfastError,
    Impossible,
    NotAllowed,
    NotFound,
    OutcomeUnknown,
    PeerFault,
    Refused,
    Unavailable,
    Usage,
)
from tests.support.installation import Installation
from tests.support.peers.hostile_client import Lines, Wire
from tests.support.peers.sound_requests import fields_of

HOSTILE: Final = (
    *("", ".", "..", "/", "a/b", "../..", "../copies", "/etc", "0123456789a/", "\0", "a\0b"),
    *("*", "x" * 100_000, "0123456789AB", "0123456789ab\n", "cp-../0123456", "\u0661" * 12),
)
PREFIXES: Final = ("copies.", "checkpoint", "restore", "move", "branch", "lease", "machines.")
OTHERS: Final = ("fork", "diff", "keep", "discard", "rehome", "forget", "reap")
IDS: Final = ("id", "session", "checkpoint", "sha256", "machine", "to")


def attempts() -> list[tuple[str, str]]:
    """Every such operation with each of its fields that names something."""
    return [
        (op, field)
        for op in sorted(OPERATIONS)
        if op.startswith(PREFIXES) or op in OTHERS
        for field in request_fields(OPERATIONS[op].request)
        if field in IDS
    ]


@pytest.mark.parametrize(("op", "field"), [one for one in attempts() if one[0][:7] == "copies."])
@pytest.mark.parametrize("value", HOSTILE, ids=range(len(HOSTILE)))
def test_t4_an_id_of_another_machine_has_its_form_or_is_refused(
    op: str, field: str, value: str
) -> None:
    sound = fields_of(op)
    decode(OPERATIONS[op].request, op, sound)
    with pytest.raises(Usage, match=field):
        decode(OPERATIONS[op].request, op, {**sound, field: value})


@pytest.fixture(scope="module")
def room(hf: Installation) -> Lines:
    return Lines(hf, "target")


@pytest.mark.parametrize(("op", "field"), attempts())
def test_t4_no_invented_id_leads_to_a_file(
    hf: Installation, room: Lines, op: str, field: str
) -> None:
    def files() -> set[Path]:
        """Directories, and the files that are never replaced."""
        return {one for one in hf.home.rglob("*") if one.is_dir() or one.parent.name == "keys"}

    def facts() -> dict[str, Any]:
        session = hf.get("target")
        return {name: session[name] for name in ("id", "name", "state", "epoch")}

    before, was, pid = files(), facts(), hf.host_pid
    wire = Wire(hf, "tester", 70)
    for value in HOSTILE:
        with pytest.raises(HoldfastError) as refused:
            wire.request(op, **{**fields_of(op, seq=wire.next_sequence()), field: value})
        expected = (Usage, NotFound, NotAllowed, Refused, Impossible)
        assert isinstance(refused.value, expected), (value[:20], refused.value)
        assert not isinstance(refused.value, PeerFault | OutcomeUnknown | Unavailable)
    wire.close()
    assert before <= files() and facts() == was and hf.host_pid == pid
    assert not (hf.home / "copies").exists() and not (hf.home / "outbox").exists()


def test_t4_the_forms_allow_no_path() -> None:
    for value in HOSTILE:
        for holds in (ids.is_session_id, ids.is_checkpoint_id, ids.is_digest):
            assert not holds(value)
    assert ids.is_checkpoint_id("cp-0123456789ab") and ids.is_digest("ab" * 32)
