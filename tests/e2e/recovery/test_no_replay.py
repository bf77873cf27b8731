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
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.installation import Installation, eventually, installation
from tests.support.recovery.checkpoint import criu

ROUNDS = 15
SPAN_S = 0.4  # the longest act; a fault comes within the same time
NAME = "ledger"


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
        # A second restore of a checkpoint would let an act that it caught in the middle end twice.
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
    with ThreadPoolExecutor(2) as pool:
        done = [*pool.map(lambda _: hf.attempt("restore", "twice"), range(2))]
    assert sorted(one.rc for one in done) == [0, 4], done
    found = hf.get("twice")
    assert (found["id"], found["epoch"]) == (session["id"], 3)
    assert hf.ok("run", "twice", "--", "echo here").out == "here\n"
