"""The network of a contained session, as people and agents meet it.

The tests run on a machine of their own (tests/support/containment/network_lab.py), as root and as
an ordinary user. The attacks on it are in tests/hostile/network/test_network.py.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.containment import network_lab as lab
from tests.support.installation import Installation, alive, eventually, installation
from tests.support.keeper import below

inside = pytest.mark.skipif(not lab.INSIDE, reason="runs on a machine of its own, see the end")
LOST = "session.network_lost"
CONFIG = '[relay]\nstart = false\n[contain]\npublish = "9000"\n'
REACH = (
    'python3 -c "import socket, sys; s = socket.create_connection((sys.argv[1], int(sys.argv[2])),'
    ' 5); print(s.makefile().readline())" {} {}'
)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    base = tmp_path_factory.mktemp("house")
    (base / "work").mkdir()
    with installation(base, config=CONFIG) as made:
        made.env["PYTHONPATH"] = os.environ["PYTHONPATH"]
        made.ok("up", "--detach")
        made.people("bot", rights="execute,observe", kind="agent")
        yield made


def start(house: Installation, name: str, *args: str) -> dict[str, object]:
    made: dict[str, object] = house.new(name, "--contained", "--cwd", f"{house.base}/work", *args)
    house.wait(name, "idle")
    return made


def reaches(house: Installation, name: str, host: str, port: int) -> bool:
    """Whether a program of the session reads the greeting of a server of the lab."""
    return lab.GREETING in house.cli("run", name, "--", REACH.format(host, port)).out


def connector(house: Installation, name: str) -> int:
    keeper = house.peer(f"{house.get(name)['id']}.keeper")
    assert keeper is not None
    names = {pid: Path(f"/proc/{pid}/comm").read_text() for pid in below(keeper)}
    (found,) = [pid for pid, comm in names.items() if comm.startswith(("passt", "slirp"))]
    return found


@inside
def test_the_default_is_a_network_of_its_own_with_a_way_out(house: Installation) -> None:
    made = start(house, "mine")
    assert "network: its own" in str(made["sees"])
    assert reaches(house, "mine", lab.NAME, lab.TCP_PORT)
    assert not reaches(house, "mine", "127.0.0.1", lab.LOOPBACK_PORT)
    shown = house.ok("graph", "mine").out
    assert "pasta" not in shown and "passt" not in shown and "slirp" not in shown


@inside
def test_the_network_survives_the_host(house: Installation) -> None:
    start(house, "lasting")
    os.kill(house.host_pid, signal.SIGKILL)
    house.ok("up", "--detach")
    assert reaches(house, "lasting", lab.NAME, lab.TCP_PORT)


@inside
def test_halt_and_resume_leave_the_connector_alone(house: Installation) -> None:
    start(house, "paused")
    pid = connector(house, "paused")
    house.ok("halt", "paused")
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    assert state in "SR", "it is not frozen or stopped"
    house.ok("resume", "paused")
    assert connector(house, "paused") == pid
    assert reaches(house, "paused", lab.NAME, lab.TCP_PORT)


@inside
def test_the_connector_ends_with_the_session(house: Installation) -> None:
    start(house, "short")
    pid = connector(house, "short")
    house.ok("end", "short")
    eventually(lambda: not alive(pid), "the connector to end")


@inside
def test_a_lost_network_is_told(house: Installation) -> None:
    start(house, "cut")
    os.kill(connector(house, "cut"), signal.SIGKILL)
    (event,) = eventually(
        lambda: [e for e in house.ok("events", "cut", "--json").records if e["event"] == LOST],
        "the event",
    )
    assert event["signal"] == "SIGKILL"
    assert not reaches(house, "cut", lab.WORLD, lab.TCP_PORT)


@inside
def test_none_has_only_a_loopback_and_host_has_everything(house: Installation) -> None:
    assert "network: none" in str(start(house, "alone", "--net", "none")["sees"])
    assert not reaches(house, "alone", lab.WORLD, lab.TCP_PORT)
    devices = house.cli("run", "alone", "--", "ls /proc/self/net >/dev/null; cat /proc/net/dev").out
    assert "lo:" in devices and "tap" not in devices and "v0" not in devices
    assert "the machine's" in str(start(house, "open", "--net", "host")["sees"])
    assert reaches(house, "open", "127.0.0.1", lab.LOOPBACK_PORT)


@inside
def test_a_published_port_leads_to_a_server_inside(house: Installation) -> None:
    made = start(house, "dev", "--publish", "9000")
    assert "on 127.0.0.1: port 9000" in str(made["sees"])
    house.ok("send", "dev", "python3 -m http.server -b 127.0.0.1 9000", "--enter")
    house.wait("dev", "port:9000")
    with socket.create_connection(("127.0.0.1", 9000), 5) as one:
        one.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert one.recv(100).startswith(b"HTTP/1.0 200")
    taken = house.cli("new", "--contained", "--no-attach", "--publish", "9000", "--cwd", "/tmp")
    assert taken.rc == 7 and "9000" in taken.err


@inside
def test_t4_an_agent_publishes_only_listed_ports(house: Installation) -> None:
    args = ("--as", "bot", "new", "--no-attach", "--cwd", f"{house.base}/work")
    for more, word in (
        (("--publish", "9001"), "contain.publish"),
        (("--net", "host"), "contain.net"),
    ):
        refused = house.cli(*args, *more)
        assert refused.rc == 4 and word in refused.err, refused
    assert house.cli(*args, "--net", "none").rc == 0


@inside
def test_publish_needs_a_network_of_its_own(house: Installation) -> None:
    for more in (("--net", "host"), ("--net", "none")):
        wrong = house.cli("new", "--contained", "--no-attach", "--publish", "9000", *more)
        assert wrong.rc == 2 and "--net own" in wrong.err
    for port in ("0", "65536", "x"):
        assert house.cli("new", "--contained", "--no-attach", "--publish", port).rc == 2


@inside
def test_doctor_names_the_connector(house: Installation) -> None:
    (check,) = [c for c in house.cli("doctor", "--json").json if c["id"] == "own-network"]
    assert check["ok"] and "/pasta" in check["detail"] and "/dev/net/tun" in check["detail"]


@pytest.mark.skipif(lab.INSIDE, reason="it runs inside already")
@pytest.mark.parametrize("user", [False, True], ids=["root", "ordinary user"])
def test_all_of_this_on_a_machine_of_its_own(user: bool) -> None:
    resolver = lab.WORLD_RESOLVER if user else lab.LOOPBACK_RESOLVER
    lab.run_inside(__file__, resolver, "pasta", user)
