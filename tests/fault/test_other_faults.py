"""S4, S5: nursery, keeper and host killed, stopped, replaced, started twice."""

from __future__ import annotations

import base64
import json
import os
import random
import resource
import signal
import socket
import time
from pathlib import Path

import pytest

from holdfast.client.attach.terminal import farewell
from holdfast.core.session.incarnation import OFFSET_STEP
from holdfast.model.errors import Unavailable
from holdfast.model.limits import HOST_AWAY_S
from holdfast.transport import unix
from holdfast.wire import keeper as wire
from tests.support import workload
from tests.support.busy_machine import Busy, stripped
from tests.support.checkers.history import Gap, Output, check_output, check_processes
from tests.support.clients import Attached, Lean
from tests.support.commands.source_copy import copy_source, forget_compiled
from tests.support.installation import state_of
from tests.support.keeper import Link, cpu_ns, stop
from tests.support.stage import SOON_S, Stage, members

LOSS = ("session.lost", "session.interrupted", "session.re_established")
PATIENT = "[host]\naway_s = 120.0\n[session]\npace_s = 60.0\n"


def called(stage: Stage, comm: str) -> list[int]:
    """Processes of this home by the name they gave themselves."""
    found = []
    for pid in members(stage.path):
        try:
            if Path(f"/proc/{pid}/comm").read_text().strip() == comm:
                found.append(pid)
        except OSError:
            continue
    return found


def faults_of(busy: Busy, may_skip: bool = False) -> list[str]:
    return [str(f)[:500] for f in busy.stop(may_skip)]


# ---------------------------------------------------------------- nursery and keepers


def test_s4_the_nursery_killed(stage: Stage) -> None:
    """Sessions do not notice; new ones are made; also when host and nursery die together."""
    stage.start_host()
    busy = Busy(stage, "busy", 3)
    for both in (False, True):
        [nursery] = called(stage, "hf-nursery")
        os.kill(nursery, signal.SIGKILL)
        if both:
            stage.kill_host()
            stage.start_host()
        stage.pump.until(lambda nursery=nursery: not stage.running(nursery), "the nursery is dead")  # type: ignore[misc]
        stage.new(f"after-{both}", ["sleep", "1000"])
        assert stage.identity(f"after-{both}")
        stage.pump.until(lambda: len(called(stage, "hf-nursery")) == 1, "there is one nursery")
    assert faults_of(busy) == []


def test_r1_a_keeper_killed_is_a_loss_and_the_session_comes_back(stage: Stage) -> None:
    """The loss is reported, also to viewers, which follow; other sessions are untouched."""
    stage.start_host()
    busy = Busy(stage, "busy", 4)
    stage.work("seen", "record", f"{stage.directory}/seen", 0)
    viewer = Lean(stage, "seen").attached()
    keeper, program = stage.session("seen")["keeper"], stage.session("seen")["pid"]
    os.kill(keeper, signal.SIGKILL)
    stage.pump.until(lambda: not stage.running(program), "the program is hung up on")
    stage.pump.until(
        lambda: viewer.position is not None and viewer.position > OFFSET_STEP,
        "the viewer has the screen of the new incarnation",
    )
    assert viewer.ended is None
    found = stage.events("seen")
    names = [one["event"] for one in found if one["event"] in LOSS]
    assert names == list(LOSS)
    lost, back = (one for one in found if one["event"] in (LOSS[0], LOSS[2]))
    assert (lost["reason"], back["reason"]) == ("lost: its keeper died", "Its keeper was killed")
    assert "record" in back["running"][0]["argv"], "R6: it is offered, and not run again"
    assert stage.session("seen")["epoch"] == 2 and stage.identity("seen")
    assert faults_of(busy) == []


def test_r1_a_keeper_killed_again_and_again_waits_for_an_operator(stage: Stage) -> None:
    stage.start_host()
    stage.new("work", ["/bin/bash"])
    os.kill(stage.session("work")["keeper"], signal.SIGKILL)
    stage.pump.until(lambda: stage.session("work")["epoch"] == 2, "it comes back by itself")
    viewer = Lean(stage, "work").attached()
    os.kill(stage.session("work")["keeper"], signal.SIGKILL)
    stage.pump.until(lambda: stage.ended("work"), "once only")
    code, out, err = stage.finish(stage.cli("run", "work", "--", "true"))
    assert code != 0 and "holdfast restore work" in err
    code, out, err = stage.finish(stage.cli("restore", "work", "--json"))
    assert code == 0, err
    said = json.loads(out)
    assert said["epoch"] == 3 and said["re_established"]["from"] == 2 and not said["checkpoint"]
    assert "keeper was lost" in said["re_established"]["reason"]
    assert stage.finish(stage.cli("run", "work", "--", "echo here"))[1] == b"here\n"
    stage.pump.until(
        lambda: viewer.position is not None and viewer.position > 2 * OFFSET_STEP,
        "the viewer has followed",
    )


def test_r1_a_host_killed_before_the_keepers_session_is_back(stage: Stage) -> None:
    stage.start_host("kill@host.create.recorded#2")
    stage.new("work", ["/bin/bash"])
    os.kill(stage.session("work")["keeper"], signal.SIGKILL)
    stage.host_ended()
    stage.start_host()
    assert stage.session("work")["state"] == "detached"
    assert stage.finish(stage.cli("run", "work", "--", "echo here"))[1] == b"here\n"


def test_r1_a_keeper_killed_while_no_host_runs_leaves_a_new_incarnation(stage: Stage) -> None:
    """Its viewer gets the screen of the new incarnation; other sessions are untouched."""
    stage.start_host()
    busy = Busy(stage, "busy", 4)
    stage.work("unseen", "record", f"{stage.directory}/unseen", 0)
    viewer = Lean(stage, "unseen").attached()
    keeper, program = stage.session("unseen")["keeper"], stage.session("unseen")["pid"]
    viewer.away = True
    stage.kill_host()
    os.kill(keeper, signal.SIGKILL)
    stage.pump.until(lambda: not stage.running(program), "the program is hung up on")
    stage.start_host()
    viewer.away = False
    stage.pump.until(
        lambda: viewer.position is not None and viewer.position > OFFSET_STEP,
        "the viewer has the screen of the new incarnation",
    )
    assert stage.session("unseen")["epoch"] == 2 and stage.session("busy")["epoch"] == 1
    assert faults_of(busy) == []


def test_s2_a_stopped_keeper_is_unknown_and_blocks_no_other_session(stage: Stage) -> None:
    stage.start_host()
    busy = Busy(stage, "busy", 5)
    stage.work("held", "record", f"{stage.directory}/held", 6)
    keeper, identifier = stage.session("held")["keeper"], stage.session("held")["id"]
    os.kill(keeper, signal.SIGSTOP)
    stage.pump.until(lambda: state_of(keeper) == "T", "the keeper stops")
    stage.kill_host()
    begun = time.monotonic()
    stage.start_host(wait=False)
    stage.pump.until(lambda: all(v.live for v in busy.viewers), "the others are served")
    assert time.monotonic() - begun < SOON_S
    [found] = [s for s in stage.ask("ls")["sessions"] if s["id"] == identifier]
    assert found["state"] == "unknown" and found["liveness"]["process"] == "unknown"
    os.kill(keeper, signal.SIGCONT)
    typist = Lean(stage, "held")
    typist.type(b"<alive>" + workload.STOP)
    assert stage.exit_code("held") == 6
    assert Path(stage.directory, "held").read_bytes() == b"<alive>"
    assert faults_of(busy) == []


def test_s2_ending_a_session_whose_keeper_is_stopped_says_so(stage: Stage) -> None:
    stage.start_host()
    stage.work("held", "record", f"{stage.directory}/held", 6)
    keeper = stage.session("held")["keeper"]
    stop(keeper)
    begun = time.monotonic()
    code, _, err = stage.finish(stage.cli("end", "held"))
    assert time.monotonic() - begun < SOON_S
    assert (
        code == 5 and "keeper" in err and f"kill -CONT {keeper}" in err and "do not die" not in err
    ), err
    os.kill(keeper, signal.SIGCONT)
    assert stage.session("held")["state"] == "detached"
    # No input on its way to the session would have ended it
    Lean(stage, "held").type(workload.STOP)
    assert stage.exit_code("held") == 6


def test_s4_a_stopped_nursery_blocks_only_new_sessions(stage: Stage) -> None:
    """A client that wants a new session gets an error as soon as no more requests can wait.

    All other clients are served meanwhile.
    """
    log = Path(stage.directory, "probes")
    stage.start_host(f"log:{log}")
    stage.work("here", "record", f"{stage.directory}/here", 0)
    [nursery] = called(stage, "hf-nursery")
    stop(nursery)
    asked = stage.cli("new", "later", "--json", "--", "sleep", "1000")
    stage.pump.until(
        lambda: log.read_text().split().count("host.spawn.sent") == 2,
        "a request waits for the nursery",
    )
    queue: list[socket.socket] = []
    with pytest.raises(BlockingIOError):  # no more requests can wait
        while True:
            queue.append(unix.connect(f"{stage.home.run}/nursery.sock", blocking=False))
    with pytest.raises(Unavailable, match="nursery does not answer"):
        stage.link().request(
            "new", name="no", argv=["sleep", "1000"], cwd="/", env={}, size=[80, 24]
        )
    Lean(stage, "here").type(b"<alive>" + workload.STOP)
    assert stage.exit_code("here") == 0
    for sock in queue:
        sock.close()
    os.kill(nursery, signal.SIGCONT)
    code, _, err = stage.finish(asked)
    assert code == 0, err
    assert stage.identity("later")


ODD_LABELS = [
    b"[1]",
    b'{"shell": "bash", "argv": 5}',
    b'{"name": {"a": []}, "token": 7}',
    b"[" * 4000,
    b"\xff\xfe",
    b'{"shell": []}',
]


def test_s4_odd_keepers_do_not_hinder_a_host(stage: Stage) -> None:
    """Labels that no host wrote, terms that no host can reach: the others are adopted.

    New sessions can be made too.
    """
    stage.start_host()
    good = Busy(stage, "good", 12)
    odd = [stage.new(f"odd-{n}", ["sleep", "1000"])["id"] for n in range(len(ODD_LABELS) + 2)]
    stage.kill_host()
    for session, label in zip(odd, ODD_LABELS, strict=False):
        link = Link(Path(stage.home.run, f"{session}.keeper"), 1000)
        link.sock.send(wire.label(label))
        link.state()  # the keeper has taken it
        link.close()
    for session, term in zip(odd[-2:], ((1 << 64) - 1, (1 << 63) - 1), strict=True):
        Link(Path(stage.home.run, f"{session}.keeper"), term).close()
    stage.start_host()
    assert {s["id"] for s in stage.ask("ls")["sessions"]} >= set(odd)
    assert stage.new("after", ["sleep", "1000"])["state"] == "detached"
    stage.kill_host()
    stage.start_host()  # and the next host, too
    assert stage.identity("after")
    for session in odd[-2:]:
        [found] = [s for s in stage.ask("ls")["sessions"] if s["id"] == session]
        assert found["state"] == "unknown" and "term" in found["reason"]
    assert faults_of(good) == []


def test_s4_no_descriptor_left_for_clients(stage: Stage) -> None:
    """A host that cannot accept does not spin, and accepts again when it can."""
    stage.start_host()
    stage.work("here", "record", f"{stage.directory}/here", 0)
    before = resource.prlimit(stage.host, resource.RLIMIT_NOFILE)
    looks = [set[int]()]
    stage.pump.until(
        lambda: (
            looks.append({int(fd) for fd in os.listdir(f"/proc/{stage.host}/fd")})  # type: ignore[func-returns-value]
            or len(looks) > 20
        ),
        "descriptors held for longer than a moment",
    )
    held = set[int].intersection(*looks[1:])
    resource.prlimit(
        stage.host, resource.RLIMIT_NOFILE, (min(set(range(len(held) + 1)) - held), before[1])
    )  # the first number that is free
    client = Lean(stage, "here")
    stage.pump.until(lambda: client.connects, "it has connected, as far as the kernel is concerned")
    used = cpu_ns(stage.host)
    stage.pump.during(1.0)  # the span that is measured
    assert cpu_ns(stage.host) - used < 0.2e9
    assert not client.live
    resource.prlimit(stage.host, resource.RLIMIT_NOFILE, before)
    client.attached()
    client.type(b"<alive>" + workload.STOP)
    assert stage.exit_code("here") == 0


# ---------------------------------------------------------------- the host stopped


@pytest.mark.parametrize("stage", [PATIENT], indirect=True)
def test_s4_the_host_stopped_for_a_moment(stage: Stage) -> None:
    stage.start_host()
    busy = Busy(stage, "busy", 6, burst=32)
    client = Attached(stage, "busy", eye=False).attached()
    rng = random.Random(2)
    for seconds in (0.1, 0.4, 1.2):
        os.kill(stage.host, signal.SIGSTOP)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            stage.pump.turn()
            busy.type(rng)
        os.kill(stage.host, signal.SIGCONT)
        at = (busy.viewers[0].position or 0) + 300_000
        stage.pump.until(
            lambda at=at: all((v.position or 0) > at for v in busy.viewers),  # type: ignore[misc]
            "output goes on",
        )
    client.close()
    assert faults_of(busy) == []


@pytest.mark.parametrize(
    "stage", ["[session]\nring_bytes = 1048576\n[host]\naway_s = 0.5\n"], indirect=True
)
def test_s5_the_host_stopped_for_too_long(stage: Stage) -> None:
    """The program is not held up; the rolled-off range is exact for reader, viewer and events."""
    stage.start_host()
    blocks = 12_000
    script = "stty -echo; echo GATE; read go; exec " + " ".join(
        workload.command("flood", blocks, 19)
    )
    stage.new("gate", ["sh", "-c", script])
    stage.pump.until(lambda: stage.session("gate")["output"]["end"] >= 6, "the program listens")
    raw = b"GATE\r\n" + workload.flood(blocks)
    viewer = Lean(stage, "gate", eye=True).attached()
    reader = stage.cli("read", "gate", "--follow", "--json", bufsize=0)
    assert reader.stdout is not None
    first = reader.stdout.readline()  # the reader follows
    program = stage.identities("gate")["gate"][0]
    stage.pump.until(lambda: len(stage.session("gate")["operators"]) == 1, "the viewer is there")
    viewer.type(b"\n")
    stage.pump.until(lambda: (viewer.position or 0) > 200_000, "output comes")
    os.kill(stage.host, signal.SIGSTOP)
    begun = time.monotonic()
    stage.pump.until(lambda: not stage.running(program), "the program ends by itself")
    took = time.monotonic() - begun
    assert took < HOST_AWAY_S + SOON_S, f"the program was held up for {took:.1f} s"
    os.kill(stage.host, signal.SIGCONT)
    stage.pump.until(
        lambda: viewer.ended, lambda: f"the viewer hears of the end: {viewer.position}"
    )
    assert viewer.ended is not None and viewer.ended["exit_code"] == 19
    assert [
        str(f) for f in check_output(viewer.log, raw, strip=stripped, until=len(raw), may_skip=True)
    ] == []
    assert any(reason == 1 for _, reason in viewer.screens), (
        "the viewer was not told that it skipped"
    )
    code, out, err = stage.finish(reader)
    assert code == 6, (code, err)
    records = [json.loads(line) for line in (first, *out.splitlines())]
    log = [
        Gap(r["gap"]["start"], r["gap"]["end"])
        if r["gap"]
        else Output(r["offset"], r["end"], base64.b64decode(r["data"]))
        for r in records
        if "offset" in r
    ]
    assert [r["error"]["code"] for r in records if "error" in r] in ([], [6])
    assert any(isinstance(one, Gap) for one in log)
    assert [str(f) for f in check_output(log, raw, start=0, until=len(raw))] == []
    rolled = [
        (e["start"], e["end"])
        for e in stage.events("gate")
        if e["event"] == "session.output_rolled"
    ]
    assert rolled and all(0 < a < b < len(raw) for a, b in rolled)
    assert stage.exit_code("gate") == 19


# ---------------------------------------------------------------- the host replaced, started twice


@pytest.mark.parametrize("stage", [PATIENT], indirect=True)
def test_s4_the_host_replaced_in_place(stage: Stage) -> None:
    """kill -HUP under flood and input: same pid, new term, no loss, no disconnected client."""
    stage.start_host()
    busy = Busy(stage, "busy", 7)
    client = Attached(stage, "busy", eye=False).attached()
    rng = random.Random(3)
    host, term = stage.host, stage.ask("ping")["term"]
    for n in range(5):
        os.kill(host, signal.SIGHUP)
        stage.pump.until(lambda: stage.ask("ping")["term"] > term, "the next one serves")
        assert stage.ask("ping")["pid"] == host
        term = stage.ask("ping")["term"]
        at = (busy.viewers[0].position or 0) + 50_000
        for _ in range(30):
            busy.type(rng)
            stage.pump.turn(0.002)
        stage.pump.until(
            lambda at=at: all((v.position or 0) > at for v in busy.viewers),  # type: ignore[misc]
            f"output goes on after {n}",
        )
    assert client.running
    client.close()
    assert faults_of(busy) == []


def test_s4_up_with_another_release(stage: Stage) -> None:
    """Another release is installed over the running one; `up` replaces the host.

    The session keeps its process.
    """
    tree = copy_source(Path(stage.directory, "site"))
    version = tree / "holdfast" / "__init__.py"
    old = version.read_text()
    stage.env["PYTHONPATH"] = str(tree)
    version.write_text(old + '\n__version__ = "0.0.1"\n')
    first = stage.json("up", "--detach")
    assert first["release"] == "0.0.1" and first["started"]
    stage.find_host()
    busy = Busy(stage, "busy", 8)
    version.write_text(old + '\n__version__ = "0.0.2"\n')
    forget_compiled(version)
    second = stage.json("up", "--detach")
    assert second["release"] == "0.0.2"
    assert check_processes(busy.identity, {"busy": stage.identity("busy")}) == []
    stage.find_host()
    assert faults_of(busy) == []


def test_s4_many_hosts_started_at_once(stage: Stage) -> None:
    """One host wins, the others leave; the sessions have one master all the time."""
    stage.start_host()
    busy = Busy(stage, "busy", 9)
    stage.kill_host()
    clients = [stage.cli("ls", "--json") for _ in range(3)]
    hosts = [stage.forge.host(stage.env) for _ in range(4)]
    for client in clients:
        code, out, err = stage.finish(client)
        assert code == 0 and len(json.loads(out)) == 1, err
    winner = stage.find_host()
    ours = [pid for pid in hosts if pid != winner]
    stage.pump.until(lambda: not any(stage.running(pid) for pid in ours), "the others are gone")
    assert [stage.forge.wait(pid) for pid in ours] == [3] * len(ours)
    stage.pump.until(
        lambda: (
            sum(
                b"holdfast.host.main" in Path(f"/proc/{p}/cmdline").read_bytes()
                for p in members(stage.path)
            )
            <= 1
        ),
        "one host is left",
    )
    assert stage.find_host() == winner
    assert faults_of(busy) == []


def test_s4_a_host_whose_lock_was_removed_still_has_its_database(stage: Stage) -> None:
    """The next host reports the serving host, and leaves."""
    stage.start_host()
    busy = Busy(stage, "busy", 13)
    os.unlink(f"{stage.home.run}/host.lock")
    second = stage.cli("up", "--detach")  # finds the serving host
    assert stage.finish(second)[0] == 0
    os.rename(stage.home.host_socket, f"{stage.home.host_socket}.away")
    code, _, err = stage.finish(stage.cli("ls"))
    assert code == 5 and f"kill {stage.host}" in err and "disk" not in err, err
    os.rename(f"{stage.home.host_socket}.away", stage.home.host_socket)
    assert stage.find_host() in stage.forge.made and not stage.hosts()
    assert faults_of(busy) == []


def test_s4_a_host_that_was_superseded_leaves(stage: Stage) -> None:
    """The state files of a host were removed, and another host was started.

    The new host finds the keepers, and the first host leaves.
    """
    stage.start_host()
    busy = Busy(stage, "busy", 13)
    first = stage.host
    for path in (
        f"{stage.home.run}/host.lock",
        *(f"{stage.home.database}{end}" for end in ("", "-wal", "-shm")),
    ):
        Path(path).unlink(missing_ok=True)
    second = stage.forge.host(stage.env)
    stage.pump.until(lambda: not stage.running(first), "the first one leaves")
    assert stage.forge.wait(first) == 0
    assert stage.find_host() == second
    term = stage.ask("ping")["term"]
    at = (busy.viewers[0].position or 0) + 100_000
    stage.pump.until(
        lambda: all(v.live and (v.position or 0) > at for v in busy.viewers), "output goes on"
    )
    assert stage.running(second) and stage.ask("ping")["term"] == term
    assert faults_of(busy) == []


def test_s4_a_host_that_is_stopped_and_another_that_waits(stage: Stage) -> None:
    """A stopped host keeps its lock: another host does not take the sessions; clients are told."""
    stage.start_host()
    busy = Busy(stage, "busy", 10)
    first = stage.host
    os.kill(first, signal.SIGSTOP)
    stage.pump.until(lambda: state_of(first) == "T", "the first host stops")
    second = stage.forge.host(stage.env)
    assert stage.forge.wait(second) == 3
    code, _, err = stage.finish(stage.cli("ls"))
    assert code in (5, 124) and "stopped" in err, err
    os.kill(first, signal.SIGCONT)
    assert stage.find_host() == first
    assert faults_of(busy) == []


def test_s3_terminal_put_back_and_session_alive_when_attach_is_told_to_go(stage: Stage) -> None:
    """kill -TERM, -HUP of a client under flood: the client restores its terminal.

    The session does not notice.
    """
    import termios

    stage.start_host()
    busy = Busy(stage, "busy", 11, burst=64, pause_ms=1)
    for number in (signal.SIGTERM, signal.SIGHUP):
        client = Attached(stage, "busy", eye=False)
        client.attached()
        stage.pump.until(lambda client=client: len(client.data) > 100_000, "it shows the flood")  # type: ignore[misc]
        assert termios.tcgetattr(client._slave) != client.before
        assert client.kill(number) == 128 + number
        assert termios.tcgetattr(client._slave) == client.before
        stage.pump.until(lambda client=client: b"keeps running" in client.data, "it says so")  # type: ignore[misc]
        assert farewell(80, 24) in client.data
        client.close()
    assert faults_of(busy, may_skip=True) == []
