"""A session is moved to another machine: one incarnation at most, and none lost (R2, R3).

Each machine has namespaces of its own; the tests need root and CRIU (scripts/criu).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.installation import eventually
from tests.support.recovery.checkpoint import criu
from tests.support.recovery.two_machines import Machine, Two, pair, two_machines


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    criu()
    with two_machines(tmp_path_factory.mktemp("two")) as made:
        yield made


def shell(machine: Machine, name: str, *options: str) -> dict[str, Any]:
    (machine.base / "work" / name).mkdir()
    cwd = str(machine.work / name)
    made: dict[str, Any] = machine.ok(
        "new", name, "--contained", "--no-attach", "--json", "--cwd", cwd, *options
    ).json
    machine.says(name, "X=kept; echo own > ~/own; echo shared > shared; sleep 1000 & true")
    return made


def runs(machine: Machine, session: str) -> bool:
    """Whether the session has an incarnation there that a client could attach to."""
    listed = machine.ok("ls", "--local", "--json").json
    return any(one["id"] == session and one["liveness"]["process"] == "alive" for one in listed)


def one_place(two: Two, session: str) -> Machine:
    """The machine at which the session runs, when both have settled; never two."""

    def settled() -> Machine | None:
        places = [machine for machine in (two.here, two.there) if runs(machine, session)]
        assert len(places) < 2, "two incarnations"
        return places[0] if places else None

    return eventually(settled, "a place")


def test_r2_a_session_goes_on_at_another_machine(two: Two) -> None:
    made = shell(two.here, "goes")
    said = two.here.ok("move", "goes", "vault", "--json").json
    assert said["machine"] == "vault" and said["epoch"] == made["epoch"] + 1
    assert two.there.says("goes", "echo $X; cat ~/own shared; jobs -p | wc -l") == (
        "kept\nown\nshared\n1\n"
    )
    assert one_place(two, made["id"]) is two.there
    [row] = [one for one in two.here.ls("--all", "--local") if one["id"] == made["id"]]
    assert row["state"] == "moved"
    # The old name and the id lead to the new place, from the old machine too.
    assert "kept" in two.here.ok("view", "goes").out
    assert "kept" in two.here.ok("view", made["id"]).out
    refused = two.here.cli("restore", "goes")
    assert refused.rc == 4 and "goes on at vault" in refused.err


CONNECTED = (
    "import socket; s = socket.create_server((`127.0.0.1`, 0)); "
    "c = socket.create_connection(s.getsockname()); a = s.accept(); "
    "open(`connected`, `w`).close(); input()"
).replace("`", "'")


def test_r4_connections_that_did_not_survive_a_move_are_listed(two: Two) -> None:
    here, there = two.here, two.there
    made = shell(here, "connected", "--net", "host")
    here.ok("send", "connected", f'/usr/bin/python3 -c "{CONNECTED}"', "--enter")
    flag = here.base / "work" / "connected" / "connected"
    eventually(lambda: flag.exists() or None, "the connection")
    here.ok("move", "connected", "vault")
    told = [e for e in there.ok("events", "--json").records if e.get("session") == made["id"]]
    assert len([e for e in told if e["event"] == "session.restored"]) == 1
    lost = [e for e in told if e["event"] == "connection.lost"]
    assert {one["kind"] for one in lost} == {"closed_by_move"} and len(lost) == 2


def test_r3_a_session_moves_back_and_forth(two: Two) -> None:
    """Claims, offers and forwarding of an earlier stay do not stop or end a later one."""
    here, there = two.here, two.there
    made = shell(here, "ferry")
    pair(here, there)
    there.ok("machines", "trust", "desk")
    for number in range(2):
        said = here.ok("move", "ferry", "vault", "--json").json
        assert said["epoch"] == made["epoch"] + 1 + 2 * number
        assert there.says("ferry", "echo $X") == "kept\n"
        if number:
            break
        assert there.ok("move", "ferry", "desk", "--json").json["epoch"] == made["epoch"] + 2
        assert one_place(two, made["id"]) is here
        assert here.says("ferry", "echo $X; cat ~/own shared") == "kept\nown\nshared\n"
        # A copy makes this machine ask vault, which has an old claim to the session.
        here.ok("checkpoint", "ferry", "--to", "vault")
        there.ok("forget", "ferry")
        here.ok("down")
        here.ok("up", "--detach")
        assert here.says("ferry", "echo $X") == "kept\n"
        assert one_place(two, made["id"]) is here
    assert one_place(two, made["id"]) is there
    assert "goes on at vault" in here.cli("restore", "ferry").err


@pytest.mark.parametrize("how", ["forget", "expiry"])
def test_r3_the_files_that_came_with_a_session_outlive_it(two: Two, how: str) -> None:
    here, there = two.here, two.there
    made = shell(here, how)
    here.ok("move", how, "vault")
    there.says(how, "echo new > new")
    there.ok("end", how)
    files = there.home / "arrived" / made["id"]
    if how == "forget":
        assert f"its files stay in {files}: remove them" in there.ok("forget", how).out
    else:
        before = (there.home / "config.toml").read_text()
        there.ok("down")
        there.configure(f"{before}\n[session]\nkeep_ended_s = 0\n")
        there.ok("up", "--detach")
        there.ok("down")
        there.configure(before)
        there.ok("up", "--detach")
    assert made["id"] not in [one["id"] for one in there.ls("--all", "--local")]
    told = [e for e in there.ok("events", "--json").records if e["event"] == "session.files_stay"]
    assert [e["path"] for e in told if e["session"] == made["id"]] == [str(files)]
    [work] = files.iterdir()
    assert (work / "new").read_text() == "new\n"
    assert (work / "shared").read_text() == "shared\n"


def test_r2_an_attached_client_follows(two: Two) -> None:
    shell(two.here, "follows")
    terminal = two.here.attach("follows")
    terminal.send("echo bef''ore\r")
    terminal.see("before")
    since = len(terminal.output)
    two.here.ok("move", "follows", "vault")
    terminal.expect("attached to follows", since)
    terminal.send("echo $X-af''ter\r")
    terminal.see("kept-after")
    assert terminal.leave() == 0


def test_r2_an_attached_client_follows_back(two: Two) -> None:
    here, there = two.here, two.there
    shell(here, "returns")
    pair(here, there)
    there.ok("machines", "trust", "desk")
    terminal = here.attach("returns")
    terminal.send("echo bef''ore\r")
    terminal.see("before")
    for machine, to in (here, "vault"), (there, "desk"), (here, "vault"):
        since = len(terminal.output)
        machine.ok("move", "returns", to)
        terminal.expect("attached to returns", since)
        terminal.send(f"echo $X-af''ter-{since}\r")
        terminal.see(f"kept-after-{since}")
    assert terminal.leave() == 0


def test_r2_a_move_that_is_impossible_stops_nothing(two: Two) -> None:
    made = shell(two.here, "stays")
    two.there.mount("/usr/bin/true", over="/usr/bin/sleep")
    try:
        for more in (["--check"], []):
            refused = two.here.cli("move", "stays", "vault", *more)
            assert refused.rc == 7 and "/usr/bin/sleep" in refused.err
    finally:
        two.there.unmount("/usr/bin/sleep")
    assert two.here.get(made["id"])["epoch"] == 1
    assert two.here.says("stays", "echo $X") == "kept\n"


def test_r3_a_target_that_dies_while_it_takes_over_gives_the_session_back(two: Two) -> None:
    made = shell(two.here, "back")
    two.there.ok("down")
    two.there.ok("up", "--detach", env={"HOLDFAST_PROBE": "kill@copies.taken"})
    moving = two.here.start("move", "back", "vault", "--json")
    eventually(lambda: not two.there.here("holdfast.host.main") or None, "the death of the host")
    two.there.ok("up", "--detach")
    moving.communicate(timeout=300)
    refused = moving
    assert refused.returncode
    assert one_place(two, made["id"]) is two.here
    assert two.here.says("back", "echo $X") == "kept\n"


@pytest.mark.parametrize("step", ["commit.begun", "committed"])
def test_r3_a_move_goes_on_after_the_target_died_at_the_copy(two: Two, step: str) -> None:
    name = step.replace(".", "-")
    made = shell(two.here, name)
    two.there.ok("down")
    two.there.ok("up", "--detach", env={"HOLDFAST_PROBE": f"kill@copies.{step}"})
    moving = two.here.start("move", name, "vault", "--json")
    eventually(lambda: not two.there.here("holdfast.host.main") or None, "the death of the host")
    two.there.ok("up", "--detach")
    moving.communicate(timeout=300)
    assert moving.returncode == 0
    assert one_place(two, made["id"]) is two.there
    assert two.there.says(name, "echo $X") == "kept\n"


@pytest.mark.parametrize("step", ["copied", "stopped", "offered", "taken"])
def test_r3_a_host_that_dies_in_a_move_leaves_one_incarnation(two: Two, step: str) -> None:
    here, name = two.here, f"dies-{step}"
    made = shell(here, name)
    here.ok("down")
    here.ok("up", "--detach", env={"HOLDFAST_PROBE": f"kill@move.{step}"})
    moved = here.cli("move", name, "vault")
    assert moved.rc != 0, moved
    here.ok("up", "--detach")
    place = one_place(two, made["id"])
    assert place.says(name, "echo $X") == "kept\n"
    assert (place is two.there) == (step == "taken")


def test_p4_a_machine_that_demands_the_exec_gate_takes_no_session_without_it(two: Two) -> None:
    here, there = two.here, two.there
    file = there.home / "config.toml"
    before = file.read_text()
    made = shell(here, "ungated", "--gate", "input")
    there.ok("down")
    there.configure(f'{before}\n[session]\ngate = "exec"\n')
    there.ok("up", "--detach")
    try:
        refused = here.cli("move", "ungated", "vault")
        assert refused.rc and "exec gate" in refused.err, refused
        assert one_place(two, made["id"]) is here
        assert here.says("ungated", "echo $X") == "kept\n"
    finally:
        there.ok("down")
        there.configure(before)
        there.ok("up", "--detach")


def test_r3_a_link_that_is_cut_in_a_move_leaves_one_incarnation(two: Two) -> None:
    here = two.here
    made = shell(here, "cut")
    here.says("cut", "head -c 6000000 /dev/urandom > big")
    here.slow("20mbit")
    moving = here.start("move", "cut", "vault", "--json")
    parts = two.there.home / "copies"
    eventually(
        lambda: sum(p.stat().st_size for p in parts.glob("*/parts/*")) > 1_000_000, "some bytes"
    )
    here.cut()
    couriers = here.here("holdfast.courier")
    for pid in couriers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    here.join()
    moving.communicate(timeout=120)
    place = one_place(two, made["id"])
    assert place.says("cut", "echo $X") == "kept\n"
    assert json.dumps(made)


def test_r2_a_machine_is_trusted_again_after_its_trust_ended(two: Two) -> None:
    here, there = two.here, two.there
    made = shell(here, "trusted")
    here.ok("checkpoint", "trusted", "--to", "vault")
    here.ok("machines", "trust", "vault", "--off")
    assert here.cli("move", "trusted", "vault").rc == 4
    here.ok("machines", "trust", "vault")
    here.ok("checkpoint", "trusted", "--to", "vault")
    here.ok("move", "trusted", "vault")
    assert there.says("trusted", "echo $X") == "kept\n"
    assert one_place(two, made["id"]) is there
    there.ok("operator", "revoke", "desk")
    here.ok("machines", "trust", "vault")
    [trusted] = here.ok("machines", "trust", "--json").json["machines"]
    assert trusted["known_as"] == "desk-2"
