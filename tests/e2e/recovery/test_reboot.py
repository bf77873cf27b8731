"""Sessions come back from checkpoints after a restart of the machine (R2).

scripts/reboot_trial.py restarts a virtual machine for real. This test provokes what a restart
changes: every process of Holdfast is killed, the stored boot is another one, and files have other
inode numbers. Numbers of processes differ in any case, but not in a plain session.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from tests.support.installation import Installation, eventually, installation
from tests.support.keeper import gone
from tests.support.ordinary_user import passes_as_ordinary_user
from tests.support.recovery.checkpoint import criu

ROOT = os.getuid() == 0
LAYOUTS = ["contained", *(["plain"] if ROOT else [])]
OTHER_BOOT = "11111111-2222-3333-4444-555555555555"
# Prints the name of each file that appears in its home directory.
WATCHER = (
    "import ctypes, os, struct; c = ctypes.CDLL(None); fd = c.inotify_init();"
    "assert c.inotify_add_watch(fd, os.environ['HOME'].encode(), 0x100) > 0;"
    "print('WATCHING', flush=True);"
    "[print('SAW', os.read(fd, 500)[16:].split(bytes(1))[0].decode(), flush=True)"
    " for _ in iter(int, 1)]"
)


@pytest.fixture
def hf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    criu()
    with installation(tmp_path_factory.mktemp("home")) as made:
        yield made


def restart(hf: Installation, *keepers: int) -> None:
    """What a restart of the machine leaves behind."""
    state = Path(hf.env["HOLDFAST_HOME"])
    hf.ok("down")
    for pid in keepers:
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: all(map(gone, keepers)) or None, "the keepers to be gone")
    db = apsw.Connection(str(state / "state.db"))
    db.execute("UPDATE sessions SET body = json_set(body, '$.boot', ?)", (OTHER_BOOT,))
    db.close()
    for folder in filter(Path.exists, (state / "contained", hf.user)):
        shutil.copytree(folder, f"{folder}.new", symlinks=True)
        shutil.rmtree(folder)
        os.rename(f"{folder}.new", folder)
    hf.ok("up", "--detach")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_r2_a_saved_session_comes_back_after_a_restart(hf: Installation, layout: str) -> None:
    (hf.user / "read").write_text("data\n")
    hf.ready("saved", f"--{layout}")
    hf.quick("run", "saved", "--", f"X=kept; exec 5>>{hf.user}/log 6<{hf.user}/read; sleep 9999 &")
    hf.new("watches", "--contained", "--", "/usr/bin/python3", "-c", WATCHER)
    hf.wait("watches", "text:WATCHING")
    for name in ("saved", "watches"):
        hf.ok("checkpoint", name, "--stop")
    restart(hf)
    for name in ("saved", "watches"):
        assert hf.get(name)["state"] == "checkpointed"
        hf.ok("restore", name)
    assert hf.ok("run", "saved", "--", "read a <&6; echo $X $a; echo on >&5").out == "kept data\n"
    assert "Running" in hf.ok("run", "saved", "--", "jobs").out
    assert (hf.user / "log").read_text() == "on\n"
    home = next(Path(hf.env["HOLDFAST_HOME"], "contained", hf.get("watches")["id"]).glob("home"))
    (home / "fresh").touch()
    hf.wait("watches", "text:SAW fresh")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_r2_a_session_that_ran_comes_back_empty_and_then_from_its_checkpoint(
    hf: Installation, layout: str
) -> None:
    """The host re-establishes it at once. An operator may then choose the saved memory."""
    made = hf.ready("ran", f"--{layout}")
    hf.quick("run", "ran", "--", "X=kept")
    hf.ok("checkpoint", "ran")
    restart(hf, hf.get(made["id"])["keeper"])
    eventually(lambda: hf.get("ran")["state"] == "detached" or None, "the new incarnation")
    assert hf.get("ran")["epoch"] == 2
    hf.wait("ran", "idle")
    assert hf.ok("run", "ran", "--", "echo ${X-lost}").out == "lost\n"
    refused = hf.cli("restore", "ran", "--json")
    assert refused.rc == 4 and "`holdfast end ran`" in json.loads(refused.out)["error"]["recover"]
    hf.ok("end", "ran")
    hf.ok("restore", "ran")
    assert hf.get("ran")["epoch"] == 3
    assert hf.ok("run", "ran", "--", "echo $X").out == "kept\n"


@pytest.mark.skipif(not ROOT, reason="it is being run as an ordinary user")
def test_r2_after_a_restart_as_an_ordinary_user() -> None:
    criu()
    if shutil.which("useradd") is None:
        pytest.skip("useradd is not installed")
    passes_as_ordinary_user(__file__)
