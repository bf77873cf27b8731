"""Commands with `--follow` survive host after host, without a hole or a repeat (S4, S5)."""

from __future__ import annotations

import base64
import os
import re
import signal
from collections.abc import Callable, Iterable, Iterator

import pytest

from holdfast import home as homes
from holdfast.client import start
from tests.support.commands.followers import Following
from tests.support.installation import Installation, alive, eventually, installation

DEATHS = 12  # after every second one the test waits for one of the six followers


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home")) as made:
        yield made


def host_dies(hf: Installation) -> None:
    """Kills the host. Of its followers and this test, the first one starts the next host."""
    home, dead = homes.resolve(hf.env), hf.host_pid
    os.kill(dead, signal.SIGKILL)
    assert start.await_end(dead)
    start.start_host(home, hf.env)


def dies_meanwhile(
    hf: Installation, followers: Iterable[Following], meanwhile: Callable[[], object]
) -> None:
    """As `host_dies`, with `meanwhile` before the next host; stopped followers start none."""
    home = homes.resolve(hf.env)
    for one in followers:
        one.process.send_signal(signal.SIGSTOP)
    dead = hf.host_pid
    os.kill(dead, signal.SIGKILL)
    assert start.await_end(dead)
    meanwhile()
    start.start_host(home, hf.env)
    for one in followers:
        one.process.send_signal(signal.SIGCONT)


def output(follower: Following) -> bytes:
    return b"".join(base64.b64decode(one["data"]) for one in follower.lines)


def returned(hf: Installation, op: str, follower: Following) -> None:
    """Waits until the follower has asked the present host."""
    eventually(
        lambda: hf.ask("stats")["under_way"].get(op) or follower.process.poll() is not None,
        f"{op} to return",
    )
    assert follower.process.poll() is None, (op, follower.process.communicate())


@pytest.mark.parametrize("deaths", [DEATHS, pytest.param(50, marks=pytest.mark.soak)])
def test_s4_followers_miss_and_repeat_nothing_over_many_deaths_of_the_host(
    hf: Installation, deaths: int
) -> None:
    pipe, never = hf.user / "numbers", hf.user / "never"
    os.mkfifo(pipe)
    os.mkfifo(never)
    # The program waits for numbers on a pipe, not for the host. For each number it forks a process
    # in place of the last one, and prints both; no program starts, which would ask the host.
    counts = (
        f"stty -onlcr; exec 3<>{pipe}; p=; "
        f'while read -r n <&3; do [ -n "$p" ] && kill $p; : <{never} & p=$!; echo $n $p; done'
    )
    id = hf.new("counts", "--", "sh", "-c", counts)["id"]
    ops = ("read", "log", "events", "attention", "graph", "approvals")
    followers = {op: Following(hf, op, "counts") for op in ops}
    for op in ops:
        hf.under_way(op, 1)
    with open(pipe, "w") as numbers:
        for n in range(deaths):
            print(n, file=numbers, flush=True)
            host_dies(hf)
            if n % 2 == 0:  # the other hosts may die before their clients are back
                hf.ask("rename", session=id, name=f"counts{n}")
                op = ops[n // 2 % len(ops)]
                returned(hf, op, followers[op])
        for op in ops:
            returned(hf, op, followers[op])
        print(deaths, file=numbers, flush=True)
    pieces = followers["read"]
    while not (found := re.search(rb"^%d (\d+)\n" % deaths, output(pieces), re.MULTILINE)):
        pieces.next()
    last, graph = int(found[1]), followers["graph"]
    while not any(c.get("pid") == last for c in graph.lines):
        graph.next()
    recorded = [e["seq"] for e in hf.ask("log", session=id, limit=500)["entries"]]
    happened = [e["number"] for e in hf.ask("events", session=id, limit=5000)["events"]]
    for op, numbers_of in (("log", recorded), ("events", happened)):
        while len(followers[op].lines) < len(numbers_of):
            followers[op].next()
    assert [e["seq"] for e in followers["log"].lines] == recorded == [*range(1, len(recorded) + 1)]
    assert [e["number"] for e in followers["events"].lines] == happened
    hf.end(id)
    assert {op: followers[op].ends() for op in ("read", "attention", "graph")} == {
        "read": 0,
        "attention": 0,
        "graph": 0,
    }
    assert all(one["gap"] is None for one in pieces.lines)
    assert [one["offset"] for one in pieces.lines[1:]] == [one["end"] for one in pieces.lines[:-1]]
    printed = [line.split()[0] for line in output(pieces).splitlines()]
    assert printed == [b"%d" % n for n in range(deaths + 1)]
    assert {op: followers[op].stop() for op in ("log", "events", "approvals")} == {
        "log": 130,
        "events": 130,
        "approvals": 130,
    }
    # A state is announced when it changes, and only then.
    states = [(one["kind"], one["name"]) for one in followers["attention"].lines]
    assert states[-1][0] == "exited"
    assert all(a != b for a, b in zip(states, states[1:], strict=False)), states
    assert followers["approvals"].lines == [[]]
    living: set[int] = set()
    for change in graph.lines:
        if change["change"] == "started":
            assert change["pid"] not in living, change
            living.add(change["pid"])
        elif change["change"] == "exited":
            living.discard(change["pid"])
        if change.get("pid") == last and change["change"] == "started":
            assert len(living) <= 3, "every process that ended without a host was reported"


def test_s4_followers_end_as_usual_if_the_session_ended_without_a_host(hf: Installation) -> None:
    made = hf.new("brief", "--", "sh", "-c", "echo said; read -r line")
    hf.wait("brief", "text:said")
    followers = {op: Following(hf, op, "brief") for op in ("read", "attention", "graph")}
    for op, follower in followers.items():
        returned(hf, op, follower)
        follower.next()

    def ends() -> None:
        os.kill(made["pid"], signal.SIGKILL)
        eventually(lambda: not alive(made["pid"]), "the end of the program")

    dies_meanwhile(hf, followers.values(), ends)
    assert {op: one.ends() for op, one in followers.items()} == {
        "read": 0,
        "attention": 0,
        "graph": 0,
    }
    assert output(followers["read"]) == b"said\r\n"
    assert followers["attention"].lines[-1]["why"] == "killed by SIGKILL"
