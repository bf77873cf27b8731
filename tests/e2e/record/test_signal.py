"""`signal`: one process, or a tree, as an act behind the gate (P5)."""

from __future__ import annotations

import json
import os
import re
import subprocess

import pytest

from tests.support.commands.graphs import forks_are_reported, process
from tests.support.installation import Installation, alive, eventually, state_of

RULES = """
version = 1
extends = "default"

[[rule]]
name = "killed with approval"
verdict = "ask"
because = "no second chance"
by = ["human"]
when = { act = ["signal"], signal = ["KILL"] }
"""


def gone(pid: int) -> bool:
    return not alive(pid)


def test_p5_one_process_is_signalled_and_its_record_says_which(hf: Installation) -> None:
    hf.new("one")
    hf.ok("run", "one", "--", "sleep 2001 & sleep 2002 &")
    first, second = process(hf, "one", "sleep 2001")["pid"], process(hf, "one", "sleep 2002")["pid"]
    hf.ok("signal", "one", str(first), "STOP")
    eventually(lambda: state_of(first) == "T", "it to stop")
    assert "TERM to" in hf.ok("signal", "one", str(second), "TERM").out
    eventually(lambda: gone(second), "it to end")
    assert alive(first)
    result = json.loads(hf.ok("signal", "one", str(first), "9", "--json").out)
    assert result["signal"] == "KILL" and result["sent"] == [first] and result["refused"] == []
    eventually(lambda: gone(first), "it to end")
    entries = [
        e
        for e in json.loads(f"[{','.join(hf.ok('log', 'one', '--json').out.splitlines())}]")
        if e["kind"] == "signal"
    ]
    assert re.search(r"signal: \w+ to \d+.* -> allowed, applied \(.*sleep", hf.ok("log", "one").out)
    assert [e["actor"] for e in entries if e["verdict"] == "allow"] == ["tester"] * 3 and all(
        e["attestation"] != "host" for e in entries if e["verdict"] == "allow"
    )
    hf.end("one")


def test_p5_a_tree_includes_orphaned_descendants(hf: Installation) -> None:
    hf.new("tree")
    hf.ok(
        "run",
        "tree",
        "--",
        "sh -c '(setsid sleep 2003 >/dev/null 2>&1 &); sleep 2004 & wait' & sleep 2005 &",
    )
    top = process(hf, "tree", "sh -c")["pid"]
    daemon, child, other = (process(hf, "tree", f"sleep {n}")["pid"] for n in (2003, 2004, 2005))
    if not forks_are_reported():
        pytest.skip("the kernel does not tell of new processes here")
    sent = json.loads(hf.ok("signal", "tree", str(top), "KILL", "--tree", "--json").out)["sent"]
    eventually(lambda: gone(top) and gone(daemon) and gone(child), "all of it to end")
    assert alive(other) and {top, daemon, child} <= set(sent) and other not in sent
    hf.end("tree")


def test_only_processes_of_the_session_and_only_signals_that_exist(hf: Installation) -> None:
    hf.new("only")
    with subprocess.Popen(["sleep", "2006"]) as stranger:
        result = hf.cli("signal", "only", str(stranger.pid), "KILL")
        assert result.rc == 3 and f"no process {stranger.pid}" in result.err
        keeper = hf.get("only")["keeper"]
        assert hf.cli("signal", "only", str(keeper), "KILL").rc == 3, (
            "the keeper holds the session; it is not in it"
        )
        assert hf.cli("signal", "only", str(hf.host_pid), "KILL").rc == 3
        assert stranger.poll() is None
        stranger.kill()
    shell = str(hf.get("only")["pid"])
    for word, rc in (("NOPE", 2), ("999", 2), ("", 2)):
        assert hf.cli("signal", "only", shell, word).rc == rc
    assert (
        hf.cli("signal", "only", "0", "TERM").rc == 2
        and hf.cli("signal", "only", "-1", "KILL").rc == 2
    )
    assert alive(int(shell))
    hf.end("only")


def test_a5_p4_a_signal_needs_its_right_and_passes_the_gate(hf: Installation) -> None:
    hf.people("watcher", rights="read")
    hf.people("agent", rights="execute", kind="agent")
    hf.people("human", rights="admin")
    if (made := hf.cli("new", "gated", "--contained", "--json")).rc == 6:
        pytest.skip(f"no contained sessions here, and approvals count only there: {made.err}")
    hf.ok("run", "gated", "--", "sleep 2007 & sleep 2008 &")
    first, second = (
        process(hf, "gated", "sleep 2007")["pid"],
        process(hf, "gated", "sleep 2008")["pid"],
    )
    assert hf.cli("signal", "gated", str(first), "TERM", "--as", "watcher").rc == 4
    policy = hf.home / "policy.toml"
    before = policy.read_text() if policy.exists() else None
    policy.write_text(RULES)
    policy.chmod(0o600)
    try:
        held = hf.cli("signal", "gated", str(first), "KILL", "--as", "agent", "--hold", "0")
        assert held.rc == 4 and alive(first), held
        hf.ok("signal", "gated", str(second), "TERM", "--as", "agent")
        waiting = hf.start("signal", "gated", str(first), "KILL", "--as", "agent")
        asked = eventually(
            lambda: [
                a
                for a in json.loads(hf.ok("approvals", "--json", "--as", "human").out)
                if a["act"] == "signal" and a["state"] == "waiting"
            ],
            "the question",
        )
        assert f"pid={first} " in asked[-1]["text"] and " start=" in asked[-1]["text"], (
            "the approval is for a process, not only for its number"
        )
        os.kill(first, 9)  # meanwhile the process ends, and its pid may be reused
        eventually(lambda: gone(first), "it to end")
        hf.ok(
            "approve", asked[-1]["id"], "--yes", "--binding", asked[-1]["binding"], "--as", "human"
        )
        _, err = waiting.communicate(timeout=120)
        assert waiting.returncode == 3 and (b"is gone" in err or b"no process" in err), err
    finally:
        if before is None:
            policy.unlink()
        else:
            policy.write_text(before)
    hf.end("gated")


def test_p5_in_a_contained_session_by_either_pid_and_never_its_init(hf: Installation) -> None:
    made = hf.cli("new", "walled", "--contained", "--json")
    if made.rc == 6:
        pytest.skip(f"no contained sessions here: {made.err}")
    hf.ok("run", "walled", "--", "sleep 2009 &")
    found = process(hf, "walled", "sleep 2009")
    assert hf.cli("signal", "walled", "1", "KILL").rc == 4
    hf.ok("signal", "walled", str(found["inside"]), "TERM")
    eventually(lambda: gone(found["pid"]), "it to end")
    hf.end("walled")


def test_a4_a_signal_continues_no_process_of_a_halted_session(hf: Installation) -> None:
    hf.new("still")
    hf.ok("run", "still", "--", "sleep 2010 &")
    pid = process(hf, "still", "sleep 2010")["pid"]
    hf.ok("halt", "still")
    refused = hf.cli("signal", "still", str(pid), "CONT")
    assert refused.rc == 4 and "is halted" in refused.err and "holdfast resume still" in refused.err
    hf.ok("signal", "still", str(pid), "KILL")
    hf.ok("resume", "still")
    eventually(lambda: gone(pid), "it to end")
    hf.end("still")
