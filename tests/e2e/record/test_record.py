"""The record as people meet it: every act, signed by its actor; an export verifies (P1, P2)."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.support.commands.results import the_error
from tests.support.installation import DEADLINE_S, Installation, eventually

ROOT = Path(__file__).parents[3]


def log(hf: Installation, session: str) -> list[dict[str, Any]]:
    return hf.ok("log", session, "--limit", "1000", "--json").records


def acts(entries: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [
        (e["actor"], e["kind"])
        for e in entries
        if e["phase"] == "intent" or e["kind"] in ("seize", "halt")
    ]


def verified(hf: Installation, session: str, tmp_path: Path) -> None:
    """Verify with both verifiers, of which one shares no code with the product."""
    file = tmp_path / f"{session}.record"
    hf.ok("log", "export", session, str(file))
    assert json.loads(hf.ok("log", "verify", str(file), "--json").out)["ok"] is True
    other = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "reference" / "verify_record.py"), str(file)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert other.returncode == 0, other.stdout + other.stderr


def test_p1_every_act_is_recorded_with_its_actors_signature_and_outcome(
    hf: Installation, tmp_path: Path
) -> None:
    hf.people("ann", "bob")
    hf.new("acts", "--", "bash")
    hf.ok("--as", "ann", "run", "acts", "--", "true")
    hf.ok("--as", "ann", "send", "acts", "echo typed", "--enter")
    hf.ok("--as", "bob", "seize", "acts")
    hf.ok("--as", "bob", "turn", "acts", "hand", "ann")
    hf.ok("--as", "bob", "halt", "acts")
    hf.ok("--as", "bob", "resume", "acts")
    hf.ok("--as", "ann", "rename", "acts", "acts2")
    entries = log(hf, "acts2")
    assert acts(entries) == [
        ("ann", "command"),
        ("ann", "line"),
        ("bob", "seize"),
        ("bob", "turn"),
        ("bob", "halt"),
        ("bob", "resume"),
        ("ann", "rename"),
    ]
    intents = [e for e in entries if e["phase"] == "intent"]
    assert all(e["attestation"] == "actor-signed" and e["verdict"] == "allow" for e in intents)
    outcomes = {e["intent"]: e["outcome"] for e in entries if e["phase"] == "outcome"}
    assert outcomes == {e["seq"]: "applied" for e in intents}
    assert [
        e["content"] for e in entries if e["kind"] in ("command", "line") and e["phase"] == "intent"
    ] == ["true", "echo typed\r"]
    for key in (
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
    ):
        assert key in entries[0]
    verified(hf, "acts2", tmp_path)


def test_p1_typed_keys_are_recorded_as_signed_ranges_without_their_text(
    hf: Installation, tmp_path: Path
) -> None:
    hf.new("typed", "--", "bash")
    t = hf.attach("typed")
    t.send("echo se''cret-words\r")
    t.expect("secret-words")
    eventually(
        lambda: any(e["kind"] == "cover" for e in log(hf, "typed")), "the signature over the line"
    )
    t.send("unfinished")
    t.expect("unfinished")
    t.leave()
    entries = log(hf, "typed")
    typed = {n for e in entries if e["kind"] == "keys" for n in range(e["first"], e["number"] + 1)}
    covered = {
        n for e in entries if e["kind"] == "cover" for n in range(e["first"], e["number"] + 1)
    }
    assert typed and typed == covered
    assert all(e["attestation"] == "actor-signed" for e in entries if e["kind"] == "cover")
    assert "cret" not in json.dumps(entries)
    assert [e["kind"] for e in entries if e["kind"] in ("attach", "leave")] == ["attach", "leave"]
    verified(hf, "typed", tmp_path)


def test_p1_the_line_that_ends_a_session_is_signed_for(hf: Installation, tmp_path: Path) -> None:
    hf.new("last", "--", "bash")
    t = hf.attach("last")
    t.expect(r"\$ ")
    t.send("exit 3\r")
    t.wait()
    entries = eventually(
        lambda: [e for e in log(hf, "last") if e["kind"] in ("keys", "cover")], "its keys"
    )
    typed = {n for e in entries if e["kind"] == "keys" for n in range(e["first"], e["number"] + 1)}
    eventually(
        lambda: (
            {
                n
                for e in log(hf, "last")
                if e["kind"] == "cover"
                for n in range(e["first"], e["number"] + 1)
            }
            == typed
        ),
        "the signature over the last line",
    )
    verified(hf, "last", tmp_path)


def test_p2_secrets_at_a_prompt_without_echo_are_never_stored(
    hf: Installation, tmp_path: Path
) -> None:
    hf.new("secret", "--", "bash")
    hf.ok("send", "secret", "read -s x", "--enter")
    hf.ok("wait", "secret", "--for", "secret", "--timeout", "120")
    hf.ok("send", "secret", "hunter2", "--enter")
    hf.wait("secret", "idle")
    hf.ok("send", "secret", "echo done-$((1+1))", "--enter")
    hf.wait("secret", "text:done-2")
    contents = [
        e["content"] for e in log(hf, "secret") if e["kind"] == "line" and e["phase"] == "intent"
    ]
    assert contents == ["read -s x\r", None, "echo done-$((1+1))\r"]
    file = tmp_path / "secret.record"
    hf.ok("log", "export", "secret", str(file))
    assert (
        b"hunter2" not in file.read_bytes()
        and base64.b64encode(b"hunter2")[:-2] not in file.read_bytes()
    )
    assert not any(b"hunter2" in f.read_bytes() for f in Path(hf.home).rglob("*.db*"))


def test_p2_acts_across_kills_of_the_host_are_there_once_and_the_record_verifies(
    fresh: Installation, tmp_path: Path
) -> None:
    fresh.new("kills", "--", "bash")
    for n in range(6):
        fresh.ok("run", "kills", "--", f"echo run {n}")
        os.kill(fresh.host_pid, signal.SIGKILL)
    entries = log(fresh, "kills")
    assert [e["content"] for e in entries if e["kind"] == "command" and e["phase"] == "intent"] == [
        f"echo run {n}" for n in range(6)
    ]
    outcomes = [e["outcome"] for e in entries if e["phase"] == "outcome"]
    assert outcomes == ["applied"] * 6
    verified(fresh, "kills", tmp_path)


def test_p2_a_refused_act_is_recorded_with_the_reason(hf: Installation, tmp_path: Path) -> None:
    hf.new("refusals", "--", "cat")
    hf.people("cat", "dog")
    hf.ok("--as", "cat", "send", "refusals", "mine", "--enter")
    assert hf.attempt("--as", "dog", "send", "refusals", "no", "--enter").rc == 4
    refused = [e for e in log(hf, "refusals") if e["verdict"] == "refuse"]
    assert [(e["actor"], e["phase"]) for e in refused] == [
        ("dog", "fact")
    ] and "cat holds the turn" in refused[0]["reason"]
    verified(hf, "refusals", tmp_path)


def test_p2_an_export_that_was_tampered_with_is_not_verified(
    hf: Installation, tmp_path: Path
) -> None:
    hf.new("tampered", "--", "cat")
    hf.ok("send", "tampered", "one", "--enter")
    hf.ok("send", "tampered", "two", "--enter")
    file = tmp_path / "tampered.record"
    hf.ok("log", "export", "tampered", str(file))
    lines = file.read_bytes().splitlines(keepends=True)
    for broken in (
        lines[:1] + lines[2:],
        [*lines[:1], lines[1].replace(b'\\"actor\\":\\"', b'\\"actor\\":\\"x', 1), *lines[2:]],
        lines[:-2] + lines[-1:],
    ):
        assert broken != lines
        file.write_bytes(b"".join(broken))
        assert hf.attempt("log", "verify", str(file)).rc == 1


def test_s7_a_session_that_ended_still_shows_its_record(hf: Installation) -> None:
    hf.new("over", "--", "cat")
    hf.ok("send", "over", "last words", "--enter")
    hf.ok("end", "over")
    assert [kind for _, kind in acts(log(hf, "over"))] == ["line", "end"]


@pytest.mark.parametrize(
    "words", [("log",), ("log", "export"), ("log", "verify"), ("log", "a", "b")]
)
def test_log_says_how_it_is_used(hf: Installation, words: tuple[str, ...]) -> None:
    assert hf.attempt(*words).rc in (2, 3)


def test_p2_the_machines_own_record_names_each_admitted_key_and_its_giver(
    fresh: Installation, tmp_path: Path
) -> None:
    fresh.people("ann")
    fresh.ok("operator", "add", "bot", "--kind", "agent")
    fresh.ok("--as", "ann", "grant", "bot", "--rights", "observe")
    fresh.new("gone", "--", "true")
    eventually(lambda: fresh.get("gone")["state"] == "ended", "its end")
    made = fresh.get("gone")["id"]
    fresh.ok("forget", "gone")
    fresh.ok("--as", "ann", "operator", "revoke", "bot")
    entries = log(fresh, "machine")
    asked = [e for e in entries if e["phase"] == "intent" or e["kind"] == "revoke"]
    assert all(e["attestation"] == "actor-signed" for e in asked)
    assert [(e["actor"], e["kind"], json.loads(e["content"]).get("name")) for e in asked] == [
        ("tester", "operator", "ann"),
        ("tester", "grant", "ann"),
        ("tester", "operator", "bot"),
        ("ann", "grant", "bot"),
        ("tester", "spawn", "gone"),
        ("tester", "forget", None),
        ("ann", "revoke", "bot"),
    ]
    outcomes = {e["intent"]: e for e in entries if e["phase"] == "outcome"}
    assert {seq: e["outcome"] for seq, e in outcomes.items()} == {
        e["seq"]: "applied" for e in asked if e["phase"] == "intent"
    }
    spawned = next(e for e in asked if e["kind"] == "spawn")
    assert outcomes[spawned["seq"]]["facts"] == {"session": made, "name": "gone"}
    assert log(fresh, made)[0]["facts"]["asked"] == spawned["hash"], (
        "the session's own record begins with its spawner"
    )
    verified(fresh, "machine", tmp_path)
    said = fresh.ok("log", "machine").out
    assert (
        "grant: ann rights=" in said
        and "spawn: gone true cwd=" in said
        and "revoke: bot" in said
        and "operator: add ann device=" in said
        and "PATH" not in said
    )
    assert fresh.attempt("new", "machine", "--no-attach").rc == 4
    left = [(e["actor"], e["kind"]) for e in log(fresh, made)]
    assert left == [("tester", "spawn"), ("tester", "ended")], "of a session that was forgotten"


def test_p2_acts_by_prefix_keys_of_attach_leave_receipts(fresh: Installation) -> None:
    fresh.ready("work")
    fresh.ok("halt", "work")
    terminal = fresh.attach("work")

    def receipt(kind: str) -> bool:
        """Whether an act of this kind on the session has a receipt."""
        kept = [
            json.loads(json.loads(line)["ack"])["hash"]
            for file in (fresh.home / "receipts").iterdir()
            for line in file.read_text().splitlines()
            if '"ack"' in line
        ]
        found = {e["hash"]: e["kind"] for e in fresh.ok("log", "work", "--json").records}
        return any(found.get(one) == kind for one in kept)

    for key, kind in ((b"R", "resume"), (b"a", "turn")):
        terminal.expect("work: ")  # the title: attach has the terminal
        terminal.send(b"\x1c" + key)
        eventually(partial(receipt, kind), f"the receipt of {kind}")
    assert terminal.leave() == 0


def test_p2_receipts_reveal_an_act_that_was_cut_off_with_the_machines_key(
    fresh: Installation, tmp_path: Path
) -> None:
    fresh.ready("cut")
    fresh.quick("run", "cut", "--", "true")
    fresh.quick("run", "cut", "--", "echo pay 100")
    before, after = tmp_path / "before.record", tmp_path / "after.record"
    fresh.quick("log", "export", "cut", str(before))
    id = fresh.get("cut")["id"]
    paid = next(e["seq"] for e in log(fresh, "cut") if e["content"] == "echo pay 100")
    fresh.quick("down")
    with contextlib.closing(apsw.Connection(str(fresh.home / "state.db"))) as db:
        for table in ("record", "record_content", "record_open"):
            db.execute(f"DELETE FROM {table} WHERE session = ? AND seq >= ?", (id, paid))
        db.execute("DELETE FROM record_heads WHERE session = ?", (id,))
    fresh.quick("up", "--detach")  # this host signs what is left, and writes on from there
    fresh.quick("run", "cut", "--", "true")
    fresh.quick("run", "cut", "--", "true")
    fresh.quick("log", "export", "cut", str(after))
    for what in ("cut", str(after)):
        found = fresh.attempt("log", "verify", what, "--json")
        assert found.rc == 1 and found.json["receipts"] > 2
        broken = [f for f in found.json["findings"] if f["level"] == "broken"]
        assert (broken[0]["code"], broken[0]["seq"]) == ("kept", paid)
        assert "a kept ack of " in broken[0]["text"] and "rewritten" in broken[0]["text"]
    assert "BROKEN" in fresh.attempt("log", "verify", "cut").out
    error = the_error(fresh.attempt("log", "cut", "--json"), 5)
    assert error["name"] == "contradicted" and f"of entry {paid}" in error["message"]
    assert fresh.attempt("log", "verify", str(before)).rc == 0, "receipts may be newer than a file"
    shutil.rmtree(fresh.home / "receipts")
    assert fresh.attempt("log", "verify", str(after)).rc == 0, "without receipts there is no proof"


def test_p2_redaction_is_an_attributed_act_and_the_record_still_verifies(
    hf: Installation, tmp_path: Path
) -> None:
    hf.people("carol")
    hf.people("reader", rights="read")
    hf.ready("leaks")
    hf.quick("run", "leaks", "--", "true s3cret-in-command")
    leaked = next(e["seq"] for e in log(hf, "leaks") if "s3cret" in (e["content"] or ""))
    denied = hf.attempt("--as", "reader", "log", "redact", "leaks", str(leaked))
    assert denied.rc == 4 and "manage" in denied.err
    told = hf.quick("--as", "carol", "log", "redact", "leaks", str(leaked), "--reason", "a token")
    assert f"the content of {leaked} is gone" in told
    entries = {e["seq"]: e for e in log(hf, "leaks")}
    assert entries[leaked]["content"] is None and entries[leaked]["redacted_by"] == "carol"
    trace = max(entries.values(), key=lambda e: e["seq"])
    assert (trace["kind"], trace["actor"], trace["reason"]) == ("redact", "carol", "a token")
    asked = [e for e in log(hf, "machine") if e["kind"] == "redact"]
    assert [e["phase"] for e in asked] == ["intent", "outcome"] and asked[0]["actor"] == "carol"
    assert asked[0]["attestation"] == "actor-signed"
    assert trace["facts"] == {"seqs": [leaked], "asked": asked[0]["seq"]}
    shown = hf.quick("log", "leaks")
    assert "command: (redacted by carol)" in shown
    assert f"carol (cli) redact: the content of {leaked}" in shown and "s3cret" not in shown
    assert hf.attempt("log", "redact", "leaks", str(leaked)).rc == 3, "it has no content any more"
    assert hf.attempt("log", "redact", "leaks", "first").rc == 2
    export = tmp_path / "leaks.record"
    hf.quick("log", "export", "leaks", str(export))
    found = hf.attempt("log", "verify", str(export), "--json").json
    assert found["ok"] and not [f for f in found["findings"] if f["code"] == "content"]
    lines = [json.loads(line) for line in export.read_bytes().splitlines()]
    assert not any(b"s3cret" in base64.b64decode(one.get("content", "")) for one in lines)
    verified(hf, "machine", tmp_path)
