"""Live sessions are forked into branches (R5).

The last test runs this file again as an ordinary user. All tests need CRIU (scripts/criu).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import home as homes
from holdfast.client.link import Link
from holdfast.model.errors import HoldfastError
from tests.support.installation import Installation, eventually, installation
from tests.support.keeper import gone
from tests.support.ordinary_user import cases, passes_as_ordinary_user
from tests.support.recovery.checkpoint import criu

ROOT = os.getuid() == 0
PYTHON = "/usr/bin/python3"


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    criu()
    with installation(tmp_path_factory.mktemp("home")) as made:
        yield made


def shell(hf: Installation, name: str, *args: str) -> Path:
    """A contained session with a variable, in a directory of its own with a file."""
    place = hf.user / name
    place.mkdir()
    (place / "file").write_text("base\n")
    hf.ready(name, "--contained", "--cwd", str(place), *args)
    hf.quick("run", name, "--", "X=kept")
    return place


def forked(hf: Installation, name: str, *args: str) -> dict[str, Any]:
    said: dict[str, Any] = hf.ok("fork", name, "--json", *args).json
    return said


def says(hf: Installation, name: str, command: str) -> str:
    return hf.ok("run", name, "--", command).out


def forks(hf: Installation) -> list[Path]:
    top = Path(hf.env["HOLDFAST_HOME"]) / "branches"
    return list(top.iterdir()) if top.exists() else []


# ---------------------------------------------------------------- fork


@pytest.mark.parametrize("gate", ["exec", "input"])
def test_r5_branches_begin_with_the_memory_of_the_parent(hf: Installation, gate: str) -> None:
    name = f"memory-{gate}"
    shell(hf, name, "--gate", gate)
    hf.quick("run", name, "--", "cd /tmp; sleep 12345 & echo private > mine")
    before = hf.get(name)
    made = forked(hf, name, "-n", "2")
    assert [one["name"] for one in made["branches"]] == [f"{name}-1", f"{name}-2"]
    assert made["frozen_ms"] > 0
    for one in made["branches"]:
        now = hf.get(one["id"])
        assert now["epoch"] == 1 and now["gate"] == gate and now["turn"] is None
        assert now["pid"] != before["pid"]
        assert says(hf, one["id"], "echo $X; pwd; cat mine; jobs") == (
            "kept\n/tmp\nprivate\n[1]+  Running                 sleep 12345 &\n"
        )
        says(hf, one["id"], f"X={one['name']}; echo {one['name']} > mine")
    assert hf.get(name)["pid"] == before["pid"]
    assert says(hf, name, "echo $X; cat mine") == "kept\nprivate\n"
    for one in made["branches"]:
        assert says(hf, one["id"], "echo $X; cat mine") == f"{one['name']}\n{one['name']}\n"
        assert "sleep 12345" in hf.ok("read", one["id"], "--from", "0").out


def test_r5_a_branch_sees_the_snapshot_and_no_other_sees_its_files(hf: Installation) -> None:
    place = shell(hf, "files")
    (place / "gone").write_text("gone")
    forked(hf, "files", "-n", "2")
    (place / "file").write_text("later\n")
    (place / "new").write_text("later")
    assert says(hf, "files-1", "cat file; echo *") == "base\nfile gone\n"
    says(hf, "files-1", "echo branch > file; rm gone; mkdir made; echo x > made/x")
    assert says(hf, "files-1", "cat file; echo *") == "branch\nfile made\n"
    assert says(hf, "files-2", "cat file; echo *") == "base\nfile gone\n"
    assert (place / "file").read_text() == "later\n"
    assert sorted(one.name for one in place.iterdir()) == ["file", "gone", "new"]


def test_r5_open_files_go_on_in_the_branch_where_they_were(hf: Installation) -> None:
    """A program writes without a pause: each copy has a whole file, and goes on by itself."""
    place = shell(hf, "writer")
    code = "f = open('log', 'w'); n = 0\nwhile n < 10**6: n += 1; f.write(f'{n}\\n'); f.flush()"
    hf.quick("run", "writer", "--", f'{PYTHON} -c "{code}" & true')
    forked(hf, "writer")
    log, upper = place / "log", "wc -l < log"
    first = int(says(hf, "writer-1", upper))
    eventually(lambda: int(says(hf, "writer-1", upper)) > first or None, "the branch to write on")
    says(hf, "writer-1", "kill %1")
    says(hf, "writer", "kill %1")
    for text in (log.read_text(), says(hf, "writer-1", "cat log")):
        lines = [int(one) for one in text.splitlines() if one.isdigit()]
        assert lines == list(range(1, len(lines) + 1))


def test_r1_a_branch_whose_keeper_is_killed_comes_back_in_its_own_layers(hf: Installation) -> None:
    place = shell(hf, "again")
    made = forked(hf, "again", "-n", "2")["branches"][0]
    says(hf, made["id"], "echo branch > file; echo own > ~/mine; echo x > more")
    os.kill(hf.get(made["id"])["keeper"], signal.SIGKILL)
    eventually(lambda: hf.get(made["id"])["epoch"] == 2 or None, "the branch is back")
    told = says(hf, made["id"], "echo $X-; pwd; cat file ~/mine more")
    assert told == f"-\n{place}\nbranch\nown\nx\n"
    token = json.loads(says(hf, made["id"], 'cat "$HOLDFAST_TOKEN_FILE"'))
    assert (token["epoch"], token["parent"]) == (2, hf.get("again")["id"])
    assert (place / "file").read_text() == "base\n" and not (place / "more").exists()
    changed = {one["path"] for one in hf.ok("diff", made["id"], "--json").json["files"]}
    assert {f"{place}/file", f"{place}/more"} <= changed
    assert says(hf, "again", "echo $X; cat file") == "kept\nbase\n"


def test_a5_a_branch_has_no_authority_of_its_parent(hf: Installation) -> None:
    shell(hf, "theirs")
    hf.ok("operator", "add", "guest")
    hf.ok("grant", "guest", "--rights", "execute", "--session", "theirs")
    hf.ok("turn", "theirs", "release")
    assert hf.ok("--as", "guest", "run", "theirs", "--", "echo in").out == "in\n"
    refused = hf.cli("--as", "guest", "fork", "theirs")
    assert refused.rc == 4 and "fork" in refused.err
    made = forked(hf, "theirs")["branches"][0]
    assert hf.cli("--as", "guest", "run", made["id"], "--", "echo in").rc == 255
    assert hf.cli("--as", "guest", "view", made["id"]).rc in (3, 4)
    hf.ok("grant", "guest", "--rights", "execute", "--session", made["name"])
    assert hf.ok("--as", "guest", "run", made["id"], "--", "echo in").out == "in\n"


def test_a8_a_stopped_operator_is_stopped_in_a_branch(hf: Installation) -> None:
    hf.people("bot", rights="execute,observe")
    shell(hf, "stops")
    hf.ok("turn", "stops", "release")
    count = "while :; do echo >> ~/count; sleep 0.05; done"
    hf.ok("--as", "bot", "run", "stops", "--", f"bash -c '{count}' > /dev/null 2>&1 &")
    hf.ok("halt", "stops", "--operator", "bot")
    forked(hf, "stops")
    refused = hf.cli("--as", "bot", "run", "stops-1", "--", "true")
    assert refused.rc and "stopped bot" in refused.err
    before = says(hf, "stops-1", "pkill -CONT -f [c]ount; sleep 0.3; wc -l < ~/count")
    assert says(hf, "stops-1", "sleep 0.3; wc -l < ~/count") == before
    hf.ok("resume", "stops-1", "--operator", "bot")
    assert int(says(hf, "stops-1", "sleep 0.3; wc -l < ~/count")) > int(before)


def test_a9_a_branch_does_not_repeat_acts_of_its_parent(hf: Installation) -> None:
    shell(hf, "once")
    hf.ok("run", "once", "--once", "charge", "--", "echo done >> charged")
    forked(hf, "once")
    hf.ok("run", "once-1", "--once", "charge", "--", "echo done >> charged")
    assert says(hf, "once-1", "cat charged") == "done\n"
    again = hf.cli("run", "once-1", "--once", "charge", "--", "echo other")
    assert again.rc == 255 and "another act" in again.err


def test_r5_the_record_of_a_branch_begins_with_its_parent(hf: Installation) -> None:
    shell(hf, "record")
    parent = hf.get("record")["id"]
    made = forked(hf, "record", "--name", "copy")
    [branch] = made["branches"]
    first = hf.ok("log", "copy", "--json").records[0]
    assert first["seq"] == 1 and first["kind"] == "branched"
    entry = int(first["facts"]["parent"].split()[1])
    assert first["facts"]["parent"] == f"entry {entry} of hf:{parent}@1"
    above = {one["seq"]: one for one in hf.ok("log", "record", "--json").records}
    assert above[entry]["hash"] == first["facts"]["hash"]
    assert hf.ok("log", "verify", branch["id"]).rc == 0
    assert above[max(above)]["kind"] == "fork" and above[max(above)]["outcome"] == "applied"
    [listed] = hf.ok("branches", "record", "--json").json
    assert listed["id"] == branch["id"] and listed["parent"] == parent
    assert listed["ref"] == first["facts"]["parent"] and listed["kept"] is None
    assert "copy" in hf.ok("branches").out
    events = [one["event"] for one in hf.ok("events", "record", "--json").records]
    assert "session.forked" in events


def test_o_mode_4_a_fork_and_its_end_are_told(hf: Installation) -> None:
    def counts() -> list[float]:
        page = hf.quick("metrics")
        line = r'^holdfast_events_total{event="session.%s"} (\S+)'
        return [
            sum(map(float, re.findall(line % one, page, re.M)))
            for one in ("forked", "kept", "discarded")
        ]

    before = counts()
    shell(hf, "told")
    kept, other = forked(hf, "told", "-n", "2")["branches"]
    hf.ok("keep", kept["id"])
    assert [after - was for after, was in zip(counts(), before, strict=True)] == [1, 1, 1]
    events = {(one.get("session"), one["event"]) for one in hf.ok("events", "--json").records}
    assert (hf.get("told")["id"], "session.forked") in events
    assert {(kept["id"], "session.kept"), (other["id"], "session.discarded")} <= events


def test_r5_a_branch_is_a_full_session(hf: Installation) -> None:
    """It can be attached, saved, restored, halted, forked and ended."""
    shell(hf, "full")
    forked(hf, "full", "--name", "one")
    says(hf, "one", "echo mine > file")
    terminal = hf.attach("one")
    terminal.send("echo typed $X\r")
    terminal.see("typed kept")
    assert terminal.leave() == 0
    hf.ok("checkpoint", "one", "--stop")
    hf.ok("restore", "one")
    assert hf.get("one")["epoch"] == 2
    assert says(hf, "one", "echo $X; cat file") == "kept\nmine\n"
    forked(hf, "one", "--name", "two")
    assert says(hf, "two", "echo $X; cat file; rm file; echo two > new") == "kept\nmine\n"
    assert says(hf, "one", "ls") == "file\n" and says(hf, "two", "ls") == "new\n"
    hf.quick("halt", "two")
    assert hf.get("two")["state"] == "halted"
    hf.quick("resume", "two")
    hf.ok("discard", "one")
    assert says(hf, "two", "cat new") == "two\n"
    hf.ok("discard", "two")
    assert says(hf, "full", "cat file") == "base\n"


def test_r5_connections_inside_go_on_and_ports_do_not_conflict(hf: Installation) -> None:
    code = (
        "import socket, os\n"
        "s = socket.create_server(('127.0.0.1', 8000)); c = socket.create_connection("
        "('127.0.0.1', 8000)); t, _ = s.accept(); print('CONNECTED', flush=True)\n"
        "while c.send(input().encode() + b'!'): print('got', t.recv(99).decode(), flush=True)"
    )
    place = hf.user / "ports"
    place.mkdir()
    args = ("--contained", "--net", "none", "--cwd", str(place))
    hf.new("ports", *args, "--", PYTHON, "-c", code)
    hf.wait("ports", "text:CONNECTED")
    made = forked(hf, "ports", "-n", "2")
    assert made["closed"] == []
    for name in ("ports", "ports-1", "ports-2"):
        hf.quick("send", name, f"hello-{name}", "--enter")
        hf.wait(name, f"text:got hello-{name}!")


# ---------------------------------------------------------------- refusals


def test_r5_the_check_says_what_is_possible_and_stops_nothing(hf: Installation) -> None:
    shell(hf, "checks")
    said = hf.ok("fork", "checks", "-n", "3", "--check", "--json").json
    assert said["found"]["possible"] and said["found"]["bytes"] > 100_000
    assert said["branches"] == [] and hf.ok("branches", "checks", "--json").json == []
    refused = hf.cli("fork", "checks", "-n", "17", "--check")
    assert refused.rc == 7 and "a fork makes 1 to 16" in refused.err
    assert hf.cli("fork", "checks", "-n", "0", "--check").rc == 2
    hf.quick("halt", "checks")
    refused = hf.cli("fork", "checks")
    assert refused.rc == 7 and "it is halted" in refused.err
    hf.quick("resume", "checks")
    hf.ready("plain", "--plain")
    for options in ((), ("--check",)):
        refused = hf.cli("fork", "plain", *options)
        assert refused.rc == 7 and "it is a plain session" in refused.err


def test_r5_a_port_on_the_network_of_the_machine_is_refused(hf: Installation) -> None:
    code = "import socket; s = socket.create_server(('127.0.0.1', 0)); print('LISTENS'); input()"
    hf.new("shared", "--contained", "--net", "host", "--", PYTHON, "-uc", code)
    hf.wait("shared", "text:LISTENS")
    refused = hf.cli("fork", "shared")
    assert refused.rc == 7 and "it listens on the machine's network" in refused.err
    assert "--net own" in refused.err


def test_r5_a_second_fork_at_the_same_time_is_refused(hf: Installation) -> None:
    """Also one that begins while the first is examined: before any step is told."""
    shell(hf, "twice")
    said = dict[int, str]()

    def fork(number: int) -> None:
        link = Link(homes.resolve(hf.env), "tester", autostart=False)
        try:
            link.request("fork", session="twice", n=1, check=False)
            said[number] = "made"
        except HoldfastError as e:
            said[number] = e.message
        finally:
            link.close()

    both = [threading.Thread(target=fork, args=(number,)) for number in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert sorted(said.values()) == ["made", "twice is being saved, restored or forked"]
    assert [one["name"] for one in hf.ok("branches", "twice", "--json").json] == ["twice-1"]
    assert says(hf, "twice", "echo $X") == "kept\n"


def test_r5_siblings_are_forked_at_once_and_their_base_stays_while_it_is_needed(
    fresh: Installation,
) -> None:
    """The first fork has the lower layers of the others, also after all its branches are gone."""
    criu()
    shell(fresh, "root")
    forked(fresh, "root", "-n", "2")
    both = [fresh.start("fork", f"root-{n}") for n in (1, 2)]
    assert [one.wait(120) for one in both] == [0, 0]
    both = [fresh.start("discard", f"root-{n}") for n in (1, 2)]
    assert [one.wait(120) for one in both] == [0, 0]
    assert len(forks(fresh)) == 3
    os.kill(fresh.host_pid, signal.SIGKILL)
    for name in ("root-1-1", "root-2-1"):
        assert says(fresh, name, "echo $X; cat file") == "kept\nbase\n"
    fresh.ok("discard", "root-1-1")
    os.kill(fresh.get("root-2-1")["keeper"], signal.SIGKILL)
    eventually(lambda: fresh.get("root-2-1")["epoch"] == 2 or None, "the branch is back")
    assert says(fresh, "root-2-1", "cat file") == "base\n", "it begins anew above the same base"
    fresh.ok("discard", "root-2-1")
    assert forks(fresh) == []


def test_r5_a_branch_is_forked_and_restored_after_the_end_of_its_parent(hf: Installation) -> None:
    shell(hf, "parent")
    forked(hf, "parent")
    hf.end("parent")
    forked(hf, "parent-1")
    assert says(hf, "parent-1-1", "echo $X; cat file; wc -l < /etc/resolv.conf") == says(
        hf, "parent-1", "echo $X; cat file; wc -l < /etc/resolv.conf"
    )
    hf.quick("checkpoint", "parent-1", "--stop")
    hf.quick("restore", "parent-1")
    assert says(hf, "parent-1", "echo $X; cat file") == "kept\nbase\n"


def test_r5_a_fork_with_a_taken_name_stops_nothing_and_leaves_nothing(hf: Installation) -> None:
    shell(hf, "fails")
    shell(hf, "mine-2")
    before = {one["id"] for one in hf.ls()}, forks(hf)
    refused = hf.cli("fork", "fails", "-n", "2", "--name", "mine")
    assert refused.rc == 4 and "mine-2 runs already" in refused.err
    assert ({one["id"] for one in hf.ls()}, forks(hf)) == before
    assert says(hf, "fails", "echo $X") == "kept\n"
    forked(hf, "fails")


# ---------------------------------------------------------------- discard


def test_r5_a_discarded_branch_is_gone_with_its_files(hf: Installation) -> None:
    shell(hf, "base")
    made = forked(hf, "base", "-n", "2")
    first, second = made["branches"]
    says(hf, first["id"], "echo x > x")
    pid = hf.get(first["id"])["pid"]
    said = hf.ok("discard", first["id"], "--json").json
    assert said["left"]["acts"] >= 1 and said["left"]["connections"] == []
    assert gone(pid) and hf.get(first["id"])["state"] == "ended"
    [place] = [one for one in forks(hf) if one.name == made["fork"]]
    assert [one.name for one in (place / "layers").iterdir()] == [second["id"]]
    assert [one["id"] for one in hf.ok("branches", "base", "--json").json] == [second["id"]]
    assert hf.ok("log", "verify", first["id"]).rc == 0
    refused = hf.cli("discard", first["id"])
    assert refused.rc == 3 and "is no branch" in refused.err
    says(hf, second["id"], "exit")  # an ended branch keeps its files until it is discarded
    eventually(lambda: hf.get(second["id"])["state"] == "ended" or None, "the branch to end")
    assert place.exists()
    hf.ok("discard", second["id"])
    assert not place.exists()
    assert hf.cli("discard", "base").rc == 3


# ---------------------------------------------------------------- crashes


@pytest.mark.parametrize("step", cases(["copied", "begun", "saved", "resumed"], again=["saved"]))
def test_r5_a_crash_of_the_host_leaves_the_parent_and_no_half_branch(
    fresh: Installation, step: str
) -> None:
    criu()
    shell(fresh, "host")

    def kill(event: Any) -> None:
        if event.get("step") == step:
            os.kill(fresh.host_pid, signal.SIGKILL)

    link = Link(homes.resolve(fresh.env), "tester", autostart=False)
    try:
        with pytest.raises(HoldfastError):
            link.request("fork", session="host", n=2, check=False, on_event=kill)
    finally:
        link.close()
    fresh.ok("up", "--detach")
    assert [one["name"] for one in fresh.ls()] == ["host"]
    assert fresh.ok("branches", "--json").json == [] and forks(fresh) == []
    assert says(fresh, "host", "echo $X") == "kept\n"
    forked(fresh, "host")
    assert says(fresh, "host-1", "echo $X") == "kept\n"


@pytest.mark.parametrize(
    "step", cases(["copied", "dumped", "restored", "complete"], again=["restored"])
)
def test_r5_a_host_that_dies_in_a_fork_leaves_all_branches_or_none(
    fresh: Installation, step: str
) -> None:
    criu()
    fresh.quick("up", "--detach", env={"HOLDFAST_PROBE": f"kill@host.fork.{step}"})
    shell(fresh, "host")
    host = fresh.host_pid
    assert fresh.cli("fork", "host").rc != 0
    eventually(lambda: gone(host) or None, "the host to die")
    fresh.ok("up", "--detach")
    names = sorted(one["name"] for one in fresh.ls())
    assert names == (["host", "host-1"] if step == "complete" else ["host"])
    assert len(forks(fresh)) == (step == "complete")
    for name in names:
        assert says(fresh, name, "echo $X") == "kept\n"


def test_r5_the_next_host_has_the_branches(fresh: Installation) -> None:
    criu()
    shell(fresh, "next")
    made = forked(fresh, "next")["branches"][0]
    says(fresh, "next-1", "echo mine > file")
    os.kill(fresh.host_pid, signal.SIGKILL)
    assert says(fresh, "next-1", "echo $X; cat file") == "kept\nmine\n"
    [listed] = fresh.ok("branches", "--json").json
    assert listed["id"] == made["id"]
    fresh.ok("discard", "next-1")
    assert forks(fresh) == []


@pytest.mark.skipif(not ROOT, reason="it is being run as an ordinary user")
def test_r5_as_an_ordinary_user() -> None:
    criu()
    if shutil.which("useradd") is None:
        pytest.skip("useradd is not installed")
    passes_as_ordinary_user(__file__)
