"""The fencing token inside of a session, in every incarnation (R3, R4)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import app
from tests.support.installation import Installation, eventually, installation
from tests.support.ordinary_user import passes_as_ordinary_user
from tests.support.recovery.checkpoint import criu

ROOT = os.getuid() == 0
PYTHON = "/usr/bin/python3"
# That can be saved, and have connections on the machine's network.
LAYOUTS = {
    "contained": ("--contained", "--net", "host"),
    **({"plain": ("--plain",)} if ROOT else {}),
}
# Reads the token when a line is entered, and keeps the first one in memory.
PROGRAM = """
import sys
from app import changed_since, idempotency_key, on_new_incarnation, token
first = token()
held = open(__import__("os").environ["HOLDFAST_TOKEN_FILE"])
watch = on_new_incarnation(lambda a, b: print(f"TOLD {a.epoch} {b.epoch}", flush=True), 0.05)
print("READY", flush=True)
for line in sys.stdin:
    now = token()
    print(f"NOW {now.epoch} first {first.epoch} {changed_since(first)} {now.session}", flush=True)
    print("KEY", idempotency_key("one"), flush=True)
"""


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home")) as made:
        yield made


def token(hf: Installation, name: str) -> dict[str, Any]:
    said = hf.ok("run", name, "--", 'cat "$HOLDFAST_TOKEN_FILE"').out
    found: dict[str, Any] = json.loads(said)
    return found


@pytest.mark.parametrize("layout", ["plain", "contained"])
def test_r3_programs_read_the_token(hf: Installation, layout: str) -> None:
    made = hf.ready(f"reads-{layout}", f"--{layout}")
    found = token(hf, made["id"])
    since = found.pop("since")
    assert found == {
        "format": 1,
        "session": made["id"],
        "epoch": 1,
        "parent": None,
        "base": made["id"],
    }
    assert abs(since - made["created"]) < 60


def test_r3_a_contained_session_cannot_change_its_token(hf: Installation) -> None:
    hf.ready("fixed", "--contained")
    before = token(hf, "fixed")
    tries = (
        'echo 9 >"$HOLDFAST_TOKEN_FILE"',
        'rm -f "$HOLDFAST_TOKEN_FILE"',
        'touch x; mv -f x "$HOLDFAST_TOKEN_FILE"',
        'chmod u+w "$HOLDFAST_TOKEN_FILE"',
        'mount -o remount,rw,bind "$(dirname "$HOLDFAST_TOKEN_FILE")"',
        'mount --bind x "$HOLDFAST_TOKEN_FILE"',
    )
    for text in tries:
        assert hf.cli("run", "fixed", "--", text).rc != 0, text
    assert token(hf, "fixed") == before


@pytest.mark.parametrize("layout", ["plain", "contained"])
def test_r1_the_next_incarnation_has_a_higher_token(fresh: Installation, layout: str) -> None:
    made = fresh.get(fresh.ready("cut", f"--{layout}")["id"])
    before = token(fresh, "cut")
    os.kill(fresh.host_pid, signal.SIGKILL)
    os.kill(made["keeper"], signal.SIGKILL)
    fresh.ok("up", "--detach")
    eventually(lambda: fresh.get("cut")["epoch"] == 2 or None, "the next incarnation")
    after = token(fresh, "cut")
    assert after["epoch"] == 2 and after["since"] > before["since"]
    assert {**after, "epoch": 1, "since": 0} == {**before, "since": 0}


def test_s4_another_host_leaves_the_token(fresh: Installation) -> None:
    fresh.ready("stays", "--contained")
    before = token(fresh, "stays")
    os.kill(fresh.host_pid, signal.SIGKILL)
    fresh.ok("up", "--detach")
    assert token(fresh, "stays") == before


def test_r2_a_restored_program_reads_the_new_token(hf: Installation) -> None:
    """The program has the old token in memory and the old file open."""
    criu()
    shutil.copy(app.__file__, hf.user / "app.py")
    (hf.user / "program.py").write_text(PROGRAM)
    made = hf.new("thawed", "--contained", "--", PYTHON, "program.py")
    hf.wait("thawed", "text:READY")
    hf.quick("send", "thawed", "ask", "--enter")
    hf.wait("thawed", "text:NOW 1 first 1 False")
    hf.ok("checkpoint", "thawed")
    os.kill(hf.get("thawed")["keeper"], signal.SIGKILL)
    eventually(lambda: hf.get(made["id"])["state"] == "ended" or None, "the end of the session")
    hf.ok("restore", "thawed")
    hf.wait("thawed", "text:TOLD 1 2")
    hf.quick("send", "thawed", "ask", "--enter")
    hf.wait("thawed", "text:NOW 2 first 1 True")
    keys = {line for line in hf.screen("thawed").splitlines() if line.startswith("KEY")}
    assert len(keys) == 1, "the key is the same in both incarnations"


# Holds a connection with bytes that the peer does not read, and one within the session.
CONNECTED = """
import socket, sys
out = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
out.setblocking(False)
try:
    while True:
        out.send(b"x" * 65536)
except BlockingIOError:
    pass
server = socket.create_server(("127.0.0.1", 0))
inner = socket.create_connection(server.getsockname())
accepted = server.accept()[0]
print("CONNECTED", flush=True)
for line in sys.stdin:
    try:
        out.setblocking(True)
        out.sendall(b"more")
        print("STILL", flush=True)
    except OSError as e:
        print("BROKEN", flush=True)
"""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_r4_connections_that_did_not_survive_a_restore_are_listed(
    hf: Installation, layout: str
) -> None:
    criu()
    name = f"lists-{layout}"
    with socket.create_server(("127.0.0.1", 0)) as peer:
        port = peer.getsockname()[1]
        made = hf.ready(name, *LAYOUTS[layout])
        (hf.user / "connected.py").write_text(CONNECTED)
        hf.quick("send", name, f"{PYTHON} connected.py {port}", "--enter")
        hf.wait(name, "text:CONNECTED")
        [before] = [
            one
            for one in json.loads(hf.quick("graph", name, "--json"))["sockets"]
            if one["remote"] == f"127.0.0.1:{port}"
        ]
        hf.ok("checkpoint", name, "--stop")
        said = hf.ok("restore", name, "--json").json
        hf.quick("send", name, "go on", "--enter")
        hf.wait(name, "text:BROKEN")
    lost = {one["remote"]: one for one in said["connections"]}
    assert len(lost) == 3, (
        "one to the peer; both ends of the one inside are on the machine's network"
    )
    one = lost[f"127.0.0.1:{port}"]
    assert one["local"] == before["local"] and 0 < one["unacked"] <= before["unsent"]
    assert one["pid"] == before["pid"] and one["protocol"] == "tcp"
    assert one["program"] == "python3" and one["actor"] == "tester"
    assert one["act"].startswith(f"hf:{made['id']}@1#")
    events = [e for e in hf.ok("events", "--json").records if e["event"] == "connection.lost"]
    [told] = [e for e in events if e["remote"] == one["remote"] and e["session"] == made["id"]]
    assert told["kind"] == "closed_by_restore" and one.items() <= told.items()
    [entry] = [e for e in hf.ok("log", name, "--json").records if e["kind"] == "connections"]
    assert one in entry["facts"]["lost"] and entry["facts"]["closed_by"] == "restore"
    shown = hf.ok("log", name).out
    assert f"-> 127.0.0.1:{port} (python3 {one['pid']} of tester, {one['unacked']} bytes" in shown
    assert hf.ok("log", "verify", made["id"]).rc == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_r4_connections_are_listed_when_a_session_comes_back_by_itself(
    fresh: Installation, layout: str
) -> None:
    criu()
    with socket.create_server(("127.0.0.1", 0)) as peer:
        port = peer.getsockname()[1]
        made = fresh.ready("wakes", *LAYOUTS[layout])
        (fresh.user / "connected.py").write_text(CONNECTED)
        fresh.quick("send", "wakes", f"{PYTHON} connected.py {port}", "--enter")
        fresh.wait("wakes", "text:CONNECTED")
        fresh.ok("drain", "--notice", "100s")
        fresh.ok("drain", "--cancel")
        fresh.ok("send", "wakes", "go on", "--enter")
        fresh.wait("wakes", "text:BROKEN")
    told = [e for e in fresh.ok("events", "--json").records if e.get("session") == made["id"]]
    assert len([e for e in told if e["event"] == "session.restored"]) == 1
    lost = [e for e in told if e["event"] == "connection.lost"]
    assert {one["kind"] for one in lost} == {"closed_by_restore"}
    assert f"127.0.0.1:{port}" in {one["remote"] for one in lost}
    kinds = [e["kind"] for e in fresh.ok("log", "wakes", "--json").records]
    assert kinds.count("connections") == 1


# Both ends of a connection.
WITHIN = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
one = socket.create_connection(server.getsockname())
other = server.accept()[0]
print("CONNECTED", flush=True)
for line in sys.stdin:
    one.sendall(b"alive")
    print("STILL", other.recv(5).decode(), flush=True)
"""


def test_r4_connections_within_an_own_network_survive(hf: Installation) -> None:
    criu()
    hf.ready("within", "--contained", "--net", "none")
    (hf.user / "within.py").write_text(WITHIN)
    hf.quick("send", "within", f"{PYTHON} within.py", "--enter")
    hf.wait("within", "text:CONNECTED")
    assert hf.ok("checkpoint", "within", "--stop", "--json").json["saved"]["losses"] == []
    assert hf.ok("restore", "within", "--json").json["connections"] == []
    hf.quick("send", "within", "go on", "--enter")
    hf.wait("within", "text:STILL alive")


@pytest.mark.skipif(not ROOT, reason="it is being run as an ordinary user")
def test_r3_as_an_ordinary_user() -> None:
    criu()
    if shutil.which("useradd") is None:
        pytest.skip("useradd is not installed")
    passes_as_ordinary_user(__file__)
