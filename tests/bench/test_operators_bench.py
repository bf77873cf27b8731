"""The figures of seizing, halting, the door and the record come from acts that took effect.

No figure is judged here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.operators import PARTS
from bench.targets import OPERATOR_TARGETS, Reached, judge

ROOT = Path(__file__).resolve().parents[2]
RUN_S = 280


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One run of all measures, through the command line; its JSON."""
    out = tmp_path_factory.mktemp("operators") / "figures.json"
    command = [
        sys.executable,
        "-m",
        "bench.operators",
        "--rounds",
        "5",
        "--processes",
        "9",
        "--acts",
        "64",
        "--json",
        str(out),
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "| seize_idle |" in done.stdout and "what was to be reached" in done.stdout
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@pytest.mark.parametrize("when", ["idle", "output", "input"])
def test_a3_a_seize_is_effective_when_it_is_answered(figures: dict[str, Any], when: str) -> None:
    values = figures["results"][f"seize_{when}"]["holdfast"]
    assert values["flushed"] == 1.0 and 0 < values["answered_p50_ms"] <= values["effective_p99_ms"]


@pytest.mark.parametrize("what", ["plain", "contained"])
def test_a4_no_process_runs_after_the_answer_to_a_halt(figures: dict[str, Any], what: str) -> None:
    values = figures["results"][f"halt_{what}"]["holdfast"]
    assert values["late"] == 0.0
    assert values["last_p99_ms"] <= values["answered_p99_ms"]
    assert values["complete"] == 1.0 or os.geteuid() != 0, (
        "an ordinary user's halt of a plain session is best effort"
    )


def test_acts_at_the_door_are_timed(figures: dict[str, Any]) -> None:
    for act in ("send, connected", "run, connected", "send, a process each", "run, a process each"):
        assert figures["results"][act]["holdfast"]["per_s"] > 0


def test_every_target_has_a_measure(figures: dict[str, Any]) -> None:
    assert {target.measure for target in OPERATOR_TARGETS} <= set(figures["results"])
    assert len(figures["verdicts"]) == len(OPERATOR_TARGETS)
    assert len(PARTS) == 4


def test_an_incomplete_halt_reaches_no_target() -> None:
    target = next(t for t in OPERATOR_TARGETS if t.measure == "halt_plain")
    quick: dict[str, float | None] = {"took_p99_ms": 1.0, "complete": 1.0, "late": 0.0}
    assert judge(target, [{"holdfast": quick}], "holdfast").reached is Reached.AIM
    assert judge(target, [{"holdfast": {**quick, "late": 0.1}}], "holdfast").reached is Reached.NO
