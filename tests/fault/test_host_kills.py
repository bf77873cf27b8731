"""S4: the host is killed, again and again, while sessions flood and their clients type. Nothing is lost, doubled or changed."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from holdfast.testing.history import Fault
from tests.fault.busy import Busy
from tests.fault.stage import DEADLINE_S, Stage

HOT = ("host.act.sending", "host.act.sent", "host.output.sent", "host.screen.sent", "host.consumed.sent", "host.snapshot.saved",
       "host.snapshot.stored", "host.adopted", "host.ready")
PATIENT = "[host]\naway_s = 120.0\n"      # nothing may roll off here, however slow the machine is
PROBE_PATIENCE_S = 0.5                    # after a client is back: a probe not passed in this time is not waited for


def storm(stage: Stage, sessions: list[Busy], kills: int, rng: random.Random) -> dict[str, int]:
    """Kills the host so many times, at probes and at random moments, under load. How often at which."""
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
            if not back and not early and sum(v.connects for s in sessions for v in s.viewers) > connects:
                back = True
                until = time.monotonic() + (PROBE_PATIENCE_S if name else rng.uniform(0, 0.25))
        if stage.running(pid):
            name = ""
            os.kill(pid, signal.SIGKILL)
        assert stage.host_ended() == -signal.SIGKILL
        done[name or "at random"] = done.get(name or "at random", 0) + 1
    return done


def run_storm(stage: Stage, kills: int, seed: int) -> tuple[list[Fault], dict[str, int], list[Busy]]:
    rng = random.Random(seed)
    stage.start_host()
    sessions = [Busy(stage, f"busy-{i}", code=20 + i) for i in range(3)]
    stage.kill_host()
    done = storm(stage, sessions, kills, rng)
    stage.start_host(wait=False)
    faults = [fault for s in sessions for fault in s.stop()]
    return faults, done, sessions


@pytest.mark.parametrize('stage', [PATIENT], indirect=True)
def test_s4_host_killed_under_flood_and_input(stage: Stage) -> None:
    faults, done, sessions = run_storm(stage, 120, 1)
    print(done, stage.kills, "kills", sum(s.shown for s in sessions) >> 20, "MiB shown", sum(v.number for s in sessions for v in s.viewers), "inputs")
    assert [str(f) for f in faults[:10]] == []


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(10, 20))
@pytest.mark.parametrize("stage", [PATIENT], indirect=True)
def test_s4_host_killed_under_flood_and_input_for_long(stage: Stage, seed: int) -> None:
    faults, done, sessions = run_storm(stage, 300, seed)
    print(done, sum(s.shown for s in sessions) >> 20, "MiB shown")
    assert [str(f) for f in faults[:10]] == []
