"""Sessions are saved to disk with all processes, and restored (R2).

The last test runs this file again as an ordinary user. All tests need CRIU (scripts/criu).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import home as homes
from holdfast.client.link import Link
from holdfast.model.errors import HoldfastError
from holdfast.wire.keeper import nursery_command
from tests.support.installation import Installation, Terminal, eventually, installation
from tests.support.keeper import gone, hf_root
from tests.support.ordinary_user import cases, passes_as_ordinary_user
from tests.support.recovery.checkpoint import criu, unsavable, without_new_keepers

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
    """Restore with the memory: not the fallback that starts the session again without it."""
    said: dict[str, Any] = hf.ok("restore", word, "--json", *args).json
    assert "re_established" not in said, said
    return said


def killed(hf: Installation, made: dict[str, Any]) -> None:
    """Kill the keeper, and wait until the host has filed the end."""
    os.kill(made["keeper"], signal.SIGKILL)
    eventually(lambda: hf.get(made["id"])["state"] == "ended" or None, "the end of the session")


def checkpointers(hf: Installation) -> list[int]:
    return [pid for pid, words in hf.processes().items() if "holdfast.checkpointer" in words]


def says(hf: Installation, name: str, command: str) -> str:
    return hf.ok("run", name, "--", command).out


# ---------------------------------------------------------------- checkpoint


def test_r2_a_saved_session_goes_on(hf: Installation) -> None:
    shell(hf, "goes")
    made = saved(hf, "goes")
    assert made["checkpoint"].startswith("cp-") and not made["ended"] and made["bytes"] > 100_000
    assert made["frozen_ms"] > 0 and made["act"] > 0
    assert says(hf, "goes", "echo $X") == "kept\n"
    lines = (Path(made["path"]) / "manifest.json").read_text().splitlines()
    manifest = json.loads(lines[0])
    assert manifest["format"] == 3 and manifest["bytes"] == made["bytes"]
    assert made["stored"] == made["added"] == sum(manifest["objects"].values())
    stored = Path(made["path"]).parent / "objects"
    assert {one.name for one in stored.iterdir()} == manifest["objects"].keys()
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
    assert steps == ["examined", "begun", "saved", "copied", "resumed", "stored"]
    assert all(one["bytes"] > 100_000 for one in told if one.get("step") in ("saved", "stored"))


def test_r2_the_check_says_what_is_possible_and_stops_nothing(hf: Installation) -> None:
    shell(hf, "checks")
    said = hf.ok("checkpoint", "checks", "--check", "--json").json
    assert said["found"]["possible"] and said["found"]["bytes"] > 100_000 and said["saved"] is None
    assert hf.ok("checkpoint", "checks", "--list", "--json").json == []


# Four processes that share memory, and a file in memory that none has open.
SHARING = f"""
import mmap, os
with open("/dev/shm/file", "wb") as file:
    file.write(os.urandom(30 << 20))
shared = mmap.mmap(-1, 40 << 20)
for _ in range(3):
    if os.fork() == 0:
        break
shared[:] = b"{"x" * 1024}" * (40 << 10)
print("SHA" + "RED", flush=True)
input()
"""


def test_r2_the_expected_size_is_right_for_shared_memory(hf: Installation) -> None:
    (hf.user / "sharing.py").write_text(SHARING)
    hf.new("sharing", "--contained", "--", PYTHON, "sharing.py")
    hf.wait("sharing", "text:(?s)(SHARED.*){4}")
    expected = hf.ok("checkpoint", "sharing", "--check", "--json").json["found"]["bytes"]
    made = saved(hf, "sharing", "--stop")
    assert 0.8 * made["bytes"] < expected < 1.5 * made["bytes"] and made["bytes"] > 70 << 20
    assert restored(hf, "sharing")["id"] == made["id"]


@pytest.mark.skipif(not ROOT, reason="other plain sessions cannot be saved in any case")
def test_r2_a_plain_session_with_a_holdfast_inside_is_refused(hf: Installation) -> None:
    made = hf.ready("outer", "--plain")
    inner = shlex.join(nursery_command(str(hf.base / "inner")))
    hf.quick("run", "outer", "--", f"{inner} >ready &")
    eventually(lambda: (hf.user / "ready").read_text() or None, "the nursery inside")
    refused = hf.cli("checkpoint", "outer", "--stop")
    assert refused.rc and "holds processes of Holdfast" in refused.err, refused
    assert re.search(r"hf-nursery \(\d+\)", refused.err), refused
    assert says(hf, "outer", "echo on") == "on\n" and not gone(made["keeper"])
    hf.ok("end", "outer")


def test_r2_a_plain_session_is_refused_with_the_reason(hf: Installation) -> None:
    """Of an ordinary user, or without hf-root."""
    unsavable(hf.get(hf.ready("plain", "--plain")["id"])["keeper"])
    refused = hf.cli("checkpoint", "plain")
    reason = "end it and start it again" if ROOT else "of an ordinary user: only root may"
    assert refused.rc == 7 and "it is a plain session" in refused.err and reason in refused.err
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
    [listed] = [one for one in hf.ls() if one["name"] == "lost"]
    assert listed["on_disk"]["checkpoint"] == first["checkpoint"]
    assert "lost, can be restored" in hf.ok("ls").out
    assert "lost and can be restored: lost (`holdfast restore NAME`)" in hf.ok("up", "--detach").out
    shown = hf.cli("view", "lost")
    assert shown.out.strip() or (shown.rc == 5 and "`holdfast restore lost`" in shown.err), shown
    again = restored(hf, "lost")
    assert again["checkpoint"] == first["checkpoint"] and again["epoch"] == 2
    assert again["at"] < hf.get("lost")["created"] + 3600
    assert hf.get("lost")["output"]["end"] >= end > first["offset"]
    assert says(hf, "lost", "echo $X") == "kept\n"
    assert "after the checkpoint" in hf.ok("read", "lost", "--from", "0").out
    assert "after the checkpoint" not in hf.screen("lost")


def test_r1_r2_r5_a_session_without_its_memory_is_saved_and_branched(hf: Installation) -> None:
    made = hf.get(shell(hf, "renewed")["id"])
    os.kill(made["keeper"], signal.SIGKILL)
    eventually(lambda: hf.get(made["id"])["epoch"] == 2 or None, "the second incarnation")
    hf.quick("run", "renewed", "--", "X=new")
    branch = hf.ok("fork", "renewed", "--json").json["branches"][0]
    assert says(hf, branch["name"], "echo $X") == "new\n"
    saved(hf, "renewed", "--stop")
    restored(hf, "renewed")
    assert says(hf, "renewed", "echo $X") == "new\n"


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


def objects(made: dict[str, Any]) -> dict[str, Path]:
    """The stored files of a checkpoint, by name."""
    place = Path(made["path"])
    header = json.loads((place / "manifest.json").read_text().splitlines()[0])
    return {name: place.parent / "objects" / name for name in header["objects"]}


def test_r2_the_second_checkpoint_shares_what_has_not_changed(hf: Installation) -> None:
    code = (
        "import random; x = random.Random(1).randbytes(8 << 20); print('FILLED', flush=True);"
        "[print(bytearray(x)[:0], end='', flush=True) for _ in iter(input, '')]"
    )
    hf.new("shares", "--contained", "--", PYTHON, "-c", code)
    hf.wait("shares", "text:FILLED")
    first = saved(hf, "shares")
    second = saved(hf, "shares")
    assert first["added"] == first["stored"] > 8 << 20
    assert second["added"] < 1 << 20 and second["stored"] > 8 << 20
    assert len(objects(first).keys() & objects(second).keys()) >= 30


def test_r2_a_damaged_checkpoint_is_refused_and_an_older_one_serves(hf: Installation) -> None:
    shell(hf, "damaged")
    first = saved(hf, "damaged")
    second = saved(hf, "damaged", "--stop")
    [*mine] = objects(second).keys() - objects(first).keys()
    assert mine
    with objects(second)[mine[0]].open("r+b") as f:
        f.seek(100)
        f.write(b"other")
    refused = hf.cli("restore", "damaged", "--no-fallback")
    assert refused.rc == 7 and f"{second['checkpoint']} is damaged" in refused.err
    assert hf.get("damaged")["state"] == "checkpointed"
    restored(hf, first["checkpoint"])
    assert says(hf, "damaged", "echo $X") == "kept\n"


def test_r2_an_altered_or_old_manifest_is_refused_with_the_reason(hf: Installation) -> None:
    shell(hf, "altered")
    made = saved(hf, "altered", "--stop")
    manifest = Path(made["path"]) / "manifest.json"
    whole = manifest.read_bytes()
    manifest.write_bytes(whole.replace(b'"ended": true', b'"ended": !true'.replace(b"!", b" ")))
    refused = hf.cli("restore", "altered", "--no-fallback")
    assert refused.rc == 7 and "the signature of its maker is wrong" in refused.err
    manifest.write_text(json.dumps({"format": 1, "compression": "none"}, indent=1))
    refused = hf.cli("restore", "altered", "--no-fallback")
    assert refused.rc == 7 and "it has format 1, and this release reads 2" in refused.err
    manifest.write_bytes(whole)
    restored(hf, "altered")
    assert says(hf, "altered", "echo $X") == "kept\n"


def test_r1_r2_a_lost_session_whose_checkpoint_cannot_be_read_comes_back_without_memory(
    hf: Installation,
) -> None:
    """The only checkpoint is damaged: it keeps nobody from the session, and can be removed."""
    shell(hf, "unread")
    made = saved(hf, "unread")
    Path(made["path"], "manifest.json").write_text("damaged")
    killed(hf, hf.get("unread"))
    named = hf.cli("restore", "unread", "--checkpoint", made["checkpoint"])
    assert named.rc == 7 and "manifest is damaged" in named.err
    back = hf.ok("restore", "unread", "--json").json
    assert back["checkpoint"] == made["checkpoint"]
    assert "manifest is damaged" in back["re_established"]["reason"]
    assert says(hf, "unread", "echo =$X") == "=\n"
    killed(hf, hf.get("unread"))
    hf.ok("checkpoint", "unread", "--remove", made["checkpoint"])
    assert hf.ok("restore", "unread", "--json").json["checkpoint"] == ""
    hf.end("unread")


def test_r2_nothing_of_a_session_is_readable_on_the_disk(hf: Installation) -> None:
    """Memory, screen, output, name and plain images: only ids, times and sizes remain."""
    secret = "correct-horse-battery"
    hf.ready("sealed", "--contained")
    hf.quick("run", "sealed", "--", f"X={secret}")
    made = saved(hf, "sealed")
    killed(hf, hf.get("sealed"))
    last = Path(made["path"]).parent / "last-output"
    eventually(lambda: last.exists() or None, "the last output to be kept")
    found = [one for one in last.parent.rglob("*") if one.is_file()]
    assert len(found) > 5
    for one in found:
        assert not {b'sealed"', secret.encode(), b"bash", b"PATH="} & _words(one.read_bytes())
    assert not list(Path(made["path"]).parents[1].glob(".plain/*"))
    restored(hf, "sealed")
    assert says(hf, "sealed", "echo $X") == f"{secret}\n"


def _words(data: bytes) -> set[bytes]:
    known = (b'sealed"', b"correct-horse-battery", b"bash", b"PATH=")
    return {one for one in known if one in data.replace(b'"sealed":', b"")}


@pytest.mark.parametrize("stop", [False, True], ids=["going on", "to end"])
def test_r2_a_checkpoint_that_cannot_be_stored_leaves_the_session_running(
    hf: Installation, stop: bool
) -> None:
    """The disk refuses to store it after the images were written."""
    name = f"unstored-{stop}"
    made = shell(hf, name)
    place = Path(hf.env["HOLDFAST_HOME"], "checkpoints", made["id"])
    place.mkdir(mode=0o700, parents=True)
    (place / "keys").touch()  # where a directory is needed
    args = ["--stop"] if stop else []
    refused = hf.cli("checkpoint", name, *args)
    assert refused.rc == 7 and "could not be saved: Not a directory" in refused.err
    assert says(hf, name, "echo $X") == "kept\n"
    assert hf.ok("checkpoint", name, "--list", "--json").json == []
    (place / "keys").unlink()
    saved(hf, name, *args)
    if stop:
        restored(hf, name)
    assert says(hf, name, "echo $X") == "kept\n"


def test_r2_a_checkpoint_is_removed_but_not_the_last_of_an_ended_session(hf: Installation) -> None:
    shell(hf, "removes")
    first, second = saved(hf, "removes"), saved(hf, "removes", "--stop")
    gone_files = objects(first).keys() - objects(second).keys()
    said = hf.ok("checkpoint", "removes", "--remove", first["checkpoint"][:9], "--json").json
    assert said["checkpoint"] == first["checkpoint"] and said["freed"] > 0
    assert not any(objects(second)[min(objects(second))].with_name(n).exists() for n in gone_files)
    refused = hf.cli("checkpoint", "removes", "--remove", second["checkpoint"])
    assert refused.rc == 4 and "holdfast forget removes" in refused.err
    assert hf.cli("checkpoint", "removes", "--remove", first["checkpoint"]).rc == 3
    restored(hf, "removes")
    assert says(hf, "removes", "echo $X") == "kept\n"
    hf.ok("checkpoint", "removes", "--remove", second["checkpoint"])
    assert hf.ok("checkpoint", "removes", "--list", "--json").json == []


def test_r2_only_the_newest_checkpoints_are_kept(hf: Installation) -> None:
    shell(hf, "many")
    made = [saved(hf, "many") for _ in range(4)]
    listed = hf.ok("checkpoint", "many", "--list", "--json").json
    assert [one["checkpoint"] for one in listed] == [one["checkpoint"] for one in made[1:]]
    used = {name for one in made[1:] for name in objects(one)}
    assert used == {one.name for one in objects(made[1])[min(objects(made[1]))].parent.iterdir()}


def test_r2_a_failed_restore_says_why_and_changes_nothing(hf: Installation) -> None:
    """A file that a program reads has changed; the session stays ended."""
    file = hf.user / "read"
    file.write_text("one")
    shell(hf, "fails")
    hf.quick("run", "fails", "--", f"exec 7<{file}")
    saved(hf, "fails", "--stop")
    file.write_text("another size")
    refused = hf.cli("restore", "fails", "--no-fallback")
    assert refused.rc == 7 and f"{file.name} has changed since the checkpoint" in refused.err
    assert hf.get("fails")["state"] == "checkpointed" and hf.get("fails")["epoch"] == 1
    file.write_text("one")
    restored(hf, "fails")
    assert says(hf, "fails", "read Y <&7; echo $X $Y") == "kept one\n"


@pytest.mark.parametrize("how", ["removed", "a link"])
def test_r2_a_restore_does_without_a_place_that_is_gone(
    hf: Installation, tmp_path: Path, how: str
) -> None:
    """A place of the machine that the session only read, and that no program uses."""
    name, shared = f"without-{how.split()[-1]}", tmp_path / "shared"
    shared.mkdir()
    (shared / "file").write_text("there")
    shell(hf, name, "--share", str(shared))
    assert says(hf, name, f"cat {shared}/file") == "there"
    saved(hf, name, "--stop")
    shared.rename(tmp_path / "moved")
    if how == "a link":
        shared.symlink_to(tmp_path / "moved")
    restored(hf, name, "--no-fallback")
    assert says(hf, name, f"echo $X; test -e {shared}/file || echo gone") == "kept\ngone\n"
    saved(hf, name, "--stop")
    if how == "a link":
        shared.unlink()
    (tmp_path / "moved").rename(shared)
    restored(hf, name, "--no-fallback")
    assert says(hf, name, f"echo $X; cat {shared}/file") == "kept\nthere"


def test_r2_r1_a_missing_workspace_is_named_and_the_session_falls_back(
    hf: Installation, tmp_path: Path
) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    shell(hf, "moved-away", "--cwd", str(workspace))
    hf.quick("run", "moved-away", "--", "cd /")
    saved(hf, "moved-away", "--stop")
    workspace.rename(tmp_path / "elsewhere")
    refused = hf.cli("restore", "moved-away", "--no-fallback")
    assert refused.rc == 7 and f"{workspace}: No such file" in refused.err
    assert hf.get("moved-away")["state"] == "checkpointed"
    workspace.mkdir()
    restored(hf, "moved-away", "--no-fallback")
    assert says(hf, "moved-away", "echo $X") == "kept\n"


def test_r2_r1_a_failed_restore_falls_back_and_says_so(hf: Installation) -> None:
    """The reply, the terminal and the record have the reason; the checkpoint can be tried again."""
    file = hf.user / "falls"
    file.write_text("one")
    shell(hf, "falls")
    hf.quick("run", "falls", "--", f"export Z=variable; exec 7<{file}")
    terminal: Terminal = hf.attach("falls")
    kept = saved(hf, "falls", "--stop")["checkpoint"]
    terminal.see("holdfast restore")
    file.write_text("another size")
    said = hf.ok("restore", "falls", "--json").json
    lost = said["re_established"]
    # The failed attempt has used up epoch 2, and no incarnation had it.
    assert (said["checkpoint"], said["epoch"], lost["from"]) == (kept, 3, 1)
    assert f"{file.name} has changed since the checkpoint" in lost["reason"]
    assert kept in lost["notes"][0]
    terminal.see(f"[holdfast] {kept} is kept")
    assert says(hf, "falls", "echo $Z-$X") == "variable-\n"
    record = map(json.loads, hf.ok("log", "falls", "--json").out.splitlines())
    facts = [one["facts"] for one in record if one["kind"] == "re_established"]
    assert [one["reason"] for one in facts] == [lost["reason"]]
    hf.ok("end", "falls")
    file.write_text("one")
    assert restored(hf, "falls")["epoch"] == 4
    assert says(hf, "falls", "read Y <&7; echo $X $Y") == "kept one\n"


def test_r2_a_running_session_is_not_restored(hf: Installation) -> None:
    shell(hf, "runs")
    saved(hf, "runs")
    refused = hf.cli("restore", "runs")
    assert refused.rc == 4 and "is running" in refused.err
    assert hf.cli("restore", "cp-000000000000").rc == 3


def test_r2_advice_says_what_can_be_done_with_a_session(hf: Installation) -> None:
    wrong = hf.cli("checkpoint", "advice", "--stop", "--check")
    assert wrong.rc == 2 and "`holdfast checkpoint --help`" in wrong.err
    shell(hf, "advice")
    saved(hf, "advice")
    hf.ok("halt", "advice")
    refused = hf.cli("restore", "advice")
    assert refused.rc == 4 and "halted" in refused.err and "holdfast resume advice" in refused.err
    hf.ok("resume", "advice")
    hf.ok("end", "advice")
    refused = hf.cli("run", "advice", "--", "true")
    assert "`holdfast restore advice` brings it back from its checkpoint" in refused.err
    hf.ready("pinned")
    says_ = hf.ok("rehome", "pinned", "on").out
    if os.getuid():
        assert "nothing can bring it back there now" in says_
    hf.ok("rehome", "pinned", "off")
    refused = hf.cli("lease", "invalidate", "pinned")
    assert refused.rc == 4 and "has no lease that could end" in refused.err
    hf.ok("end", "pinned")


def test_forget_removes_the_checkpoints(hf: Installation) -> None:
    made = saved(hf, shell(hf, "forgotten")["name"], "--stop")
    hf.ok("forget", "forgotten")
    eventually(lambda: not Path(made["path"]).exists() or None, "the checkpoint to be removed")
    assert hf.cli("restore", "forgotten").rc == 3


@pytest.mark.parametrize("step", cases(["begun", "saved", "stored"], again=["saved"]))
@pytest.mark.parametrize("stop", [False, True], ids=["going on", "to end"])
def test_r2_a_session_survives_the_death_of_the_host_while_it_is_saved(
    fresh: Installation, step: str, stop: bool
) -> None:
    """At any step. It goes on, or it was saved completely and can be restored."""
    criu()
    shell(fresh, "host")

    killed = []

    def kill(event: Any) -> None:
        if event.get("step") == step:
            os.kill(fresh.host_pid, signal.SIGKILL)
            killed.append(step)

    link = Link(homes.resolve(fresh.env), "tester", autostart=False)
    try:
        with contextlib.suppress(HoldfastError):  # the answer may be on its way already
            link.request("checkpoint", session="host", stop=stop, on_event=kill)
    finally:
        link.close()
    assert killed
    eventually(lambda: not checkpointers(fresh) or None, "the checkpointer to notice the death")
    fresh.ok("up", "--detach")
    listed = fresh.ok("checkpoint", "host", "--list", "--json").json
    if fresh.cli("run", "host", "--", "true").rc != 0:  # the host had given its consent
        assert stop and listed
        eventually(lambda: fresh.get("host")["state"] == "checkpointed" or None, "the end")
        restored(fresh, "host")
    assert says(fresh, "host", "echo $X") == "kept\n"
    saved(fresh, "host")


@pytest.mark.parametrize("step", cases(["begun", "saved", "copied", "stored"], again=["saved"]))
@pytest.mark.parametrize("stop", [False, True], ids=["going on", "to end"])
def test_r2_a_session_survives_the_end_of_the_client_while_it_is_saved(
    hf: Installation, step: str, stop: bool
) -> None:
    """At any step. It goes on, or it was saved completely and can be restored."""
    name = f"client-{step}-{stop}"
    shell(hf, name)
    link = Link(homes.resolve(hf.env), "tester", autostart=False)

    def leave(event: Any) -> None:
        if event.get("step") == step:
            raise KeyboardInterrupt

    try:
        with pytest.raises(KeyboardInterrupt):
            link.request("checkpoint", session=name, stop=stop, on_event=leave)
    finally:
        link.close()
    eventually(lambda: not checkpointers(hf) or None, "the end of the dump")

    def goes_on() -> bool:
        if hf.get(name)["state"] == "checkpointed":
            assert stop
            restored(hf, name)
        return hf.cli("run", name, "--", "echo $X").out == "kept\n"

    eventually(lambda: goes_on() or None, "the session with its memory")
    saved(hf, name)


def test_r2_a_session_that_ends_while_it_is_saved_comes_back(hf: Installation) -> None:
    code = "import os; kept = os.urandom(100 << 20); print('ready')\n"
    code += "while True: print(input(), len(kept))"
    hf.new("early", "--contained", "--", PYTHON, "-c", code)
    hf.wait("early", "text:ready")
    link = Link(homes.resolve(hf.env), "tester", autostart=False)
    ended = list[Any]()

    def end(event: Any) -> None:
        if event.get("step") == "packed" and not ended:
            ended.append(hf.ok("end", "early"))

    try:
        made = link.request("checkpoint", session="early", on_event=end)["saved"]
    finally:
        link.close()
    assert ended
    assert restored(hf, "early")["checkpoint"] == made["checkpoint"]
    hf.quick("send", "early", "still", "--enter")
    hf.wait("early", f"text:still {100 << 20}")


def test_r2_a_restore_is_completed_if_the_client_leaves(hf: Installation) -> None:
    made = hf.get(shell(hf, "left")["id"])
    saved(hf, "left", "--stop")
    link = Link(homes.resolve(hf.env), "tester", autostart=False)

    def leave(event: Any) -> None:
        raise KeyboardInterrupt

    try:
        with pytest.raises(KeyboardInterrupt):
            link.request("restore", session="left", on_event=leave)
    finally:
        link.close()

    def comes_back() -> bool:
        hf.cli("restore", "left")  # refused if it is here, or on its way
        return hf.cli("run", "left", "--", "echo $X").out == "kept\n"

    eventually(lambda: comes_back() or None, "the session with its memory")
    assert len([one for one in hf.ls() if one["id"] == made["id"]]) == 1


def test_r2_s8_s9_clients_see_a_restore_and_wait_for_it(hf: Installation) -> None:
    made = shell(hf, "slowly")
    ran = hf.cli("run", "slowly", "--json", "--", "(exit 3)").json["ref"]
    saved(hf, "slowly", "--stop")
    on_disk = hf.ok("resolve", made["ref"])
    assert "checkpointed" in on_disk.out and "holdfast restore slowly" in on_disk.out
    act = hf.ok("resolve", ran, "--json").json
    assert (act["state"], act["exit_code"]) == ("checkpointed", 3)
    assert hf.cli("resolve", f"hf:{made['id']}@2", "--json").json["known"] is False
    refused = hf.cli("end", "slowly")
    assert refused.rc == 5 and "holdfast forget slowly" in refused.err
    with without_new_keepers(hf):
        restoring = hf.start("restore", "slowly")
        eventually(lambda: hf.get("slowly")["state"] == "restoring" or None, "the restore")
        assert [one["state"] for one in hf.ls() if one["id"] == made["id"]] == ["restoring"]
        assert hf.ok("resolve", ran, "--json").json["state"] == "restoring"
        refused = hf.cli("who", "slowly")
        assert refused.rc == 5 and "is being restored" in refused.err, refused
        terminal = hf.attach("slowly", size=(200, 24))
        terminal.see("restoring slowly")
        clients = [
            hf.start("run", "slowly", "--", "echo $X >~/ran"),
            hf.start("wait", "slowly", "--for", "idle"),
        ]
        for op in ("attach", "run", "wait"):
            hf.under_way(op, 1)
    assert restoring.wait() == 0
    assert [(one.communicate()[1], one.returncode) for one in clients] == [(b"", 0)] * 2
    terminal.send("echo $X-at''tached\r")
    terminal.see("kept-attached")
    assert terminal.leave() == 0
    assert says(hf, "slowly", "cat ~/ran") == "kept\n"
    told = hf.ok("events", "slowly", "--json").records
    [begun] = [e for e in told if e["event"] == "session.restoring"]
    assert (begun["before"], begun["after"]) == ("checkpointed", "restoring")
    assert begun["operator"] and begun["checkpoint"].startswith("cp-")


def test_s9_a_saved_session_names_its_operator_and_leaves_no_process(hf: Installation) -> None:
    made = shell(hf, "named")
    hf.quick("run", "named", "--", "sleep 1000 & sleep 1000 & true")
    saved(hf, "named", "--stop")
    told = hf.ok("events", "named", "--json").records
    [ended] = [e for e in told if e["event"] == "session.checkpointed"]
    [new] = [e for e in told if e["event"] == "session.started"]
    assert (ended["ended_by"], ended["survivors"]) == (new["operator"], 0)
    assert hf.get(made["id"])["ended_by"] == new["operator"]
    said = hf.ok("up", "--detach").out
    assert "holdfast attach named" not in said
    assert "holdfast restore" in next(one for one in said.splitlines() if "on the disk" in one)


@pytest.mark.parametrize("how", ["followed", "alone"])
def test_a9_s8_a_command_that_is_saved_while_it_runs_is_not_over(
    hf: Installation, how: str
) -> None:
    go, name = hf.user / f"go-{how}", f"runs-{how}"
    made = shell(hf, name)
    text = f"echo begun; until [ -e {go} ]; do sleep 0.1; done; echo over; (exit 7)"
    run = ("run", name, "--once", "k1", "--", text)
    first = hf.start(*run)
    hf.wait(name, "text:^begun")
    saved(hf, name, "--stop")
    out, said = first.communicate()
    assert (first.returncode, out) == (255, b"begun\n")
    assert b"had not ended" in said and b"--once" in said, said
    [act] = [
        one["facts"]["act"]
        for one in hf.ok("log", made["id"], "--json").records
        if (one["kind"], one["phase"]) == ("command", "outcome") and "exit_code" not in one["facts"]
    ]
    ref = f"{made['ref']}#{act}"
    assert hf.ok("resolve", ref, "--json").json["exit_code"] is None
    restored(hf, name)
    if how == "followed":
        second = hf.start(*run)
        hf.under_way("run", 1)
        go.touch()
        assert (second.communicate(), second.returncode) == ((b"begun\nover\n", b""), 7)
    go.touch()
    seen = eventually(
        lambda: (one := hf.ok("resolve", ref, "--json").json)["exit_code"] is not None and one,
        "the exit code in the record",
    )
    assert seen["exit_code"] == 7
    again = hf.cli(*run)
    assert (again.rc, again.out) == (7, "begun\nover\n")


def test_r3_no_lease_is_shown_of_a_session_that_is_nowhere(hf: Installation) -> None:
    for word in ("zzzz", "0123456789ab"):
        for act in ("show", "invalidate"):
            assert hf.cli("lease", act, word).rc == 3, word


def test_s9_a_restore_that_fails_is_told(hf: Installation) -> None:
    file = hf.user / "told"
    file.write_text("one")
    shell(hf, "told")
    hf.quick("run", "told", "--", f"exec 7<{file}")
    saved(hf, "told", "--stop")
    file.write_text("another size")
    assert hf.cli("restore", "told", "--no-fallback").rc == 7
    told = hf.ok("events", "told", "--json").records
    [failed] = [e for e in told if e["event"] == "session.restore_failed"]
    assert (failed["before"], failed["after"]) == ("restoring", "checkpointed")
    assert "has changed since the checkpoint" in failed["reason"]
    assert hf.get("told")["state"] == "checkpointed"


def test_r2_a_session_is_restored_or_forgotten_but_not_both(hf: Installation) -> None:
    made = hf.get(shell(hf, "both")["id"])
    saved(hf, "both", "--stop")
    link = Link(homes.resolve(hf.env), "tester", autostart=False)
    other = Link(homes.resolve(hf.env), "tester", autostart=False)
    problems, asked = list[str](), list[Any]()

    def forget(event: Any) -> None:
        if asked:
            return  # once, at the first report of progress
        asked.append(event)
        try:
            other.request("forget", session="both")
        except HoldfastError as e:
            problems.append(e.message)

    try:
        link.request("restore", session="both", on_event=forget)
    except HoldfastError as e:
        problems.append(e.message)
    finally:
        link.close()
        other.close()
    assert len(problems) == 1, problems
    if "forgotten meanwhile" in problems[0]:
        assert hf.cli("view", made["id"]).rc == 3
    else:
        assert "being restored" in problems[0] or "still runs" in problems[0]
        assert says(hf, "both", "echo $X") == "kept\n"


def test_r2_two_checkpoints_at_once_do_not_disturb_each_other(hf: Installation) -> None:
    shell(hf, "at-once")
    clients = [hf.start("checkpoint", "at-once") for _ in range(3)]
    made = [one.wait() for one in clients]
    assert {*made} <= {0, 4} and 0 in made
    assert says(hf, "at-once", "echo $X") == "kept\n"
    assert len(hf.ok("checkpoint", "at-once", "--list", "--json").json) == made.count(0)
    saved(hf, "at-once", "--stop")
    restored(hf, "at-once")
    assert says(hf, "at-once", "echo $X") == "kept\n"


def test_r2_replaced_content_survives_the_death_of_the_host(fresh: Installation) -> None:
    """Content that gave way to the saved one is on the disk before any file changes."""
    criu()
    file = fresh.user / "grown"
    hf, made = fresh, fresh.get(shell(fresh, "replaced")["id"])
    hf.quick("run", "replaced", "--", f"exec 7>>{file}; echo one >&7")
    place = Path(saved(hf, "replaced")["path"]).parent
    hf.quick("run", "replaced", "--", "echo two >&7")
    hf.quick("down")
    hf.quick("up", "--detach", env={"HOLDFAST_PROBE": "kill@host.create.spawned"})
    host = hf.host_pid
    killed(hf, made)
    hf.cli("restore", "replaced")
    eventually(lambda: gone(host) or None, "the host to die")
    hf.ok("up", "--detach")
    hf.quick("send", "replaced", "echo again $X", "--enter")
    hf.wait("replaced", "text:again kept")
    assert file.read_text() == "one\n"
    [kept] = place.glob("replaced-*.tar")
    with tarfile.open(kept) as archive:
        content = archive.extractfile(str(file).lstrip("/"))
        assert content is not None and content.read() == b"one\ntwo\n"


def test_r2_a_program_that_has_the_device_of_its_terminal_open_is_restored(
    hf: Installation,
) -> None:
    """As a pager, ssh and fzf have, and a shell for a moment at each prompt."""
    shell(hf, "device")
    hf.quick("run", "device", "--", "exec 9<>/dev/tty")
    saved(hf, "device", "--stop")
    restored(hf, "device")
    assert says(hf, "device", "echo $X >&9") == "kept\n"


@pytest.mark.parametrize("step", ["create.spawned", "restore.claimed"])
@pytest.mark.parametrize("halted", [False, True])
def test_r2_the_next_host_finishes_a_restore(fresh: Installation, step: str, halted: bool) -> None:
    """The keeper has the processes, but neither the screen nor the halt of the checkpoint."""
    criu()
    hf, made = fresh, fresh.get(shell(fresh, "left")["id"])
    hf.quick("run", "left", "--", "echo on the screen; exec 7>&1; sleep 4321 &")
    if halted:
        hf.quick("halt", "left")
    checkpoint = saved(hf, "left", "--stop")["checkpoint"]
    hf.quick("down")
    hf.quick("up", "--detach", env={"HOLDFAST_PROBE": f"kill@host.{step}"})
    host = hf.host_pid
    hf.cli("restore", "left")
    eventually(lambda: gone(host) or None, "the host to die")
    hf.ok("up", "--detach")
    row = hf.get("left")
    assert row["id"] == made["id"]
    assert row["state"] == ("halted" if halted else "detached") and not row.get("reason")
    if halted:
        hf.quick("resume", "left")
    assert "on the screen" in hf.screen("left")
    assert says(hf, "left", "echo $X; jobs | grep -c sleep") == "kept\n1\n"
    assert [(e["checkpoint"], e["epoch"]) for e in restores(hf)] == [(checkpoint, 2)]
    hf.ok("down")
    hf.ok("up", "--detach")
    assert says(hf, "left", "echo $X") == "kept\n", "the restore is finished only once"
    assert len(restores(hf)) == 1
    saved(hf, "left", "--stop")
    restored(hf, "left")
    assert says(hf, "left", "echo $X") == "kept\n"


def test_s5_the_next_host_knows_the_offsets_of_a_restore_that_it_finishes(
    fresh: Installation,
) -> None:
    """The store has the row of the incarnation before the checkpoint."""
    criu()
    hf, made = fresh, fresh.get(shell(fresh, "offsets")["id"])
    saved(hf, "offsets", "--stop")
    hf.quick("down")
    hf.quick("up", "--detach", env={"HOLDFAST_PROBE": "kill@host.create.spawned"})
    host = hf.host_pid
    hf.cli("restore", "offsets")
    eventually(lambda: gone(host) or None, "the host to die")
    hf.ok("up", "--detach")
    second = hf.get(made["id"])
    os.kill(hf.host_pid, signal.SIGKILL)
    os.kill(second["keeper"], signal.SIGKILL)
    assert restored(hf, "offsets")["epoch"] == 3
    assert hf.get("offsets")["output"]["start"] > second["output"]["end"] + (1 << 39)


def restores(hf: Installation) -> list[dict[str, Any]]:
    told = [json.loads(line) for line in hf.quick("events", "--json").splitlines()]
    return [one for one in told if one["event"] == "session.restored"]


def test_r2_the_reply_names_the_files_that_gave_way(hf: Installation) -> None:
    made = hf.get(shell(hf, "gives-way")["id"])
    file = hf.user / "gives-way"
    hf.quick("run", "gives-way", "--", f"exec 7>>{file}; echo one >&7")
    place = Path(saved(hf, "gives-way")["path"]).parent
    hf.quick("run", "gives-way", "--", "echo two >&7")
    killed(hf, made)
    said = restored(hf, "gives-way")
    assert said["replaced"] == [str(file)] and Path(said["kept"]).parent == place
    saved(hf, "gives-way", "--stop")
    assert restored(hf, "gives-way")["replaced"] == []
    assert [str(one) for one in place.glob("replaced-*")] == [said["kept"]]


def test_r2_a_session_that_went_on_did_not_end_with_its_checkpoint(fresh: Installation) -> None:
    """The host died when the checkpoint was stored and the processes should have ended."""
    criu()
    fresh.quick("up", "--detach", env={"HOLDFAST_PROBE": "kill@host.evict.stored"})
    host = fresh.host_pid
    made = fresh.get(shell(fresh, "went-on")["id"])
    fresh.cli("drain", "--notice", "100s")
    eventually(lambda: gone(host) or None, "the host to die")
    eventually(lambda: not checkpointers(fresh) or None, "the checkpointer to notice the death")
    fresh.ok("up", "--detach")
    [stored] = fresh.ok("checkpoint", "went-on", "--list", "--json").json
    assert stored["ended"] and says(fresh, "went-on", "echo $X") == "kept\n"
    os.kill(made["pid"], signal.SIGKILL)
    over = ("ended", "checkpointed")
    eventually(lambda: fresh.get(made["id"])["state"] in over or None, "the end")
    row = fresh.get(made["id"])
    assert (row["state"], row["reason"]) == ("ended", "killed by SIGKILL")
    restored(fresh, "went-on")
    assert says(fresh, "went-on", "echo $X") == "kept\n"


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


# ---------------------------------------------------------------- plain sessions

plain = pytest.mark.skipif(not ROOT, reason="only plain sessions of root can be saved")


def with_daemon(hf: Installation, name: str) -> int:
    """A session with a variable and a daemon; returns the number of the daemon."""
    hf.ready(name, "--plain")
    hf.quick("run", name, "--", f"X=kept; setsid -f sh -c 'echo $$ >{name}; exec sleep 3333'")
    file = hf.user / name
    daemon: int = eventually(lambda: file.exists() and int(file.read_text() or 0), "the daemon")
    eventually(lambda: processes(hf, name).get(daemon) == "sleep" or None, "its program")
    return daemon


def processes(hf: Installation, name: str) -> dict[int, str]:
    found = json.loads(hf.quick("graph", name, "--json"))["processes"]
    return {one["pid"]: one["comm"] for one in found}


@plain
def test_r2_a_session_goes_on_below_the_same_numbers(hf: Installation) -> None:
    """Also after a second restore, a restart of the host between, and with its exit code."""
    daemon = with_daemon(hf, "plain-comes")
    before = processes(hf, "plain-comes")
    assert before[daemon] == "sleep" and "hf-root" not in before.values()
    hf.ok("checkpoint", "plain-comes")
    assert processes(hf, "plain-comes") == before and says(hf, "plain-comes", "echo $X") == "kept\n"
    for _ in range(2):
        made = hf.get("plain-comes")
        assert hf.ok("checkpoint", "plain-comes", "--stop", "--json").json["saved"]["ended"]
        assert hf.get("plain-comes")["state"] == "checkpointed"
        assert all(map(gone, before))
        os.kill(hf.host_pid, signal.SIGKILL)
        hf.ok("up", "--detach")
        hf.ok("restore", "plain-comes", "--no-fallback")
        again = hf.get("plain-comes")
        assert again["epoch"] == made["epoch"] + 1 and again["pid"] == made["pid"]
        assert processes(hf, "plain-comes") == before
        assert says(hf, "plain-comes", "echo $X") == "kept\n"
    os.kill(hf.host_pid, signal.SIGKILL)
    hf.ok("up", "--detach")
    assert says(hf, "plain-comes", "echo $X") == "kept\n"
    hf.quick("send", "plain-comes", "exit 7", "--enter")
    eventually(lambda: hf.get(made["id"])["state"] == "ended" or None, "the end of the session")
    assert hf.get(made["id"])["exit_code"] == 7
    assert not gone(daemon), "a daemon of a plain session survives the shell"
    os.kill(daemon, signal.SIGKILL)


@plain
def test_r2_end_ends_all_processes_of_a_restored_session(hf: Installation) -> None:
    daemon = with_daemon(hf, "plain-ends")
    hf.ok("checkpoint", "plain-ends", "--stop")
    hf.ok("restore", "plain-ends", "--no-fallback")
    keeper = hf.get("plain-ends")["keeper"]
    top, program = hf_root(keeper), hf.get("plain-ends")["pid"]
    assert top
    hf.ok("end", "plain-ends")
    eventually(lambda: all(map(gone, (daemon, program, top))) or None, "the end of all")


@plain
def test_r2_r1_a_process_with_a_number_of_the_session_is_named(hf: Installation) -> None:
    """Here the daemon, which survived the session. The session comes back without its memory."""
    daemon = with_daemon(hf, "plain-taken")
    made = hf.get("plain-taken")
    hf.ok("checkpoint", "plain-taken")
    hf.quick("send", "plain-taken", "exit", "--enter")
    eventually(lambda: hf.get(made["id"])["state"] == "ended" or None, "the end of the session")
    reason = f"process {daemon} (sleep) has the number of a process of the session"
    refused = hf.cli("restore", "plain-taken", "--no-fallback")
    assert refused.rc == 7 and reason in refused.err
    assert hf.get(made["id"])["state"] == "ended"
    fallen = hf.cli("restore", "plain-taken")
    assert reason in fallen.out + fallen.err
    assert says(hf, "plain-taken", "echo ${X-lost}") == "lost\n"
    hf.ok("end", "plain-taken")
    os.kill(daemon, signal.SIGKILL)
    hf.ok("restore", "plain-taken", "--no-fallback")
    assert says(hf, "plain-taken", "echo $X") == "kept\n"
    hf.end("plain-taken")


@plain
def test_r2_a_lost_session_comes_back(hf: Installation) -> None:
    """Its keeper was killed."""
    hf.ready("plain-lost", "--plain")
    hf.quick("run", "plain-lost", "--", "X=kept")
    hf.ok("checkpoint", "plain-lost")
    made = hf.get("plain-lost")
    os.kill(made["keeper"], signal.SIGKILL)
    eventually(lambda: hf.get(made["id"])["state"] == "ended" or None, "the end of the session")
    hf.ok("restore", "plain-lost", "--no-fallback")
    assert says(hf, "plain-lost", "echo $X") == "kept\n"
    hf.end("plain-lost")


@plain
def test_r2_hf_root_comes_back_after_its_file_was_removed(hf: Installation) -> None:
    with_daemon(hf, "plain-file")
    hf.ok("checkpoint", "plain-file", "--stop")
    [path] = Path(hf.env["HOLDFAST_HOME"], "run").glob("hf-root-*/hf-root")
    path.unlink()
    hf.ok("restore", "plain-file", "--no-fallback")
    assert says(hf, "plain-file", "echo $X") == "kept\n"
    hf.end("plain-file")


# ---------------------------------------------------------------- as an ordinary user


@pytest.mark.skipif(not ROOT, reason="it is being run as an ordinary user")
def test_r2_as_an_ordinary_user() -> None:
    criu()
    if shutil.which("useradd") is None:
        pytest.skip("useradd is not installed")
    passes_as_ordinary_user(__file__)
