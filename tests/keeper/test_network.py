"""The connector of a session's own network: what it reaches, and that it lives as long as needed.

The tests run on a machine of their own (tests/support/containment/network_lab.py), as root and as
an ordinary user, with each connector.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core.containment import network
from holdfast.wire import keeper as wire
from tests.support.contained_keeper import Contained
from tests.support.containment import network_lab as lab
from tests.support.keeper import Link, below, gone, until

inside = pytest.mark.skipif(not lab.INSIDE, reason="runs on a machine of its own, see the end")


class Networked(Contained):
    """Sessions with a network of their own."""

    def __init__(self, top: Path) -> None:
        super().__init__(top)
        conf = top / "resolv.conf"
        conf.write_text(network.resolv_conf(Path("/etc/resolv.conf").read_text()))
        target = os.path.realpath("/etc/resolv.conf").encode()
        mounts = (*self.containment.mounts, wire.Mount(wire.MOUNT_READ, target, bytes(conf)))
        self.containment = wire.Containment(mounts, wire.NET_OWN)

    def run(self, *argv: str, name: str = "a", **more: object) -> Link:
        return super().run(*argv, name=name, **{"connect": lab.connect(), **more})

    def connector(self, name: str = "a") -> int:
        """The keeper's child in the machine's own pid namespace."""
        keeper = self.nursery.keepers[name]
        (found,) = [pid for pid in below(keeper) if name_of(pid).startswith(("passt", "slirp"))]
        return found


@pytest.fixture
def networked() -> Iterator[Networked]:
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as top:
        made = Networked(Path(top))
        yield made
        made.close()


def name_of(pid: int) -> str:
    return status(pid, "Name")


def status(pid: int, key: str) -> str:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.split(":", 1)[1].strip() for line in lines if line.startswith(f"{key}:"))


def fetch(host: str, port: int) -> str:
    return (
        f"s = socket.create_connection(('{host}', {port}), 3)\n"
        "print(s.makefile().readline(), flush=True)"
    )


# ---------------------------------------------------------------- what it reaches


@inside
def test_a_server_outside_answers_by_name(networked: Networked) -> None:
    out = networked.tries(fetch(lab.NAME, lab.TCP_PORT))
    assert f"{lab.GREETING} {lab.WORLD}" in out


@inside
@pytest.mark.parametrize(
    "host", ["127.0.0.1", network.GATEWAY, network.DNS_ADDRESS, lab.MACHINE, "0.0.0.0"]
)
def test_t4_the_loopback_of_the_machine_is_out_of_reach(networked: Networked, host: str) -> None:
    out = networked.tries(fetch(host, lab.LOOPBACK_PORT))
    assert lab.GREETING not in out and "Error" in out


@inside
def test_a_server_on_all_addresses_is_reachable_as_from_another_machine(
    networked: Networked,
) -> None:
    """The docs say so; a firewall of the machine does not see such traffic."""
    assert lab.GREETING in networked.tries(fetch(lab.MACHINE, lab.OPEN_PORT))


@inside
def test_a_published_port_is_on_the_machines_loopback_only(networked: Networked) -> None:
    import socket

    commands = lab.connect((9000,))
    if not commands:
        pytest.skip("slirp4netns publishes nothing")
    networked.run(
        "sh",
        "-c",
        'python3 -c "import socket\nfor n in (9000, 9001): '
        "globals()[f's{n}'] = socket.create_server(('127.0.0.1', n))\n"
        "print('LISTENS', flush=True)\nwhile True: s9000.accept()[0].sendall(b'inside')\"",
        connect=commands,
    ).wait_for(b"LISTENS")
    with socket.create_connection(("127.0.0.1", 9000), 5) as one:
        assert one.recv(100) == b"inside"
    for place in ((lab.MACHINE, 9000), ("127.0.0.1", 9001)):
        with pytest.raises(OSError):
            socket.create_connection(place, 5)


@inside
def test_a_port_that_is_taken_cannot_be_published(networked: Networked) -> None:
    commands = lab.connect((lab.LOOPBACK_PORT,))
    if not commands:
        pytest.skip("slirp4netns publishes nothing")
    result, _, _, text = networked.nursery.spawn(
        "b", ["sh"], containment=networked.containment, connect=commands
    )
    assert result == wire.SPAWN_FAILED and f"{lab.LOOPBACK_PORT}" in text


# ---------------------------------------------------------------- confined, and apart


@inside
def test_t4_the_connector_is_confined_and_apart_from_the_session(networked: Networked) -> None:
    link = networked.run("sh", "-c", "ps -e -o comm=; echo END; exec sleep 600")
    listed = link.wait_for(b"END").decode()
    connector, keeper = networked.connector(), networked.nursery.keepers["a"]
    assert "passt" not in listed and "slirp" not in listed
    assert status(connector, "Seccomp") == "2" and status(connector, "NoNewPrivs") == "1"
    # SYS_ADMIN only of pasta, which lives in the session's user namespace; no other is left
    left = {n for n in range(64) if int(status(connector, "CapEff"), 16) >> n & 1}
    assert left <= ({10, 21} if name_of(connector).startswith("passt") else {10})
    assert len(status(connector, "NSpid").split()) == len(status(keeper, "NSpid").split())
    assert Path(f"/proc/{connector}/cgroup").read_text() == (
        Path(f"/proc/{keeper}/cgroup").read_text()
    )
    if os.getuid() == 0:
        own = {name: os.readlink(f"/proc/{connector}/ns/{name}") for name in ("mnt", "pid", "net")}
        ours = {name: os.readlink(f"/proc/{keeper}/ns/{name}") for name in own}
        assert own["mnt"] != ours["mnt"] and own["pid"] == ours["pid"] and own["net"] == ours["net"]
        assert os.listdir(f"/proc/{connector}/root") in ([], ["etc", "run"], ["run", "etc"])
        assert Path(f"/proc/{connector}/environ").read_bytes() == b""


@inside
def test_a_signal_to_all_processes_spares_the_connector(networked: Networked) -> None:
    link = networked.run("sh", "-c", "trap 'echo HIT' TERM; echo UP; while :; do sleep 0.05; done")
    link.wait_for(b"UP")
    connector = networked.connector()
    link.signal(signal.SIGTERM, wire.SCOPE_ALL)
    link.signal(signal.SIGKILL, wire.SCOPE_PROCESS, connector)
    link.wait_for(b"HIT")
    link.state()
    assert not gone(connector)


# ---------------------------------------------------------------- as long as the session


@inside
@pytest.mark.parametrize("how", ["exit", "keeper killed", "init killed"])
def test_the_connector_ends_with_the_session(networked: Networked, how: str) -> None:
    link = networked.run("sh", "-c", "echo UP; read x")
    link.wait_for(b"UP")
    connector, keeper = networked.connector(), networked.nursery.keepers["a"]
    os.kill(networked.nursery.process.pid, signal.SIGKILL)
    if how == "exit":
        link.type(b"\n")
        link.exit_status()
    elif how == "keeper killed":
        os.kill(keeper, signal.SIGKILL)
    else:
        (init,) = [pid for pid in below(keeper) if name_of(pid) == "hf-init"]
        os.kill(init, signal.SIGKILL)
    until(lambda: gone(connector), "the connector to end")


@inside
def test_a_host_learns_that_the_connector_died(networked: Networked) -> None:
    link = networked.run("sh", "-c", "echo UP; exec sleep 600")
    link.wait_for(b"UP")
    os.kill(networked.connector(), signal.SIGKILL)
    assert wire.read_cut_off(link.packet(wire.CUT_OFF)) == (signal.SIGKILL, False)
    again = networked.nursery.link("a")
    assert wire.read_cut_off(again.packet(wire.CUT_OFF)) == (signal.SIGKILL, True)


@inside
def test_the_death_of_a_connector_without_a_host_is_told_to_the_next(networked: Networked) -> None:
    link = networked.run("sh", "-c", "echo UP; exec sleep 600")
    link.wait_for(b"UP")
    link.close()
    connector = networked.connector()
    os.kill(connector, signal.SIGKILL)
    until(lambda: gone(connector), "it to be gone")
    again = networked.nursery.link("a")
    assert wire.read_cut_off(again.packet(wire.CUT_OFF)) == (signal.SIGKILL, False)


@inside
@pytest.mark.parametrize("command", ["/no/such/program", "/bin/false", "/bin/sleep\0600"])
def test_without_a_connector_there_is_no_session(networked: Networked, command: str) -> None:
    result, number, _, text = networked.nursery.spawn(
        "b", ["sh"], containment=networked.containment, connect=(command.encode(),)
    )
    assert (result, number) == (wire.SPAWN_FAILED, 95) and "its own network" in text
    until(lambda: not below(networked.nursery.process.pid), "its processes to end")


@inside
def test_the_next_alternative_is_tried(networked: Networked) -> None:
    networked.run("sh", "-c", "echo UP; exec sleep 600", connect=(b"/bin/false", *lab.connect()))
    assert networked.connector()


@pytest.mark.skipif(lab.INSIDE, reason="it runs inside already")
@pytest.mark.parametrize("user", [False, True], ids=["root", "ordinary user"])
@pytest.mark.parametrize("connector", network.PROGRAMS)
def test_all_of_this_on_a_machine_of_its_own(connector: str, user: bool) -> None:
    resolver = lab.LOOPBACK_RESOLVER if user else lab.WORLD_RESOLVER
    lab.run_inside(__file__, resolver, connector, user)
