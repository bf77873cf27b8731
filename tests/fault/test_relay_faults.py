"""T1, T3, S4: each hop of the way through a relay is killed, paused, cut, silent, slow or long.

By either door of a relay. All connections return unattended, the screen is right, and each line was
typed once.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.installation import Installation, alive, eventually, installation
from tests.support.relays import RelayProcess
from tests.support.simulation.road import CUT, OPEN, SILENT, Road

PAUSE_S = 3.0  # how long a program stands still


class Way:
    """A machine, a relay and somewhere else, with a road to the relay from each."""

    def __init__(
        self,
        there: Installation,
        here: Installation,
        relay: RelayProcess,
        host_road: Road,
        client_road: Road,
    ) -> None:
        self.there, self.here, self.relay, self.host_road, self.client_road = (
            there,
            here,
            relay,
            host_road,
            client_road,
        )

    def stop_host(self) -> None:
        self._stopped = self.there.host_pid
        os.kill(self._stopped, signal.SIGSTOP)

    def go_on_host(self) -> None:
        os.kill(self._stopped, signal.SIGCONT)

    def registered(self) -> None:
        eventually(
            lambda: (
                self.there.ok("host", "ls", "--json").json["relays"][0]["state"] == "registered"
            ),
            "the host is registered",
            90.0,
        )


@pytest.fixture(scope="module")
def way(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Way]:
    """By the door that the parameter names."""
    door, scheme = request.param, {"websocket": "ws", "grpc": "grpc"}[request.param]
    host_road, client_road = Road(), Road()
    names = [
        word for road in (host_road, client_road) for word in ("--name", f"127.0.0.1:{road.port}")
    ]
    with RelayProcess(
        str(tmp_path_factory.mktemp("relay") / "data"),
        *names,
        "--grpc",
        "127.0.0.1:0",
        limits={"RELAY_PING_S": 2},
    ) as relay:
        host_road.to = client_road.to = relay.port_of(door)
        with (
            installation(tmp_path_factory.mktemp("there"), "[turn]\nidle_s = 0.5\n") as there,
            installation(tmp_path_factory.mktemp("here")) as here,
        ):
            token = Path(there.user, "token")
            token.write_text(relay.token())
            there.ok(
                "host", "connect", f"{scheme}://127.0.0.1:{host_road.port}", "--token", f"@{token}"
            )
            joined = here.ok(
                "join",
                there.ok("invite", "--rights", "admin", "--no-wait", "--json").records[0]["url"],
                "--as",
                "ann",
                "--json",
            ).json
            here.ok("machines", "rename", joined["as"], "box")
            kept = here.home / "machines.json"  # a road of its own, not the machine's
            kept.write_text(kept.read_text().replace(f":{host_road.port}", f":{client_road.port}"))
            yield Way(there, here, relay, host_road, client_road)
    host_road.close()
    client_road.close()


def relay_killed(way: Way) -> None:
    way.relay.stop(signal.SIGKILL)
    way.relay.restart()


def relay_restarted(way: Way) -> None:
    way.relay.restart()


def host_killed(way: Way) -> None:
    os.kill(way.there.host_pid, signal.SIGKILL)
    way.there.ls()


def roads_cut(way: Way) -> None:
    for road in (way.host_road, way.client_road):
        road.become(CUT)
        road.become(OPEN)


def client_road_away(way: Way) -> None:
    way.client_road.become(CUT)


def host_road_away(way: Way) -> None:
    way.host_road.become(CUT)


def client_road_silent(way: Way) -> None:
    way.client_road.become(SILENT)


def host_road_silent(way: Way) -> None:
    way.host_road.become(SILENT)


def slow(*names: str) -> Callable[[Way], None]:
    def begin(way: Way) -> None:
        for name in names:
            road: Road = getattr(way, name)
            road.rate, road.lag_s = 4000.0, 0.2

    return begin


def roads_quick(way: Way) -> None:
    for road in (way.host_road, way.client_road):
        road.rate, road.lag_s = 0.0, 0.0


def no_repair(way: Way) -> None:
    pass


def roads_open(way: Way) -> None:
    for road in (way.host_road, way.client_road):
        road.become(OPEN)


FAULTS: dict[
    str, tuple[Callable[[Way], Any], float, Callable[[Way], Any]]
] = {  # the fault, how long it lasts, how it ends
    "relay killed": (relay_killed, 0.0, no_repair),
    "relay restarted": (relay_restarted, 0.0, no_repair),
    "relay paused": (
        lambda way: way.relay.process.send_signal(signal.SIGSTOP),
        PAUSE_S,
        lambda way: way.relay.process.send_signal(signal.SIGCONT),
    ),
    "host killed": (host_killed, 0.0, no_repair),
    "host paused": (lambda way: way.stop_host(), PAUSE_S, lambda way: way.go_on_host()),
    "links reset": (roads_cut, 0.0, no_repair),
    "client's link away": (client_road_away, PAUSE_S, roads_open),
    "host's link away": (host_road_away, PAUSE_S, roads_open),
    "client's link silent": (client_road_silent, PAUSE_S, roads_open),
    "host's link silent": (host_road_silent, PAUSE_S, roads_open),
    "client's link slow": (slow("client_road"), 1.0, roads_quick),
    "host's link slow": (slow("host_road"), 1.0, roads_quick),
}


BY_GRPC = (
    "relay killed",
    "relay restarted",
    "links reset",
    "client's link silent",
    "host's link silent",
)  # faults in which the carrier has a part


@pytest.mark.parametrize("way", ["websocket"], indirect=True)
@pytest.mark.parametrize("fault", FAULTS)
def test_s4_every_hop_comes_back_and_every_line_was_typed_once(way: Way, fault: str) -> None:
    comes_back(way, fault)


@pytest.mark.parametrize("way", ["grpc"], indirect=True)
@pytest.mark.parametrize("fault", BY_GRPC)
def test_s4_every_hop_comes_back_by_grpc_as_well(way: Way, fault: str) -> None:
    comes_back(way, fault)


def comes_back(way: Way, fault: str) -> None:
    begin, lasts, end = FAULTS[fault]
    name = "f-" + fault.replace(" ", "-").replace("'", "")
    way.there.new(
        name, "--", "sh", "-c", 'stty -echo; echo READY; while read line; do echo "<$line>"; done'
    )
    way.registered()
    terminal = way.here.attach(f"box/{name}")
    terminal.see("READY")
    terminal.send("before\r")
    terminal.see("<before>")
    begin(way)
    terminal.send("during\r")
    terminal.drain_for(lasts)
    end(way)
    terminal.send("after\r")
    terminal.until(
        lambda: any("<after>" in row for row in terminal.rows()), "the screen goes on", 120.0
    )
    wanted = ["<before>", "<during>", "<after>"]
    assert [row.strip() for row in terminal.rows() if row.startswith("<")] == wanted
    assert [row for row in way.there.screen(name).splitlines() if row.startswith("<")] == wanted
    terminal.leave()
    way.there.end(name)


ECHO = 'stty -echo; echo READY; while read line; do echo "<$line>"; done'


@pytest.mark.parametrize("way", ["websocket"], indirect=True)
def test_s4_a_client_that_stood_still_goes_on(way: Way) -> None:
    way.there.new("paused", "--", "sh", "-c", ECHO)
    way.registered()
    terminal = way.here.attach("box/paused")
    terminal.see("READY")
    terminal.process.send_signal(signal.SIGSTOP)
    terminal.send("during\r")
    terminal.drain_for(1.0)
    terminal.process.send_signal(signal.SIGCONT)
    terminal.send("after\r")
    terminal.until(
        lambda: any("<after>" in row for row in terminal.rows()), "the screen goes on", 60.0
    )
    wanted = ["<during>", "<after>"]
    assert [row.strip() for row in terminal.rows() if row.startswith("<")] == wanted
    assert [row for row in way.there.screen("paused").splitlines() if row.startswith("<")] == wanted
    terminal.leave()
    way.there.end("paused")


@pytest.mark.parametrize("way", ["websocket"], indirect=True)
def test_s3_a_client_that_was_killed_is_followed_by_another(way: Way) -> None:
    way.there.new("killed", "--", "sh", "-c", ECHO)
    way.registered()
    terminal = way.here.attach("box/killed")
    terminal.see("READY")
    terminal.send("before\r")
    terminal.see("<before>")
    terminal.process.kill()
    other = way.here.attach("box/killed")
    other.see("<before>")
    other.send("after\r")
    other.see("<after>")
    assert [row.strip() for row in other.rows() if row.startswith("<")] == ["<before>", "<after>"]
    other.leave()
    way.there.end("killed")


@pytest.mark.parametrize("way", ["websocket"], indirect=True)
def test_s4_a_host_that_dies_as_it_registers(way: Way) -> None:
    way.there.new("dying", "--", "cat")
    old = way.there.host_pid
    os.kill(old, signal.SIGKILL)
    eventually(lambda: not alive(old), "the host's end")
    way.there.cli("ls", env={"HOLDFAST_PROBE": "kill@host.uplink.registered"})
    way.registered()
    assert way.here.ok("ls", "box/", "--json").json[0]["liveness"]["process"] == "alive"
    way.there.end("dying")


@pytest.mark.parametrize("way", ["websocket", "grpc"], indirect=True)
def test_t3_on_a_slow_link_a_key_arrives_while_output_floods(way: Way) -> None:
    """Keys go the other way, and a flood is skipped rather than queued: the newest screen wins."""
    way.there.new("slow", "--", "bash")
    way.registered()
    terminal = way.here.attach("box/slow")
    terminal.see("$")
    way.client_road.rate, way.client_road.lag_s = 60_000.0, 0.05
    try:
        terminal.send("yes flooding\r")
        eventually(
            lambda: way.there.get("slow")["output"]["end"] > 30_000_000,
            "far more is printed than the link can carry",
            90.0,
        )
        before = way.client_road.passed
        terminal.send(b"\x03")
        terminal.send("echo $((20+22)) done\r")
        terminal.until(
            lambda: any("42 done" in row for row in terminal.rows()), "the newest screen", 90.0
        )
        assert way.client_road.passed - before < 1_000_000, (
            "the newest screen goes before older output"
        )
    finally:
        way.client_road.rate, way.client_road.lag_s = 0.0, 0.0
    terminal.leave()
    way.there.end("slow")
