"""Programs verify from inside that a restore has changed no state (R2).

Each workload runs with the exec gate on and off, as root and (last test) as an ordinary user.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.installation import Installation, eventually, installation
from tests.support.ordinary_user import needs, passes_as_ordinary_user
from tests.support.recovery import zoo
from tests.support.recovery.checkpoint import criu

ROOT = os.getuid() == 0
PYTHON = "/usr/bin/python3"
MEGABYTES = 200
pytestmark = pytest.mark.parametrize("gate", ["exec", "input"])


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    criu()
    with installation(tmp_path_factory.mktemp("home")) as made:
        yield made


def shell(hf: Installation, name: str, gate: str) -> None:
    hf.ready(name, "--contained", "--gate", gate)


def round_trip(hf: Installation, name: str) -> None:
    """Save the session, end all processes, and restore the session."""
    assert hf.ok("checkpoint", name, "--stop", "--json").json["saved"]["ended"]
    hf.ok("restore", name)


def says(hf: Installation, name: str, command: str) -> str:
    return hf.ok("run", name, "--", command).out


def shows(hf: Installation, name: str, text: str) -> None:
    hf.wait(name, f"text:{text}")


def test_r2_jobs_a_stopped_job_and_a_daemon(hf: Installation, gate: str) -> None:
    name = f"jobs-{gate}"
    shell(hf, name, gate)
    says(hf, name, "trap 'echo trapped' USR1; f() { echo function $1; }; sleep 1111 &")
    says(hf, name, "setsid -f sh -c 'echo $$ >daemon; exec sleep 3333'")
    hf.quick("send", name, "sleep 2222", "--enter")
    eventually(lambda: "sleep 2222" in foreground(hf, name) or None, "the job in the foreground")
    hf.quick("send", name, "--key", "C-z")
    shows(hf, name, "Stopped")
    hf.wait(name, "idle")
    enter(hf, name)
    daemon = (hf.user / "daemon").read_text().strip()
    round_trip(hf, name)
    jobs = says(hf, name, "jobs -l")
    assert "Running" in jobs and "Stopped" in jobs and "sleep 2222" in jobs
    assert says(hf, name, f"f called; cat /proc/{daemon}/comm") == "function called\nsleep\n"
    hf.quick("send", name, "fg %+", "--enter")
    eventually(lambda: "sleep 2222" in foreground(hf, name) or None, "the job in the foreground")
    hf.quick("send", name, "--key", "C-c")
    hf.wait(name, "idle")
    enter(hf, name)
    assert "sleep 2222" not in says(hf, name, "jobs")


def enter(hf: Installation, name: str) -> None:
    """Enter an empty line: C-z and C-c count as typed, and `run` wants an unbegun line."""
    hf.quick("send", name, "true", "--enter")
    hf.wait(name, "idle")


def foreground(hf: Installation, name: str) -> str:
    graph = json.loads(hf.quick("graph", name, "--json"))
    return str(graph["terminal"]["foreground"])


def test_r2_an_editor_with_unsaved_text(hf: Installation, gate: str) -> None:
    needs("vim")
    name, file = f"vim-{gate}", hf.user / f"text-{gate}"
    shell(hf, name, gate)
    hf.quick("send", name, f"vim -u NONE {file.name}", "--enter")
    shows(hf, name, "New")
    hf.quick("send", name, "iunsaved words")
    shows(hf, name, "unsaved words")
    screen = hf.screen(name)
    round_trip(hf, name)
    assert hf.screen(name) == screen and not file.exists()
    hf.quick("send", name, ", and more")
    shows(hf, name, "and more")
    hf.quick("send", name, "--key", "Escape")
    hf.quick("send", name, ":wq", "--enter")
    hf.wait(name, "idle")
    assert file.read_text() == "unsaved words, and more\n"


def test_r2_a_large_heap_with_pipes_locks_and_sockets(hf: Installation, gate: str) -> None:
    if not os.path.exists(PYTHON):
        pytest.skip("there is no interpreter of the system here")
    name = f"zoo-{gate}"
    shutil.copy(Path(zoo.__file__), hf.user / "zoo.py")
    (directory := hf.user / name).mkdir()
    hf.new(
        *(name, "--contained", "--gate", gate, "--"),
        *(PYTHON, "zoo.py", directory.name, str(MEGABYTES)),
    )
    shows(hf, name, "ZOO READY")
    hf.quick("send", name, "check one", "--enter")
    shows(hf, name, "ZOO RIGHT")
    round_trip(hf, name)
    before = hf.get(name)["output"]["end"]
    hf.quick("send", name, "check two", "--enter")
    hf.ok("wait", name, "--for", "text:ZOO (RIGHT|WRONG)", "--since", str(before))
    assert "WRONG" not in hf.screen(name) and hf.screen(name).count("ZOO RIGHT") == 2


@pytest.mark.skipif(not ROOT, reason="it is being run as an ordinary user")
def test_r2_all_workloads_as_an_ordinary_user(gate: str) -> None:
    if gate == "input":
        pytest.skip("the other run has both")
    criu()
    passes_as_ordinary_user(__file__)
