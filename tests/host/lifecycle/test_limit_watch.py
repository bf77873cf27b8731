"""The watch over limits, with a session, a kernel counter and a disk that the test sets (T4)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.core.originators.lineage import Cause, Member
from holdfast.core.session import events
from holdfast.host.lifecycle import limit_watch
from holdfast.host.lifecycle.contained import removal
from holdfast.host.lifecycle.disk_usage import Measured, measure
from holdfast.host.lifecycle.limit_watch import LimitWatch, Space
from holdfast.host.processes.cgroups import Groups
from holdfast.host.processes.halt import Halted
from tests.support.ordinary_user import ordinary_user

MIB = 1 << 20
KILLED, ENDED = 9, 0


class Session:
    """The parts of a session that the watch uses."""

    def __init__(self, name: str, own: Path, **kept: tuple[int, str]) -> None:
        self.id = self.name = name
        self.label = {"limits": {k: {"limit": v[0], "by": v[1]} for k, v in kept.items()}}
        self.layout = {"layout": "contained"}
        self.record = SimpleNamespace(root_pid=os.getpid(), epoch=1)
        self.keeper_pid, self.ref, self.state, self.ending = os.getpid(), "hf:x@1", "live", False
        self.writable_directory = own
        self.ring = SimpleNamespace(accepted=7)
        lineage = SimpleNamespace(members={1: None})
        lineage.member = lambda pid: lineage.members[pid]
        shell = SimpleNamespace(at_prompt=True)
        self.commands = SimpleNamespace(kind="bash", shell=shell, lineage=lineage)
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.viewers = SimpleNamespace(tell=lambda name, **body: self.told.append((name, body)))

    def event(self, name: str, /, **facts: Any) -> None:
        assert not events.faults(name, facts)
        self.events.append((name, facts))

    def change(self, name: str, **facts: Any) -> None:
        self.state = name
        self.event(f"session.{name}", before="live", after=name, **facts)

    async def in_thread(self, work: Callable[..., Any], *args: Any) -> Any:
        return work(*args)

    def named(self, name: str) -> list[dict[str, Any]]:
        return [facts for one, facts in self.events if one == name]


class Halter:
    """Halts at once; counts kills as the test says."""

    def __init__(self) -> None:
        self.kills: int | None = 0
        self.groups = SimpleNamespace(
            find=lambda *_: "/group", oom_kills=lambda _: self.kills, threads=lambda _: 0
        )
        self.halts: list[str] = []

    async def in_thread(self, work: Callable[..., Any], *args: Any) -> Any:
        return work(*args)

    async def halt(self, execution: Any, last_act: Callable[[], int]) -> Halted:
        self.halts.append(execution.session)
        return Halted("cgroup freeze", (), 1.0, True, last_act())


class Stage:
    def __init__(self, state: Path) -> None:
        self.halter = Halter()
        self.posted: list[Any] = []
        self.told = True
        self.space = Space(1 << 40, 1 << 41)
        journal = SimpleNamespace(post=self.posted.append)
        self.watch = LimitWatch(
            str(state),
            self.halter,  # type: ignore[arg-type]
            journal,  # type: ignore[arg-type]
            lambda session, pid: f"program{pid}",
            lambda: self.told,
            lambda: self.space,
        )

    def begin(self, session: Session) -> None:
        self.watch.begin(session)  # type: ignore[arg-type]

    def exited(self, session: Session, pid: int, status: int, was: Member | None = None) -> None:
        self.watch.process_changed(session, "exited", pid, status, was)  # type: ignore[arg-type]

    async def settled(self) -> None:
        while pending := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(pending)


def staged(state: Path, play: Callable[[Stage], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        stage = Stage(state)
        try:
            await play(stage)
        finally:
            stage.watch.close()

    asyncio.run(run())


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit_watch, "WALK_S", 0.0)
    monkeypatch.setattr(limit_watch, "WALK_SHARE", 0)


def fill(own: Path, name: str, size: int) -> None:
    own.mkdir(parents=True, exist_ok=True)
    (own / name).write_bytes(b"x" * size)


# ---------------------------------------------------------------- memory


def test_p5_a_process_killed_for_memory_is_named_with_act_and_operator(tmp_path: Path) -> None:
    was = Member(start=1, parent=1, cause=Cause("ann", 4))

    async def play(stage: Stage) -> None:
        session = Session("s", tmp_path / "own", memory=(256 * MIB, "cgroup"))
        stage.begin(session)
        await stage.settled()
        stage.exited(session, 70, KILLED, was)
        await stage.settled()
        assert not session.events, "a kill by a person is no event of memory"
        stage.halter.kills = 1
        stage.exited(session, 71, KILLED, was)
        await stage.settled()
        (event,) = session.named("process.killed_for_memory")
        assert event == {
            "pid": 71,
            "program": "program71",
            "actor": "ann",
            "act": "hf:x@1#4",
            "limit": 256 * MIB,
            "sure": True,
        }
        assert session.told[-1][0] == "killed_for_memory"
        stage.halter.kills = 2
        stage.exited(session, 72, KILLED, was)
        stage.exited(session, 73, KILLED, None)
        stage.exited(session, 74, ENDED, was)
        await stage.settled()
        later = session.named("process.killed_for_memory")[1:]
        assert [one["pid"] for one in later] == [72, 73]
        assert not any(one["sure"] for one in later), "one of the two, and nobody knows which"
        assert later[1]["actor"] == "unknown" and later[1]["act"] is None

    staged(tmp_path, play)


def test_p5_without_a_group_the_machines_counter_is_never_sure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 5
    monkeypatch.setattr(limit_watch, "read_proc", lambda *_: f"oom_kill {count}\n".encode())

    async def play(stage: Stage) -> None:
        nonlocal count
        stage.halter.kills = None
        session = Session("s", tmp_path / "own")
        stage.begin(session)
        await stage.settled()
        count = 6
        stage.exited(session, 71, KILLED)
        await stage.settled()
        (event,) = session.named("process.killed_for_memory")
        assert event["sure"] is False and event["limit"] is None

    staged(tmp_path, play)


def test_p5_where_the_kernel_reports_no_exits_a_look_finds_them(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        stage.told = False
        session = Session("s", tmp_path / "own", memory=(256 * MIB, "cgroup"))
        dead = 2**22 + 1  # no process has this number
        members = {os.getpid(): None, dead: Member(1, 1, Cause("ann", 4))}
        session.commands.lineage.members = members
        stage.begin(session)
        await stage.settled()
        await stage.watch.look()
        assert not session.events
        stage.halter.kills = 1
        await stage.watch.look()
        (event,) = session.named("process.killed_for_memory")
        assert (event["pid"], event["actor"], event["sure"]) == (dead, "ann", False)
        stage.halter.kills, session.commands.lineage.members = 2, {os.getpid(): None}
        await stage.watch.look()
        assert session.named("process.killed_for_memory")[1]["pid"] is None

    staged(tmp_path, play)


# ---------------------------------------------------------------- disk


def test_t4_a_full_disk_limit_warns_halts_and_lets_files_be_removed(tmp_path: Path) -> None:
    own = tmp_path / "contained" / "s"

    async def play(stage: Stage) -> None:
        session = Session("s", tmp_path / "none", disk=(10 * MIB, "watch"))
        stage.begin(session)
        fill(own / "home", "a", 8 * MIB)
        for _ in range(2):
            await stage.watch.look()
        assert len(session.named("limit.near")) == 1, "told once"
        assert session.told == [("limit_near", session.told[0][1])] and not stage.halter.halts
        fill(own / "tmp", "b", 3 * MIB)
        await stage.watch.look()
        assert stage.halter.halts == ["s"] and session.state == "halted"
        (halted,) = session.named("session.halted")
        assert halted["operator"] == "host" and "limit is 10 MiB" in halted["because"]
        assert [draft.kind for draft in stage.posted] == ["halt"]
        session.state = "live"  # resumed
        await stage.watch.look()
        assert session.state == "live", "it may remove files"
        fill(own, "c", MIB)
        await stage.watch.look()
        assert session.state == "halted", "it has grown instead"

    staged(tmp_path, play)


def test_t4_a_disk_that_runs_full_halts_the_session_that_writes_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = {"loud": 0, "calm": 0}
    monkeypatch.setattr(limit_watch, "written_by", lambda pids: written[pids[0]])

    async def play(stage: Stage) -> None:
        sessions = {name: Session(name, tmp_path / name) for name in written}
        for name, session in sessions.items():
            session.commands.lineage.members = {name: None}
            stage.begin(session)
        plain = Session("plain", tmp_path / "plain")
        plain.layout = {"layout": "plain"}
        stage.begin(plain)
        stage.space = Space(3 << 30, 1 << 40)  # above the reserve: the counters are read
        await stage.watch.look()
        written["loud"], written["calm"] = 900 * MIB, 2 * MIB
        stage.space = Space(1 << 30, 1 << 40)
        await stage.watch.look()
        assert stage.halter.halts == ["loud"], "the others go on"
        assert "free" in sessions["loud"].named("session.halted")[0]["because"]
        await stage.watch.look()
        assert stage.halter.halts == ["loud"], "nobody else writes"

    staged(tmp_path, play)


def test_t4_a_directory_that_cannot_be_measured_is_told_and_halts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [
        Measured(MIB, "/a"),
        Measured(MIB, "/a"),
        Measured(MIB),
        Measured(11 * MIB, "/b\udcff"),
    ]
    monkeypatch.setattr(limit_watch, "measure", lambda *_: found.pop(0))

    async def play(stage: Stage) -> None:
        session = Session("s", tmp_path / "none", disk=(10 * MIB, "watch"))
        stage.begin(session)
        for _ in range(3):
            await stage.watch.look()
        assert session.named("limit.unmeasured") == [{"resource": "disk", "path": "/a"}]
        assert not stage.halter.halts
        await stage.watch.look()
        assert session.named("limit.unmeasured")[1]["path"] == r"/b\udcff"
        assert stage.halter.halts == ["s"], "the rest counts"

    staged(tmp_path, play)


CLOSED = """
import os
from holdfast.host.lifecycle import disk_usage
os.makedirs("top/closed/below"); open("top/closed/below/a", "wb").write(b"x" * (1 << 20))
os.chmod("top/closed/below", 0o000); os.chmod("top/closed", 0o100)
assert disk_usage._walk(["top"], lambda: False).closed == "top/closed"
found = disk_usage.measure(["top"])
assert not found.closed and found.size >= 1 << 20, found
assert oct(os.stat("top/closed").st_mode)[-3:] == "100", "nothing was changed"
print("MEASURED")
"""


def test_t4_a_closed_directory_is_measured_by_an_ordinary_users_host() -> None:
    with ordinary_user() as user:
        done = user.run([user.python("apsw"), "-c", CLOSED])
        assert done is not None and done.stdout == "MEASURED\n", done


def test_t4_a_path_longer_than_the_kernel_takes_is_measured(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    at = os.open(top, os.O_RDONLY)
    for _ in range(30):
        os.mkdir("d" * 200, dir_fd=at)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    file = os.open("a", os.O_WRONLY | os.O_CREAT, dir_fd=at)
    os.write(file, b"x" * MIB)
    os.close(file)
    os.close(at)
    found = measure([str(top)])
    assert found.size >= MIB and not found.closed
    removal.remove(str(top))


@pytest.mark.parametrize(("sessions", "share"), [(1, 0.0002), (100, 0.02), (500, 0.02)])
def test_the_walks_of_many_sessions_take_a_bounded_share_of_the_time(
    sessions: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limit_watch, "WALK_S", 5.0)
    monkeypatch.setattr(limit_watch, "WALK_SHARE", 50)
    took_s = 0.001
    assert sessions * took_s / limit_watch.walk_pause(took_s, sessions) <= share * 1.01
    assert limit_watch.walk_pause(1.0, sessions) == limit_watch.IDLE_LOOK_S or sessions == 1
    assert limit_watch.walk_pause(10.0, sessions) == 500.0, "a long walk is rare"


def test_a_walk_counts_blocks_once_and_follows_no_link(tmp_path: Path) -> None:
    top, outside = tmp_path / "top", tmp_path / "outside"
    fill(outside, "large", 8 * MIB)
    fill(top / "below", "a", MIB)
    os.link(top / "below" / "a", top / "again")
    os.symlink(outside, top / "link")
    (top / "sparse").touch()
    os.truncate(top / "sparse", 1 << 30)
    os.mkfifo(top / "fifo")
    found = measure([str(top), str(tmp_path / "missing")])
    assert MIB <= found.size < 2 * MIB and not found.closed
    assert measure([str(top)], lambda: True).size <= found.size


# ---------------------------------------------------------------- processes


def test_t4_more_processes_than_allowed_halt_the_session_once(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        session = Session("s", tmp_path / "own", processes=(16, "watch"))
        stage.begin(session)
        for count in (16, 17, 18):
            session.commands.lineage.members = dict.fromkeys(range(count))
            stage.watch.process_changed(session, "started", count, None, None)  # type: ignore[arg-type]
        await stage.settled()
        assert stage.halter.halts == ["s"]
        assert session.named("limit.reached")[0]["used"] == 17

    staged(tmp_path, play)


# ---------------------------------------------------------------- the group


def test_limits_are_written_where_the_controllers_are(tmp_path: Path) -> None:
    """Stands in for cgroup v2: a real one with controllers is not everywhere."""
    base = tmp_path / "holdfast-x"
    group = base / "s"
    group.mkdir(parents=True)
    for above in (tmp_path, base):
        (above / "cgroup.controllers").write_text("cpuset cpu memory hugetlb\n")
        (above / "cgroup.subtree_control").write_text("memory\n")
    for name in ("memory.high", "memory.max", "pids.max"):
        (group / name).touch()
    files = {
        "memory": {"memory.high": "90", "memory.swap.max": "5", "memory.max": "100"},
        "cpu": {"cpu.weight": "50"},
    }
    groups = Groups(str(tmp_path))
    assert groups.limit(str(group), files) == {"memory"}, "there is no cpu.weight"
    assert (group / "memory.max").read_text() == "100"
    assert (tmp_path / "cgroup.subtree_control").read_text().startswith("+cpu")
    assert groups.limit(str(group), {}) == set() and groups.limit("", files) == set()
    assert groups.oom_kills(str(group)) is None
    (group / "memory.events").write_text("oom 3\noom_kill 2\n")
    assert groups.oom_kills(str(group)) == 2
