"""Mistakes of newcomers: misspelled names, a revoked name, a policy error, unread output, times."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.installation import Installation

VERIFIER = Path(__file__).resolve().parents[3] / "docs" / "reference" / "verify_record.py"


def test_a_name_with_a_slip_in_it_is_recognised(hf: Installation) -> None:
    hf.people("annabel", rights="read")
    hf.new("workshop", "--", "cat")
    terminal = hf.attach("wrokshop")
    assert (
        terminal.wait() == 3 and b"no session 'wrokshop'; did you mean workshop?" in terminal.output
    )
    assert (
        "did you mean workshop?" in hf.cli("view", "workshp").err
        and "did you mean annabel?" in hf.cli("operator", "show", "anabel").err
    )
    assert "did you mean" not in hf.cli("view", "zzz").err
    hf.people("outsider", rights="")
    assert "workshop" not in hf.cli("--as", "outsider", "view", "workshp").err, (
        "an operator that may not see it is not told of it"
    )
    hf.end("workshop")


def test_a_revoked_name_is_not_given_again_and_no_key_is_made_for_it(hf: Installation) -> None:
    hf.people("gone", rights="read")
    hf.ok("operator", "revoke", "gone")
    key = hf.home / "keys" / "gone.key"
    key.unlink()
    again = hf.cli("operator", "add", "gone")
    assert (
        again.rc == 4
        and "gone was revoked on" in again.err
        and "by tester" in again.err
        and "`holdfast operator add gone-2`" in again.err
    )
    assert not key.exists()


def test_a_policy_that_cannot_be_used_is_told_where_people_look(fresh: Installation) -> None:
    assert fresh.ok("up", "--detach", "--json").json["policy"] is None
    assert next(f for f in fresh.ok("doctor", "--json").json if f["id"] == "policy")["ok"] is True
    (fresh.home / "policy.toml").write_text("version = 1\n[[rule\n")
    up = fresh.ok("up", "--detach").out
    assert (
        "WARNING: the policy cannot be used" in up
        and "policy.toml:2: not TOML" in up
        and "policy check" in up
    )
    assert "policy.toml:2" in fresh.ok("up", "--detach", "--json").json["policy"]
    found = next(f for f in fresh.ok("doctor", "--json").json if f["id"] == "policy")
    assert found["ok"] is False and "policy.toml:2" in found["detail"] and found["fix"]
    assert "policy.toml:2" in fresh.ok("doctor").out


def test_up_does_not_speak_of_another_session_while_there_is_none(fresh: Installation) -> None:
    terminal = fresh.attach("up")
    terminal.expect(r"no sessions yet; the first one, main, is made now")
    terminal.see("this is main")
    assert b"another one" not in terminal.output
    assert terminal.leave() == 0


@pytest.mark.parametrize("both", [False, True], ids=["stdout", "stdout and stderr"])
def test_a_reader_that_closes_the_pipe_early_is_no_error(hf: Installation, both: bool) -> None:
    if not any(s["name"] == "pipes" for s in hf.ls()):
        hf.ready("pipes", "--", "bash")
        hf.ok("run", "pipes", "--", "seq 2000")
    export = str(hf.base / "export")
    if not os.path.exists(export):
        hf.ok("log", "export", "pipes", export)
    commands = [
        "ls",
        "ls --json",
        "log pipes",
        "log verify pipes",
        f"log verify {export}",
        "log export pipes",
        "log pipes --follow",
        "events",
        "events --follow",
        "who pipes",
        "view pipes",
        "read pipes",
        "read pipes --follow",
        "run pipes -- seq 50000",
        "operator",
        "operator show tester",
        "approvals",
        "policy show",
        "config show",
        "doctor",
        "man",
        "completion bash",
        "--help",
        "ls --help",
        "--version",
        "up --detach",
    ]
    reader, writer = os.pipe()
    os.close(reader)
    try:
        for words in [[*hf.argv(()), *c.split()] for c in commands] + [
            [sys.executable, str(VERIFIER), export]
        ]:
            done = subprocess.run(
                words,
                stdout=writer,
                stderr=writer if both else subprocess.PIPE,
                stdin=subprocess.DEVNULL,
                env=hf.env,
                cwd=hf.user,
                timeout=120,
            )
            assert not re.search(rb"Traceback|Broken|Exception", done.stderr or b""), (words, done)
            assert done.returncode in (0, 1) and not (
                done.returncode and b"holdfast" in str(words[2:3]).encode()
            ), (words, done)
        missing = subprocess.run(
            [*hf.argv(()), "view", "nowhere"],
            stdout=writer,
            stderr=writer,
            stdin=subprocess.DEVNULL,
            env=hf.env,
            cwd=hf.user,
            timeout=120,
        )
        assert missing.returncode == 3, "the exit code is not lost with the words"
    finally:
        os.close(writer)


def test_every_listing_has_the_same_kind_of_time(hf: Installation) -> None:
    hf.ready("clocks", "--", "bash")
    hf.ok("run", "clocks", "--", "true")
    log, event, [session] = (
        hf.ok("log", "clocks", "--json").records[-1],
        hf.ok("events", "clocks", "--json").records[-1],
        [s for s in hf.ls() if s["name"] == "clocks"],
    )
    person = hf.ok("operator", "show", "tester", "--json").json
    found = [
        log,
        event,
        session,
        person,
        *person["keys"],
        *person["envelopes"],
        *hf.ok("operator", "ls", "--json").json,
    ]
    for one in found:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", one["when"]), one
    assert log["when"][:16] <= max(e["when"] for e in found)[:16]
    hf.end("clocks")
