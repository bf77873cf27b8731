"""A run of the tests leaves no daemon behind, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.keeper import WAIT_S, below, gone, until

SOURCE = Path(__file__).resolve().parents[2]
CONFTEST = """
import os
from tests.support.commands.whole_run import hold_together
if "PYTEST_XDIST_WORKER" not in os.environ:
    hold_together()
"""
TEST = """
import os, signal
from pathlib import Path
from tests.support.keeper import Nursery, below

def test_a_session():
    here = Path(__file__).parent
    nursery = Nursery(here / "run")
    nursery.run("a", ["sleep", "600"])
    started = [os.getpid(), nursery.process.pid, *below(nursery.process.pid)]
    (here / "fresh").write_text(" ".join(map(str, started)))
    (here / "fresh").rename(here / "started")
    if not (here / "ends").exists():
        signal.pause()
"""


@pytest.mark.parametrize("how", ["ends", "SIGINT", "SIGTERM", "a worker is killed"])
def test_a_run_of_the_tests_leaves_no_daemon_behind(short_path: Path, how: str) -> None:
    (short_path / "conftest.py").write_text(CONFTEST)
    (short_path / "test_one.py").write_text(TEST)
    if how == "ends":
        (short_path / "ends").touch()
    (short_path / "run").mkdir(mode=0o700)
    workers = ["-n", "1", "--maxprocesses", "1", "--max-worker-restart", "0"] if " " in how else []
    run = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *workers, short_path],
        cwd=short_path,
        env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
        | {"PYTHONPATH": f"{SOURCE}:{SOURCE / 'src'}"},
        stdout=subprocess.DEVNULL,
    )
    try:
        until((short_path / "started").exists, "the session")
        worker, *started = map(int, (short_path / "started").read_text().split())
        assert len(started) > 2, "a nursery, a keeper and a program"
        if how.startswith("SIG"):
            run.send_signal(signal.Signals[how])
        elif how != "ends":
            os.kill(worker, signal.SIGKILL)
        code = run.wait(WAIT_S)
        assert (code == 0) == (how == "ends")
        assert all(map(gone, [worker, *started]))
    finally:
        for pid in below(run.pid):
            os.kill(pid, signal.SIGKILL)
        run.kill()
        run.wait()
