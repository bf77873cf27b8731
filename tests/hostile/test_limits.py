"""One session cannot starve the others: forks, threads, memory and files beyond its limits (T4).

Every bomb here is small and bounded by itself: the machine is shared.
"""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.installation import Installation, eventually
from tests.support.ordinary_user import SITE_PACKAGES, ordinary_user

ROOT = os.getuid() == 0
PYTHON = "/usr/bin/python3"
MOST = 300  # processes or threads of a bomb, far above its limit of 64

FORKS = f"""
import os, signal
for n in range({MOST}):
    try:
        if not os.fork(): signal.pause()
    except OSError as e: print("REFUSED at", n, e.strerror); break
print("FORKED", n); signal.pause()
"""
NESTED = f"""
import ctypes
ctypes.CDLL(None).unshare(0x10000000)  # a user namespace has a count of its own
{FORKS}"""
THREADS = f"""
import threading, signal
for n in range({MOST}):
    try: threading.Thread(target=threading.Event().wait, daemon=True).start()
    except RuntimeError as e: print("REFUSED at", n); break
print("STARTED", n); signal.pause()
"""
MEMORY = """
import os, signal
held = []
pid = os.fork()  # the child eats: the program itself goes on
if pid:
    print("STATUS", os.waitpid(pid, 0)[1]); signal.pause()
try:
    for n in range(64): held.append(b"x" * (16 << 20))
except MemoryError: os._exit(42)
os._exit(0)
"""
FILES = """
import os, signal
own = os.environ.get("TMUX_TMPDIR") or os.environ["HOME"]
try:
    with open(own + "/large", "wb") as file: file.truncate(64 << 20)  # takes no space
except OSError as e: print("REFUSED", e.strerror)
for n in range(24):
    with open(f"{own}/{n}", "wb") as file: file.write(b"x" * (1 << 20))
print("FILLED"); signal.pause()
"""
CLOSED = """
import os, signal
own = os.environ.get("TMUX_TMPDIR") or os.environ["HOME"]
os.mkdir(own + "/closed"); os.chmod(own + "/closed", 0o300)
print("CLOSED"); input()
for n in range(24):
    with open(f"{own}/closed/{n}", "wb") as file: file.write(b"x" * (1 << 20))
signal.pause()
"""


IN_FLIGHT = """
import array, os, resource, signal, socket
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
many = array.array("i", [os.open("/dev/null", os.O_RDONLY)] * 253)
held, sent = [], 0
while sent < 1_000_000:
    one, other = socket.socketpair()
    held.append((one, other))
    one.setblocking(False)
    try:
        while True:
            one.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, many)])
            sent += len(many)
    except BlockingIOError: pass
    except OSError as e: print("REFUSED", e.strerror); break
print("IN", "FLIGHT", sent, flush=True); signal.pause()
"""


def bomb(hf: Installation, name: str, limit: str, code: str) -> dict[str, Any]:
    return hf.new(name, "--contained", "--limit", limit, "--", PYTHON, "-c", code)


def answers(hf: Installation, name: str) -> None:
    assert hf.ok("run", name, "--", "echo fine $((40+2))").out.strip() == "fine 42"


def events(hf: Installation, name: str, kind: str) -> list[dict[str, Any]]:
    found = hf.ok("events", name, "--json").records
    return [one for one in found if one["event"] == kind]


@pytest.fixture(scope="module")
def calm(hf: Installation) -> str:
    hf.ready("calm", "--contained")
    return "calm"


@pytest.mark.parametrize("code", [FORKS, NESTED, THREADS], ids=["processes", "nested", "threads"])
def test_t4_a_bomb_of_processes_stops_at_its_own_limit(
    hf: Installation, calm: str, code: str
) -> None:
    name = f"bomb{len(code)}"
    made = bomb(hf, name, "processes=64", code)
    way = made["limits"]["processes"]["by"]
    answers(hf, calm)
    if way == "watch":  # root without the pids controller: the session stands still
        eventually(lambda: hf.get(name)["state"] == "halted", "the bomb to be halted")
        (reached,) = events(hf, name, "limit.reached")
        assert reached["resource"] == "processes" and reached["used"] > reached["limit"] == 64
        (halted,) = events(hf, name, "session.halted")
        assert halted["operator"] == "host" and "its limit is 64" in halted["because"]
        assert any(
            one["kind"] == "halt" and one["actor"] == "host"
            for one in hf.ok("log", name, "--json").records
        )
    else:
        hf.wait(name, "text:REFUSED at")
        number = int(hf.screen(name).partition("REFUSED at ")[2].split()[0])
        assert 32 <= number < 64, "the limit counts this session's processes alone"
    answers(hf, calm)
    hf.end(name)


def test_t4_descriptors_on_their_way_keep_no_session_from_starting(fresh: Installation) -> None:
    """The kernel counts descriptors in sockets by account, also those of a user namespace."""
    fresh.ready("before")
    fresh.new("flight", "--contained", "--", PYTHON, "-c", IN_FLIGHT)
    fresh.wait("flight", "text:IN FLIGHT")
    assert ROOT or "REFUSED Too many references" in fresh.screen("flight")
    fresh.ready("after")
    fresh.ready("contained", "--contained")
    os.kill(fresh.host_pid, signal.SIGKILL)
    fresh.ok("up", "--detach")
    for name in ("before", "after", "contained"):  # their keepers send descriptors to the new host
        answers(fresh, name)
    fresh.end("flight")


def test_t4_process_two_has_the_limits_of_the_session(hf: Installation) -> None:
    """Code inside can trace process 2 and fork in its name."""
    hf.ready("second", "--contained", "--limit", "memory=512M,disk=64M,processes=64")
    shown = "cut -c1-26,27-46 /proc/{}/limits | grep -E 'processes|open|file size|data'"
    two, three = (hf.ok("run", "second", "--", shown.format(pid)).out for pid in (2, 3))
    assert two == three and "Max open files" in two and "67108864" in two, (two, three)
    hf.end("second")


@pytest.mark.skipif(ROOT, reason="RLIMIT_NPROC does not bind root")
def test_t4_a_session_leaves_half_of_the_accounts_processes(fresh: Installation) -> None:
    """The kernel counts the processes of a session as the account's, too."""
    fresh.ok("up", "--detach")
    resource.prlimit(fresh.host_pid, resource.RLIMIT_NPROC, (200, 200))
    made = fresh.new("half", "--contained", "--", "bash")
    way = made["limits"]["processes"]
    assert way["by"] == "cgroup" or way == {"limit": 100, "by": "rlimit"}, way
    fresh.end("half")


def test_t4_two_sessions_of_one_account_have_a_limit_each(hf: Installation) -> None:
    """RLIMIT_NPROC of an account would count both."""
    hf.new("one", "--contained", "--limit", "processes=64", "--", "sh", "-c", "sleep 120 & wait")
    hf.new(
        *("two", "--contained", "--limit", "processes=16", "--", "sh", "-c"),
        "for n in 1 2 3 4 5 6; do sleep 120 & done && echo STARTED; wait",
    )
    hf.wait("two", "text:STARTED")
    hf.end("one", "two")


def test_t4_a_memory_bomb_ends_alone(hf: Installation, calm: str) -> None:
    """By control group the kernel kills it, and an event names it. Otherwise it is refused."""
    made = bomb(hf, "eater", "memory=256M", MEMORY)
    hf.wait("eater", "text:STATUS")
    status = int(hf.screen("eater").partition("STATUS ")[2].split()[0])
    if made["limits"]["memory"]["by"] == "cgroup":
        assert status == 9
        eventually(lambda: events(hf, "eater", "process.killed_for_memory"), "the event")
        (event,) = events(hf, "eater", "process.killed_for_memory")
        assert event["sure"] and event["limit"] == 256 << 20 and event["actor"] == "tester"
    else:
        assert os.waitstatus_to_exitcode(status) == 42
    answers(hf, calm)
    hf.end("eater")


def test_t4_filling_files_halts_the_session_at_its_limit(hf: Installation, calm: str) -> None:
    bomb(hf, "filler", "disk=8M", FILES)
    eventually(lambda: hf.get("filler")["state"] == "halted", "the filler to be halted")
    assert "REFUSED File too large" in hf.screen("filler"), "one file stays below the limit"
    (reached,) = events(hf, "filler", "limit.reached")
    assert reached["resource"] == "disk" and reached["used"] >= reached["limit"] == 8 << 20
    (halted,) = events(hf, "filler", "session.halted")
    assert "remove files" in halted["because"]
    answers(hf, calm)
    hf.ok("resume", "filler")
    assert hf.get("filler")["state"] == "detached", "it may run, to remove files"
    hf.end("filler")


def test_t4_files_in_a_closed_directory_count(hf: Installation) -> None:
    """A closed directory as such is no reason to halt."""
    bomb(hf, "closer", "disk=8M", CLOSED)
    hf.wait("closer", "text:CLOSED")
    hf.ok("send", "closer", "go", "--enter")
    eventually(lambda: hf.get("closer")["state"] == "halted", "the session to be halted")
    (reached,) = events(hf, "closer", "limit.reached")
    assert reached["used"] >= reached["limit"] == 8 << 20
    assert not events(hf, "closer", "limit.unmeasured")
    hf.end("closer")


def test_a5_an_agents_request_can_only_lower_a_limit(fresh: Installation) -> None:
    fresh.configure("[limits]\nmemory = '1G'\nprocesses = 500\ncpu = 40\n")
    fresh.people("bot", kind="agent")
    low = "memory=none,processes=100,cpu=10000,disk=2M"
    made = fresh.ok(*("--as", "bot", "new", "low", "--json", "--limit", low, "--", "cat")).json
    assert {name: one["limit"] for name, one in made["limits"].items()} == {
        "memory": 1 << 30,
        "processes": 100,
        "cpu": 40,
        "disk": 2 << 20,
    }
    high = fresh.new("high", "--contained", "--limit", "memory=2G,processes=none", "--", "cat")
    assert high["limits"]["memory"]["limit"] == 2 << 30 and "processes" not in high["limits"]
    assert fresh.new("plain", "--", "cat")["limits"] == {}
    assert "2 GiB of memory" in fresh.ok("who", "high").out
    assert fresh.view("high")["limits"] == high["limits"]


def test_t4_the_oom_killer_takes_programs_before_keeper_and_host(fresh: Installation) -> None:
    """Also after a new host has taken over, and for the sessions that it makes."""

    def value(pid: int) -> int:
        return int(Path(f"/proc/{pid}/oom_score_adj").read_text())

    contained = fresh.new("contained", "--contained", "--", "cat")
    plain = fresh.new("plain", "--", "cat")
    for again in (False, True):
        if again:
            os.kill(fresh.host_pid, 9)
            contained = fresh.new("later", "--contained", "--", "cat")
        last = max(value(pid) for pid in (fresh.host_pid, *fresh.keepers()))
        assert value(contained["pid"]) == 300 and last <= 0
        assert last < value(plain["pid"]) or last < 0


@pytest.mark.skipif(not ROOT, reason="it is being run as an ordinary user")
def test_t4_all_of_this_as_an_ordinary_user() -> None:
    with ordinary_user() as user:
        python = user.own_python("pytest", "apsw")
        for site in (user.home / "python/lib").glob("python*/site-packages"):
            (site / "libraries.pth").write_text(f"{SITE_PACKAGES}\n")
        done = user.run(
            [
                *(python, "-m", "pytest", "-q", "-c", os.devnull, "-p", "no:cacheprovider"),
                *("--import-mode=importlib", "--rootdir", str(Path(__file__).parents[2])),
                __file__,
            ]
        )
        assert done is not None and done.returncode == 0, (
            (done.stdout[-3000:] + done.stderr[-1000:]) if done else "it did not run"
        )
        assert " passed" in done.stdout
