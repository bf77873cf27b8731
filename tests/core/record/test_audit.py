"""P2: every change of an export is found, by our verifier and by an independent verifier."""

from __future__ import annotations

import base64
import importlib.util
import json
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.record import examine, record
from holdfast.core.record.audit import broken, verify
from holdfast.core.record.examine import Finding
from holdfast.core.record.record import Draft, Written
from holdfast.model import canonical, signing
from tests.support.checkers.records import Scribe
from tests.support.examples import examples

OTHER = Path(__file__).parents[3] / "docs" / "reference" / "verify_record.py"
MALLORY = bytes(range(32))


@cache
def other() -> ModuleType:
    spec = importlib.util.spec_from_file_location("verify_record", OTHER)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def export() -> tuple[bytes, ...]:
    return tuple(Scribe().day().export((3, -1)))


def judge(
    lines: list[bytes], kept: list[bytes] | None = None, machine: str | None = None
) -> list[Finding]:
    """Our findings; the other verifier comes to the same verdict, for the same entries."""
    ours = verify(lines, kept or (), machine)
    theirs = other().verify(lines, kept or (), machine)
    assert broken(ours) == any(level == "broken" for level, *_ in theirs), (ours, theirs)
    assert {(f.level, f.code) for f in ours} == {(level, code) for level, code, *_ in theirs}, (
        ours,
        theirs,
    )
    return ours


def codes(findings: list[Finding]) -> set[str]:
    return {f.code for f in findings if f.level == "broken"}


def test_p2_an_honest_record_has_nothing_broken() -> None:
    assert [(f.level, f.code) for f in judge(list(export()))] == [("note", "uncovered")]


def test_p2_an_empty_record_verifies() -> None:
    assert judge(Scribe().export(())) == []


# ---------------------------------------------------------------- changes without a key


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_p2_any_single_change_is_found(data: st.DataObject) -> None:
    lines = list(export())
    what = data.draw(st.sampled_from(["flip", "drop", "swap", "repeat", "cut", "insert", "empty"]))
    at = data.draw(st.integers(0, len(lines) - 1))
    if what == "flip":
        whole = bytearray(b"".join(lines))
        bit = data.draw(st.integers(0, 8 * len(whole) - 1))
        whole[bit // 8] ^= 1 << bit % 8
        lines = lines_of(bytes(whole))
    elif what == "drop":
        del lines[at]
    elif what == "swap":
        to = data.draw(st.integers(0, len(lines) - 1).filter(lambda n: n != at))
        lines[at], lines[to] = lines[to], lines[at]
    elif what == "repeat":
        lines.insert(data.draw(st.integers(0, len(lines))), lines[at])
    elif what == "cut":
        whole = bytearray(b"".join(lines))
        lines = lines_of(bytes(whole[: data.draw(st.integers(0, len(whole) - 1))]))
    elif what == "insert":
        whole = bytearray(b"".join(lines))
        whole.insert(data.draw(st.integers(0, len(whole))), data.draw(st.integers(0, 255)))
        lines = lines_of(bytes(whole))
    else:
        lines[at] = b"\n"
    assert broken(judge(lines))


def lines_of(whole: bytes) -> list[bytes]:
    """Split like a file: lines end only at a newline."""
    return [part + b"\n" for part in whole.split(b"\n")[:-1]] + (
        [whole.rsplit(b"\n", 1)[-1]] if not whole.endswith(b"\n") and whole else []
    )


FIELDS = sorted(examine.REQUIRED | examine.OPTIONAL)
VALUES = st.sampled_from(
    [
        None,
        True,
        0,
        1,
        2,
        7,
        1 << 63,
        "",
        "ann",
        "bot",
        "intent",
        "outcome",
        "fact",
        "void",
        "keys",
        "cover",
        "command",
        "host",
        "channel",
        "actor-signed",
        "bridge:telegram",
        "refuse",
        "0" * 64,
        "f" * 16,
        [],
        ["x"],
        {},
        {"a": 1},
        -1,
    ]
)


def rechained(entries: list[dict[str, Any]], lines: list[bytes], start: int) -> list[Written]:
    """Recompute all hashes of these entries, like a forger without keys."""
    written: list[Written] = []
    for entry, line in zip(entries, lines, strict=True):
        outer = json.loads(line)
        if len(written) > start:
            entry = {**entry, "prev": written[-1].hash}
        body = canonical.encode(entry)
        content = base64.b64decode(outer["content"]) if "content" in outer else None
        written.append(
            Written(
                "",
                0,
                record.entry_hash(body),
                0,
                body,
                content,
                bytes.fromhex(outer["salt"]) if "salt" in outer else None,
            )
        )
    return written


@settings(max_examples=examples(300), deadline=None)
@given(
    st.integers(0, len(export()) - 4), st.sampled_from([*FIELDS, "surprise"]), VALUES, st.booleans()
)
def test_p2_a_changed_field_is_found_though_all_hashes_were_made_anew(
    at: int, name: str, value: Any, remove: bool
) -> None:
    lines = list(export())
    entries = [json.loads(json.loads(line)["entry"]) for line in lines[1:-2]]
    before = dict(entries[at])
    if remove:
        entries[at].pop(name, None)
    else:
        entries[at][name] = value
    if entries[at] == before and all(type(entries[at][k]) is type(before[k]) for k in before):
        return
    made = [record.entry_line(w) for w in rechained(entries, lines[1:-2], at)]
    assert broken(judge([lines[0], *made, *lines[-2:]]))


# ---------------------------------------------------------------- changes with the machine's key


def forged(
    change: Callable[[Scribe, list[Draft]], None], private: bytes | None = None
) -> tuple[Scribe, list[bytes]]:
    """The honest record, changed, then hashed and signed again by the machine or a foreign key."""
    honest = Scribe().day()
    drafts = [draft_of(w) for w in honest.written]
    change(honest, drafts)
    made = Scribe()
    if private is not None:
        made.private, made.machine = private, signing.show(signing.public(private))
    for draft in drafts:
        made.epoch = draft.epoch
        made.add(draft)
    return honest, made.export()


def draft_of(written: Written) -> Draft:
    f = written.fields
    names = (
        "key",
        "client",
        "first",
        "number",
        "act",
        "verdict",
        "reason",
        "intent",
        "outcome",
        "facts",
        "commit",
    )
    return Draft(
        f["session"],
        f["epoch"],
        f["phase"],
        f["kind"],
        f["actor"],
        f["modality"],
        f["attestation"],
        originators=tuple(f["originators"]),
        statement=f["statement"].encode() if "statement" in f else None,
        signature=bytes.fromhex(f["signature"]) if "signature" in f else None,
        content=written.content,
        salt=written.salt,
        **{n: f[n] for n in names if n in f},
    )


def untouched(scribe: Scribe, drafts: list[Draft]) -> None:
    pass


def command(drafts: list[Draft], number: int = 0) -> int:
    """The place of a signed intent."""
    return [n for n, d in enumerate(drafts) if d.phase == "intent" and d.statement is not None][
        number
    ]


def test_p1_a_dropped_act_is_noticed_by_an_actor_who_had_seen_it() -> None:
    def drop(scribe: Scribe, drafts: list[Draft]) -> None:
        del drafts[command(drafts) : command(drafts) + 2]

    _, lines = forged(drop)
    assert "seen" in codes(judge(lines)), "later statements name entries that are gone"


def test_p2_a_kept_head_or_ack_reveals_a_cut_off_end() -> None:
    def cut(scribe: Scribe, drafts: list[Draft]) -> None:
        del drafts[-3:]

    honest, lines = forged(cut)
    assert codes(judge(lines)) == set(), (
        "the machine itself can forget the end of its own record, unless a client kept a head"
    )
    for name, kept in (("head", honest.head()), ("ack", honest.ack(-2)), ("head", honest.head(-3))):
        with_it = judge(lines, [record.signed_line(name, kept)])  # type: ignore[arg-type]
        assert "truncated" in codes(with_it)
    assert (
        codes(
            judge(
                list(export()),
                [
                    record.signed_line("head", honest.head()),
                    record.signed_line("ack", honest.ack(1)),
                ],
            )
        )
        == set()
    )


def test_p2_a_kept_head_reveals_a_rewritten_record() -> None:
    def rewrite(scribe: Scribe, drafts: list[Draft]) -> None:
        drafts[-1] = replace(drafts[-1], actor="ann", key=scribe.ann.key, client="00000000000000ff")

    honest, lines = forged(rewrite)
    assert "kept" in codes(judge(lines, [record.signed_line("head", honest.head())]))


def test_p1_an_act_cannot_be_given_to_another_actor() -> None:
    def rename(scribe: Scribe, drafts: list[Draft]) -> None:
        at = command(drafts)
        drafts[at], drafts[at + 1] = (
            replace(drafts[at], actor="bot"),
            replace(drafts[at + 1], actor="bot"),
        )

    assert "actor" in codes(judge(forged(rename)[1]))

    def rekey(scribe: Scribe, drafts: list[Draft]) -> None:
        at = command(drafts)
        drafts[at] = replace(drafts[at], actor="bot", key=scribe.bot.key)
        drafts[at + 1] = replace(drafts[at + 1], actor="bot")

    assert "signature" in codes(judge(forged(rekey)[1]))


def test_p1_a_forged_actor_is_found_by_its_key() -> None:
    def forge(scribe: Scribe, drafts: list[Draft]) -> None:
        at = command(drafts)
        statement = drafts[at].statement
        assert statement is not None
        drafts[at] = replace(
            drafts[at],
            key=signing.show(signing.public(MALLORY)),
            signature=record.sign_statement(MALLORY, statement),
        )

    found = judge(forged(forge)[1])
    assert {"actor", "client"} & codes(found) and "signature" not in codes(found)


def test_p1_a_command_cannot_be_changed_by_the_machine() -> None:
    def change(scribe: Scribe, drafts: list[Draft]) -> None:
        at = command(drafts)
        drafts[at] = replace(drafts[at], content=b"rm -rf ~")

    def recommit(scribe: Scribe, drafts: list[Draft]) -> None:
        at = command(drafts)
        salt = drafts[at].salt
        assert salt is not None
        drafts[at] = replace(
            drafts[at], content=b"rm -rf ~", commit=record.commit(salt, b"rm -rf ~")
        )

    assert codes(judge(forged(change)[1])) == {"content"}
    assert "statement" in codes(judge(forged(recommit)[1]))


@pytest.mark.parametrize(
    "field, value",
    [
        ("epoch", 0),
        ("number", 99),
        ("client", "00000000000000ff"),
        ("kind", "line"),
        ("session", "zzzzzzzzzzzz"),
    ],
)
def test_p1_a_statement_holds_for_its_own_act_only(field: str, value: Any) -> None:
    def move(scribe: Scribe, drafts: list[Draft]) -> None:
        at = command(drafts)
        drafts[at] = replace(drafts[at], **{field: value})
        if field in ("number", "client", "kind"):
            drafts[at + 1] = replace(drafts[at + 1], **{field: value})

    assert "statement" in codes(judge(forged(move)[1]))


def test_p1_a_statement_replayed_is_found() -> None:
    def again(scribe: Scribe, drafts: list[Draft]) -> None:
        at = command(drafts)
        drafts += [drafts[at], replace(drafts[at + 1], intent=len(drafts) + 1)]

    assert "repeated" in codes(judge(forged(again)[1]))

    def seize_again(scribe: Scribe, drafts: list[Draft]) -> None:
        drafts.append(next(d for d in drafts if d.kind == "seize"))

    assert "repeated" in codes(judge(forged(seize_again)[1]))

    def cover_again(scribe: Scribe, drafts: list[Draft]) -> None:
        drafts.append(next(d for d in drafts if d.kind == "cover"))

    assert "cover" in codes(judge(forged(cover_again)[1]))

    def keys_again(scribe: Scribe, drafts: list[Draft]) -> None:
        drafts.append(next(d for d in drafts if d.kind == "keys"))

    assert "repeated" in codes(judge(forged(keys_again)[1]))


def test_p1_a_void_act_may_be_tried_again() -> None:
    scribe = Scribe()
    first = scribe.draft(scribe.ann, "intent", "command", b"make", verdict="allow")
    scribe.outcome(scribe.add(first), record.VOID)
    scribe.outcome(scribe.add(first))
    assert judge(scribe.export()) == []
    scribe.add(first)
    assert codes(judge(scribe.export())) == {"repeated"}


def test_p2_signed_by_another_machine() -> None:
    _, lines = forged(untouched, MALLORY)
    assert "statement" in codes(judge(lines)), (
        "actors' statements name the machine they were made for"
    )
    assert "machine" in codes(judge(lines, machine=Scribe().machine))
    assert codes(judge(list(export()), machine=Scribe().machine)) == set()


def test_p2_a_head_signed_by_another_key() -> None:
    scribe = Scribe().day()
    entry = scribe.written[-1]
    head = record.head(MALLORY, scribe.session, entry.seq, entry.hash, 1)
    lines = list(export())
    assert codes(judge([*lines[:-1], record.signed_line("head", head)])) == {"head"}
    assert codes(judge(lines, [record.signed_line("head", head)])) == {"kept"}


def test_p2_intents_and_outcomes_belong_together() -> None:
    def orphan(scribe: Scribe, drafts: list[Draft]) -> None:
        drafts[command(drafts) + 1] = replace(drafts[command(drafts) + 1], intent=1)

    assert codes(judge(forged(orphan)[1])) >= {"outcome"}

    def twice(scribe: Scribe, drafts: list[Draft]) -> None:
        drafts.append(drafts[command(drafts) + 1])

    assert "outcome" in codes(judge(forged(twice)[1]))

    def others(scribe: Scribe, drafts: list[Draft]) -> None:
        drafts[command(drafts) + 1] = replace(drafts[command(drafts) + 1], actor="bot")

    assert "outcome" in codes(judge(forged(others)[1]))
    scribe = Scribe()
    scribe.intent(scribe.ann, "command", b"make")
    assert [(f.level, f.code, f.seq) for f in judge(scribe.export())] == [("note", "open", 1)]


def test_r3_epochs_only_grow() -> None:
    scribe = Scribe()
    for scribe.epoch in (1, 2, 1):
        scribe.act(scribe.ann, b"make")
    assert codes(judge(scribe.export())) == {"epoch"}


def test_an_outcome_belongs_to_the_epoch_of_its_intent() -> None:
    scribe = Scribe()
    intent = scribe.intent(scribe.ann, "command", b"make")
    scribe.epoch = 2
    scribe.act(scribe.ann, b"ls")
    scribe.outcome(intent, record.VOID)
    assert judge(scribe.export()) == []
    scribe.add(
        replace(
            record.outcome_of(
                scribe.intent(scribe.ann, "command", b"x").fields, record.APPLIED, {}
            ),
            epoch=3,
        )
    )
    assert codes(judge(scribe.export())) == {"outcome"}


def test_a_clock_set_back_is_only_noted() -> None:
    scribe = Scribe()
    scribe.act(scribe.ann, b"one")
    scribe.now -= 10**12
    scribe.act(scribe.ann, b"two")
    assert [(f.level, f.code, f.seq) for f in judge(scribe.export())] == [("note", "time", 3)]


def test_p2_keys_with_content_are_a_finding() -> None:
    scribe = Scribe()
    salt = bytes(16)
    scribe.ann.next()
    draft = scribe.draft(scribe.ann, "fact", record.COVER, b"hunter2", keep=False, first=1)
    assert draft.commit is not None
    made = scribe.add(replace(draft, content=b"hunter2", salt=salt))
    assert made.content is not None
    assert "secret" in codes(judge(scribe.export()))


def test_p2_pruned_records_verify_from_their_checkpoint() -> None:
    scribe = Scribe().day()
    through = scribe.written[6]
    scribe.told(record.CHECKPOINT, through=through.seq, hash=through.hash, entries=7)
    scribe.written = scribe.written[7:]
    assert codes(judge(scribe.export())) == set()
    head = record.head(scribe.private, scribe.session, 3, "0" * 64, 1)
    assert [
        f.level
        for f in judge(scribe.export(), [record.signed_line("head", head)])
        if f.code == "kept"
    ] == ["note"]
    scribe.written = scribe.written[1:]
    assert codes(judge(scribe.export())) == {"pruned"}


def test_p2_redaction_is_told_from_quiet_removal() -> None:
    scribe = Scribe()
    scribe.act(scribe.ann, b"export TOKEN=secret")
    scribe.written[0] = scribe.written[0]._replace(content=None, salt=None)
    assert [(f.level, f.code) for f in judge(scribe.export())] == [("note", "content")]
    scribe.told(record.REDACT, seqs=[1])
    assert judge(scribe.export()) == []


def test_a_gap_is_noted() -> None:
    scribe = Scribe()
    scribe.told(record.GAP, lost=3)
    assert [(f.level, f.code) for f in judge(scribe.export())] == [("note", "gap")]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\n",
        b"{}\n",
        b'{"header":"{}","signature":""}\n',
        b"\xff\n",
        b"[" * 5000 + b"\n",
        b'{"a":1e5}\n',
    ],
)
def test_a_file_that_is_no_record_is_reported(text: bytes) -> None:
    assert codes(judge([text] if text else [])) == {"header"}


def test_p2_the_other_verifier_runs_alone(tmp_path: Path) -> None:
    """Run the independent verifier in a separate process, without the holdfast package."""
    good, bad, kept = tmp_path / "good", tmp_path / "bad", tmp_path / "kept"
    good.write_bytes(b"".join(export()))
    bad.write_bytes(b"".join(export()[:5] + export()[6:]))
    kept.write_bytes(record.signed_line("head", Scribe().day().head()))

    def run(*words: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-I", str(OTHER), *words], capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout.splitlines()[-1] if done.stdout else done.stderr

    assert "holdfast" not in OTHER.read_text().split('"""', 2)[2].replace('b"holdfast/', "")
    assert run(str(good), "--kept", str(kept), "--machine", Scribe().machine) == (
        0,
        "nothing is broken",
    )
    assert run(str(bad)) == (1, "BROKEN")
    assert run()[0] == 2


PLAUSIBLE: dict[str, list[Any]] = {
    "epoch": [1, 1, 1, 2, 0],
    "phase": ["intent", "outcome", "fact"],
    "kind": ["command", "line", "keys", "cover", "redact", "checkpoint", "gap", "x"],
    "actor": ["ann", "bot", "host"],
    "modality": ["cli"],
    "attestation": ["actor-signed", "channel", "host", "bridge:telegram"],
    "originators": [[], ["x"]],
    "key": [Scribe().ann.key, Scribe().bot.key],
    "client": ["0" * 16, "1" * 16],
    "first": [1, 2, 3, 900, 10**7],
    "number": [1, 2, 3, 4, 1000, 10**8],
    "act": [5],
    "verdict": ["allow", "refuse", "hold"],
    "reason": ["r"],
    "intent": [1, 2, 3, 4],
    "outcome": ["applied", "void"],
    "facts": [{}, {"seqs": [1, "x"]}, {"lost": 3}, {"through": 0, "hash": "0" * 64}],
    "commit": ["0" * 64],
    "kept": [True],
    "late": [True],
    "time": [5, 6, 7],
    "statement": ["{}", "x"],
    "signature": ["0" * 128],
}
SOMETIMES = sorted(examine.OPTIONAL)


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sets(st.sampled_from(SOMETIMES), max_size=9), st.randoms(use_true_random=False)
        ),
        min_size=1,
        max_size=6,
    )
)
def test_p2_both_verifiers_agree_on_any_signed_entries(
    entries: list[tuple[set[str], random.Random]],
) -> None:
    """Entries of any fields, rightly hashed, chained and signed by the machine.

    Neither verifier stumbles, both judge alike.
    """
    scribe = Scribe()
    prev = record.GENESIS
    for seq, (names, dice) in enumerate(entries, 1):
        entry = {
            name: dice.choice(PLAUSIBLE[name])
            for name in [*names, *(examine.REQUIRED.keys() & PLAUSIBLE.keys())]
        }
        entry |= {"v": 1, "seq": seq, "session": scribe.session, "prev": prev}
        body = canonical.encode(entry)
        prev = record.entry_hash(body)
        scribe.written.append(Written(scribe.session, seq, prev, 5, body))
    judge(scribe.export())


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(
        st.binary(max_size=40).map(lambda b: b.replace(b"\n", b"") + b"\n"), min_size=1, max_size=4
    )
)
def test_garbage_after_a_header_is_found(lines: list[bytes]) -> None:
    assert broken(judge([export()[0], *lines]))


def test_p2_both_verifiers_agree_on_random_damage() -> None:
    """Many changes at once, which no test above would think of."""
    dice = random.Random(20)
    for _ in range(300):
        lines = list(export())
        for _ in range(dice.randint(1, 4)):
            at = dice.randrange(len(lines))
            what = dice.random()
            if what < 0.3 and len(lines) > 1:
                lines.pop(at)
            elif what < 0.6:
                lines.insert(dice.randrange(len(lines) + 1), lines[at])
            elif what < 0.8:
                to = dice.randrange(len(lines))
                lines[at], lines[to] = lines[to], lines[at]
            else:
                body = bytearray(lines[at])
                body[dice.randrange(len(body))] ^= 1 << dice.randrange(8)
                lines[at] = bytes(body)
        ours, theirs = verify(lines), other().verify(lines)
        assert broken(ours) == any(level == "broken" for level, *_ in theirs)
        assert broken(ours) or tuple(lines) == export()
