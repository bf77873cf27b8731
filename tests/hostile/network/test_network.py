"""Attacks of code in an agent's contained session on the network of the machine (T4, A4).

The tests run on a machine of their own (tests/support/containment/network_lab.py), as root and as
an ordinary user.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core.containment import network
from tests.support.containment import network_lab as lab
from tests.support.installation import Installation, alive, eventually, installation
from tests.support.keeper import below

inside = pytest.mark.skipif(not lab.INSIDE, reason="runs on a machine of its own, see the end")
TRY = """
import os, socket, struct, sys
def tell(name, attack):
    try:
        print(name, "DONE", attack())
    except Exception as e:
        print(name, "refused:", type(e).__name__, e)
"""


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    base = tmp_path_factory.mktemp("house")
    work = base / "work"
    work.mkdir()
    config = f'[relay]\nstart = false\n[contain]\nworkspaces = ["{work}"]\n'
    with installation(base, config=config) as made:
        made.env["PYTHONPATH"] = os.environ["PYTHONPATH"]
        made.ok("up", "--detach")
        made.people("bot", rights="execute,observe", kind="agent")
        made.ok("--as", "bot", "new", "cell", "--no-attach", "--cwd", str(work))
        made.wait("cell", "idle")
        yield made


def attack(house: Installation, body: str) -> str:
    """What code in the agent's session prints. A person runs it: no approval is needed."""
    (house.base / "work" / "attack.py").write_text(TRY + body)
    return house.cli("run", "cell", "--", "python3 attack.py").out


def keeper(house: Installation) -> int:
    found = house.peer(f"{house.get('cell')['id']}.keeper")
    assert found is not None
    return found


def connector(house: Installation) -> int:
    names = {pid: Path(f"/proc/{pid}/comm").read_text() for pid in below(keeper(house))}
    (found,) = [pid for pid, comm in names.items() if comm.startswith(("passt", "slirp"))]
    return found


@inside
def test_t4_loopback_servers_of_the_machine_are_out_of_reach(house: Installation) -> None:
    """Under no name and by no protocol; also those that begin to listen later."""
    with (
        socket.create_server(("127.0.0.1", 0)) as later,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as packets,
    ):
        packets.bind(("127.0.0.1", 0))
        packets.settimeout(0.5)
        names = ("127.0.0.1", "localhost", "127.1.2.3", "0.0.0.0", "::1", "::ffff:127.0.0.1")
        places = (*names, network.GATEWAY, network.DNS_ADDRESS, network.ADDRESS, lab.MACHINE)
        out = attack(
            house,
            f"for port in ({lab.LOOPBACK_PORT}, {later.getsockname()[1]}):\n"
            f"    for host in {places}:\n"
            "        tell(host, lambda: socket.create_connection((host, port), 2))\n"
            f"for host in {places}:\n"
            "    if ':' not in host:\n"
            "        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
            f"        there = (host, {packets.getsockname()[1]})\n"
            "        tell(host, lambda: (s.sendto(b'x', there), 0)[1])\n"
            "print('END')",
        )
        assert "END" in out
        assert not [line for line in out.splitlines() if "DONE" in line and not line.endswith("0")]
        with pytest.raises(TimeoutError):
            packets.recv(10)


@inside
def test_t4_abstract_sockets_of_the_machine_are_out_of_reach(house: Installation) -> None:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
        with socket.socket(socket.AF_UNIX, kind) as server:
            server.bind(f"\0holdfast-attack-{os.getpid()}")
            if kind != socket.SOCK_DGRAM:
                server.listen()
            out = attack(
                house,
                f"s = socket.socket(socket.AF_UNIX, {int(kind)})\n"
                f"tell('abstract', lambda: s.connect('\\0holdfast-attack-{os.getpid()}'))\n"
                "print(open('/proc/net/unix').read().count('holdfast-attack'))",
            )
            assert "abstract refused" in out and "\n0" in out.replace("\r", "")


@inside
def test_t4_the_network_of_the_session_cannot_be_changed_or_listened_to(
    house: Installation,
) -> None:
    out = attack(
        house,
        "import fcntl\n"
        "tell('raw', lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))\n"
        "tell('packet', lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3))\n"
        "tell('tun', lambda: os.open('/dev/net/tun', os.O_RDWR))\n"
        "s = socket.socket()\n"
        "tell('down', lambda: fcntl.ioctl(s, 0x8914, struct.pack('16sH22x', b'tap0', 0)))\n"
        "tell('low', lambda: s.setsockopt(socket.SOL_SOCKET, 36, 1))\n"
        "print('END')",
    )
    assert "END" in out and "DONE" not in out


@inside
def test_t4_the_connector_cannot_be_seen_traced_or_signalled(house: Installation) -> None:
    pid = connector(house)
    out = attack(
        house,
        f"tell('signal', lambda: os.kill({pid}, 9))\n"
        f"tell('pidfd', lambda: os.pidfd_open({pid}))\n"
        "names = [open(f'/proc/{n}/comm').read() for n in os.listdir('/proc') if n.isdigit()]\n"
        "print('SEEN' if any('passt' in n or 'slirp' in n for n in names) else 'END')\n"
        "os.kill(-1, 15)",
    )
    assert "END" in out and "SEEN" not in out and "DONE" not in out and alive(pid)
    house.wait("cell", "idle")


@inside
def test_a4_a_halt_holds_while_the_connector_floods(house: Installation) -> None:
    """Packets wait in the device; no process of the session runs."""
    (house.base / "work" / "flood.py").write_text(
        "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\nprint('UP')\n"
        f"while True:\n    s.sendto(b'x' * 1000, ('{lab.WORLD}', 9))\n"
    )
    house.ok("send", "cell", "python3 flood.py", "--enter")
    house.wait("cell", "text:UP")
    halted = house.ok("halt", "cell", "--json").json
    assert halted["complete"]
    house.ok("resume", "cell")
    house.ok("send", "cell", "--key", "C-c")
    house.wait("cell", "idle")


@inside
def test_t4_the_connector_does_not_outlive_a_killed_keeper(house: Installation) -> None:
    pid, its_keeper = connector(house), keeper(house)
    os.kill(its_keeper, signal.SIGKILL)
    eventually(lambda: not alive(pid), "the connector to end")


@pytest.mark.skipif(lab.INSIDE, reason="it runs inside already")
@pytest.mark.parametrize("user", [False, True], ids=["root", "ordinary user"])
@pytest.mark.parametrize("connector", network.PROGRAMS)
def test_t4_all_of_this_on_a_machine_of_its_own(connector: str, user: bool) -> None:
    lab.run_inside(__file__, lab.LOOPBACK_RESOLVER, connector, user)
