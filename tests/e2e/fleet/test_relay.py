"""From another machine through a relay: pairing, every command, attach, and that it comes back by itself (T1, T3, S3, S4)."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.harness import Installation, Terminal, eventually, installation
from tests.e2e.test_commands import the_error

from holdfast.core import joincode
from holdfast.testing.crooked import Crooked
from holdfast.testing.history import difference
from holdfast.wire import outer


@pytest.fixture(scope="module")
def relay() -> Iterator[Crooked]:
    made = Crooked()
    yield made
    made.close()


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory, relay: Crooked) -> Iterator[Installation]:
    """The machine."""
    with installation(tmp_path_factory.mktemp("there"), "[turn]\nidle_s = 0.3\n") as made:
        made.new("work", "--", "bash")
        made.ok("host", "connect", relay.url)
        yield made


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, there: Installation) -> Iterator[Installation]:
    """Somewhere else: another home, which knows of that machine only what pairing told it."""
    with installation(tmp_path_factory.mktemp("here")) as made:
        link = there.ok("invite", "--rights", "admin", "--no-wait", "--json").records[0]["url"]
        joined = made.ok("join", link, "--as", "ann", "--json").json
        made.ok("machines", "rename", joined["as"], "box")
        yield made


@pytest.fixture(autouse=True)
def straight(request: pytest.FixtureRequest, relay: Crooked) -> Iterator[None]:
    yield
    from holdfast.testing import crooked

    relay.meddle = crooked.honest


def attached(here: Installation, name: str, see: str = "$") -> Terminal:
    terminal = here.attach(name)
    terminal.see(see)
    return terminal


# ---------------------------------------------------------------- pairing and commands


def test_t1_paired_by_a_link_a_machine_is_steered_from_elsewhere(
    here: Installation, there: Installation
) -> None:
    [machine] = here.ok("machines", "--json").json
    assert here.ok("completion", "--names", "machines").out == "box\n"
    assert (machine["name"], machine["presence"], machine["operator"]) == ("box", "online", "ann")
    assert [s["name"] for s in here.ok("ls", "box/", "--json").json] == [
        s["name"] for s in there.ls()
    ]
    result = here.cli("run", "box/work", "--", "echo on the machine; (exit 7)")
    assert (result.rc, result.out) == (7, "on the machine\n")
    made = here.ok(
        "new", "box/made", "--no-attach", "--json", "--", "sh", "-c", "pwd; sleep 1000"
    ).json
    assert there.get(made["id"])["name"] == "made" and there.get("made")["cwd"].startswith("/")
    assert (
        the_error(here.attempt("view", "box/nothing", "--json"), 3)["recover"]
        == "`holdfast ls --all box/` lists what exists"
    )
    assert {s["machine"] for s in here.ok("ls", "box/", "--json").json} == {"box"}, (
        "as it is called here"
    )
    here.ok("end", "box/made")
    assert ("ann", "command") in [
        (e["actor"], e["kind"]) for e in here.ok("log", "box/work", "--json").records
    ]
    assert [s["machine"] for s in here.ok("ls", "--everywhere", "--json").json] == ["box"]


def test_t1_paired_by_a_typed_code(here: Installation, there: Installation, relay: Crooked) -> None:
    made = there.ok("invite", "--rights", "read", "--no-wait", "--json").records[0]
    joined = here.ok(
        "join", made["code"].lower(), "--relay", relay.url, "--as", "carl", "--json"
    ).json
    assert (joined["name"], joined["as"]) == ("carl", "box")
    assert here.ok("--as", "carl", "view", "box/work").rc == 0
    again = here.attempt("join", made["code"], "--relay", relay.url, "--as", "dora", "--json")
    assert again.rc in (4, 5), "a code counts once"


def test_t2_a_wrong_code_gets_one_guess(
    here: Installation, there: Installation, relay: Crooked
) -> None:
    made = there.ok("invite", "--rights", "read", "--no-wait", "--json").records[0]
    right, _ = joincode.read(made["code"])
    wrong = joincode.Code(right.id, "0000000" if right.secret != "0000000" else "0000001").show()
    assert (
        "another code"
        in the_error(
            here.attempt("join", wrong, "--relay", relay.url, "--as", "mallory", "--json"), 4
        )["message"]
    )
    assert not (here.home / "keys" / "mallory.key").exists()
    late = here.attempt("join", made["code"], "--relay", relay.url, "--as", "emil", "--json")
    assert late.rc in (4, 5), "and then the right one does not help any more"
    assert here.ok("join", made["url"], "--as", "emil").rc == 0, (
        "the link has more in it than the code"
    )


def test_t1_liveness_has_the_registration(there: Installation) -> None:
    assert there.get("work")["liveness"]["relay"] == "registered"
    assert there.ok("host", "ls", "--json").json["relays"][0]["state"] == "registered"


def test_p1_what_is_done_from_elsewhere_is_signed_and_verifies(
    here: Installation, there: Installation, tmp_path: Path
) -> None:
    here.ok("send", "box/work", "true", "--enter")
    file = tmp_path / "record"
    here.ok("log", "export", "box/work", str(file))
    assert here.ok("log", "verify", str(file), "--json").json["ok"] is True
    assert [
        e["attestation"]
        for e in there.ok("log", "work", "--limit", "1000", "--json").records
        if e["actor"] == "ann" and e["phase"] == "intent"
    ][-1] == "actor-signed"


def test_t4_what_names_no_machine_or_no_relay_is_said_so(
    here: Installation, there: Installation
) -> None:
    assert (
        the_error(here.attempt("ls", "nowhere/", "--json"), 3)["message"]
        == "no machine 'nowhere' is known here"
    )
    for url in (
        "http://relay.example",
        "ws://relay.example/?token=x",
        "ws://me:secret@relay.example",
        "relay.example",
        "ws://",
    ):
        the_error(there.attempt("host", "connect", url, "--json"), 2)
    assert the_error(there.attempt("host", "disconnect", "ws://127.0.0.1:1", "--json"), 3)
    damaged = there.ok("invite", "--no-wait", "--json").records[0]["url"][:-6]
    assert here.attempt("join", damaged, "--as", "eve").rc == 2


def test_t4_passes_and_tokens_are_in_files_of_ones_own_and_nowhere_else(
    here: Installation, there: Installation
) -> None:
    kept = here.home / "machines.json"
    assert kept.stat().st_mode & 0o777 == 0o600
    secret = json.loads(kept.read_text())["machines"][0]["ways"][0]["pass"]
    for place in (here.home, there.home):
        assert not [
            str(path)
            for path in place.rglob("*")
            if path.is_file() and path != kept and secret.encode() in path.read_bytes()
        ]
    kept.chmod(0o644)
    assert the_error(here.attempt("ls", "box/", "--json"), 4)["message"].endswith(
        "is not a file of this account alone"
    )
    kept.chmod(0o600)


# ---------------------------------------------------------------- attach, and coming back


def test_s3_attach_from_elsewhere_shows_and_steers_the_same_session(
    here: Installation, there: Installation
) -> None:
    there.new("shared", "--", "bash")
    terminal = attached(here, "box/shared")
    terminal.send("echo $((40+2))\r")
    terminal.see("42")
    eventually(lambda: "42" in there.screen("shared"), "the same screen there")
    assert [o["operator"] for o in there.get("shared")["operators"]] == ["ann"]
    terminal.send(b"\x1cd")
    terminal.see("detached from box/shared")
    assert terminal.wait() == 0


def test_s4_attach_comes_back_by_itself_after_every_connection_was_cut(
    here: Installation, there: Installation, relay: Crooked
) -> None:
    there.new(
        "cut", "--", "sh", "-c", 'stty -echo; echo READY; while read line; do echo "<$line>"; done'
    )
    terminal = attached(here, "box/cut", see="READY")
    for n in range(4):
        terminal.send(f"before {n}\r")
        relay.cut_all()
        terminal.send(f"after {n}\r")
        terminal.see(f"<after {n}>")
    shown = [line for line in terminal.rows() if line.startswith("<")]
    assert shown == [f"<{when} {n}>" for n in range(4) for when in ("before", "after")], (
        "each line once, in order"
    )
    terminal.leave()
    there.end("cut")


def test_s4_output_goes_on_without_gap_or_repeat_over_cuts(
    here: Installation, there: Installation, relay: Crooked
) -> None:
    there.new(
        "flood",
        "--",
        "sh",
        "-c",
        "read go; i=0; while [ $i -lt 60000 ]; do i=$((i+1)); echo line $i; done; echo DONE; read end",
    )
    reading = here.start("read", "box/flood", "--follow", "--from", "0")
    there.ok("send", "flood", "go", "--enter")
    for n in (1, 2, 3):
        eventually(lambda n=n: there.get("flood")["output"]["end"] > n * 100_000, "output goes on")  # type: ignore[misc]
        relay.cut_all()
    want = b"".join(b"line %d\r\n" % i for i in range(1, 60_001)) + b"DONE\r\n"
    assert reading.stdout is not None
    out = b""
    while not out.endswith(b"DONE\r\n"):
        out += (piece := os.read(reading.stdout.fileno(), 1 << 16))
        assert piece, reading.communicate()
    there.ok("send", "flood", "end", "--enter")
    assert reading.wait(60) == 0
    begin = out.index(b"line 1\r\n")
    assert difference(out[begin : begin + len(want)], want) == ""


def test_s4_the_host_is_killed_and_attach_from_elsewhere_goes_on(
    here: Installation, there: Installation
) -> None:
    there.new("killed", "--", "bash")
    terminal = attached(here, "box/killed")
    os.kill(there.host_pid, signal.SIGKILL)
    there.ls()
    terminal.send("echo still $((1+1))\r")
    terminal.see("still 2")
    terminal.leave()


def test_t3_a_machine_that_is_not_there_is_said_so(here: Installation, there: Installation) -> None:
    [url] = [one["url"] for one in there.ok("host", "ls", "--json").json["relays"]]
    there.ok("host", "disconnect", url)
    assert the_error(here.attempt("view", "box/work", "--json"), 5)["message"]
    assert all(
        machine["presence"] != "online" and machine["why"]
        for machine in here.ok("machines", "--json").json
    )
    there.ok("host", "connect", url)
    assert here.ok("view", "box/work").rc == 0


def test_a5_who_is_revoked_is_cut_off_also_at_the_relay(
    here: Installation, there: Installation
) -> None:
    link = there.ok("invite", "--rights", "read", "--no-wait", "--json").records[0]["url"]
    here.ok("join", link, "--as", "zoe")
    here.ok("--as", "zoe", "view", "box/work")
    there.ok("operator", "revoke", "zoe")
    assert the_error(here.attempt("--as", "zoe", "view", "box/work", "--json"), 4)["message"]


def test_t4_nothing_of_what_passes_can_be_read(
    here: Installation, there: Installation, relay: Crooked
) -> None:
    relay.seen.clear()
    here.ok("run", "box/work", "--", "echo a-very-secret-word")
    carried = b"".join(frame.payload for _, _, frame in relay.seen if isinstance(frame, outer.Data))
    assert len(carried) > 500
    for word in (b"a-very-secret-word", b"work", b"ann", b"run", b"holdfast", b"ed25519"):
        assert word not in carried
