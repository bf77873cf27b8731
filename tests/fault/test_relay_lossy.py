"""T1, S4: the way through a relay over real TCP between network namespaces, on bad links.

The links lose, reorder and double packets, with blackholes and addresses that change. Host, relay
and client are processes as they are shipped, each in its own network
(tests/support/simulation/lossy_link.py). Where no such network can be made, the tests are skipped
with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands.certificates import certificate
from tests.support.installation import Installation, eventually, installation
from tests.support.relays import RelayProcess
from tests.support.simulation.lossy_link import Lossy, Namespace, missing

NOT_HERE = missing()
pytestmark = pytest.mark.skipif(bool(NOT_HERE), reason=f"needs a network of its own: {NOT_HERE}")
LASTS_S = 1.2
PORT = 7000


class Way:
    """A machine, a relay and a remote client, each in its own network with a link to the relay."""

    def __init__(self, stack: ExitStack, folder: Callable[[str], Path]) -> None:
        self.networks = {
            name: stack.enter_context(Namespace()) for name in ("host", "relay", "client")
        }
        self.relay_address = {"client": "10.9.1.1", "host": "10.9.2.1"}
        self.address = {"client": "10.9.1.2", "host": "10.9.2.2"}
        self.links = {
            hop: stack.enter_context(
                Lossy(
                    self.networks[hop],
                    self.address[hop],
                    self.networks["relay"],
                    self.relay_address[hop],
                )
            )
            for hop in ("client", "host")
        }
        place = folder("relay")
        chain, key = certificate(place, "relay.example", 1, tuple(self.relay_address.values()))
        names = [word for address in self.relay_address.values() for word in ("--name", address)]
        with self.networks["relay"].inside():
            self.relay = stack.enter_context(
                RelayProcess(
                    str(place / "data"),
                    "--tls-cert",
                    str(chain),
                    "--tls-key",
                    str(key),
                    *names,
                    address="0.0.0.0",
                    port=PORT,
                    limits={"RELAY_PING_S": 2},
                )
            )
        with self.networks["host"].inside():
            self.there: Installation = stack.enter_context(
                installation(folder("there"), "[turn]\nidle_s = 0.5\n")
            )
            token = Path(self.there.user, "token")
            token.write_text(self.relay.token())
            self.there.ok(
                "host",
                "connect",
                f"wss://{self.relay_address['host']}:{PORT}",
                "--ca",
                str(chain),
                "--token",
                f"@{token}",
            )
        self.here: Installation = stack.enter_context(installation(folder("here")))
        invited = self.there.ok("invite", "--rights", "admin", "--no-wait", "--json").records[0][
            "url"
        ]
        with self.networks[
            "host"
        ].inside():  # where the address leads to the relay; from then on the client has its own way
            joined = self.here.ok("join", invited, "--as", "ann", "--ca", str(chain), "--json").json
        self.here.ok("machines", "rename", joined["as"], "box")
        kept = self.here.home / "machines.json"
        kept.write_text(
            kept.read_text().replace(self.relay_address["host"], self.relay_address["client"])
        )

    def registered(self) -> None:
        eventually(
            lambda: (
                self.there.ok("host", "ls", "--json").json["relays"][0]["state"] == "registered"
            ),
            "the host is registered",
            90.0,
        )

    def blackhole(self, hop: str, at: str, does: str) -> None:
        """Packets from there, towards the other end of that link."""
        other = self.relay_address[hop] if at == hop else self.address[hop]
        self.networks[at].ip("route", does, "blackhole", f"{other}/32")

    def moves(self, hop: str) -> None:
        """Change the address: answers to the old one are lost."""
        device, network, old = self.links[hop].devices[0], self.networks[hop], self.address[hop]
        head, _, last = old.rpartition(".")
        self.address[hop] = f"{head}.{int(last) + 1}"
        network.ip("addr", "del", f"{old}/24", "dev", device)
        network.ip("addr", "add", f"{self.address[hop]}/24", "dev", device)


@pytest.fixture(scope="module")
def way(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Way]:
    with ExitStack() as stack:
        yield Way(stack, lambda name: tmp_path_factory.mktemp(name))


def bad(hop: str, **how: float) -> tuple[Callable[[Way], Any], Callable[[Way], Any]]:
    return lambda way: way.links[hop].both(**how), lambda way: way.links[hop].good()


def hole(hop: str, at: str) -> tuple[Callable[[Way], Any], Callable[[Way], Any]]:
    return lambda way: way.blackhole(hop, at, "add"), lambda way: way.blackhole(hop, at, "del")


def move(hop: str) -> tuple[Callable[[Way], Any], Callable[[Way], Any]]:
    return lambda way: way.moves(hop), lambda way: None


FAULTS = {
    f"{hop}'s link: {kind}": made
    for hop in ("client", "host")
    for kind, made in {
        "1% lost": bad(hop, loss=0.01, delay_s=0.01),
        "10% lost": bad(hop, loss=0.1, delay_s=0.01),
        "reordered": bad(hop, reorder=0.25, delay_s=0.005),
        "doubled": bad(hop, double=0.25),
        "all of it": bad(hop, loss=0.05, reorder=0.1, double=0.1, delay_s=0.02),
        "blackhole outward": hole(hop, hop),
        "blackhole inward": hole(hop, "relay"),
        "another address": move(hop),
    }.items()
}


@pytest.mark.parametrize("fault", FAULTS)
def test_s4_every_line_is_typed_once_over_a_bad_link(way: Way, fault: str) -> None:
    begin, end = FAULTS[fault]
    name = "l-" + "".join(c if c.isalnum() else "-" for c in fault)
    way.there.new(
        name,
        "--",
        "sh",
        "-c",
        'stty -echo; echo READY; while read line; do seq 1 4000; echo "<$line>"; done',
    )
    way.registered()
    with way.networks["client"].inside():
        terminal = way.here.attach(f"box/{name}")
    terminal.see("READY")
    lines = [f"line {number}" for number in range(6)]
    terminal.send("line 0\r")
    terminal.see("<line 0>")
    begin(way)
    for line in lines[1:-1]:
        terminal.send(f"{line}\r")
        terminal.drain_for(LASTS_S / 4)
    end(way)
    terminal.send(f"{lines[-1]}\r")
    terminal.until(
        lambda: any(f"<{lines[-1]}>" in row for row in terminal.rows()), "the screen goes on", 120.0
    )
    eventually(lambda: f"<{lines[-1]}>" in way.there.screen(name), "the host's own screen")
    assert [row.rstrip() for row in terminal.rows()] == [
        row.rstrip() for row in padded(way.there.screen(name), len(terminal.rows()))
    ]
    typed = [line for line in way.there.ok("read", name).out.splitlines() if line.startswith("<")]
    assert typed == [f"<{line}>" for line in lines]
    terminal.leave()
    way.there.end(name)


def padded(screen: str, rows: int) -> list[str]:
    shown = screen.splitlines()
    return [*shown, *[""] * (rows - len(shown))]


def test_the_links_had_the_configured_faults(way: Way) -> None:
    """Otherwise the tests above would have tried nothing."""
    for link in way.links.values():
        for direction in (link.to_first, link.to_second):
            assert direction.passed > 100
            assert direction.lost > 0
            assert direction.doubled > 0
            assert direction.overtaken > 0
