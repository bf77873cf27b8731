"""`graph` answers "is the server still running?" from the kernel (S2), with the acts (P5)."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from tests.support.commands.graphs import forks_are_reported, process
from tests.support.installation import Installation, alive, eventually


@pytest.fixture(autouse=True, scope="module")
def people(hf: Installation) -> None:
    hf.people("ann", "bob")


def test_s2_a_server_is_found_by_its_port_with_its_act(hf: Installation) -> None:
    hf.new("web")
    code = (
        "import socket; l = socket.create_server(('127.0.0.1', 0)); print(l.getsockname()[1], "
        "flush=True); l.accept()"
    )
    port = hf.ok(
        "run",
        "web",
        "--as",
        "ann",
        "--",
        f'python3 -c "{code}" >port & while ! [ -s port ]; do sleep 0.02; done; cat port',
    ).out.strip()
    said = hf.ok("graph", "web", "--port", port, "--as", "bob")
    assert f"127.0.0.1:{port}" in said.out and (
        "started by ann" in said.out or not forks_are_reported()
    )
    (listening,) = json.loads(hf.ok("graph", "web", "--port", port, "--json").out)
    server = listening["process"]
    assert (
        server["pid"] == listening["pid"]
        and server["state"] in ("sleeping", "running")
        and server["act"] is not None
    ) or not forks_are_reported()
    os.kill(server["pid"], signal.SIGKILL)
    gone = eventually(
        lambda: r if (r := hf.cli("graph", "web", "--port", port)).rc == 3 else None,
        "no process to listen",
    )
    assert f"nothing listens on {port}" in gone.err
    hf.end("web")


def test_p5_each_process_has_the_act_that_started_it_daemons_included(hf: Installation) -> None:
    hf.new("work")
    hf.ok("run", "work", "--as", "ann", "--", "sleep 1001 &")
    hf.ok("turn", "work", "release", "--as", "ann")
    hf.ok(
        "run",
        "work",
        "--as",
        "bob",
        "--",
        "(setsid sh -c 'sleep 1002 & sleep 1003' >/dev/null 2>&1 &)",
    )
    anns, bobs, daemon = (
        process(hf, "work", "sleep 1001"),
        process(hf, "work", "sleep 1002"),
        process(hf, "work", "sleep 1003"),
    )
    if not forks_are_reported():
        pytest.skip("the kernel does not tell of new processes here")
    assert anns["actor"] == "ann" and bobs["actor"] == daemon["actor"] == "bob"
    assert bobs["act"] == daemon["act"] != anns["act"] and not daemon["on_terminal"]
    assert hf.ok("resolve", anns["act"]).rc == 0, "an act is a reference"
    assert process(hf, "work", "bash")["actor"] == "tester", "the spawner of the session"
    out = hf.ok("graph", "work").out
    assert "sleep 1003" in out and "ann" in out and "bob" in out
    hf.end("work")
    assert not alive(daemon["pid"]), "ending a session ends escaped processes, too"


def test_p3_a_line_that_two_have_typed_names_both(hf: Installation) -> None:
    hf.ready("line")
    hf.ok("send", "line", "sleep 10", "--as", "ann")
    hf.wait("line", "text:sleep 10")  # the shell has read the line: a seize discards unread input
    hf.ok("seize", "line", "--as", "bob")
    hf.ok("send", "line", "04 &", "--enter", "--as", "bob")
    found = process(hf, "line", "sleep 1004")
    if not forks_are_reported():
        pytest.skip("the kernel does not tell of new processes here")
    assert found["actor"] == "bob" and "ann" in found["originators"]
    hf.end("line")


def test_p3_processes_of_a_nested_shell_belong_to_its_typist(hf: Installation) -> None:
    hf.new("inner")
    hf.ok("send", "inner", "bash --norc", "--enter", "--as", "ann")
    process(hf, "inner", "--norc")
    hf.wait("inner", "input")
    hf.ok("seize", "inner", "--as", "bob")
    hf.ok("send", "inner", "sleep 1005 &", "--enter", "--as", "bob")
    found = process(hf, "inner", "sleep 1005")
    if not forks_are_reported():
        pytest.skip("the kernel does not tell of new processes here")
    assert found["actor"] == "bob" and "ann" in found["originators"]
    hf.end("inner")


def test_s4_the_next_host_knows_the_act_of_each_process(hf: Installation) -> None:
    hf.new("kept")
    hf.ok("run", "kept", "--as", "ann", "--", "(setsid sleep 1006 >/dev/null 2>&1 &)")
    before = process(hf, "kept", "sleep 1006")
    where = hf.home / "run" / "memory" / str(hf.get("kept")["id"]) / "lineage"
    eventually(
        lambda: where.exists() and str(before["pid"]) in where.read_text(), "it to be written down"
    )
    os.kill(hf.host_pid, signal.SIGKILL)
    after = process(hf, "kept", "sleep 1006")
    if not forks_are_reported():
        pytest.skip("the kernel does not tell of new processes here")
    assert (after["pid"], after["actor"], after["act"]) == (before["pid"], "ann", before["act"])
    hf.end("kept")


def test_a_session_without_a_shell_and_a_contained_one(hf: Installation) -> None:
    hf.new("plain", "--", "sh", "-c", "sleep 1007; true")
    assert process(hf, "plain", "sleep 1007")["actor"] == "tester"
    hf.end("plain")
    made = hf.cli("new", "inside", "--contained", "--json")
    if made.rc == 6:
        pytest.skip(f"no contained sessions here: {made.err}")
    hf.ok("run", "inside", "--", "sleep 1008 &")
    inner = hf.ok("run", "inside", "--", "echo $!").out.strip()
    found = process(hf, "inside", "sleep 1008")
    assert str(found["inside"]) == inner and found["pid"] != found["inside"]
    assert [
        one["actor"]
        for one in hf.ok("graph", "inside", "--json").json["processes"]
        if one["inside"] == 1
    ] == ["tester"], "it began with the session"
    hf.end("inside")


def test_a_graph_of_an_ended_or_unknown_session_and_without_the_right(hf: Installation) -> None:
    hf.new("over")
    hf.end("over")
    assert hf.cli("graph", "over").rc == 3 and hf.cli("graph", "nothing").rc == 3
    hf.new("mine")
    hf.people("stranger", rights="")
    hf.ok("grant", "stranger", "--rights", "read", "--session", "mine")
    hf.new("other")
    assert hf.cli("graph", "other", "--as", "stranger").rc == 4
    assert hf.cli("graph", "mine", "--as", "stranger").rc == 0
    hf.end("mine", "other")


def test_s2_a_follower_is_told_of_starts_listeners_waits_and_exit_codes(
    hf: Installation,
) -> None:
    hf.new("live")
    hf.wait("live", "idle")
    follower = hf.start("graph", "live", "--follow", "--json")
    assert follower.stdout is not None
    seen: list[dict[str, Any]] = []

    def until(change: str, **facts: Any) -> dict[str, Any]:
        assert follower.stdout is not None
        while not any(
            c["change"] == change and all(c.get(k) == v for k, v in facts.items()) for c in seen
        ):
            line = follower.stdout.readline()
            assert line, follower.communicate()
            seen.append(json.loads(line))
        return next(
            c
            for c in seen
            if c["change"] == change and all(c.get(k) == v for k, v in facts.items())
        )

    assert until("started", pid=hf.get("live")["pid"])["was"] is True, "it was there before"
    hf.ok("run", "live", "--as", "ann", "--", "(sleep 1010; exit 7) & true")
    pid = process(hf, "live", "sleep 1010")["pid"]
    assert until("started", pid=pid, was=False)["actor"] == "ann" or not forks_are_reported()
    os.kill(pid, signal.SIGTERM)
    gone, began = until("exited", pid=pid), until("started", pid=pid)
    assert gone["signal"] == (15 if forks_are_reported() else None) and (
        gone["actor"],
        gone["act"],
    ) == (
        began["actor"],
        began["act"],
    )
    if forks_are_reported():
        until("exited", exit_code=7)
        hf.ok("run", "live", "--as", "ann", "--", "sh -c 'exit 9'; true")
        assert until("exited", exit_code=9)["actor"] == "ann", (
            "also of a process that lived for a moment"
        )
    assert (
        hf.cli("graph", "live", "--follow", "--port", "3000").rc == 2
        and hf.cli("graph", "live", "--follow", "--files").rc == 2
    )
    hf.ok("turn", "live", "release", "--as", "ann")
    hf.ok("send", "live", "read -s secret", "--enter")
    until("blocked")
    assert "unblocked" not in [one["change"] for one in seen], "nothing was blocked before"
    hf.ok("send", "live", "", "--enter")
    seen.clear()
    until("unblocked")
    os.kill(hf.host_pid, signal.SIGKILL)
    hf.ok(
        "run",
        "live",
        "--",
        "python3 -c \"import socket; l = socket.create_server(('127.0.0.1', 0)); "
        'l.accept()" & true',
    )
    port = until("listening", kind="tcp")
    os.kill(port["pid"], signal.SIGKILL)
    until("closed", local=port["local"])
    hf.end("live")
    assert follower.wait(timeout=120) == 0


def test_a6_a_new_holder_is_shown_running_processes_with_their_authors(hf: Installation) -> None:
    hf.new("taken")
    hf.ok("run", "taken", "--as", "ann", "--", "sleep 1011 & (setsid sleep 1012 >/dev/null 2>&1 &)")
    process(hf, "taken", "sleep 1011")
    process(hf, "taken", "sleep 1012")
    if not forks_are_reported():
        pytest.skip("the kernel does not tell of new processes here")
    seized = hf.ok("seize", "taken", "--as", "bob", "--json").json
    jobs = {job["command"]: job for job in seized["inherits"]["jobs"]}
    assert {name: job["actor"] for name, job in jobs.items()} == {
        "sleep 1011": "ann",
        "sleep 1012": "ann",
    }
    assert hf.ok("resolve", jobs["sleep 1011"]["act"]).rc == 0
    hf.ok("turn", "taken", "release", "--as", "bob")
    assert "runs: sleep 1012" in hf.ok("seize", "taken").out
    hf.end("taken")
