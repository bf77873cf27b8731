"""The format of the record: a single spelling, golden bytes, and no secrets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.record import record
from holdfast.core.record.audit import verify
from holdfast.core.record.record import Draft, Written
from holdfast.model import canonical, signing
from tests.support.checkers.records import Scribe

VECTORS = Path(__file__).parents[2] / "vectors" / "record.json"


def vectors() -> dict[str, object]:
    """Recompute the content of the file."""
    scribe = Scribe(b"vectors").day()
    intent = next(w for w in scribe.written if w.fields["kind"] == "command")
    fields = intent.fields
    assert intent.salt is not None and intent.content is not None
    return {
        "about": (
            "A record as it is exported, and the parts of one signed entry. "
            "Private keys are for these vectors only."
        ),
        "version": record.VERSION,
        "machine": {"private": scribe.private.hex(), "public": scribe.machine},
        "operators": {a.name: {"private": a.private.hex(), "public": a.key} for a in scribe.actors},
        "commit": {
            "salt": intent.salt.hex(),
            "content": intent.content.hex(),
            "commit": fields["commit"],
        },
        "keys": {
            "keys": [[7, "6c73"], [8, "0d"]],
            "content": record.keys_content([(7, b"ls"), (8, b"\r")]).hex(),
        },
        "statement": {
            "text": fields["statement"],
            "signed": (b"holdfast/act/1\0" + fields["statement"].encode()).hex(),
            "signature": fields["signature"],
        },
        "entry": {"text": intent.body.decode(), "hash": intent.hash},
        "head": {"text": scribe.head().body.decode(), "signature": scribe.head().signature.hex()},
        "ack": {"text": scribe.ack(1).body.decode(), "signature": scribe.ack(1).signature.hex()},
        "export": [line.decode() for line in scribe.export((3, -1))],
    }


def test_p2_the_exported_format_does_not_change() -> None:
    assert json.loads(VECTORS.read_text()) == vectors(), (
        "a change of the format is a new version, with new vectors"
    )


def test_p2_the_vectors_verify() -> None:
    lines = [line.encode() for line in json.loads(VECTORS.read_text())["export"]]
    assert [f.code for f in verify(lines)] == ["uncovered"]


# ---------------------------------------------------------------- kept content

KINDS = [
    "command",
    "line",
    "paste",
    "keys",
    "cover",
    "secret",
    "seize",
    "halt",
    "resize",
    "future-kind",
    "",
]


@given(
    st.sampled_from(KINDS) | st.text(max_size=8),
    st.sampled_from([True, False, None]),
    st.sampled_from([True, False, None]),
)
def test_p2_text_typed_without_echo_is_never_kept(
    kind: str, echo: bool | None, canonical_mode: bool | None
) -> None:
    kept = record.may_keep(kind, echo, canonical_mode)
    if kind in ("keys", "cover", "secret", "future-kind", ""):
        assert not kept
    if kind in ("line", "paste"):
        assert kept == (echo is True and canonical_mode is True), (
            "raw mode is a password prompt inside of ssh as well as a shell's line editing"
        )
    if kind == "command":
        assert kept, "a command is recorded in full in any state of the terminal"


drafts = st.builds(
    Draft,
    session=st.just("0123456789ab"),
    epoch=st.integers(0, 9),
    phase=st.just("fact"),
    kind=st.sampled_from(KINDS[:-1]),
    actor=st.just("ann"),
    modality=st.just("cli"),
    attestation=st.just("host"),
    content=st.none() | st.binary(max_size=40).map(lambda b: b"CONTENT:" + b),
    salt=st.none() | st.binary(min_size=8, max_size=8).map(lambda b: b"THESALT:" + b),
)


@given(drafts, st.sampled_from([True, False, None]), st.sampled_from([True, False, None]))
def test_p2_forbidden_content_is_nowhere_in_the_written_record(
    draft: Draft, echo: bool | None, canonical_mode: bool | None
) -> None:
    if draft.content is not None and draft.salt is not None:
        draft = replace(draft, commit=record.commit(draft.salt, draft.content))
    written = record.chain(
        record.only_what_may_be_kept(draft, (echo, canonical_mode)), 1, record.GENESIS, 5
    )
    line = record.entry_line(written)
    allowed = (
        draft.content is not None
        and draft.salt is not None
        and record.may_keep(draft.kind, echo, canonical_mode)
    )
    assert (
        (written.content is not None)
        == (written.salt is not None)
        == (b'"content"' in line)
        == allowed
    )
    assert bool(written.fields.get("kept")) == allowed
    if draft.content is not None and not allowed:
        for spelling in (
            draft.content,
            draft.content.hex().encode(),
            draft.salt.hex().encode() if draft.salt else draft.content,
        ):
            assert spelling not in line


@given(st.binary(min_size=16, max_size=16), st.binary(max_size=30), st.binary(max_size=30))
def test_a_commitment_is_to_one_content(salt: bytes, one: bytes, other: bytes) -> None:
    assert (record.commit(salt, one) == record.commit(salt, other)) == (one == other)
    with pytest.raises(ValueError):
        record.commit(salt[1:], salt[:1] + one)  # or a byte could move from the salt to the content


@given(
    st.lists(st.tuples(st.integers(0, 2**64 - 1), st.binary(max_size=5)), max_size=4),
    st.lists(st.tuples(st.integers(0, 2**64 - 1), st.binary(max_size=5)), max_size=4),
)
def test_keys_have_one_spelling(
    one: list[tuple[int, bytes]], other: list[tuple[int, bytes]]
) -> None:
    assert (record.keys_content(one) == record.keys_content(other)) == (one == other)


# ---------------------------------------------------------------- entries


def one() -> tuple[Scribe, Written]:
    scribe = Scribe(b"one")
    return scribe, scribe.intent(scribe.ann, "command", b"make")


def test_p2_hash_chain_and_signature_do_not_need_the_content() -> None:
    scribe, written = one()
    whole, bare = (
        record.entry_line(written),
        record.entry_line(written._replace(content=None, salt=None)),
    )
    assert (
        json.loads(whole)["hash"]
        == json.loads(bare)["hash"]
        == record.entry_hash(json.loads(bare)["entry"].encode())
    )
    lines = scribe.export()
    assert [(f.level, f.code) for f in verify([lines[0], bare, lines[2]])] == [
        ("note", "open"),
        ("note", "content"),
    ]


def test_p1_a_statement_is_read_only_when_it_is_signed() -> None:
    scribe, written = one()
    fields = written.fields
    body, signature = fields["statement"].encode(), bytes.fromhex(fields["signature"])
    assert record.read_statement(body, signature, scribe.ann.key)["client"] == scribe.ann.client
    for bad in (
        (body, signature, scribe.bot.key),
        (body + b" ", signature, scribe.ann.key),
        (body, bytes(64), scribe.ann.key),
    ):
        with pytest.raises(ValueError):
            record.read_statement(*bad)
    for change in (
        {"more": 1},
        {"v": 2},
        {"v": True},
        {"seen": "0"},
        {"seen": "G" * 64},
        {"seen": 1},
        {"binding": None},
        {"binding": "abc"},
        {"binding": "AB"},
    ):
        strange = canonical.encode({**canonical.decode(body), **change})
        # otherwise a hostile actor could spoil the record with it
        with pytest.raises(ValueError, match=r"version|malformed"):
            record.read_statement(
                strange, record.sign_statement(scribe.ann.private, strange), scribe.ann.key
            )


def test_p1_a_draft_has_only_signed_fields() -> None:
    scribe, written = one()
    fields = written.fields
    said, salt = canonical.decode(fields["statement"].encode()), written.salt
    assert salt is not None
    signed = (
        said,
        fields["statement"].encode(),
        bytes.fromhex(fields["signature"]),
        scribe.ann.key,
    )
    draft = record.signed_draft(*signed, "intent", "ann", "cli", salt, b"make", verdict="allow")
    assert record.chain(draft, 1, record.GENESIS, written.time) == written
    with pytest.raises(ValueError, match="not what was signed"):
        record.signed_draft(*signed, "intent", "ann", "cli", salt, b"rm -rf /")
    with pytest.raises(ValueError, match="for"):
        record.signed_draft(*signed, "intent", "carol", "bot", salt, b"make", bridge="telegram")
    record.expect(said, epoch=1, kind="command", client=scribe.ann.client)
    for wrong in ({"epoch": True}, {"epoch": 2}, {"number": None}, {"first": 1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            record.expect(said, **wrong)


def test_an_entry_that_is_too_long_is_refused() -> None:
    scribe, written = one()
    with pytest.raises(ValueError, match="bytes"):
        scribe.told("session", why="x" * record.ENTRY_BYTES)
    assert scribe.tip == written.hash


def test_reasons_are_cut_and_always_text() -> None:
    draft = Draft("s", 1, "fact", "command", "a", "cli", record.HOST, reason="\udcff" * 1000)
    assert len(record.chain(draft, 1, record.GENESIS, 1).fields["reason"]) == record.REASON_CHARS


def test_the_fields_of_a_shown_entry() -> None:
    _, written = one()
    shown = record.shown(written)
    assert {
        "seq",
        "time",
        "actor",
        "modality",
        "kind",
        "originators",
        "verdict",
        "attestation",
        "hash",
        "prev",
    } <= set(shown)
    assert (shown["content"], shown["signed"], shown["kept"], shown["late"], shown["outcome"]) == (
        "make",
        True,
        True,
        False,
        None,
    )
    assert record.shown(written._replace(content=b"\xff" * 99_999))["content"].startswith("\\xff")
    assert (
        len(record.shown(written._replace(content=b"x" * 99_999))["content"]) == record.SHOWN_CHARS
    )


def test_acks_and_heads_are_signed_for_their_purpose() -> None:
    scribe, _ = one()
    public = signing.read(scribe.machine)
    head, ack = scribe.head(), scribe.ack()
    assert signing.verify(public, "head/1", *head) and signing.verify(public, "ack/1", *ack)
    assert not signing.verify(public, "ack/1", *head) and not signing.verify(public, "head/1", *ack)


if __name__ == "__main__":
    VECTORS.write_text(json.dumps(vectors(), indent=1, ensure_ascii=False) + "\n")
