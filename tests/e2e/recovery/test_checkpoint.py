"""Sessions are saved to disk with all processes, and restored (R2).

The last test runs this file again as an ordinary user. All tests need CRIU (scripts/criu).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import home as homes
from holdfast.client.link import Link
from holdfast.model.errors import HoldfastError
from tests.support.installation import Installation, Terminal, eventually, installation
from tests.support.keeper import gone
from tests.support.ordinary_user import passes_as_ordinary_user
from tests.support.recovery.checkpoint import criu

ROOT = os.getuid() == 0
PYTHON = "/usr/bin/python3"


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    criu()
    with installation(tmp_path_factory.mktemp("home")) as made:
        yield made


def shell(hf: Installation, name: str, *args: str) -> dict[str, Any]:
    """A contained session with a shell that has a variable."""
    made = hf.ready(name, "--contained", *args)
    hf.quick("run", name, "--", "X=kept")
    return made


def saved(hf: Installation, name: str, *args: str) -> dict[str, Any]:
    said: dict[str, Any] = hf.ok("checkpoint", name, "--json", *args).json["saved"]
    return said


def restored(hf: Installation, word: str, *args: str) -> dict[str, Any]:
    said: dict[str, Any] = hf.ok("restore", word, "--json", *args).json
    return said


def killed(hf: Installation, made: dict[str, Any]) -> None:
    """Kill the keeper, and wait until the host has filed the end."""
    os.kill(made["keeper"], signal.SIGKILL)
    eventually(lambda: hf.get(made["id"])["state"] == "ended" or None, "the end of the session")


def says(hf: Installation, name: str, command: str) -> str:
    return hf.ok("run", name, "--", command).out


# ---------------------------------------------------------------- checkpoint


def test_r2_a_saved_session_goes_on(hf: Installation) -> None:
    shell(hf, "goes")
    made = saved(hf, "goes")
    assert made["checkpoint"].startswith("cp-") and not made["ended"] and made["bytes"] > 100_000
    assert made["frozen_ms"] > 0 and made["act"] > 0
    assert says(hf, "goes", "echo $X") == "kept\n"
    manifest = json.loads((Path(made["path"]) / "manifest.json").read_text())
    assert manifest["format"] == 1 and manifest["compression"] == "none"
    assert {"images/pstree.img", "output", "screen", "plan"} <= manifest["files"].keys()
    assert Path(made["path"]).stat().st_mode & 0o077 == 0
    [listed] = hf.ok("checkpoint", "goes", "--list", "--json").json
    assert listed["checkpoint"] == made["checkpoint"]
    assert hf.get("goes")["state"] == "detached"


def test_r2_a_checkpoint_reports_its_progress(hf: Installation) -> None:
    shell(hf, "progress")
    told = list[Any]()
    link = Link(homes.resolve(hf.env), "tester", autostart=False)
    try:
        link.request("checkpoint", session="progress", on_event=told.append)
    finally:
        link.close()
    steps = [one["step"] for one in told if one["event"] == "progress"]
    assert steps == ["examined", "begun", "saved", "copied", "resumed", "hashed"]
    assert all(one["bytes"] > 100_000 for one in told if one.get("step") in ("saved", "hashed"))


def test_r2_the_check_says_what_is_possible_and_stops_nothing(hf: Installation) -> None:
    shell(hf, "checks")
    said = hf.ok("checkpoint", "checks", "--check", "--json").json
    assert said["found"]["possible"] and said["found"]["bytes"] > 100_000 and said["saved"] is None
    assert hf.ok("checkpoint", "checks", "--list", "--json").json == []
    hf.quick("halt", "checks")
    refused = hf.cli("checkpoint", "checks", "--check")
    assert refused.rc == 7 and "it is halted" in refused.err
    hf.quick("resume", "checks")


def test_r2_a_plain_session_is_refused_with_the_reason(hf: Installation) -> None:
    hf.ready("plain", "--plain")
    refused = hf.cli("checkpoint", "plain")
    assert refused.rc == 7 and "it is a plain session" in refused.err
    assert "--contained" in refused.err
    assert says(hf, "plain", "echo on") == "on\n"


def test_r2_a_program_that_cannot_be_saved_is_named(hf: Installation) -> None:
    code = (
        "import ctypes, struct, sys; "
        "c = ctypes.create_string_buffer(struct.pack('<HBBI', 6, 0, 0, 0x7fff0000)); "
        "p = struct.pack('HxxxxxxQ', 1, ctypes.addressof(c)); "
        "assert not ctypes.CDLL(None).prctl(22, 2, ctypes.c_char_p(p), 0, 0); "
        "print('FILTERED', flush=True); input()"
    )
    hf.new("filter", "--contained", "--", PYTHON, "-c", code)
    hf.wait("filter", "text:FILTERED")
    refused = hf.cli("checkpoint", "filter", "--json")
    assert refused.rc == 7 and "python3" in refused.err and "seccomp filter" in refused.err
    assert hf.get("filter")["liveness"]["process"] == "alive"


def test_r2_without_criu_the_reason_and_the_remedy_are_told(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with installation(tmp_path_factory.mktemp("without")) as fresh:
        fresh.env["HOLDFAST_CRIU"] = "/nonexistent/criu"
        shell(fresh, "none")
        refused = fresh.cli("checkpoint", "none")
        assert refused.rc == 7 and "/nonexistent/criu does not run" in refused.err
        assert "HOLDFAST_CRIU" in refused.err
        assert says(fresh, "none", "echo $X") == "kept\n"


def test_a5_the_right_to_save_is_needed(hf: Installation) -> None:
    shell(hf, "theirs")
    hf.people("worker", rights="execute")
    refused = hf.cli("--as", "worker", "checkpoint", "theirs")
    assert refused.rc == 4 and "checkpoint" in refused.err
    assert hf.cli("--as", "worker", "restore", "theirs").rc == 4


# ---------------------------------------------------------------- restore


@pytest.mark.parametrize("gate", ["exec", "input"])
def test_r2_a_stopped_session_comes_back_as_it_was(hf: Installation, gate: str) -> None:
    name = f"back-{gate}"
    before = shell(hf, name, "--gate", gate)
    hf.quick("run", name, "--", "sleep 12345 & (sleep 54321; true) | cat & alias hi='echo hi'")
    hf.wait(name, "idle")
    screen, pid = hf.screen(name), before["pid"]
    made = saved(hf, name, "--stop")
    assert made["ended"] and gone(pid)
    row = hf.get(name)
    assert row["state"] == "checkpointed" and row["reason"] == f"saved as {made['checkpoint']}"
    assert name in [one["name"] for one in hf.ls()], "it is listed among the living"
    refused = hf.cli("run", name, "--", "true")
    assert "holdfast restore" in refused.err
    again = restored(hf, name)
    assert again["id"] == before["id"] and again["epoch"] == 2
    assert hf.screen(name) == screen
    now = hf.get(name)
    assert now["output"]["start"] == 0 and now["output"]["end"] >= made["offset"]
    assert now["gate"] == gate and now["epoch"] == 2
    assert says(hf, name, "echo $X $$") == "kept 3\n"
    assert says(hf, name, "jobs").count("Running") == 2
    whole = hf.ok("read", name, "--from", "0").out
    assert "X=kept" in whole
    hf.quick("halt", name)
    assert hf.get(name)["state"] == "halted"
    hf.quick("resume", name)
    hf.quick("send", name, "exit 7", "--enter")
    hf.wait(name, "exit")
    assert hf.get(name)["exit_code"] == 7
    assert hf.ok("log", "verify", before["id"]).rc == 0
    kinds = [one["kind"] for one in hf.ok("log", before["id"], "--json").records]
    assert "save" in kinds and "restore" in kinds


def test_r2_a_lost_session_comes_back_from_its_checkpoint(hf: Installation) -> None:
    """The memory is of the checkpoint; new output follows the output of the lost incarnation."""
    made = hf.get(shell(hf, "lost")["id"])
    first = saved(hf, "lost")
    says(hf, "lost", "X=later; echo after the checkpoint")
    end = hf.get("lost")["output"]["end"]
    killed(hf, made)
    assert hf.get("lost")["reason"].startswith("lost")
    again = restored(hf, "lost")
    assert again["checkpoint"] == first["checkpoint"] and again["epoch"] == 2
    assert again["at"] < hf.get("lost")["created"] + 3600
    assert hf.get("lost")["output"]["end"] >= end > first["offset"]
    assert says(hf, "lost", "echo $X") == "kept\n"
    assert "after the checkpoint" in hf.ok("read", "lost", "--from", "0").out
    assert "after the checkpoint" not in hf.screen("lost")


def test_s5_output_that_no_host_saw_is_a_gap(fresh: Installation) -> None:
    criu()
    made = fresh.get(shell(fresh, "unseen")["id"])
    first = saved(fresh, "unseen")
    os.kill(fresh.host_pid, signal.SIGKILL)
    os.kill(made["keeper"], signal.SIGKILL)
    restored(fresh, "unseen")
    second = fresh.get("unseen")
    assert second["output"]["start"] > first["offset"] + (1 << 39)
    os.kill(fresh.host_pid, signal.SIGKILL)
    os.kill(second["keeper"], signal.SIGKILL)
    restored(fresh, "unseen")
    assert fresh.get("unseen")["output"]["start"] > second["output"]["end"] + (1 << 39)
    assert says(fresh, "unseen", "echo $X") == "kept\n"
    assert fresh.cli("read", "unseen", "--from", "0").rc == 6


@pytest.mark.parametrize("how", ["stopped", "lost"])
def test_r2_attached_clients_follow(hf: Installation, how: str) -> None:
    name = f"follow-{how}"
    made = hf.get(shell(hf, name)["id"])
    terminal: Terminal = hf.attach(name)
    terminal.send("echo before\r")
    terminal.see("before")
    saved(hf, name, *(["--stop"] if how == "stopped" else []))
    if how == "lost":
        killed(hf, made)
    terminal.see("holdfast restore")
    terminal.send("echo typed while away $X\r")
    restored(hf, name)
    terminal.see("typed while away kept")
    hf.quick("run", name, "--", "clear")
    terminal.send("echo still $X\r")
    terminal.see("still kept")
    assert terminal.leave() == 0


def test_an_end_by_itself_is_told_to_attached_clients(hf: Installation) -> None:
    """Also if there is a checkpoint, from which an operator can still restore the session."""
    shell(hf, "itself")
    saved(hf, "itself")
    terminal: Terminal = hf.attach("itself")
    terminal.send("exit 3\r")
    assert terminal.wait() == 0
    assert "itself ended (exit code 3)" in terminal.output.decode()
    assert hf.get("itself")["state"] == "ended"
    restored(hf, "itself")
    assert says(hf, "itself", "echo $X") == "kept\n"


def test_r2_the_next_host_restores_too(fresh: Installation) -> None:
    criu()
    made = shell(fresh, "next")
    saved(fresh, "next", "--stop")
    os.kill(fresh.host_pid, signal.SIGKILL)
    assert restored(fresh, "next")["id"] == made["id"]
    assert says(fresh, "next", "echo $X") == "kept\n"
    again = saved(fresh, "next", "--stop")
    restored(fresh, again["checkpoint"])
    assert says(fresh, "next", "echo $X") == "kept\n"


def test_r2_a_damaged_checkpoint_is_refused_and_an_older_one_serves(hf: Installation) -> None:
    shell(hf, "damaged")
    first = saved(hf, "damaged")
    second = saved(hf, "damaged", "--stop")
    pages = next(Path(second["path"]).glob("images/pages-*.img"))
    with pages.open("r+b") as f:
        f.seek(100)
        f.write(b"other")
    refused = hf.cli("restore", "damaged")
    assert refused.rc == 7 and pages.name in refused.err
    assert hf.get("damaged")["state"] == "checkpointed"
    restored(hf, first["checkpoint"])
    assert says(hf, "damaged", "echo $X") == "kept\n"


def test_r2_a_failed_restore_says_why_and_changes_nothing(hf: Installation) -> None:
    """A file that a program reads has changed; the session stays ended."""
    file = hf.user / "read"
    file.write_text("one")
    shell(hf, "fails")
    hf.quick("run", "fails", "--", f"exec 7<{file}")
    saved(hf, "fails", "--stop")
    file.write_text("another size")
    refused = hf.cli("restore", "fails")
    assert refused.rc == 7 and f"{file.name} has changed since the checkpoint" in refused.err
    assert hf.get("fails")["state"] == "checkpointed" and hf.get("fails")["epoch"] == 1
    file.write_text("one")
    restored(hf, "fails")
    assert says(hf, "fails", "read Y <&7; echo $X $Y") == "kept one\n"


def test_r2_a_running_session_is_not_restored(hf: Installation) -> None:
    shell(hf, "runs")
    saved(hf, "runs")
    refused = hf.cli("restore", "runs")
    assert refused.rc == 4 and "is running" in refused.err
    assert hf.cli("restore", "cp-000000000000").rc == 3


def test_forget_removes_the_checkpoints(hf: Installation) -> None:
    made = saved(hf, shell(hf, "forgotten")["name"], "--stop")
    hf.ok("forget", "forgotten")
    eventually(lambda: not Path(made["path"]).exists() or None, "the checkpoint to be removed")
    assert hf.cli("restore", "forgotten").rc == 3


@pytest.mark.parametrize("step", ["begun", "saved", "hashed"])
@pytest.mark.parametrize("stop", [False, True], ids=["going on", "to end"])
def test_r2_a_session_survives_the_death_of_the_host_while_it_is_saved(
    fresh: Installation, step: str, stop: bool
) -> None:
    """At any step. It goes on, or it was saved completely and can be restored."""
    criu()
    shell(fresh, "host")

    def kill(event: Any) -> None:
        if event.get("step") == step:
            os.kill(fresh.host_pid, signal.SIGKILL)

    link = Link(homes.resolve(fresh.env), "tester", autostart=False)
    try:
        with pytest.raises(HoldfastError):
            link.request("checkpoint", session="host", stop=stop, on_event=kill)
    finally:
        link.close()
    fresh.ok("up", "--detach")
    listed = fresh.ok("checkpoint", "host", "--list", "--json").json
    if stop and listed:
        eventually(lambda: fresh.get("host")["state"] != "detached" or None, "the end to be seen")
        assert fresh.get("host")["state"] == "checkpointed"
        restored(fresh, "host")
    assert says(fresh, "host", "echo $X") == "kept\n"
    saved(fresh, "host")


def test_the_next_host_removes_checkpoints_of_forgotten_sessions(fresh: Installation) -> None:
    criu()
    shell(fresh, "known")
    made = Path(saved(fresh, "known")["path"])
    forgotten = made.parent.with_name("0123456789ab")
    shutil.copytree(made.parent, forgotten)
    fresh.ok("down")
    fresh.ok("up", "--detach")
    eventually(lambda: not forgotten.exists() or None, "the checkpoint to be removed")
    assert made.exists()


@pytest.mark.skipif(not ROOT, reason="it is being run as an ordinary user")
def test_r2_as_an_ordinary_user() -> None:
    criu()
    if shutil.which("useradd") is None:
        pytest.skip("useradd is not installed")
    passes_as_ordinary_user(__file__)
