"""Halt and resume (A4): all processes stop, the kernel confirms, and the shell does not notice.

Real keepers and programs, with `host/processes/halt.py` alone as the host. A session has a control
group where this account may make a group: as root. The last test runs this file again as an
ordinary user, without control groups.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.session.halt import BEST_EFFORT, FREEZE, NAMESPACE, member
from holdfast.host.processes.halt import Execution, Halted, Halter, Resumed
from holdfast.wire import keeper as wire
from tests.support.contained_keeper import system
from tests.support.keeper import Link, Nursery, below, gone, hf_root, state_of, until
from tests.support.ordinary_user import ordinary_user
from tests.support.workload import FORKING

ROOT = os.getuid() == 0
STILL_S = 0.15
PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT = 17, 0x4206, 0x4207
PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable

# Forks all the time, and each child forks again. Some leave the session and fork twice. At most
# BREADTH processes live at a time.


class World:
    def __init__(self, top: Path) -> None:
        self.home = top
        self.run_directory = top / "run"
        self.run_directory.mkdir(mode=0o700)
        self.nursery = Nursery(self.run_directory)
        self.halter = Halter(str(top))
        self.made: list[Execution] = []

    def start(
        self, *argv: str, contained: bool = False, group: bool = True, name: str = "a"
    ) -> tuple[Link, Execution]:
        cgroup = self.halter.groups.make(name) if group else ""
        link = self.nursery.run(
            name,
            list(argv),
            cgroup=os.fsencode(cgroup),
            containment=wire.Containment(system()) if contained else None,
        )
        self.made.append(Execution(name, self.nursery.keepers[name], link.welcome.root_pid))
        return link, self.made[-1]

    def close(self) -> None:
        try:
            assert [self.halter.end_now(execution) for execution in self.made].count(False) == 0
        finally:
            self.nursery.close()
        for execution in self.made:
            until(lambda: self.halter.groups.remove(execution.session), "the group to go")
        self.halter.close()


@pytest.fixture
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as top:
        made = World(Path(top))
        yield made
        made.close()


# Every way that this account has: (contained, with a control group) -> how
WAYS = (
    [
        (False, True, FREEZE),
        (True, True, FREEZE),
        (True, False, NAMESPACE),
        (False, False, BEST_EFFORT),
    ]
    if ROOT
    else [(True, True, NAMESPACE), (False, True, BEST_EFFORT)]
)
EACH = pytest.mark.parametrize(
    "contained, group, how", WAYS, ids=[f"{'contained' if c else 'plain'} {h}" for c, _, h in WAYS]
)
STOPPING = [way for way in WAYS if way[2] != FREEZE]


def cpu_ticks(pids: list[int]) -> dict[int, tuple[str, int]]:
    """State and processor time of each process; leaves out processes that are gone."""
    found = {}
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            found[pid] = fields[0], int(fields[11]) + int(fields[12])
        except OSError:
            pass
    return found


def is_init(pid: int) -> bool:
    name = Path(f"/proc/{pid}/comm").read_bytes().rstrip(b"\n")
    return name in (wire.INIT_NAME, wire.HALTED_NAME)


def nothing_moves(execution: Execution) -> dict[int, tuple[str, int]]:
    """Checks for a while that no process starts, ends or runs; returns the processor times.

    A process that the kernel already calls stopped may still have to tell its parent, inside the
    kernel. On a busy machine that takes a moment of processor time later.
    """
    everybody = below(execution.keeper_pid)
    init = [pid for pid in everybody if is_init(pid)]
    others = [pid for pid in everybody if pid not in init]
    until(
        lambda: all(state != "R" for state, _ in cpu_ticks(others).values()),
        "all processes to stop: the kernel counts them as frozen a moment before",
    )
    before = cpu_ticks(others)
    deadline = time.monotonic() + STILL_S
    while time.monotonic() < deadline:
        now = cpu_ticks(list(before))
        assert below(execution.keeper_pid) == everybody and now.keys() == before.keys()
        moved = [
            (pid, before[pid], now[pid])
            for pid in now
            if now[pid][0] != before[pid][0]
            or now[pid][0] == "R"
            or now[pid][1] > before[pid][1] + 1
        ]
        assert not moved, moved
        select.select([], [], [], 0.02)
    return before


def sleepers(keeper: int) -> list[int]:
    def name(pid: int) -> str:
        try:
            return Path(f"/proc/{pid}/comm").read_text()
        except OSError:  # the process has just ended
            return ""

    return [pid for pid in below(keeper) if name(pid) == "sleep\n"]


@EACH
@pytest.mark.alone
def test_a4_forking_processes_and_daemons_all_stand_still(
    world: World, contained: bool, group: bool, how: str
) -> None:
    link, execution = world.start(
        PYTHON, "-c", FORKING, "40", "60", contained=contained, group=group
    )
    link.wait_for(b"FORKING")
    until(lambda: len(below(execution.keeper_pid)) > 40, "all of them")
    done = world.halter.halt_now(execution, lambda: link.ring.accepted)
    assert (done.how, done.complete, done.missed, done.last_act) == (
        how,
        True,
        (),
        link.ring.accepted,
    )
    everybody = below(execution.keeper_pid)
    assert len(done.pids) >= 41 and set(done.pids) <= set(everybody)
    before = nothing_moves(execution)
    assert world.halter.halted_now(execution) == how
    again = world.halter.resume_now(execution)
    assert again.complete and len(again.pids) >= 41
    until(lambda: cpu_ticks(list(before)) != before, "them to go on")
    assert world.halter.halted_now(execution) is None
    assert world.halter.end_now(execution)
    assert os.waitstatus_to_exitcode(link.exit_status()) == -signal.SIGKILL
    assert all(map(gone, everybody))


@EACH
def test_a4_the_shell_does_not_know(world: World, contained: bool, group: bool, how: str) -> None:
    """A foreground job, a background job and a job that the user had stopped: all as before."""
    link, execution = world.start("bash", "--norc", contained=contained, group=group)
    root = execution.root_pid
    link.type(b"PS1='> '; sleep 621\n")
    until(lambda: link.state().foreground != root and sleepers(execution.keeper_pid), "a job")
    link.type(b"\x1a")
    until(lambda: link.state().foreground == root, "Ctrl-Z")
    link.type(b"sleep 622 & sleep 1.5; echo code=$?\n")
    until(
        lambda: link.state().foreground != root and len(sleepers(execution.keeper_pid)) == 3,
        "three jobs",
    )
    stopped = next(pid for pid in sleepers(execution.keeper_pid) if state_of(pid) == "T")
    for _ in range(3):
        assert world.halter.halt_now(execution).complete
        assert world.halter.halt_now(execution).complete, "a second halt changes nothing"
        assert world.halter.resume_now(execution).complete
    assert state_of(stopped) == "T", "a process that the user had stopped stays stopped"
    out = link.wait_for(b"code=0")
    assert out.count(b"Stopped") == 1, out
    link.type(b"jobs; fg 1\n")
    link.wait_for(b"Running")
    until(
        lambda: link.state().foreground == stopped and state_of(stopped) == "S",
        "the stopped job in the foreground",
    )


@EACH
def test_a4_a_session_states_its_layout_and_way_to_halt(
    world: World, contained: bool, group: bool, how: str
) -> None:
    _, execution = world.start("cat", contained=contained, group=group)
    said = world.halter.layout_now(execution)
    assert said["layout"] == ("contained" if contained else "plain") and said["halt"] == how
    assert ("best effort" in said["says"]) == (how == BEST_EFFORT) and ("keys" in said["says"])


@EACH
def test_a4_a_host_that_died_meanwhile_finds_it_halted(
    world: World, contained: bool, group: bool, how: str
) -> None:
    link, execution = world.start(
        "sh", "-c", "sleep 623 & exec cat", contained=contained, group=group
    )
    until(lambda: len(sleepers(execution.keeper_pid)) == 1, "the job")
    assert world.halter.halted_now(execution) is None
    assert world.halter.halt_now(execution).complete
    another = Halter(str(world.home))
    try:
        assert another.halted_now(execution) == how
        link.type(b"typed while halted\n")
        link.taken()
        assert another.resume_now(execution).complete
        link.wait_for(b"typed while halted\r\ntyped while halted")
    finally:
        another.close()


def test_a4_a_process_that_is_about_to_stop_counts_as_stopped_before(world: World) -> None:
    """As after a checkpoint: CRIU stops a job again by SIGSTOP, and lets go of it."""
    _, execution = world.start("sh", "-c", "sleep 624 & exec cat", group=False)
    until(lambda: len(sleepers(execution.keeper_pid)) == 1, "the job")
    [job] = sleepers(execution.keeper_pid)
    libc = ctypes.CDLL(None, use_errno=True)

    def ptrace(request: int) -> None:
        done = libc.ptrace(request, job, None, None)
        assert done == 0, (request, os.strerror(ctypes.get_errno()))

    ptrace(PTRACE_SEIZE)
    ptrace(PTRACE_INTERRUPT)
    until(lambda: state_of(job) == "t", "the tracer's stop")
    os.kill(job, signal.SIGSTOP)
    assert world.halter.halt_now(execution).complete
    ptrace(PTRACE_DETACH)
    until(lambda: state_of(job) == "T", "the job to stop")
    assert world.halter.resume_now(execution).complete
    assert state_of(job) == "T", "it was stopped before the halt"


@EACH
def test_a4_halt_then_end(world: World, contained: bool, group: bool, how: str) -> None:
    link, execution = world.start(
        "sh",
        "-c",
        "trap '' HUP TERM; (setsid sleep 624 &); while :; do sleep 0.01; done",
        contained=contained,
        group=group,
    )
    until(lambda: len(below(execution.keeper_pid)) >= (4 if contained else 3), "all of them")
    assert world.halter.halt_now(execution).complete
    everybody = below(execution.keeper_pid)
    assert world.halter.end_now(execution)
    assert os.waitstatus_to_exitcode(link.exit_status()) == -signal.SIGKILL
    until(lambda: all(map(gone, everybody)), "all processes to be gone")


@EACH
@pytest.mark.alone
def test_a4_a_fork_bomb_is_caught(world: World, contained: bool, group: bool, how: str) -> None:
    """Bounded in depth and number: each forks two while there is room, and goes on forking."""
    bomb = (
        "import os, time\nend = time.monotonic() + 120\nfor _ in range(6):\n    os.fork()\n"
        "print('BOMB', flush=True)\n"
        "while time.monotonic() < end:\n    if os.fork() == 0:\n        os._exit(0)\n"
        "    os.wait()\n"
    )
    link, execution = world.start(PYTHON, "-c", bomb, contained=contained, group=group)
    link.wait_for(b"BOMB")
    done = world.halter.halt_now(execution)
    assert done.how == how and done.complete, done
    nothing_moves(execution)
    assert world.halter.end_now(execution)


# Libc's timer_create with SIGCONT as its signal: 120 timers, one every half second. No periodic
# timer: a stop drops a SIGCONT that waits, and the kernel then never starts that timer again.
# With a handler: the kernel stops a timer whose signal is ignored.
CONTINUED_BY_TIMER = """
import ctypes, signal, struct, threading
libc = ctypes.CDLL(None)
signal.signal(signal.SIGCONT, lambda number, frame: None)
event, timer = struct.pack('QiiQQ', 0, signal.SIGCONT, 0, 0, 0) + bytes(64), ctypes.c_void_p()
made = set()
for n in range(1, 121):
    made.add(libc.timer_create(1, event, ctypes.byref(timer)))
    libc.timer_settime(timer, 0, struct.pack('qqqq', 0, 0, n // 2, n % 2 * 500_000_000), None)
print('MADE', *made, flush=True)
def work():
    while True:
        threading.Event().wait(0.001)
threading.Thread(target=work).start()
print('RACE', flush=True)
work()
"""


def test_a4_no_signal_continues_a_halted_contained_session(world: World) -> None:
    """The kernel sends SIGCONT for the program, which needs no consent of a running process."""
    link, execution = world.start(PYTHON, "-c", CONTINUED_BY_TIMER, contained=True, group=False)
    link.wait_for(b"MADE 0\r\nRACE")
    done = world.halter.halt_now(execution)
    assert done.complete, done
    status = Path(f"/proc/{execution.root_pid}/status")
    until(lambda: member(0, status.read_text()).pending & 1 << 17, "SIGCONT to be sent")
    before = nothing_moves(execution)
    os.kill(execution.root_pid, signal.SIGCONT)  # from outside, as any program of the account may
    assert nothing_moves(execution).keys() == before.keys()
    assert world.halter.halted_now(execution) is not None
    assert world.halter.resume_now(execution).complete
    until(lambda: cpu_ticks([execution.root_pid])[execution.root_pid][0] == "S", "it to go on")


@pytest.mark.parametrize("contained, group, how", STOPPING, ids=[w[2] for w in STOPPING])
def test_a4_processes_that_continue_each_other_are_stopped_too(
    world: World, contained: bool, group: bool, how: str
) -> None:
    """Two processes continue each other all the time.

    SIGSTOP alone is a race here, so the host repeats it until no process runs.
    """
    script = (
        "import os, signal\nother = os.fork() or os.getppid()\nprint('RACE', flush=True)\n"
        "while True:\n    os.kill(other, signal.SIGCONT)\n"
    )
    link, execution = world.start(PYTHON, "-c", script, contained=contained, group=group)
    link.wait_for(b"RACE\r\nRACE")
    done = world.halter.halt_now(execution)
    running = [
        pid
        for pid in below(execution.keeper_pid)
        if state_of(pid) in "RS" and not is_init(pid) and pid != hf_root(execution.keeper_pid)
    ]
    assert done.complete == (not running) and set(running) <= set(done.missed), (
        "the report states the present"
    )


@pytest.mark.skipif(not ROOT, reason="only root can leave its group in a plain session")
def test_a4_a_process_that_left_the_group_of_a_plain_session_is_moved_back(world: World) -> None:
    groups = world.halter.groups
    link, execution = world.start(
        "sh",
        "-c",
        f"(setsid sh -c 'echo $$ >{groups.mount}/cgroup.procs; echo OUT; while :; do sleep 0.01; "
        "done' &); exec sleep 625",
    )
    link.wait_for(b"OUT")
    path = groups.find(execution.session, execution.root_pid)
    outside = set(below(execution.keeper_pid)) - groups.pids(path)
    assert outside
    done = world.halter.halt_now(execution)
    assert done.complete and outside <= groups.pids(path) | {pid for pid in outside if gone(pid)}
    nothing_moves(execution)


@pytest.mark.skipif(not ROOT, reason="needs a control group")
def test_groups_go_with_their_sessions_and_never_with_their_processes(world: World) -> None:
    groups = world.halter.groups
    _, execution = world.start("sh", "-c", "exec sleep 626")
    path = groups.find("a", execution.root_pid)
    own = {execution.root_pid, hf_root(execution.keeper_pid)} - {0}
    assert path.endswith(f"{groups.name}/a") and groups.pids(path) == own
    assert world.nursery.keepers["a"] not in groups.pids(path), (
        "a keeper is not frozen with its session"
    )
    left = groups.make("left behind")
    os.mkdir(f"{left}/made by a program")
    assert groups.sweep(set()) == ["a"] and os.path.isdir(path) and not os.path.exists(left)
    assert not groups.remove("a")
    until(lambda: state_of(execution.root_pid) == "S", "it to sleep on, unharmed")
    assert groups.sweep({"a"}) == []
    assert world.halter.end_now(execution)
    until(lambda: groups.remove("a"), "the group to go")
    assert not os.path.exists(os.path.dirname(path)), "nothing of this home is left"


@pytest.mark.skipif(not ROOT, reason="needs a control group")
def test_a_session_that_begins_while_the_last_one_goes_has_its_group(world: World) -> None:
    """The last session removes the shared directory; a session that starts then remakes it."""
    groups, over = world.halter.groups, threading.Event()

    def come_and_go() -> None:
        while not over.is_set():
            groups.make("other")
            groups.remove("other")

    others = [threading.Thread(target=come_and_go) for _ in range(2)]
    for other in others:
        other.start()
    try:
        for _ in range(1000):
            made = groups.make("mine")
            assert made and os.path.isdir(made), groups.why
            assert groups.remove("mine")
    finally:
        over.set()
        for other in others:
            other.join()


@pytest.mark.skipif(not ROOT, reason="needs a control group")
def test_a_host_started_inside_a_session_leaves_its_group(world: World) -> None:
    src = Path(__file__).parents[3] / "src"
    script = (
        f"import sys; sys.path.insert(0, {str(src)!r}); "
        f"from holdfast.host.processes.cgroups import Groups; g = Groups({str(world.home)!r}); "
        "g.leave(); "
        "print('LEFT', open('/proc/self/cgroup').read().strip().splitlines()[-1], flush=True); "
        "import signal; signal.pause()"
    )
    link, execution = world.start(sys.executable, "-c", script)
    assert b"LEFT 0::/\r\n" in link.wait_for(b"LEFT 0::/")
    left = world.halter.groups.pids(world.halter.groups.find("a", 0) or "/nowhere")
    assert left == {hf_root(execution.keeper_pid)} - {0}


@pytest.mark.skipif(not ROOT, reason="needs root to delegate a group")
def test_a_user_with_a_group_of_its_own_freezes_too(world: World) -> None:
    """Like a service manager: a group that belongs to the user, with the host inside."""
    groups = world.halter.groups
    delegated = f"{groups.mount}/{groups.name}-delegated"
    os.mkdir(delegated)
    top = Path(__file__).parents[3]
    code = f"""
import sys; sys.path[:0] = {[str(top / "src"), str(top)]!r}
from pathlib import Path
from tests.host.processes.test_halt import World, sleepers, until
import tempfile
with tempfile.TemporaryDirectory(dir='/tmp') as top:
    world = World(Path(top))
    for contained in (False, True):
        script = '(setsid sleep 627 &); exec sleep 628'
        link, execution = world.start(
            'sh', '-c', script, contained=contained, name=f'n{{contained}}'
        )
        until(lambda: len(sleepers(execution.keeper_pid)) == 2, 'both')
        done = world.halter.halt_now(execution)
        halted = world.halter.halted_now(execution)
        ended = world.halter.end_now(execution)
        print(done.how, done.complete, len(done.pids), halted, ended)
    world.close()
"""
    with ordinary_user() as user:
        try:
            for name in ("", "/cgroup.procs", "/cgroup.subtree_control", "/cgroup.threads"):
                os.chown(delegated + name, user.uid, user.gid)
            python = user.python("pytest")
            joined = (
                f"echo $$ >{delegated}/cgroup.procs; exec setpriv --reuid {user.uid} --regid "
                f'{user.gid} --clear-groups {python} -c "$1"'
            )
            done = subprocess.run(
                ["sh", "-c", joined, "sh", code],
                capture_output=True,
                text=True,
                timeout=240,
                cwd=user.home,
                env={
                    "PATH": "/usr/bin:/bin",
                    "HOME": str(user.home),
                    "PYTHONDONTWRITEBYTECODE": "1",
                    "PYTHONPATH": str(Path(pytest.__file__).resolve().parent.parent),
                },
            )
            assert done.stdout.splitlines() == ["cgroup freeze True 2 cgroup freeze True"] * 2, (
                done.stdout + done.stderr[-2000:]
            )
        finally:
            until(lambda: _removed(delegated), "the delegated group to go")


def _removed(path: str) -> bool:
    for directory, _, _ in os.walk(path, topdown=False):
        try:
            os.rmdir(directory)
        except OSError:
            return False
    return True


@pytest.mark.alone
def test_the_loop_is_not_held_up(world: World) -> None:
    """A slow call to the kernel does not block the loop.

    Here the call returns only after other work has run on the loop.
    """
    link, execution = world.start(PYTHON, "-c", FORKING, "20", "60", contained=True)
    link.wait_for(b"FORKING")
    elsewhere = threading.Event()

    class Slow(Halter):
        def halt_now(self, *arguments: Any) -> Halted:
            assert elsewhere.wait(120)
            return super().halt_now(*arguments)

    async def both() -> None:
        halter = Slow(str(world.home))
        task = asyncio.create_task(halter.halt(execution, lambda: 7))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(elsewhere.set)
        done = await task
        assert done.last_act == 7 and done.complete and await halter.halted(execution) is not None
        assert (await halter.resume(execution)).complete and await halter.end(execution)
        halter.close()

    asyncio.run(both())


@EACH
def test_r3_no_resume_reaches_a_fenced_session(
    world: World, contained: bool, group: bool, how: str
) -> None:
    """Neither one that comes after the fence, nor one during which the fence falls."""
    _, execution = world.start("sh", "-c", "sleep 624 & exec cat", contained=contained, group=group)
    until(lambda: len(sleepers(execution.keeper_pid)) == 1, "the job")

    class Fencing(Halter):
        def resume_now(self, execution: Execution) -> Resumed:
            self.fenced.add(execution.session)
            return super().resume_now(execution)

    async def resumed() -> None:
        halter = Fencing(str(world.home))
        await halter.halt(execution)
        await halter.resume(execution)
        assert await halter.halted(execution) == how, "the fence fell meanwhile"
        assert not (await halter.resume(execution)).complete
        assert await halter.halted(execution) == how
        halter.close()

    asyncio.run(resumed())


@pytest.mark.skipif(not ROOT, reason="it is being run as an ordinary user")
def test_all_of_this_as_an_ordinary_user() -> None:
    with ordinary_user() as user:
        python = user.python("pytest")
        done = user.run(
            [
                python,
                "-m",
                "pytest",
                "-q",
                "-c",
                os.devnull,
                "-p",
                "no:cacheprovider",
                "--import-mode=importlib",
                "--rootdir",
                str(Path(__file__).parents[3]),
                __file__,
            ]
        )
        assert done is not None and done.returncode == 0, (
            (done.stdout[-3000:] + done.stderr[-1000:]) if done else "it did not run"
        )
        assert " passed" in done.stdout
