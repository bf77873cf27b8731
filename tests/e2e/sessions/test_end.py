"""`end` ends everything in a session, escaped daemons included (P5, S7); what it cannot reach it names."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from functools import partial
from pathlib import Path

import pytest
from tests.e2e.harness import Installation, alive, eventually
from tests.e2e.test_four_failures import user  # noqa: F401  a fixture
from tests.host.ordinary_user import OrdinaryUser

from holdfast.host.groups import Groups

DAEMON = Path(__file__).with_name("daemon.py")
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
    """All at once: ending them takes as long as one."""
    made = hf.cli(
        "new", layout, "--no-attach", "--json", *(["--contained"] if layout == "contained" else [])
    )
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
            "those two need rights that not everybody has"
        )
        said = hf.ok("end", layout, "--json")
        assert {way: left(mark) for way, mark in marks.items()} == {way: [] for way in WAYS}, said
        assert hf.get(layout)["survivors"] == 0
    finally:
        for mark in marks.values():
            for pid in left(mark):
                os.kill(pid, signal.SIGKILL)
        eventually(lambda: removed(group), "the group to be empty")


def test_p5_whoever_asked_for_the_end_may_go(hf: Installation, tmp_path: Path) -> None:
    """It takes five seconds for one that hears nothing. Its client is killed after the first."""
    hf.ready("asked")
    mark, where = f"mark-{tmp_path.name}", tmp_path / "there"
    hf.ok("run", "asked", "--", f"{sys.executable} {DAEMON} deaf {where} - {mark}")
    eventually(where.exists, "it to be there")
    client = hf.start("end", "asked")
    eventually(lambda: not alive(hf.get("asked")["pid"]), "the shell to be gone")
    client.kill()
    eventually(lambda: not left(mark), "all of it to be gone")
    eventually(lambda: hf.get("asked")["state"] == "ended", "its end")


def test_a5_what_runs_as_somebody_else_is_named(user: OrdinaryUser, tmp_path: Path) -> None:  # noqa: F811
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
    program = user.home / "daemon.py"
    program.write_text(DAEMON.read_text())
    os.chown(program, user.uid, user.gid)
    try:
        for layout in ((), ("--contained",)):
            hold("new", "own", "--no-attach", *layout, "--", "bash")
            hold("wait", "own", "--for", "idle", "--timeout", "60")
            hold("run", "own", "--", f"{python} {program} deaf {user.home}/there - {mark}")
            eventually((user.home / "there").exists, "it to be there")
            assert left(mark)
            hold("end", "own")
            assert not left(mark)
            (user.home / "there").unlink()
        hold("new", "roots", "--no-attach", "--", "bash")
        hold("wait", "roots", "--for", "idle", "--timeout", "60")
        hold(
            "send",
            "roots",
            f"sudo -k {python} {program} deaf {user.home}/there - {mark}",
            "--enter",
        )
        hold("wait", "roots", "--for", "secret", "--timeout", "60")
        hold("send", "roots", "opensesame", "--enter")
        eventually((user.home / "there").exists, "it to be there")
        [pid] = left(mark)
        assert f"{pid}" in hold("end", "roots", code=7)
        assert json.loads(hold("ls", "--all", "--json"))[-1]["survivors"] == 1
        os.kill(pid, signal.SIGKILL)
    finally:
        for pid in left(mark):
            os.kill(pid, signal.SIGKILL)
        hold("down")
