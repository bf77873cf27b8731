"""A session is moved to another machine: one incarnation at most, and none lost (R2, R3).

Each machine has namespaces of its own; the tests need root and CRIU (scripts/criu).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Iterator
from typing import Any

import apsw
import pytest

from tests.support.installation import DEADLINE_S, eventually
from tests.support.ordinary_user import needs
from tests.support.recovery import zoo
from tests.support.recovery.checkpoint import criu, without_new_keepers
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
    # The record at the new place names the old one, and where the files are.
    place, workspace = said["files"][0]["place"], str(two.here.work / "goes")
    assert said["files"] == [{"path": workspace, "place": place, "changed": None}]
    told = two.there.ok("log", "goes").out
    assert f"taken_over: from desk; the files of {workspace} are in {place}" in told
    [listed] = [one for one in two.there.ls("--local") if one["id"] == made["id"]]
    assert listed["arrived"] == said["files"]
    listing = two.there.ok("ls", "--local").out
    assert f"to copy them back: `cp -a {place}/. {workspace}/`" in listing
    [row] = [one for one in two.here.ls("--all", "--local") if one["id"] == made["id"]]
    assert row["state"] == "moved"
    # The old name and the id lead to the new place, from the old machine too.
    assert "kept" in two.here.ok("view", "goes").out
    assert "kept" in two.here.ok("view", made["id"]).out
    refused = two.here.cli("restore", "goes")
    assert refused.rc == 4 and "goes on at vault" in refused.err
    happened = two.here.ok("events", "--json").records
    [ended] = [
        e
        for e in happened
        if e.get("session") == made["id"] and e["event"] == "session.checkpointed"
    ]
    assert (ended["ended_by"], ended["survivors"]) == ("tester", 0)


def test_r2_a_session_that_moved_here_is_restored_after_a_restart_of_the_host(two: Two) -> None:
    """The copy that brought it is gone then; the checkpoint here is of the other machine."""
    here, there = two.here, two.there
    made = shell(here, "settles")
    here.ok("move", "settles", "vault")
    there.ok("down")
    there.ok("up", "--detach")
    [saved] = there.ok("checkpoint", "settles", "--list", "--json").json
    there.kill(there.get("settles")["keeper"])
    eventually(lambda: there.get(made["id"])["state"] == "ended" or None, "the end")
    back = there.ok("restore", "settles", "--json").json
    assert back["id"] == made["id"] and back["checkpoint"] == saved["checkpoint"]
    assert there.says("settles", "echo $X; cat shared") == "kept\nshared\n"
    there.ok("end", "settles")


def test_s1_s8_references_lead_to_the_new_place_from_every_machine(two: Two) -> None:
    here, there = two.here, two.there
    made = shell(here, "refers")
    ran = here.cli("run", "refers", "--json", "--", "(exit 3)").json["ref"]
    third = {"HOLDFAST_HOME": str(here.base / "third")}
    with third_home(two, third):
        here.ok("move", "refers", "vault")
        act, live, output = ran, f"hf:{made['id']}@2", f"{made['ref']}:0-100"
        here.ok("machines", "rename", "vault", "safe")
        try:
            for env, name in (None, "safe"), (third, "bank"):
                found = {
                    ref: here.ok("resolve", ref, "--json", env=env).json
                    for ref in (act, live, output)
                }
                assert {one["machine"] for one in found.values()} == {name}
                assert found[live]["state"] == "live"
                assert found[act]["state"] == found[output]["state"] == "another incarnation"
                assert f"live, on {name}" in here.ok("resolve", live, env=env).out
            assert here.ok("run", "refers", "--", "echo $X").out == "kept\n"
        finally:
            here.ok("machines", "rename", "safe", "vault")
        # A machine cannot lead an act into another session; its caller decides.
        refused = here.cli("run", "office/refers", "--", "true", env=third)
        assert refused.rc == 255 and f"name it as bank/{made['id']}" in refused.err, refused
        there.ok("down")
        try:
            moved = here.cli("resolve", act, "--json").json
            assert (moved["state"], moved["exit_code"]) == ("moved", 3)
            assert moved["elsewhere"]["machine"] == "vault" and moved["elsewhere"]["epoch"] == 2
            said = here.ok("resolve", live).out
            assert "moved to vault" in said and "incarnation 2" in said
        finally:
            there.ok("up", "--detach")
    [row] = [one for one in here.ls("--all", "--local") if one["id"] == made["id"]]
    assert row["reason"] == "moved: it goes on at vault as incarnation 2"


@contextlib.contextmanager
def third_home(two: Two, env: dict[str, str]) -> Iterator[None]:
    """A home that knows both machines, by names of its own."""
    for machine, name in (two.here, "office"), (two.there, "bank"):
        said = machine.ok("invite", "--rights", "admin", "--no-wait", "--json").records[0]
        joined = two.here.ok("join", said["url"], "--as", "cat", "--json", env=env).json
        two.here.ok("machines", "rename", joined["as"], name, env=env)
    try:
        yield
    finally:
        two.here.ok("down", env=env)


def test_r2_s9_clients_see_a_move_and_follow(two: Two) -> None:
    here, there = two.here, two.there
    made = shell(here, "sees")
    there.ok("new", "other", "--no-attach")  # there is a nursery
    with without_new_keepers(there):
        moving = here.start("move", "sees", "vault")

        def restoring() -> bool:
            rows = there.ls("--all", "--local")
            return any(one["id"] == made["id"] and one["state"] == "restoring" for one in rows)

        eventually(lambda: restoring() or None, "the restore at the other machine")
        [row] = [one for one in here.ls("--local") if one["id"] == made["id"]]
        assert row["reason"] == "it is being moved to vault"
        assert "restoring, on vault" in here.ok("resolve", made["ref"]).out
        said = here.ok("resolve", f"hf:{made['id']}@2").out
        assert "being moved to vault" in said and "restore" not in said
        refused = here.cli("who", "sees")
        assert refused.rc == 5 and "is being moved to vault" in refused.err, refused
        assert "holdfast restore" not in refused.err
        terminal = here.attach("sees", size=(200, 24))
        terminal.see("sees is being moved to vault")
        sending = here.start("send", "sees", "echo $X >~/sent", "--enter")
    assert moving.wait() == 0
    assert sending.wait() == 0
    terminal.expect("vault/sees")
    eventually(lambda: here.says("sees", "cat ~/sent") == "kept\n" or None, "the line")
    terminal.send("echo $X-at''tached\r")
    terminal.see("kept-attached")
    assert terminal.leave() == 0


def hashes(machine: Machine, session: str) -> list[str]:
    """Of the entries that this machine's record of the session has; the host locks the file."""
    for suffix in ("", "-wal"):
        with contextlib.suppress(FileNotFoundError):
            shutil.copy(f"{machine.home}/state.db{suffix}", f"{machine.base}/copy.db{suffix}")
    db = apsw.Connection(f"{machine.base}/copy.db")
    try:
        sql = "SELECT hash FROM record WHERE session = ?"
        return [str(hash) for (hash,) in db.execute(sql, (session,))]
    finally:
        db.close()


def test_p2_the_record_at_the_new_machine_begins_with_the_end_of_the_old_one(two: Two) -> None:
    made = shell(two.here, "told")
    two.here.ok("move", "told", "vault")
    two.there.says("told", "echo further")
    first, *others = two.there.ok("log", "told", "--json").records
    assert (first["seq"], first["kind"], others != []) == (1, "taken_over", True)
    facts = first["facts"]
    assert (facts["was"], facts["epoch"], facts["lost"]) == (1, 2, False)
    assert facts["at_ms"] > made["created"] * 1000
    assert facts["head"] in hashes(two.here, made["id"])
    assert two.there.ok("log", "verify", "told").rc == 0
    # Each act on the copies has its outcome.
    acts = two.there.ok("log", "machine", "--json").records
    intents = {one["seq"] for one in acts if one["phase"] == "intent"}
    ended = {one["intent"]: one["outcome"] for one in acts if one["phase"] == "outcome"}
    assert intents == ended.keys() and {*ended.values()} == {"applied"}


def test_a9_a_key_goes_with_its_session(two: Two) -> None:
    """Whoever repeats the act at the new machine: operators have other names and keys there."""
    here, there = two.here, two.there
    made = shell(here, "keyed")
    act = ("--once", "kk", "--", "echo x >> file; echo said")
    assert here.ok("run", "keyed", *act).out == "said\n"
    here.ok("checkpoint", "keyed", "--to", "vault")
    slow = (
        "--once",
        "slow",
        "--",
        "echo begun; until [ -e go ]; do read -rt 0.1; done; echo y >> file",
    )
    first = here.start("run", "keyed", *slow)
    eventually(lambda: "begun" in here.ok("view", "keyed").out or None, "the act")
    here.ok("move", "keyed", "vault")
    [work] = (there.home / "arrived" / made["id"]).iterdir()
    second = there.start("run", "keyed", *slow)
    (work / "go").touch()
    assert second.communicate(timeout=DEADLINE_S)[0].endswith(b"begun\n"), second.returncode
    assert second.returncode == 0
    first.communicate(timeout=DEADLINE_S)
    # The old name leads to the new place, so that the output is there too.
    for machine, name in (there, "keyed"), (here, "vault/keyed"), (here, "keyed"):
        assert machine.ok("run", name, *act).out == "said\n"
    assert (work / "file").read_text() == "x\ny\n"


def test_a9_a_key_is_known_where_its_lost_session_is_taken_over(two: Two) -> None:
    here, there = two.here, two.there
    made = shell(here, "vanished")
    act = ("--once", "kk", "--", "echo x >> file")
    here.ok("run", "vanished", *act)
    here.ok("checkpoint", "vanished", "--to", "vault")
    there.ok("restore", made["id"], "--lost")
    assert there.ok("run", made["id"], *act).out == ""
    assert there.says(made["id"], "cat file") == "x\n"


def test_r2_r5_a_branch_stays_and_says_why(two: Two) -> None:
    """Its files are a layer here: elsewhere they would lack what the branch has written."""
    here = two.here
    shell(here, "trunk")
    here.ok("fork", "trunk", "--json")
    here.says("trunk-1", "echo more > only-here")
    for words in (("move", "trunk-1", "vault"), ("checkpoint", "trunk-1", "--to", "vault")):
        for check in ((), ("--check",)):
            refused = here.cli(*words, *check)
            said = refused.err + refused.out
            assert refused.rc == 7 and "stays on this machine: it is a branch" in said, said
    assert here.says("trunk-1", "echo $X; cat only-here") == "kept\nmore\n"


def test_a4_a_session_that_moved_can_be_halted_from_its_old_machine(two: Two) -> None:
    here, there = two.here, two.there
    shell(here, "stopped")
    here.ok("move", "stopped", "vault")
    here.ok("halt", "stopped")
    assert there.get("stopped")["state"] == "halted"
    here.ok("resume", "stopped")
    assert there.says("stopped", "echo $X") == "kept\n"


def test_r2_a_machine_that_is_not_known_is_not_called_untrusted(two: Two) -> None:
    refused = two.here.cli("move", "any", "nowhere")
    assert refused.rc == 3, refused
    shell(two.here, "any")
    refused = two.here.cli("move", "any", "vaul")
    assert refused.rc == 3 and "no machine 'vaul' is known here" in refused.err, refused.err


def test_r2_a_plain_session_stays_and_says_why(two: Two) -> None:
    """Before anything stops."""
    here = two.here
    here.ok("new", "plain", "--plain", "--no-attach")
    here.says("plain", "X=kept")
    for words in (("move", "plain", "vault"), ("checkpoint", "plain", "--to", "vault")):
        refused = here.cli(*words)
        assert refused.rc == 7 and "stays on this machine: it is a plain session" in refused.err
    assert here.says("plain", "echo $X") == "kept\n"


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


def test_r2_state_of_many_kinds_moves_over_links_that_lose_packets(two: Two) -> None:
    """Memory, sockets, locks, timers, files and terminals (tests/support/recovery/zoo.py)."""
    needs("nft")
    here, name = two.here, "zoo"
    (place := here.base / "work" / name).mkdir()
    (place / "state").mkdir()
    shutil.copy(zoo.__file__, place / "zoo.py")
    command = ("--", "/usr/bin/python3", "zoo.py", "state", "20")
    here.ok("new", name, "--contained", "--no-attach", "--cwd", str(here.work / name), *command)
    here.ok("wait", name, "--for", "text:ZOO READY")
    is_right(here, name)
    for machine in (here, two.there):
        machine.lossy(10)
    try:
        here.ok("move", name, "vault")
    finally:
        for machine in (here, two.there):
            machine.clear()
    is_right(two.there, name)


def is_right(machine: Machine, name: str) -> None:
    [row] = [one for one in machine.ls("--local") if one["name"] == name]
    before = str(row["output"]["end"])
    machine.ok("send", name, "check", "--enter")
    machine.ok("wait", name, "--for", "text:ZOO (RIGHT|WRONG)", "--since", before)
    said = machine.ok("read", name, "--from", before).out
    assert "WRONG" not in said and "ZOO RIGHT" in said, said


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
        back = there.ok("move", "ferry", "desk", "--json").json
        assert back["epoch"] == made["epoch"] + 2
        assert [one["changed"] for one in back["files"]] == [0], "nothing changed here meanwhile"
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


def test_r2_files_that_changed_at_the_original_place_are_counted(two: Two) -> None:
    """They are never overwritten: the answer says what to compare, and what to type."""
    here, there = two.here, two.there
    shell(here, "counted")
    pair(here, there)
    there.ok("machines", "trust", "desk")
    here.ok("move", "counted", "vault")
    own = here.base / "work" / "counted"
    (own / "shared").write_text("of a person")
    (own / "new").write_text("of a person")
    there.says("counted", "echo of the session > shared")
    told = there.ok("move", "counted", "desk").out
    workspace = str(here.work / "counted")
    assert f"2 files in {workspace} have changed meanwhile: `diff -r {workspace}" in told
    assert "to copy them back there: `cp -a " in told
    assert (own / "shared").read_text() == (own / "new").read_text() == "of a person"
    assert here.says("counted", "cat shared") == "of the session\n"


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


def test_a9_a_command_that_runs_during_a_move_is_not_over(two: Two) -> None:
    shell(two.here, "ticks")
    running = two.here.start("run", "ticks", "--json", "--", "echo begun; sleep 1000")
    two.here.ok("wait", "ticks", "--for", "text:^begun")
    two.here.ok("move", "ticks", "vault")
    _, said = running.communicate()
    error = json.loads(said)["error"]
    assert (running.returncode, error["name"]) == (255, "outcome_unknown")
    assert "moves it to vault" in error["message"] and not error["retry_safe"]


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
    sent = here.says("cut", "sha256sum < big")
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
    assert place.says("cut", "echo $X; sha256sum < big") == f"kept\n{sent}"
    here.clear()


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
