"""The bench measures what it claims: each measure once, tiny, with a bare terminal and Holdfast.

No figure is judged here: on a machine that runs tests, times mean nothing. Complete bytes and
correct screens do not depend on time, so they are checked, and that verdicts follow from numbers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import programs
from bench.__main__ import MEASURES
from bench.profile import WAYS, Event, hop_table, keys_on
from bench.targets import TARGETS, Reached, Target, judge, values_of

ROOT = Path(__file__).resolve().parents[2]
TINY = {
    "mb": 0.3,
    "keys": 20,
    "lines": 300,
    "viewers": 2,
    "sessions": 4,
    "kills": 2,
    "idle-s": 0.2,
    "away-s": 0.1,
    "settle-s": 0.1,
}
RUN_S = 280
OF_RAW = {
    name: ("MBps" if name.startswith("bulk") else "p50_us" if name == "echo" else "ms")
    for name in MEASURES
    if name not in ("stall", "memory", "survival")
} | {"commands": "python_ms"}
OF_HOLDFAST = OF_RAW | {
    "commands": "ls_x",
    "stall": "slowdown",
    "memory": "kb_per_session",
    "survival": "longest_ms",
}


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One run of all measures, through the command line; its JSON."""
    out = tmp_path_factory.mktemp("bench") / "figures"
    sizes = [word for name, value in TINY.items() for word in (f"--{name}", str(value))]
    command = [
        sys.executable,
        "-m",
        "bench",
        "--peers",
        "raw,holdfast",
        "--rounds",
        "1",
        "--out",
        str(out),
    ]
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    done = subprocess.run(
        [*command, *sizes],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "what was to be reached" in done.stdout
    assert "| holdfast |" in out.with_suffix(".md").read_text()
    found: dict[str, Any] = json.loads(out.with_suffix(".json").read_text())
    return found


@pytest.mark.parametrize("measure", MEASURES)
def test_each_measure_gives_numbers(figures: dict[str, Any], measure: str) -> None:
    [one] = figures["rounds"][measure]
    assert one["holdfast"][OF_HOLDFAST[measure]] is not None
    if measure in OF_RAW:
        assert one["raw"][OF_RAW[measure]] > 0
    else:
        assert one["raw"] == {} or measure == "survival"


@pytest.mark.parametrize(
    "measure", [m for m in MEASURES if m.startswith("bulk") and not m.endswith("_0")]
)
def test_every_byte_reaches_every_viewer(figures: dict[str, Any], measure: str) -> None:
    [one] = figures["rounds"][measure]
    assert one["holdfast"]["exact"] == 1.0
    assert one["holdfast"]["received"] == 1.0


@pytest.mark.parametrize("measure", ["reattach_live", "reattach_static"])
def test_s6_a_returning_viewer_sees_the_right_screen(figures: dict[str, Any], measure: str) -> None:
    pytest.importorskip("avt")
    assert figures["rounds"][measure][0]["holdfast"]["correct"] == 1.0


def test_s3_a_session_survives_its_clients(figures: dict[str, Any]) -> None:
    [one] = figures["rounds"]["survival"]
    assert one["holdfast"] | {"alive": 1.0, "kills": float(TINY["kills"])} == one["holdfast"]
    assert one["raw"]["alive"] == 0.0  # the bare terminal's program does not: the check can fail


def test_a_missing_measure_has_no_verdict(figures: dict[str, Any]) -> None:
    """Without tmux in the run there is no comparison."""
    found = {(v["measure"], v["metric"]): v for v in figures["verdicts"]["holdfast"]}
    assert found["echo", "p50_us"]["reached"] == "not measured"
    assert found["bulk_plain_1", "MBps"]["value"] > 0


# ---------------------------------------------------------------- verdicts

AT_LEAST = Target("bulk_plain_1", "MBps", "raw", 0.6, 0.8, True, "", (("exact", 1.0, True),))
AT_MOST = Target("reattach_live", "ms", None, 100.0, 40.0, False, "")


def flood_rounds(*rates: float, exact: float = 1.0) -> list[dict[str, dict[str, float | None]]]:
    return [{"raw": {"MBps": 100.0}, "holdfast": {"MBps": rate, "exact": exact}} for rate in rates]


def test_a_verdict_is_the_median_of_the_ratios() -> None:
    assert judge(AT_LEAST, flood_rounds(10, 85, 90), "holdfast").reached is Reached.AIM
    assert judge(AT_LEAST, flood_rounds(10, 65, 90), "holdfast").reached is Reached.MUST
    assert judge(AT_LEAST, flood_rounds(10, 50, 90), "holdfast").reached is Reached.NO
    assert judge(AT_LEAST, flood_rounds(10, 85, 90), "holdfast").value == 0.85


def test_a_rate_with_lost_bytes_reaches_no_target() -> None:
    verdict = judge(AT_LEAST, flood_rounds(95, 95, exact=0.0), "holdfast")
    assert verdict.reached is Reached.NO
    assert verdict.broken == ("exact",)


def test_never_is_worse_than_any_limit() -> None:
    values: list[float | None] = [None, None, 1.0]
    rounds = [{"holdfast": {"ms": value}} for value in values]
    assert judge(AT_MOST, rounds, "holdfast").reached is Reached.NO
    assert judge(AT_MOST, rounds[2:], "holdfast").reached is Reached.AIM


def test_a_ratio_is_taken_within_a_round() -> None:
    rounds = [
        {"raw": {"MBps": 100.0}, "tmux": {"MBps": 50.0}},
        {"raw": {"MBps": 10.0}, "tmux": {"MBps": 5.0}},
        {"tmux": {"MBps": 7.0}},
    ]
    assert values_of(rounds, "tmux", "MBps", "raw") == [0.5, 0.5]


def test_every_target_has_a_measure() -> None:
    assert {t.measure for t in TARGETS} <= set(MEASURES)


# ---------------------------------------------------------------- data and hops


def test_the_data_is_the_same_every_time_and_no_mark_is_in_it() -> None:
    for ansi in (False, True):
        data = programs.block(ansi, 50_000)
        assert data == programs.block.__wrapped__(ansi, 50_000)
        assert not any(
            mark in data for mark in (programs.READY, programs.END.encode(), programs.TOP.encode())
        )
    assert b"\x1b[" in programs.block(True, 50_000)
    assert b"\x1b" not in programs.block(False, 50_000)


def test_hops_are_read_from_the_events_of_whole_keys() -> None:
    way = WAYS["output straight from the keeper's ring"]
    one = [Event(i * 1e-5, role, calls[0], edge) for i, (role, calls, edge) in enumerate(way)]
    lost = [Event(1 + e.at, e.role, e.call, e.edge) for e in one[:-2]]
    assert len(keys_on(way, [*one, *lost])) == 1
    assert "whole way 130 us over 1 keys" in hop_table([*one, *lost])
