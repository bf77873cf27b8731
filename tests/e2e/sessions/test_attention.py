"""`attention`: waiting sessions are reported to subscribers; no subscriber, no work (S2)."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.wire import frames
from tests.support.commands.followers import Follower
from tests.support.commands.results import the_error
from tests.support.installation import DEADLINE_S, Installation, eventually, installation, state_of
from tests.support.kernel import switches
from tests.support.peers.hostile_client import Wire
from tests.support.simulation.crooked_carrier import Crooked


def now(hf: Installation, *args: str) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in hf.ok("attention", *args, "--json").records}


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home")) as made:
        made.people("ann")
        yield made


def test_s2_each_state_is_reported_with_its_process_and_time(hf: Installation) -> None:
    hf.ready("work")
    follower = Follower(hf, "work")
    first = follower.next()
    assert (
        first["kind"] == "idle"
        and first["name"] == "work"
        and first["session"] == hf.get("work")["id"]
        and first["when"]
    )
    hf.ok("send", "work", "read -s -p Password: pw", "--enter")
    assert follower.until("secret")["pid"] in (None, hf.get("work")["pid"])
    assert (
        eventually(lambda: now(hf)["work"]["pid"], "the reading process to be seen")
        == hf.get("work")["pid"]
        and now(hf)["work"]["kind"] == "secret"
    )
    assert "work: waits for a secret (bash, since" in hf.ok("attention").out
    hf.ok("send", "work", "hunter2", "--enter")
    follower.until("idle")
    gate = hf.gate("gate")
    hf.ok("send", "work", f"cat {gate}; cat", "--enter")
    follower.until("working")  # the shell's child may still be the shell here
    eventually(lambda: now(hf)["work"]["foreground"] == f"cat {gate}", "cat to run")
    working = now(hf)["work"]
    eventually(lambda: state_of(working["pid"]) == "S", "cat to wait")
    hf.ok("halt", "work")
    assert follower.until("halted")["foreground"] == f"cat {gate}"
    assert "work: halted" in hf.ok("attention", "work").out
    hf.ok("resume", "work")
    follower.until("working")
    gate.open()
    waits = follower.until("input")
    assert (
        waits["foreground"] == "cat"
        and waits["pid"] != working["pid"]
        and waits["since"] >= working["since"]
    )
    hf.ok("rename", "work", "play")
    assert follower.next()["name"] == "play"
    hf.ok("send", "play", "--key", "C-d")
    follower.until("idle")
    hf.ok("send", "play", "exit 5", "--enter")
    assert follower.until("exited")["exit_code"] == 5
    assert follower.ends() == 0, "all that it was asked about is over"
    assert (
        now(hf, "play")["play"]["exit_code"] == 5
        and "play: exited with 5" in hf.ok("attention", "play").out
    )
    assert "play" not in now(hf), "a follower without names is told of live sessions"


def test_s2_new_and_ended_sessions_are_reported_to_followers_of_all(hf: Installation) -> None:
    follower = Follower(hf)
    hf.under_way("attention", 1)
    hf.ready("comes")
    follower.until("idle", name="comes")
    os.kill(hf.get("comes")["pid"], signal.SIGKILL)
    died = follower.until("exited", name="comes")
    assert died["why"] == "killed by SIGKILL" and died["exit_code"] == 137
    hf.new("brief", "--", "sh", "-c", "exit 9")
    assert follower.until("exited", name="brief")["exit_code"] == 9
    hf.ready("lost")
    follower.until("idle", name="lost")
    os.kill(hf.get("lost")["keeper"], signal.SIGKILL)
    assert "keeper died" in follower.until("lost", name="lost")["why"]
    follower.process.send_signal(signal.SIGINT)
    assert follower.ends() == 130


def test_s4_following_survives_the_hosts_death_without_repeating_known_states(
    hf: Installation,
) -> None:
    hf.ready("same")
    hf.ready("other")
    follower = Follower(hf, "same", "other")
    assert {follower.next()["name"], follower.next()["name"]} == {"same", "other"}
    os.kill(hf.host_pid, signal.SIGKILL)
    hf.ls()
    hf.under_way("attention", 1)
    hf.ok("send", "other", "cat", "--enter")
    assert (found := follower.next())["name"] == "other" and found["kind"] in (
        "working",
        "input",
    ), "unchanged states are not repeated"
    hf.end("same", "other")
    assert follower.ends() == 0


def test_s4_sessions_that_ended_without_a_host_are_reported_to_followers_of_all(
    hf: Installation,
) -> None:
    hf.ready("old")
    hf.end("old")
    hf.ready("ends")
    root = hf.get("ends")["pid"]
    follower = Follower(hf)
    follower.until("idle", name="ends")
    follower.process.send_signal(
        signal.SIGSTOP
    )  # it returns when the next host already knows the state
    os.kill(hf.host_pid, signal.SIGKILL)
    os.kill(root, signal.SIGKILL)
    eventually(
        lambda: not any(one["name"] == "ends" for one in hf.ls()),
        "the next host to know that it ended",
    )
    follower.process.send_signal(signal.SIGCONT)
    assert follower.until("exited")["name"] == "ends", "and not of sessions that were over before"
    follower.process.send_signal(signal.SIGINT)
    assert follower.ends() == 130


def test_s2_a_keeper_that_does_not_answer_is_unknown_not_its_last_state(hf: Installation) -> None:
    hf.ready("still")
    follower = Follower(hf, "still")
    follower.until("idle")
    keeper = hf.get("still")["keeper"]
    os.kill(keeper, signal.SIGSTOP)
    try:
        assert "does not answer" in follower.until("unknown")["why"]
        assert now(hf, "still")["still"]["kind"] == "unknown"
    finally:
        os.kill(keeper, signal.SIGCONT)
    follower.until("idle")
    hf.end("still")


def test_without_followers_there_are_no_looks(hf: Installation) -> None:
    """Every check wakes the keeper for its terminal, so the keeper's counters show any check."""
    hf.ready("quiet")
    keeper = hf.get("quiet")["keeper"]
    follower = Follower(hf, "quiet")
    follower.until("idle")
    before = switches(keeper)
    eventually(lambda: switches(keeper) > before + 3, "it to be looked at, again and again")
    follower.process.kill()
    eventually(
        lambda: not hf.ask("stats")["under_way"].get("attention"), "the host to know that it went"
    )

    def at_rest() -> bool:
        before = switches(keeper)
        select.select([], [], [], 1.5)  # the screen is kept after a second without output
        return switches(keeper) == before

    eventually(at_rest, "the keeper to be at rest")
    before = switches(keeper)
    select.select([], [], [], 2.0)  # time itself is tested
    assert switches(keeper) == before
    hf.end("quiet")


def test_a5_following_needs_the_right_to_observe_and_ends_with_it(
    hf: Installation,
) -> None:
    hf.people("guest", rights="")
    hf.ready("open")
    hf.ready("closed")
    assert now(hf, "--as", "guest") == {}
    the_error(hf.attempt("attention", "open", "--as", "guest", "--json"), 4)
    all_of_it = Follower(hf, "--as", "guest")
    hf.under_way("attention", 1)
    grant = hf.ok("grant", "guest", "--rights", "observe", "--session", "open", "--json").json
    assert all_of_it.next()["name"] == "open", "newly visible sessions"
    named = Follower(hf, "open", "--as", "guest")
    assert named.next()["kind"] == "idle"
    assert set(now(hf, "--as", "guest")) == {"open"}
    the_error(hf.attempt("attention", "open", "closed", "--as", "guest", "--json"), 4)
    hf.ok("operator", "revoke", "guest")
    assert all_of_it.ends() == 4 and named.ends() == 4 and grant
    hf.people("second", rights="")
    hf.ok("grant", "second", "--rights", "observe", "--session", "open", "--expires", "4s")
    named = Follower(hf, "open", "--as", "second")
    assert named.next()["kind"] == "idle"
    assert named.ends() == 4, "the end of a right ends the following"
    hf.people("third", rights="")
    hf.ok("grant", "third", "--rights", "observe", "--session", "open", "--expires", "4s")
    all_of_it = Follower(hf, "--as", "third")
    assert (
        all_of_it.until("idle", name="open")
        and "may not observe" in all_of_it.until("unknown", name="open")["why"]
    )
    hf.end("open", "closed")


def test_a_stalled_reader_gets_the_newest_state_and_delays_no_other(hf: Installation) -> None:
    """The reader's socket is full; meanwhile the states alternate."""
    hf.ready("busy")
    slow, quick = Wire(hf, "ann", 91), Follower(hf, "busy")
    slow.say(frames.request(1, {"op": "attention", "sessions": ["busy"], "follow": True}))
    hf.under_way("attention", 2)
    for _ in range(400):  # each is an answer of some ten kilobytes that it does not read
        slow.say(frames.request(_ + 2, {"op": "operator.ls"}))
        slow.say(frames.request(_ + 1002, {"op": "events", "limit": 200}))
    quick.until("idle")
    for _ in range(5):
        hf.ok("send", "busy", "cat", "--enter")
        quick.until("input")
        hf.ok("send", "busy", "--key", "C-d")
        quick.until("idle")
    hf.ok("send", "busy", "read -s pw", "--enter")
    quick.until("secret")
    seen: list[str] = []
    while not seen or seen[-1] != "secret":
        seen.append(slow.until("attention")["body"]["kind"])
    assert len(seen) < 12
    slow.close()
    hf.end("busy")


def test_invalid_requests_for_attention_are_errors(hf: Installation) -> None:
    the_error(hf.attempt("attention", "nothere", "--json"), 3)
    the_error(hf.attempt("attention", "a/b", "c/d", "--json"), 2)
    the_error(hf.attempt("attention", "a/b", "d", "--json"), 2)
    the_error(hf.attempt("attention", "nomachine/x", "--json"), 3)
    for odd in ([1], [None], [["x"]], ["x"] * 5000):
        ann = Wire(hf, "ann", 92)
        with pytest.raises(Exception, match="list of names"):
            ann.request("attention", sessions=odd)
        ann.close()


def test_t3_from_elsewhere_through_a_relay(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    relay = Crooked()
    try:
        with (
            installation(tmp_path_factory.mktemp("there")) as there,
            installation(tmp_path_factory.mktemp("here")) as here,
        ):
            there.ready("work")
            there.ok("host", "connect", relay.url)
            link = there.ok("invite", "--rights", "admin", "--no-wait", "--json").records[0]["url"]
            here.ok(
                "machines",
                "rename",
                here.ok("join", link, "--as", "ann", "--json").json["as"],
                "box",
            )
            assert now(here, "box/")["work"]["kind"] == "idle"
            follower = Follower(here, "box/work")
            follower.until("idle")
            waiter = here.start("wait", "box/work", "--for", "secret", "--for", "exit", "--json")
            there.under_way("wait", 1)
            relay.cut_all()
            there.under_way("attention", 1)
            here.ok("send", "box/work", "read -s pw", "--enter")
            follower.until("secret")
            out, err = waiter.communicate(timeout=DEADLINE_S)
            assert json.loads(out)["for"] == "secret", err
            here.ok("send", "box/work", "", "--enter")
            here.ok("send", "box/work", "exit 3", "--enter")
            assert follower.until("exited")["exit_code"] == 3
            assert follower.ends() == 0
    finally:
        relay.close()


def test_help_has_an_example_and_completion_knows_sessions(hf: Installation) -> None:
    said = subprocess.run(
        [*hf.argv(("attention", "--help"))], capture_output=True, text=True, env=hf.env, check=True
    ).stdout
    assert "holdfast attention --follow" in said
    script = hf.ok("completion", "bash").out
    assert "attention:[0-9]*) what='sessions'" in script and "signal:2) what='=TERM KILL" in script
