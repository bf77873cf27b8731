"""R6, R7, A9: whatever is lost and recovered, no act takes effect twice.

Each act appends its own word to a file that no recovery rolls back. Faults come at random moments
of an act. The client then asks again with the act's key, as the documentation advises.
"""

from __future__ import annotations

import os
import random
import select
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast import home as homes
from holdfast.client.link import Link
from tests.support.installation import Installation, eventually, installation
from tests.support.recovery.checkpoint import criu

ROUNDS = 15
SPAN_S = 0.4  # the longest act; a fault comes within the same time
NAME = "ledger"
COMMAND = ("command", "intent")


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    criu()
    with installation(tmp_path_factory.mktemp("replay")) as made:
        yield made


def runs(hf: Installation) -> bool:
    return hf.get(NAME)["state"] in ("live", "detached")


def checkpoints(hf: Installation) -> object:
    return hf.ok("checkpoint", NAME, "--list", "--json").json


def kill_host(hf: Installation) -> None:
    os.kill(hf.host_pid, signal.SIGKILL)
    hf.ok("up", "--detach")


def kill_keeper(hf: Installation) -> None:
    """The memory is lost; without a checkpoint the session comes back at once."""
    epoch = hf.get(NAME)["epoch"]
    os.kill(hf.get(NAME)["keeper"], signal.SIGKILL)
    if checkpoints(hf):
        eventually(lambda: not runs(hf) or None, "the loss to be seen")
        hf.ok("restore", NAME)
    eventually(lambda: (runs(hf) and hf.get(NAME)["epoch"] > epoch) or None, "the next incarnation")


def cut_power(hf: Installation) -> None:
    keeper = hf.get(NAME)["keeper"]
    os.kill(hf.host_pid, signal.SIGKILL)
    os.kill(keeper, signal.SIGKILL)
    hf.ok("up", "--detach")
    if not runs(hf):
        hf.attempt("restore", NAME)
    eventually(lambda: runs(hf) or None, "the next incarnation")


def evict(hf: Installation) -> None:
    """The act goes on in the restored session, from the middle."""
    hf.ok("checkpoint", NAME, "--stop")
    hf.ok("restore", NAME)


def fork(hf: Installation) -> None:
    """The branch goes on with its own copy of the act, and of the file."""
    [branch] = hf.ok("fork", NAME, "--json").json["branches"]
    hf.ok("discard", branch["id"])


FAULTS: tuple[Callable[[Installation], None], ...] = (
    kill_host,
    kill_keeper,
    cut_power,
    evict,
    fork,
)


def test_r6_no_recovery_runs_an_act_again(hf: Installation) -> None:
    rng = random.Random(6)
    hf.ready(NAME, "--contained")
    file, codes = hf.user / "file", dict[str, set[int]]()
    file.touch()
    for number in range(ROUNDS):
        fault = FAULTS[number % len(FAULTS)]
        word = f"{number}-{fault.__name__}"
        wait_s = rng.uniform(0, SPAN_S)
        act = ("run", NAME, "--once", word, "--", f"sleep {wait_s:.3f}; echo {word} >> {file}")
        hf.quick("wait", NAME, "--for", "idle")
        # A second restore of a checkpoint lets an act that it caught in the middle end twice: the
        # test below expects that, and that it is said.
        if fault in (kill_keeper, cut_power) and (rng.random() < 0.5 or checkpoints(hf)):
            hf.ok("checkpoint", NAME)
        first = hf.start(*act)
        select.select([], [], [], rng.uniform(0, SPAN_S))
        fault(hf)
        first.wait()
        codes[word] = {first.returncode, hf.attempt(*act).rc}
    hf.quick("wait", NAME, "--for", "idle")
    counts = Counter(file.read_text().split())
    assert counts.keys() <= codes.keys()
    assert not {word: count for word, count in counts.items() if count > 1}, (counts, codes)
    assert not {word for word, known in codes.items() if 0 in known and not counts[word]}, codes
    assert sum(0 in known for known in codes.values()) > ROUNDS / 2, codes


def test_r6_r7_acts_in_flight_at_a_checkpoint_and_later_ones_are_named(hf: Installation) -> None:
    """The act ends twice: its memory goes on from the middle. That is no replay, and is said."""
    made = hf.ready("middle", "--contained")
    file, go = hf.user / "twice", hf.user / "go"
    run = ("run", "middle", "--")
    wait = f"until [ -e {go} ]; do read -rt 0.1; done; echo x >> {file}"
    act = hf.start(*run, f"echo begun; {wait}")
    eventually(lambda: "begun" in hf.screen("middle") or None, "the act")
    hf.ok("checkpoint", "middle")
    go.touch()
    assert act.wait() == 0
    hf.ok(*run, f"echo later >> {file}")
    os.kill(hf.get("middle")["keeper"], signal.SIGKILL)
    eventually(lambda: hf.get("middle")["state"] not in ("live", "detached") or None, "the loss")
    said = hf.ok("restore", "middle", "--json").json
    hf.wait("middle", "idle")
    assert sorted(file.read_text().split()) == ["later", "x", "x"]
    log = {one["seq"]: one for one in hf.ok("log", "middle", "--json").records}
    commands = [seq for seq, one in log.items() if (one["kind"], one["phase"]) == COMMAND]
    numbers = [
        one["facts"]["act"]
        for seq in commands
        for one in log.values()
        if (one["phase"], one["intent"]) == ("outcome", seq)
    ]
    acts = [
        {"act": f"hf:{made['id']}@1#{number}", "actor": "tester", "kind": "command"}
        for number in numbers
    ]
    assert hf.ok("resolve", acts[1]["act"], "--json").json["exit_code"] == 0
    assert (said["in_flight"], said["later"], said["later_more"]) == (acts[:1], acts[1:], 0)
    [told] = [one for one in log.values() if one["kind"] == "restored"]
    assert (told["facts"]["in_flight"], told["facts"]["later"]) == (acts[:1], acts[1:])
    [event] = [
        one
        for one in hf.ask("events", session="middle", limit=1000)["events"]
        if one["event"] == "session.restored"
    ]
    assert (event["in_flight"], event["later"]) == ([acts[0]["act"]], [acts[1]["act"]])
    # And in words: the memory of the same checkpoint once more, with its act in the middle.
    os.kill(hf.get("middle")["keeper"], signal.SIGKILL)
    eventually(lambda: hf.get("middle")["state"] not in ("live", "detached") or None, "the loss")
    text = hf.ok("restore", "middle").out
    assert f"in flight then: {acts[0]['act']} (command of tester): goes on from the middle" in text
    assert f"later acts: {acts[1]['act']} (command of tester): came after" in text
    # Nothing comes twice of an act that a stop caught in the middle.
    hf.wait("middle", "idle")
    go.unlink()
    hf.start(*run, f"clear; echo begun; {wait}")
    eventually(lambda: hf.screen("middle").startswith("begun") or None, "the act")
    hf.ok("checkpoint", "middle", "--stop")
    said = hf.ok("restore", "middle", "--json").json
    assert (said["in_flight"], said["later"]) == ([], [])


def test_r6_a_client_repeats_an_act_that_came_after_the_checkpoint(hf: Installation) -> None:
    """The client had no answer when keeper and host died."""
    hf.ready("repeats", "--contained")
    file = hf.user / "repeated"
    link = Link(homes.resolve(hf.env), "tester", autostart=False)
    try:
        typed: dict[str, Any] = {"session": "repeats", "text": f"echo x >> {file}\n"}
        link.request("send", **{**typed, "text": "true\n"}, seq=1)
        hf.wait("repeats", "idle")
        hf.ok("checkpoint", "repeats")
        link.request("send", **typed, seq=2)
        eventually(lambda: file.exists() or None, "the act")
        keeper = hf.get("repeats")["keeper"]
        os.kill(hf.host_pid, signal.SIGKILL)
        os.kill(keeper, signal.SIGKILL)
        hf.ok("restore", "repeats")
        link.close()
        link.request("send", **typed, seq=2)
        hf.ok("run", "repeats", "--", "true")
        assert file.read_text() == "x\n"
        link.request("send", **typed, seq=3)
        eventually(lambda: file.read_text() == "x\nx\n" or None, "a new act")
    finally:
        link.close()


def every(hf: Installation) -> list[dict[str, Any]]:
    return [one for one in hf.ok("ls", "--all", "--json").json if one["name"] == "twice"]


def test_r1_two_restores_of_a_lost_session_begin_one_incarnation(hf: Installation) -> None:
    hf.ready("twice")
    for epoch in (1, 2):  # the second loss within a minute is final until `restore`
        eventually(lambda e=epoch: hf.get("twice")["epoch"] == e or None, "the incarnation")  # type: ignore[misc]
        hf.wait("twice", "idle")
        os.kill(hf.get("twice")["keeper"], signal.SIGKILL)
    session = eventually(
        lambda: next((one for one in every(hf) if one["state"] == "ended"), None),
        "the end of the session",
    )
    both = [hf.start("restore", "twice") for _ in range(2)]
    said = [one.communicate() for one in both]
    assert sorted(one.returncode for one in both) == [0, 4], said
    found = hf.get("twice")
    assert (found["id"], found["epoch"]) == (session["id"], 3)
    assert hf.ok("run", "twice", "--", "echo here").out == "here\n"
