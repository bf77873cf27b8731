"""`end` ends all processes of a session, escaped daemons too, and names the rest (P5, S7)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from functools import partial
from pathlib import Path

import pytest

from holdfast.host.processes.cgroups import Groups
from tests.support.installation import SHARE_PYTHON, Installation, alive, eventually
from tests.support.ordinary_user import OrdinaryUser

DAEMON = Path(__file__).parents[2] / "support" / "daemon.py"
WAYS = ("polite", "deaf", "stopped", "subreaper", "breeder", "namespace", "group")


def left(mark: str) -> list[int]:
    """Processes that have this word among their arguments, zombies left out."""
    found = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if (
                entry.isdigit()
                and mark.encode() in Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
                and alive(int(entry))
            ):
                found.append(int(entry))
    return found


def settled(where: Path, mark: str) -> bool:
    return where.exists() or not left(mark)


def removed(group: str) -> bool:
    with contextlib.suppress(OSError):
        os.rmdir(group)
    return not os.path.exists(group)


@pytest.mark.parametrize("layout", ["plain", "contained"])
def test_p5_nothing_outlives_its_session(hf: Installation, tmp_path: Path, layout: str) -> None:
    """All at once: ending them takes as long as ending one."""
    contained = (
        ["--contained", "--share", str(DAEMON), *SHARE_PYTHON] if layout == "contained" else []
    )
    made = hf.cli("new", layout, "--no-attach", "--json", *contained)
    if made.rc == 7:
        pytest.skip(f"no contained sessions here: {made.err}")
    group = Groups(str(hf.home)).mount + f"/hf-test-{os.getpid()}"
    hf.wait(layout, "idle")
    marks = {way: f"mark-{tmp_path.name}-{way}" for way in WAYS}
    escaped = set()
    try:
        for way, mark in marks.items():
            where = Path(hf.user, f"{way}-{layout}.there")
            hf.cli("run", layout, "--", f"{sys.executable} {DAEMON} {way} {where} {group} {mark}")
            eventually(partial(settled, where, mark), "it to be there, or to fail")
            if where.exists():
                escaped.add(way)
                assert left(mark) or way == "namespace"
        assert escaped >= {*WAYS} - {"group", "namespace"}, (
            "those two need rights that not every account has"
        )
        said = hf.ok("end", layout, "--json")
        assert {way: left(mark) for way, mark in marks.items()} == {way: [] for way in WAYS}, said
        assert hf.get(layout)["survivors"] == 0
    finally:
        for mark in marks.values():
            for pid in left(mark):
                os.kill(pid, signal.SIGKILL)
        eventually(lambda: removed(group), "the group to be empty")


def test_p5_an_end_completes_without_its_client(hf: Installation, tmp_path: Path) -> None:
    """A process that ignores signals takes five seconds. The client is killed after the first."""
    hf.ready("asked")
    mark, where = f"mark-{tmp_path.name}", tmp_path / "there"
    hf.ok("run", "asked", "--", f"{sys.executable} {DAEMON} deaf {where} - {mark}")
    eventually(where.exists, "it to be there")
    client = hf.start("end", "asked")
    eventually(lambda: not alive(hf.get("asked")["pid"]), "the shell to be gone")
    client.kill()
    eventually(lambda: not left(mark), "all of it to be gone")
    eventually(lambda: hf.get("asked")["state"] == "ended", "its end")


def test_a5_processes_of_another_account_are_named(user: OrdinaryUser, tmp_path: Path) -> None:
    """An ordinary user's own installation, and a daemon that was made root's."""
    python = user.python("apsw", "holdfast")
    mark = f"mark-{user.name}-{tmp_path.name}"

    def hold(*args: str, code: int = 0) -> str:
        done = user.run(["env", f"HOLDFAST_HOME={user.home}/end", python, "-m", "holdfast", *args])
        assert done is not None and done.returncode == code, (args, done)
        return done.stdout + done.stderr

    (user.home / "end").mkdir(mode=0o700)
    (user.home / "end/config.toml").write_text("[relay]\nstart = false\n")
    for path in (user.home / "end", user.home / "end/config.toml"):
        os.chown(path, user.uid, user.gid)
    work = user.home / "work"
    work.mkdir()
    program, there = work / "daemon.py", work / "there"
    program.write_text(DAEMON.read_text())
    for path in (work, program):
        os.chown(path, user.uid, user.gid)
    try:
        for layout in ((), ("--contained",)):
            hold("new", "own", "--no-attach", "--cwd", str(work), *layout, "--", "bash")
            hold("wait", "own", "--for", "idle", "--timeout", "60")
            hold("run", "own", "--", f"{python} {program} deaf {there} - {mark}")
            eventually(there.exists, "it to be there")
            assert left(mark)
            hold("end", "own")
            assert not left(mark)
            there.unlink()
        hold("new", "roots", "--no-attach", "--", "bash")
        hold("wait", "roots", "--for", "idle", "--timeout", "60")
        hold(
            "send",
            "roots",
            f"sudo -k {python} {program} deaf {there} - {mark}",
            "--enter",
        )
        hold("wait", "roots", "--for", "secret", "--timeout", "60")
        hold("send", "roots", "opensesame", "--enter")
        eventually(there.exists, "it to be there")
        # sudo carries the mark in its arguments until the daemon's parent has ended.
        eventually(lambda: len(left(mark)) == 1, "the daemon to be alone")
        [pid] = left(mark)
        assert f"{pid}" in hold("end", "roots", code=7)
        assert json.loads(hold("ls", "--all", "--json"))[-1]["survivors"] == 1
        os.kill(pid, signal.SIGKILL)
    finally:
        for pid in left(mark):
            os.kill(pid, signal.SIGKILL)
        hold("down")


def test_s7_what_cannot_be_undone_takes_whole_names(hf: Installation) -> None:
    """The name of a branch begins with that of its parent, which may be gone."""
    made = hf.new("whole-1")
    for command in ("end", "keep", "discard"):
        refused = hf.cli(command, "whole")
        assert refused.rc == 3 and "did you mean whole-1?" in refused.err, (command, refused)
    assert hf.ok("view", "whole").rc == 0
    hf.ok("end", made["id"][:6])
    refused = hf.cli("forget", "whole")
    assert refused.rc == 3 and "did you mean whole-1?" in refused.err
    hf.ok("forget", "whole-1")
