"""Takeover, move and drain of sessions whose leases two machines share (R3, R9).

Each machine has namespaces of its own; the tests need root and CRIU (scripts/criu).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.installation import eventually
from tests.support.recovery.checkpoint import criu
from tests.support.recovery.leases import DRIFT, locked
from tests.support.recovery.two_machines import Machine, Two, two_machines

TERM_S = 4.0


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("leases") / "shared.db"


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Iterator[Two]:
    criu()
    config = f'[lease]\nterm_s = {TERM_S}\ndrift = {DRIFT}\npath = "{store}"\n'
    with two_machines(tmp_path_factory.mktemp("two"), config=config) as made:
        yield made


def shell(machine: Machine, name: str) -> dict[str, Any]:
    (machine.base / "work" / name).mkdir()
    cwd = str(machine.work / name)
    made: dict[str, Any] = machine.ok(
        "new", name, "--contained", "--no-attach", "--json", "--cwd", cwd
    ).json
    machine.says(name, "X=kept")
    return made


def lease(machine: Machine, session: str) -> dict[str, Any]:
    found: dict[str, Any] = machine.ok("lease", "show", session, "--json").json["lease"]
    return found


def test_r3_a_moved_session_takes_its_lease_along(two: Two) -> None:
    made = shell(two.here, "goes")
    two.here.ok("rehome", "goes", "on")
    assert two.here.ok("move", "goes", "vault", "--json").json["epoch"] == 2
    held = lease(two.there, made["id"])
    assert (held["epoch"], held["machine"], held["state"]) == (2, "vault", "held")
    assert two.there.get("goes")["lease"]["rehomable"]
    assert two.there.says("goes", "echo $X") == "kept\n"
    two.there.kill(two.there.get("goes")["keeper"])
    eventually(lambda: two.there.cli("restore", "goes").rc == 0 or None, "it is found lost")
    assert two.there.says("goes", "echo $X") == "kept\n"
    assert lease(two.there, made["id"])["epoch"] == 3


def test_r3_a_pinned_session_moves_although_the_store_knows_it(two: Two) -> None:
    made = shell(two.here, "pinned")
    two.here.ok("rehome", "pinned", "on")
    two.here.ok("rehome", "pinned", "off")
    two.here.ok("move", "pinned", "vault")
    assert lease(two.there, made["id"])["machine"] == "vault"
    two.there.ok("rehome", "pinned", "on")
    two.there.ok("rehome", "pinned", "off")


def test_r3_a_target_that_dies_with_the_lease_gives_it_back(two: Two) -> None:
    made = shell(two.here, "back")
    two.here.ok("rehome", "back", "on")
    two.there.ok("down")
    two.there.ok("up", "--detach", env={"HOLDFAST_PROBE": "kill@copies.taken"})
    moving = two.here.start("move", "back", "vault", "--json")
    eventually(lambda: not two.there.here("holdfast.host.main") or None, "the death of the host")
    two.there.ok("up", "--detach")
    moving.communicate(timeout=300)
    assert moving.returncode
    eventually(lambda: two.here.cli("run", "back", "--", "echo $X").out == "kept\n" or None, "back")
    assert lease(two.here, made["id"])["machine"] == "desk"


def test_r3_s5_a_target_that_dies_with_the_processes_has_the_session(two: Two) -> None:
    """The next host there knows what it adopts: it is re-homable, and its lease is renewed."""
    here, there = two.here, two.there
    made = shell(here, "arrives")
    here.ok("rehome", "arrives", "on")
    before = here.get("arrives")
    there.ok("down")
    there.ok("up", "--detach", env={"HOLDFAST_PROBE": "kill@host.create.spawned"})
    moving = here.start("move", "arrives", "vault", "--json")
    eventually(lambda: not there.here("holdfast.host.main") or None, "the death of the host")
    there.ok("up", "--detach")
    moving.communicate(timeout=300)
    row = eventually(
        lambda: (one := there.get(made["id"]))["state"] == "detached" and one, "the session"
    )
    assert (row["lease"]["rehomable"], row["argv"]) == (True, before["argv"])
    until = row["lease"]["until"]
    eventually(
        lambda: (there.get("arrives")["lease"]["until"] or 0) > until + TERM_S or None, "renewals"
    )
    assert there.says("arrives", "echo $X") == "kept\n"
    assert lease(there, made["id"])["epoch"] == 2
    log = there.ok("log", made["id"], "--json").records
    assert [one["kind"] for one in log].count("taken_over") == 1
    assert log[0]["kind"] == "taken_over"


def test_r9_a_drain_moves_sessions(two: Two) -> None:
    made = shell(two.here, "drained")
    said = two.here.ok("drain", "--notice", "120s", "--to", "vault", "--json").json
    [row] = [one for one in said["sessions"] if one["id"] == made["id"]]
    assert row["saved"] and row["machine"] == "vault"
    two.here.ok("drain", "--cancel")
    assert two.there.says("drained", "echo $X") == "kept\n"


def test_r3_a_lease_decides_a_takeover(two: Two, store: Path) -> None:
    """The lease was made after the copy. The last test: it ends a machine."""
    here, there = two.here, two.there
    made, pinned = shell(here, "leased"), shell(here, "stays")
    for name in ("leased", "stays"):
        here.ok("checkpoint", name, "--to", "vault")
    here.ok("rehome", "leased", "on")
    with locked(store):
        refused = there.cli("restore", "leased", "--lost")
        assert refused.rc == 5 and "nothing was changed" in refused.err, refused
    eventually(lambda: here.get("leased")["state"] != "fenced" or None, "the lease is back")
    for lost in ([], ["--lost"]):
        refused = there.cli("restore", "leased", *lost)
        assert refused.rc == 4 and "renews it" in refused.err, refused
    assert here.says("leased", "echo $X") == "kept\n", "a refused takeover ends nothing"
    here.power_off()
    back = there.ok("restore", "leased", "--json").json
    assert back["id"] == made["id"]
    held = lease(there, made["id"])
    assert (held["epoch"], held["machine"], held["rehomable"]) == (back["epoch"], "vault", True)
    assert there.says("leased", "echo $X") == "kept\n"
    refused = there.cli("restore", "stays")
    assert refused.rc == 4 and "--lost" in refused.err
    assert there.ok("restore", "stays", "--lost", "--json").json["id"] == pinned["id"]
    here.boot()
    here.ok("up", "--detach")
    eventually(
        lambda: (
            {"leased", "stays"}
            <= {one["name"] for one in here.ls("--all", "--local") if one["ended"]}
            or None
        ),
        "the old incarnations are over",
    )
    assert there.says("leased", "echo $X") == there.says("stays", "echo $X") == "kept\n"
