"""S4: the host is killed again and again while sessions flood and clients type; no byte is harmed.

No byte is lost, doubled or changed.
"""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from holdfast.host.session.pace import RETURN_S
from holdfast.model.limits import RECONNECT_MAX_S
from tests.support import workload
from tests.support.busy_machine import Busy, stripped
from tests.support.checkers.history import Fault, check_output, difference
from tests.support.clients import Attached, Lean
from tests.support.stage import DEADLINE_S, Stage

HOT = (
    "host.act.sending",
    "host.act.sent",
    "host.output.sent",
    "host.screen.sent",
    "host.consumed.sent",
    "host.snapshot.saved",
    "host.snapshot.stored",
    "host.adopted",
    "host.ready",
)
# No output may roll off here, on the slowest machine either
PATIENT = "[host]\naway_s = 120.0\n[session]\npace_s = 60.0\n"
PROBE_PATIENCE_S = 0.5  # after a client is back: a probe not passed in this time is not waited for


def storm(stage: Stage, sessions: list[Busy], kills: int, rng: random.Random) -> dict[str, int]:
    """Kill the host so many times, at probes and at random moments, under load.

    Returns how often it was killed at which point.
    """
    done: dict[str, int] = {}
    while sum(done.values()) < kills:
        name = rng.choice(HOT) if rng.random() < 0.6 else ""
        nth = 1 if name in ("host.adopted", "host.ready") else rng.randint(1, 30)
        stage.start_host(f"kill@{name}#{nth}" if name else "", wait=False)
        pid, early = stage.host, rng.random() < 0.1
        connects = sum(v.connects for s in sessions for v in s.viewers)
        until = time.monotonic() + (rng.uniform(0, 0.1) if early else DEADLINE_S)
        back = False
        while stage.running(pid) and time.monotonic() < until:
            stage.pump.turn(0.004)
            if rng.random() < 0.5:
                rng.choice(sessions).type(rng)
            if (
                not back
                and not early
                and sum(v.connects for s in sessions for v in s.viewers) > connects
            ):
                back = True
                until = time.monotonic() + (PROBE_PATIENCE_S if name else rng.uniform(0, 0.25))
        if stage.running(pid):
            name = ""
            os.kill(pid, signal.SIGKILL)
        assert stage.host_ended() == -signal.SIGKILL
        done[name or "at random"] = done.get(name or "at random", 0) + 1
    return done


def run_storm(
    stage: Stage, kills: int, seed: int
) -> tuple[list[Fault], dict[str, int], list[Busy]]:
    rng = random.Random(seed)
    stage.start_host()
    sessions = [Busy(stage, f"busy-{i}", code=20 + i) for i in range(3)]
    stage.kill_host()
    done = storm(stage, sessions, kills, rng)
    stage.start_host(wait=False)
    faults = [fault for s in sessions for fault in s.stop()]
    return faults, done, sessions


@pytest.mark.parametrize("stage", [PATIENT], indirect=True)
@pytest.mark.smoke
def test_s4_host_killed_under_flood_and_input(stage: Stage) -> None:
    faults, done, sessions = run_storm(stage, 50, 1)
    print(
        done,
        stage.kills,
        "kills",
        sum(s.shown for s in sessions) >> 20,
        "MiB shown",
        sum(v.number for s in sessions for v in s.viewers),
        "inputs",
    )
    assert [str(f) for f in faults[:10]] == []


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(10, 20))
@pytest.mark.parametrize("stage", [PATIENT], indirect=True)
def test_s4_host_killed_under_flood_and_input_for_long(stage: Stage, seed: int) -> None:
    faults, done, sessions = run_storm(stage, 300, seed)
    print(done, sum(s.shown for s in sessions) >> 20, "MiB shown")
    assert [str(f) for f in faults[:10]] == []


# ---------------------------------------------------------------- a flood at full speed


def gated_flood(stage: Stage, name: str, blocks: int, code: int) -> bytes:
    """A session that floods after its first input line; the output after that line."""
    stage.new(
        name,
        [
            "sh",
            "-c",
            "stty -echo; echo GATE; read go; exec "
            + " ".join(workload.command("flood", blocks, code)),
        ],
    )
    stage.pump.until(lambda: stage.session(name)["output"]["end"] >= 6, f"{name} is ready")
    return workload.flood(blocks)


@pytest.mark.parametrize("stage", [PATIENT], indirect=True)
def test_s4_attach_comes_back_by_itself_and_shows_every_byte(stage: Stage) -> None:
    """The real client starts the next host itself, and its terminal gets the whole flood."""
    stage.start_host()
    raw = gated_flood(stage, "gate", 40_000, 13)
    client = Attached(stage, "gate", eye=False).attached()
    identity = stage.identities("gate")
    begin = len(client.data)
    client.type(b"\n")
    kills = 0
    pids = {stage.host}
    while kills < 8:
        at = begin + (kills + 1) * len(raw) // 10
        stage.pump.until(
            lambda: len(client.data) >= at,
            lambda: f"output goes on: {len(client.data)} of {len(raw)}",
        )
        pids.add(stage.find_host())
        stage.kill_host()
        kills += 1
    stage.pump.until(
        lambda: not client.running,
        lambda: f"attach ends with the session: {len(client.data)} of {len(raw)}",
    )
    assert client.wait() == 0
    shown = bytes(client.data)
    start = shown.find(workload.READY, begin)
    assert start >= 0
    want = stripped(raw)
    got = shown[start : start + len(want)]
    assert difference(got, want) == ""
    assert b"gate ended (exit code 13)" in shown[start + len(want) :]
    assert len(pids) == 8 and stage.session("gate")["pid"] == identity["gate"][0]


@pytest.mark.parametrize("stage", [PATIENT], indirect=True)
def test_s4_viewers_get_every_byte_of_a_flood_at_full_speed(stage: Stage) -> None:
    """Only its viewers hold the program back, so the ring is full whenever the host dies."""
    stage.start_host()
    raw = b"GATE\r\n" + gated_flood(stage, "gate", 60_000, 14)
    viewers = [Lean(stage, "gate").attached() for _ in range(2)]
    viewers[0].type(b"\n")
    for n in range(1, 7):
        stage.pump.until(lambda: (viewers[0].position or 0) >= n * len(raw) // 8, "output goes on")
        for viewer in viewers:
            viewer.away = True
        stage.kill_host()
        stage.start_host()
        stage.pump.during(RECONNECT_MAX_S)  # as late as a client that waits between its attempts
        for viewer in viewers:
            viewer.away = False
    stage.pump.until(
        lambda: all(v.ended or v.error for v in viewers),
        lambda: f"the flood ends: {[v.position for v in viewers]} of {len(raw)}",
    )
    for viewer in viewers:
        assert [str(f) for f in check_output(viewer.log, raw, strip=stripped, until=len(raw))] == []
    assert stage.exit_code("gate") == 14


@pytest.mark.parametrize("stage", [PATIENT], indirect=True)
def test_s4_a_viewer_on_a_busy_machine_returns_late_and_misses_no_byte(stage: Stage) -> None:
    """A viewer was attached, so the next host lets no output roll off until the viewer is back."""
    stage.start_host()
    raw = b"GATE\r\n" + gated_flood(stage, "gate", 40_000, 14)
    viewer, other = Lean(stage, "gate").attached(), Lean(stage, "gate").attached()
    viewer.type(b"\n")
    for n in range(1, 3):
        stage.pump.until(lambda: (viewer.position or 0) >= n * len(raw) // 8, "output goes on")
        viewer.away = True  # the other viewer is back at once
        stage.kill_host()
        stage.start_host()
        stage.pump.during(2 * RETURN_S)
        viewer.away = False
    stage.pump.until(
        lambda: all(v.ended or v.error for v in (viewer, other)),
        lambda: f"the flood ends: {viewer.position} of {len(raw)}",
    )
    for one in (viewer, other):
        assert [str(f) for f in check_output(one.log, raw, strip=stripped, until=len(raw))] == []
    assert stage.exit_code("gate") == 14


@pytest.mark.parametrize("stage", [PATIENT], indirect=True)
def test_s4_a_program_that_ends_while_no_host_runs(stage: Stage) -> None:
    """The exit code is kept, and attached viewers get the rest of the output when they return."""
    stage.start_host()
    raw = b"GATE\r\n" + gated_flood(stage, "gate", 7_000, 15)
    assert len(raw) < 6 << 20
    viewer = Lean(stage, "gate").attached()
    client = Attached(stage, "gate", eye=False).attached()
    begin = len(client.data)
    pid = stage.identities("gate")["gate"][0]
    viewer.type(b"\n")
    stage.pump.until(lambda: (viewer.position or 0) > 100_000, "output comes")
    viewer.away = True
    stage.autostart(False)
    stage.kill_host()
    stage.pump.until(lambda: not stage.running(pid), "the program ends")
    stage.start_host()
    stage.pump.during(RECONNECT_MAX_S)
    viewer.away = False
    stage.pump.until(lambda: viewer.ended or viewer.error, "the viewer hears of the end")
    assert [str(f) for f in check_output(viewer.log, raw, strip=stripped, until=len(raw))] == []
    assert viewer.ended is not None and viewer.ended["exit_code"] == 15
    assert client.wait() == 0
    shown = bytes(client.data)
    start = shown.find(workload.READY, begin)
    want = stripped(raw[6:])
    assert difference(shown[start : start + len(want)], want) == ""
    assert b"gate ended (exit code 15)" in shown[start + len(want) :]
    assert stage.exit_code("gate") == 15


@pytest.mark.parametrize(
    "stage",
    ["[session]\nring_bytes = 65536\npace_s = 60.0\n[host]\naway_s = 120.0\n"],
    indirect=True,
)
@pytest.mark.alone
def test_s4_the_smallest_ring_is_enough(stage: Stage) -> None:
    """Less history, not less output, and no crawling."""
    stage.start_host()
    raw = b"GATE\r\n" + gated_flood(stage, "gate", 2_000, 16)
    viewer = Lean(stage, "gate").attached()
    viewer.type(b"\n")
    begun = time.monotonic()
    stage.pump.until(lambda: (viewer.position or 0) > len(raw) // 2, "output comes")
    stage.kill_host()
    stage.start_host(wait=False)
    stage.pump.until(
        lambda: viewer.ended or viewer.error,
        lambda: f"the flood ends: {viewer.position} of {len(raw)}",
    )
    assert [str(f) for f in check_output(viewer.log, raw, strip=stripped, until=len(raw))] == []
    assert stage.exit_code("gate") == 16
    print(f"{len(raw) >> 10} KiB through a ring of 64 KiB in {time.monotonic() - begun:.1f} s")
