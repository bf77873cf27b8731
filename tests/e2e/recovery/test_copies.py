"""Checkpoints are kept on another machine, which takes the session over when this one is lost.

Each machine has namespaces of its own; the tests need root and CRIU (scripts/criu).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.installation import DEADLINE_S, eventually
from tests.support.recovery.checkpoint import criu
from tests.support.recovery.two_machines import Machine, Two, two_machines


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    criu()
    with two_machines(tmp_path_factory.mktemp("two")) as made:
        yield made


def shell(machine: Machine, name: str) -> dict[str, Any]:
    """A contained session with a variable, a file of its own and a file in the workspace."""
    (machine.base / "work" / name).mkdir()
    cwd = str(machine.work / name)
    made: dict[str, Any] = machine.ok(
        "new", name, "--contained", "--no-attach", "--json", "--cwd", cwd
    ).json
    machine.says(name, "X=kept; echo own > ~/own; echo shared > shared; sleep 1000 & true")
    return made


def copied(machine: Machine, name: str) -> dict[str, Any]:
    saved = machine.ok("checkpoint", name, "--to", "vault", "--json").json["saved"]
    [sent] = saved["copies"]
    assert "failed" not in sent, sent
    return {**sent, "id": saved["id"]}


def events(machine: Machine, session: str, name: str) -> list[dict[str, Any]]:
    lines = machine.ok("events", session, "--json").out.splitlines()
    return [one for one in map(json.loads, lines) if one["event"] == name]


def test_r2_a_second_copy_sends_what_has_changed(two: Two) -> None:
    shell(two.here, "second")
    first = copied(two.here, "second")
    assert first["machine"] == "vault" and first["sent"] >= first["bytes"] > 100_000
    again = copied(two.here, "second")
    assert again["sent"] < again["bytes"] / 2
    kept = two.there.ok("checkpoint", "--list", "--json").json
    assert [one["kept_for"] for one in kept if one["id"] == first["id"]] == ["desk", "desk"]
    listed = two.here.ok("checkpoint", "second", "--list", "--json").json
    assert [[one["machine"] for one in c["copies"]] for c in listed] == [[], ["vault"]]
    assert two.here.says("second", "echo $X") == "kept\n"


def test_a5_a_machine_needs_the_operators_trust(two: Two) -> None:
    shell(two.there, "stays")
    refused = two.there.cli("checkpoint", "stays", "--to", "desk")
    assert refused.rc == 3 and "no machine 'desk' is known here" in refused.err
    assert two.there.ok("checkpoint", "stays", "--list", "--json").json == []
    known = two.there.ok("operator", "ls", "--json").json
    [courier] = [one for one in known if one["name"] == "desk"]
    assert courier["kind"] == "service"
    assert [e["rights"] for e in courier["envelopes"]] == [["store"]]


def test_r2_what_the_other_machine_lacks_is_refused_before_anything_stops(two: Two) -> None:
    shell(two.here, "lacks")
    two.there.mount("/usr/bin/true", over="/usr/bin/sleep")
    try:
        refused = two.here.cli("checkpoint", "lacks", "--to", "vault")
        assert refused.rc == 7 and "/usr/bin/sleep is another version here" in refused.err
        assert two.here.ok("checkpoint", "lacks", "--list", "--json").json == []
        checked = two.here.cli("checkpoint", "lacks", "--to", "vault", "--check")
        assert checked.rc == 7 and "lacks can be saved" in checked.out
        assert "vault says:\n  /usr/bin/sleep is another version here" in checked.out
        listed = two.here.cli("checkpoint", "lacks", "--to", "vault", "--check", "--json")
        there = listed.json["there"]
        assert there["machine"] == "vault" and there["possible"] is False and there["reasons"]
    finally:
        two.there.unmount("/usr/bin/sleep")
    said = two.here.ok("checkpoint", "lacks", "--to", "vault", "--check").out
    assert "vault could go on with it: processor, kernel" in said
    assert copied(two.here, "lacks")["checkpoint"]
    two.here.cut()
    try:
        checked = two.here.cli("checkpoint", "lacks", "--to", "vault", "--check")
        assert checked.rc == 5 and "could go on with it is not known: " in checked.out
    finally:
        two.here.join()


def test_r2_a_cut_transfer_goes_on_where_it_was(two: Two) -> None:
    here = two.here
    shell(here, "cut")
    here.says("cut", "head -c 6000000 /dev/urandom > big")
    here.slow("20mbit")
    sending = here.start("checkpoint", "cut", "--to", "vault", "--json")
    parts = two.there.home / "copies"
    eventually(
        lambda: sum(p.stat().st_size for p in parts.glob("*/parts/*")) > 1_000_000, "some bytes"
    )
    here.cut()
    here.join()
    out, err = sending.communicate(timeout=120)
    assert sending.returncode == 0, err
    [sent] = json.loads(out)["saved"]["copies"]
    assert "failed" not in sent and sent["sent"] < 2 * sent["bytes"]


def test_r2_a_copy_that_cannot_be_sent_leaves_the_checkpoint_here(two: Two) -> None:
    made = shell(two.here, "offline")
    two.there.ok("down")
    tried = two.here.cli("checkpoint", "offline", "--to", "vault")
    assert tried.rc == 5 and "the checkpoint here stays" in tried.err, tried
    assert len(two.here.ok("checkpoint", "offline", "--list", "--json").json) == 1
    assert events(two.here, made["id"], "session.copy_failed")
    two.there.ok("up", "--detach")
    eventually(lambda: events(two.here, made["id"], "session.copied") or None, "the next try")
    assert two.here.says("offline", "echo $X") == "kept\n"


def test_r2_a_schedule_sends_copies_also_after_a_restart_of_the_host(two: Two) -> None:
    made = shell(two.here, "often")
    said = two.here.ok("checkpoint", "often", "--every", "10s", "--to", "vault", "--json").json
    assert said["every_s"] == 10 and said["to"] == "vault"
    eventually(lambda: events(two.here, made["id"], "session.copied") or None, "a copy")
    two.here.ok("down")
    two.here.ok("up", "--detach")
    eventually(lambda: len(events(two.here, made["id"], "session.copied")) > 1 or None, "another")
    two.here.ok("checkpoint", "often", "--every", "off")


SAVE_FIRST = """version = 1
extends = "default"
[[rule]]
name = "save first"
verdict = "checkpoint"
because = "it may have to be taken back"
when = { command = ["touch risky"] }
"""


def test_r2_a_checkpoint_before_a_risky_act_goes_to_the_other_machine(two: Two) -> None:
    here = two.here
    made = shell(here, "risky")
    here.ok("checkpoint", "risky", "--every", "1h", "--to", "vault")
    eventually(lambda: events(here, made["id"], "session.copied") or None, "the first copy")
    (here.home / "policy.toml").write_text(SAVE_FIRST)
    try:
        here.says("risky", "touch risky")
    finally:
        (here.home / "policy.toml").unlink()
    [saved] = events(here, made["id"], "session.saved")
    eventually(
        lambda: (
            saved["checkpoint"]
            in [one["checkpoint"] for one in events(here, made["id"], "session.copied")]
            or None
        ),
        "the copy of the checkpoint before the act",
    )


def test_r3_the_old_machine_hears_of_a_takeover_by_itself(two: Two) -> None:
    """Both machines are alive and joined, and no lease stops the old incarnation."""
    here, there = two.here, two.there
    made = shell(here, "both")
    copied(here, "both")
    said = there.ok("restore", made["id"], "--lost", "--json").json
    assert said["taken_from"] and said["unfenced"] is True
    assert said["epoch"] == 100

    def moved() -> bool:
        return any(
            one["id"] == made["id"] and one["state"] == "moved"
            for one in here.ls("--all", "--local")
        )

    assert DEADLINE_S < 300.0  # less than the host once waited between two questions
    eventually(lambda: moved() or None, "the end of the old incarnation")
    assert "kept" in there.says("both", "echo $X")


def test_r3_the_next_host_finishes_a_takeover(two: Two) -> None:
    here, there = two.here, two.there
    made = shell(here, "finished")
    here.says("finished", "echo on the screen")
    copied(here, "finished")
    there.ok("down")
    there.ok("up", "--detach", env={"HOLDFAST_PROBE": "kill@host.create.spawned"})
    there.cli("restore", made["id"], "--lost")
    eventually(lambda: not there.here("holdfast.host.main") or None, "the death of the host")
    there.ok("up", "--detach")
    assert "on the screen" in there.ok("view", "finished").out
    assert there.says("finished", "echo $X") == "kept\n"
    [taken] = events(there, made["id"], "session.taken_over")
    assert (taken["from"], taken["epoch"], taken["lost"]) == ("desk", 100, True)
    [back] = events(there, made["id"], "session.restored")
    assert back["operator"] and back["epoch"] == 100
    log = there.ok("log", made["id"], "--json").records
    assert [one["kind"] for one in log].count("taken_over") == 1
    assert there.ok("log", "verify", made["id"]).rc == 0
    kept = there.ok("checkpoint", "--list", "--json").json
    assert made["id"] not in [one["id"] for one in kept if one.get("kept_for")]
    there.ok("end", "finished")


def test_r2_without_a_copy_nothing_of_a_lost_session_returns(two: Two) -> None:
    made = shell(two.here, "uncopied")
    for word in (made["id"], "uncopied"):
        refused = two.there.cli("restore", word, "--lost")
        assert refused.rc == 3, refused
        assert f"nothing of {word} can return on this machine" in refused.err
        assert "another machine may have one" in refused.err


def test_r3_a_refused_copy_tells_that_the_session_was_taken_over(two: Two) -> None:
    """The lost machine was only cut off: its next copy is refused, and it asks at once."""
    here, there = two.here, two.there
    made = shell(here, "alive")
    copied(here, "alive")
    back = there.ok("restore", "alive", "--lost")
    assert f"are now in {there.home}/arrived/{made['id']}/" in back.out
    refused = here.cli("checkpoint", "alive", "--to", "vault")
    # vault refuses it, or the host has asked already and ends the session meanwhile.
    said = ("runs here", "goes on at vault", "could not be saved")
    assert any(one in refused.err for one in said), refused
    eventually(lambda: here.get(made["id"])["state"] == "moved" or None, "the end of the old one")
    ended = here.cli("end", "alive")
    assert ended.rc == 3 and "name it as vault/alive" in ended.err, ended
    assert "alive went to vault as incarnation 100" in here.ok("lease", "show", "alive").out
    assert "session alive is here, and" not in there.cli("restore", "alive").err
    there.ok("end", "alive")


def test_r9_a_drain_to_an_unknown_machine_does_not_begin(two: Two) -> None:
    refused = two.here.cli("drain", "--to", "nowhere")
    assert refused.rc == 3 and "no machine 'nowhere' is known here" in refused.err, refused
    shell(two.here, "admitted")
    two.here.ok("end", "admitted")


def test_r3_a_lost_machine_is_replaced_and_fenced_when_it_returns(two: Two) -> None:
    here, there = two.here, two.there
    made = shell(here, "lost")
    copied(here, "lost")
    here.says("lost", "X=later")
    refused = there.cli("restore", "lost")
    assert refused.rc == 4 and "--lost" in refused.err and "desk" in refused.err
    here.power_off()
    shown = there.ok("lease", "show", "lost").out
    assert "is a session of desk; this machine has its copy of" in shown
    assert "only if desk is gone for good: `holdfast restore lost --lost`" in shown
    known = there.ok("lease", "show", "lost", "--json").json
    assert known["elsewhere"]["state"] == "copied" and known["there"] is None
    back = there.ok("restore", "lost", "--lost", "--json").json
    assert back["id"] == made["id"] and back["epoch"] > made["epoch"]
    assert back["taken_from"] == "desk" and back["act"] == 1
    assert there.says("lost", "echo $X; cat ~/own shared; jobs -p | wc -l") == (
        "kept\nown\nshared\n1\n"
    )
    [taken] = events(there, made["id"], "session.taken_over")
    assert taken["lost"] and taken["from"] == "desk" and taken["head"]
    assert len(events(there, made["id"], "session.restored")) == 1
    here.boot()
    here.ok("up", "--detach")

    def fenced() -> bool:
        return bool(here.get(made["id"])["state"] == "moved")

    eventually(lambda: fenced() or None, "the end of the old incarnation")
    again = here.cli("restore", "lost")
    assert again.rc == 4 and "goes on at vault" in again.err
    assert events(here, made["id"], "session.moved")
    shown = here.ok("lease", "show", "lost").out
    assert "lost went to vault as incarnation" in shown and "vault says:" in shown
    assert there.says("lost", "echo $X") == "kept\n"
