"""A gated session that CRIU saves and restores (wire/exec_filter.py).

With its old seccomp filter no program starts; with the filter made neutral, all do. Needs root and
CRIU 4.2 or later: from scripts/criu, as `criu`, or as $HOLDFAST_CRIU.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.wire import exec_filter
from tests.support.keeper import until

FETCHED = Path(__file__).resolve().parents[3] / ".cache" / "criu" / "bin" / "criu"
CRIU = (
    os.environ.get("HOLDFAST_CRIU")
    or (FETCHED.exists() and str(FETCHED))
    or shutil.which("criu")
    or ""
)
SOURCE = Path(__file__).resolve().parents[3] / "src"
GATED = """
import os, sys
sys.path.insert(0, sys.argv[1])
from holdfast.keeper import install_filter
os.setsid()
null = os.open("/dev/null", os.O_RDWR)
for fd in (0, 1, 2):
    os.dup2(null, fd)
listener, cookie = install_filter.install(True, False, False)
if os.fork():
    os.read(os.pipe()[0], 1)
os.setsid()
words = (b"python3", b"-c", sys.argv[4].encode(), sys.argv[2].encode())
install_filter.execute(sys.argv[3].encode(), words, {b"PATH": b"/bin"}, cookie)
"""
PROGRAM = """
import os, subprocess, sys, time
os.chdir(sys.argv[1])
with open("pid.new", "w") as f:
    f.write(str(os.getpid()))
os.rename("pid.new", "pid")
while not os.path.exists("go"):
    time.sleep(0.02)  # poll
try:
    said = subprocess.run(["/bin/echo", "ran"], capture_output=True, text=True).stdout
except OSError as e:
    said = e.strerror
with open("said.new", "w") as f:
    f.write(said)
os.rename("said.new", "said")
"""
PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
pytestmark = pytest.mark.skipif(
    not CRIU or os.getuid() != 0, reason="needs root, and CRIU from scripts/criu"
)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "img").mkdir()
    yield tmp_path
    with_pid = tmp_path / "pid"
    if with_pid.exists():
        try:
            os.kill(int(with_pid.read_text()), signal.SIGKILL)
        except (ProcessLookupError, ValueError):
            pass


@pytest.mark.parametrize("neutral", [False, True], ids=["as it was", "made neutral"])
def test_a_restored_session(place: Path, neutral: bool) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", GATED, str(SOURCE), str(place), PYTHON, PROGRAM]
    )
    try:
        until((place / "pid").exists, "the program to run")
        pid = int((place / "pid").read_text())
        done = subprocess.run(
            [CRIU, "dump", "-t", str(pid), "-D", place / "img", "-v2", "-o", "dump.log"],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, (place / "img" / "dump.log").read_text()[-2000:]
    finally:
        holder.kill()
        holder.wait()
    until(lambda: not Path(f"/proc/{pid}").exists(), "the process to be gone and collected")
    [image] = (place / "img").glob("seccomp.img")
    changed, count = exec_filter.neutralise(image.read_bytes())
    assert count == 1 and len(changed) == len(image.read_bytes())
    if neutral:
        image.write_bytes(changed)
    done = subprocess.run(
        [CRIU, "restore", "-d", "-D", place / "img", "-v2", "-o", "restore.log"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, (place / "img" / "restore.log").read_text()[-2000:]
    (place / "go").touch()
    until((place / "said").exists, "an attempt to start a program")
    assert (place / "said").read_text() == ("ran\n" if neutral else "Function not implemented")
