"""From another machine through a relay: pairing, commands, attach, reconnect (T1, T3, S3, S4)."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core.people import join_code
from holdfast.model import canonical, signing
from holdfast.wire import outer
from tests.support.checkers.history import difference
from tests.support.commands.results import the_error
from tests.support.commands.through_relay import connect, invitation
from tests.support.installation import Installation, Terminal, eventually, installation
from tests.support.simulation.crooked_carrier import Crooked


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory, relay: Crooked) -> Iterator[Installation]:
    """The machine."""
    with installation(tmp_path_factory.mktemp("there"), "[turn]\nidle_s = 0.3\n") as made:
        made.new("work", "--", "bash")
        connect(made, relay)
        yield made


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, there: Installation) -> Iterator[Installation]:
    """Another home, which knows only the result of pairing about that machine."""
    with installation(tmp_path_factory.mktemp("here")) as made:
        link = invitation(there)
        joined = made.ok("join", link, "--as", "ann", "--json").json
        made.ok("machines", "rename", joined["as"], "box")
        yield made


pytestmark = pytest.mark.usefixtures("honest_again")


def attached(here: Installation, name: str, see: str = "$") -> Terminal:
    terminal = here.attach(name)
    terminal.see(see)
    return terminal


# ---------------------------------------------------------------- pairing and commands


@pytest.mark.smoke
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


def test_m_ls_lists_the_sessions_of_all_machines(here: Installation, there: Installation) -> None:
    here.new("mine", "--", "sleep", "1000")
    both = [("mine", here.get("mine")["machine"]), *((s["name"], "box") for s in there.ls())]

    def listed(*options: str) -> list[tuple[str, str]]:
        return [(s["name"], s["machine"]) for s in here.ok("ls", "--json", *options).json]

    assert listed("--everywhere") == both and listed("--local") == both[:1]
    eventually(lambda: listed() == both, "the machine answers in time")
    eventually(lambda: "box/work" in here.ok("ls").out, "the name that every command takes")

    kept = here.home / "machines.json"
    before = kept.read_bytes()
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.create_server(("", 0)) as free:
        closed = free.getsockname()[1]
        free.close()
        known = json.loads(before)
        for name, port in (("gone", closed), ("mute", silent.getsockname()[1])):
            way = {**known["machines"][0]["ways"][0], "url": f"ws://127.0.0.1:{port}"}
            key = signing.show(signing.public(signing.generate()))
            known["machines"].append(
                {**known["machines"][0], "name": name, "key": key, "ways": [way]}
            )
        kept.write_bytes(canonical.encode(known) + b"\n")
        try:
            said = here.ok("ls").out
            assert "mine" in said, "the local list comes in any case"
            assert "gone is unreachable: the relay 127.0.0.1" in said
            assert "mute is unreachable: no answer in time" in said, "less than its own time limit"
            told = [json.loads(one) for one in here.ok("ls", "--json").err.splitlines()]
            assert [one["unreachable"]["machine"] for one in told][-2:] == ["gone", "mute"]
            assert "unreachable" not in here.ok("ls", "--local").out
        finally:
            kept.write_bytes(before)
    here.ok("end", "mine")


def test_t4_machines_counts_only_what_the_operator_may_see(
    here: Installation, there: Installation
) -> None:
    there.new("secret", "--", "sleep", "1000")
    made = there.ok("invite", "--session", "work", "--no-wait", "--json").records[0]
    here.ok("join", made["url"], "--as", "guest")
    count = {m["operator"]: m["sessions"] for m in here.ok("machines", "--json").json}
    assert count["guest"] == 1 and count["ann"] == len(there.ls()) > 1
    there.ok("end", "secret")
    there.ok("operator", "revoke", "guest")


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
    right, _ = join_code.read(made["code"])
    wrong = join_code.Code(right.id, "0000000" if right.secret != "0000000" else "0000001").show()
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


def test_p1_acts_from_another_machine_are_signed_and_verify(
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


def test_t4_unknown_machines_and_invalid_relay_addresses_are_reported(
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


def test_t4_passes_and_tokens_are_only_in_private_files(
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
        "is not private to this account"
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
        "read go; i=0; while [ $i -lt 60000 ]; do i=$((i+1)); echo line $i; done; echo DONE; "
        "read end",
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


@pytest.mark.smoke
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


def test_a5_a_revoked_operator_is_cut_off_also_at_the_relay(
    here: Installation, there: Installation
) -> None:
    link = there.ok("invite", "--rights", "read", "--no-wait", "--json").records[0]["url"]
    here.ok("join", link, "--as", "zoe")
    here.ok("--as", "zoe", "view", "box/work")
    there.ok("operator", "revoke", "zoe")
    assert the_error(here.attempt("--as", "zoe", "view", "box/work", "--json"), 4)["message"]


def test_t4_the_relay_cannot_read_passing_data(
    here: Installation, there: Installation, relay: Crooked
) -> None:
    relay.seen.clear()
    here.ok("run", "box/work", "--", "echo a-very-secret-word")
    carried = b"".join(frame.payload for _, _, frame in relay.seen if isinstance(frame, outer.Data))
    assert len(carried) > 500
    for word in (b"a-very-secret-word", b"work", b"ann", b"run", b"holdfast", b"ed25519"):
        assert word not in carried


def test_attach_without_a_name_returns_to_another_machine(
    here: Installation, there: Installation
) -> None:
    here.ready("near", "--", "bash")
    assert attached(here, "near").leave() == 0
    there.new("far", "--", "bash")
    assert attached(here, "box/far").leave() == 0
    again = here.attach()
    again.see("$")
    assert again.leave() == 0 and b"attached to far" in again.output
    there.end("far")
    near = here.attach()  # the remote session is gone
    near.see("$")
    assert near.leave() == 0 and b"attached to near" in near.output
