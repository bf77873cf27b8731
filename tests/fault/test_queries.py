"""Every query that the host answers is answered, whatever the machine does meanwhile (S6).

The program waits for each answer without a limit and prints nothing meanwhile. An answer that waits
for later output hangs, and the deadline finds it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.stage import Stage


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def answered(stage: Stage, asked: int, sessions: int, loops: int, deadline_s: float) -> None:
    log = Path(stage.directory, "probes")
    stage.start_host(f"log:{log}")
    paths = [Path(stage.directory, f"answers{n}") for n in range(sessions)]
    each = asked // sessions
    with busy_loops(loops):
        for number, path in enumerate(paths):
            stage.work(f"q{number}", "questions", str(path), each, number)

        def told() -> list[str]:
            return [path.read_text() if path.exists() else "" for path in paths]

        stage.pump.until(
            lambda: all(text.endswith(f" {each}") for text in told()),
            lambda: f"every query has its answer (right, asked): {told()}",
            deadline_s,
        )
    assert told() == [f"{each} {each}"] * sessions
    assert log.read_text().split().count("host.snapshot.stored") > sessions, "no snapshots"


def test_s6_every_query_is_answered_beside_busy_loops(stage: Stage) -> None:
    answered(stage, asked=120, sessions=3, loops=4, deadline_s=240)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_s6_a_thousand_of_a_thousand_queries_are_answered(stage: Stage) -> None:
    answered(stage, asked=1000, sessions=4, loops=28, deadline_s=1500)
