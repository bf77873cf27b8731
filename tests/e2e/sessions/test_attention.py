"""`attention`: who waits for somebody is told to those who asked, and nothing is done while nobody asks (S2)."""

from __future__ import annotations

import json
import os
import queue
import select
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.harness import DEADLINE_S, Installation, eventually, installation, state_of
from tests.e2e.test_commands import the_error
from tests.hostile.wire import Wire
from tests.keeper.test_idle import switches

from holdfast.testing.crooked import Crooked
from holdfast.wire import frames


class Follower:
    """`holdfast attention --follow --json` beside the test."""

    def __init__(self, hf: Installation, *args: str) -> None:
        self.process = hf.start("attention", *args, "--follow", "--json")
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(json.loads(line))
        self._lines.put(None)

    def next(self) -> dict[str, Any]:
        found = self._lines.get(timeout=DEADLINE_S)
        assert found is not None, self.process.communicate()
        return found

    def until(self, kind: str, **facts: Any) -> dict[str, Any]:
        while True:
            found = self.next()
            if found["kind"] == kind and facts.items() <= found.items():
                return found

    def ends(self) -> int:
        while self._lines.get(timeout=DEADLINE_S) is not None:
            pass
        return self.process.wait(DEADLINE_S)


def now(hf: Installation, *args: str) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in hf.ok("attention", *args, "--json").records}


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home")) as made:
        made.people("ann")
        yield made


def test_s2_each_state_is_told_with_who_and_since_when(hf: Installation) -> None:
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
        eventually(lambda: now(hf)["work"]["pid"], "it to be seen who reads")
        == hf.get("work")["pid"]
        and now(hf)["work"]["kind"] == "secret"
    )
    assert "work: waits for a secret (bash, since" in hf.ok("attention").out
    hf.ok("send", "work", "hunter2", "--enter")
    follower.until("idle")
    gate = hf.gate("gate")
    hf.ok("send", "work", f"cat {gate}; cat", "--enter")
    working = follower.until("working")
    assert working["foreground"] == f"cat {gate}" and state_of(working["pid"]) == "S"
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
    assert "play" not in now(hf), "who asks about none by name is told of those that live"


def test_s2_sessions_that_come_and_go_are_told_to_who_asked_for_all(hf: Installation) -> None:
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


def test_s4_following_goes_on_over_the_hosts_death_and_what_is_the_same_is_not_told_again(
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
    ), "nothing of what is as it was"
    hf.end("same", "other")
    assert follower.ends() == 0


def test_s4_what_ended_while_there_was_no_host_is_told_to_who_follows_all(hf: Installation) -> None:
    hf.ready("old")
    hf.end("old")
    hf.ready("ends")
    root = hf.get("ends")["pid"]
    follower = Follower(hf)
    follower.until("idle", name="ends")
    follower.process.send_signal(
        signal.SIGSTOP
    )  # it comes back when the next host knows all about it already
    os.kill(hf.host_pid, signal.SIGKILL)
    os.kill(root, signal.SIGKILL)
    eventually(
        lambda: not any(one["name"] == "ends" for one in hf.ls()),
        "the next host to know that it ended",
    )
    follower.process.send_signal(signal.SIGCONT)
    assert follower.until("exited")["name"] == "ends", "and nothing of what was over when it began"
    follower.process.send_signal(signal.SIGINT)
    assert follower.ends() == 130


def test_s2_a_keeper_that_does_not_answer_is_unknown_not_what_it_was(hf: Installation) -> None:
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


def test_nothing_is_looked_at_when_nobody_asks(hf: Installation) -> None:
    """Every look wakes the keeper: its terminal is asked for. So it says whether there were any."""
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
        select.select([], [], [], 0.5)
        return switches(keeper) == before

    eventually(at_rest, "the keeper to be at rest")
    before = switches(keeper)
    select.select([], [], [], 2.0)  # time itself is what is tested
    assert switches(keeper) == before
    hf.end("quiet")


def test_a5_who_may_not_observe_is_told_nothing_and_who_may_not_any_more_is_cut_off(
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
    assert all_of_it.next()["name"] == "open", "what may be seen from now on"
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
    assert named.ends() == 4, "a right that ends ends what goes on under it"
    hf.people("third", rights="")
    hf.ok("grant", "third", "--rights", "observe", "--session", "open", "--expires", "4s")
    all_of_it = Follower(hf, "--as", "third")
    assert (
        all_of_it.until("idle", name="open")
        and "may not observe" in all_of_it.until("unknown", name="open")["why"]
    )
    hf.end("open", "closed")


def test_a_reader_that_does_not_read_gets_the_newest_and_costs_nobody(hf: Installation) -> None:
    """Its socket is full; meanwhile the states go to and fro."""
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


def test_what_cannot_be_asked_is_said(hf: Installation) -> None:
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
