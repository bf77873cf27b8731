"""Lost connections to peers outside are events, with process and act (R4, failure mode 3).

A session's program has connections to a server in another network namespace.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.installation import Installation, eventually, installation
from tests.support.recovery.two_networks import PORT, THERE, TwoNetworks, two_networks

# Connections by name. "open NAME [MS]": with TCP_USER_TIMEOUT. "read NAME": until it fails.
PROGRAM = """
import socket, sys
known = {}
print("READY", flush=True)
for line in sys.stdin:
    do, name, *more = line.split()
    if do == "open":
        one = known[name] = socket.create_connection((sys.argv[1], int(sys.argv[2])))
        if more:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(more[0]))
    elif do == "send":
        known[name].sendall(b"x" * 100)
    elif do == "read":
        try:
            known[name].recv(1)
        except OSError as e:
            pass
        known.pop(name).close()
    print("DONE", line, flush=True)
"""


@pytest.fixture(scope="module")
def networks() -> Iterator[TwoNetworks]:
    with two_networks() as made:
        yield made


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory, networks: TwoNetworks) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home")) as made:
        made.configure("[connections]\nsilent_s = 1\n")
        yield made


class Program:
    """A session whose program keeps connections, each watched by the host."""

    def __init__(self, hf: Installation, networks: TwoNetworks, name: str) -> None:
        self.hf, self.networks, self.name = hf, networks, name
        (hf.user / "program.py").write_text(PROGRAM)
        argv = networks.inside(sys.executable, "program.py", THERE, str(PORT))
        self.made = hf.new(name, "--plain", "--", *argv)
        hf.wait(name, "text:READY")

    def tell(self, line: str) -> None:
        self.hf.quick("send", self.name, line, "--enter")
        self.hf.wait(self.name, f"text:DONE {line}")

    def open(self, name: str, *more: str) -> None:
        before = watched(self.hf)
        self.tell(" ".join(("open", name, *more)))
        self.networks.accepted()
        eventually(lambda: watched(self.hf) > before or None, "the host to know the connection")

    def lost(self, count: int, name: str = "connection.lost") -> list[dict[str, Any]]:
        return eventually(lambda: found if len(found := self.events(name)) == count else None, name)

    def events(self, name: str) -> list[dict[str, Any]]:
        return [
            one
            for one in self.hf.ok("events", "--json").records
            if one["event"] == name and one["session"] == self.made["id"]
        ]


def metrics(hf: Installation) -> dict[str, float]:
    lines = [one for one in hf.quick("metrics").splitlines() if not one.startswith("#")]
    return {name: float(value) for name, _, value in (one.rpartition(" ") for one in lines)}


def watched(hf: Installation) -> int:
    return int(metrics(hf)["holdfast_connections_watched"])


@pytest.mark.parametrize("how", ["unnoticed", "noticed"])
def test_o_mode_3_a_reset_is_an_event(hf: Installation, networks: TwoNetworks, how: str) -> None:
    """Whether or not the program closes the socket before the host looks."""
    program = Program(hf, networks, f"reset-{how}")
    program.open("a")
    before = metrics(hf)['holdfast_connections_lost_total{kind="reset"}']
    networks.end("reset")
    if how == "noticed":
        program.tell("read a")
    [lost] = program.lost(1)
    assert lost["kind"] == "reset" and lost["sure"] and lost["protocol"] == "tcp"
    assert lost["remote"] == f"{THERE}:{PORT}" and lost["unacked"] == 0
    assert lost["program"].startswith("python") and lost["actor"] == "tester"
    assert lost["pid"] == program.made["pid"]
    assert metrics(hf)['holdfast_connections_lost_total{kind="reset"}'] == before + 1
    assert watched(hf) == 0
    hf.end(program.name)


def test_r4_an_orderly_close_is_no_event(hf: Installation, networks: TwoNetworks) -> None:
    """By the peer, by the program, and by the end of the session."""
    program = Program(hf, networks, "orderly")
    for name in ("a", "b", "c", "d"):
        program.open(name)
    networks.end("close")
    program.tell("read a")  # the peer first, then the program
    networks.end("close")  # only the peer
    eventually(lambda: watched(hf) == 3 or None, "the host to know that a is gone")
    networks.end("reset")
    [lost] = program.lost(1)
    hf.end("orderly")
    eventually(lambda: watched(hf) == 0 or None, "the host to know the end")
    assert program.events("connection.lost") == [lost]
    networks.end("close")


def test_r4_a_silent_peer_is_an_event_and_may_recover(
    hf: Installation, networks: TwoNetworks
) -> None:
    program = Program(hf, networks, "silent")
    program.open("a")
    networks.link("down")
    program.tell("send a")
    [lost] = program.lost(1)
    assert lost["kind"] == "silent" and lost["unacked"] == 100
    assert watched(hf) == 1
    networks.link("up")
    [again] = program.lost(1, "connection.recovered")
    assert again["local"] == lost["local"] and again["pid"] == lost["pid"]
    networks.end("close")
    hf.end("silent")


def test_r4_the_kernel_gives_a_silent_peer_up(hf: Installation, networks: TwoNetworks) -> None:
    program = Program(hf, networks, "given-up")
    program.open("a", "7000")
    networks.link("down")
    program.tell("send a")
    first, second = program.lost(2)
    assert (first["kind"], second["kind"]) == ("silent", "timeout")
    assert second["local"] == first["local"] and second["unacked"] == 100
    networks.link("up")
    networks.end("close")
    hf.end("given-up")
