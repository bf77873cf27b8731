"""A plain session of root runs below hf-root, which changes nothing for the session."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.wire import keeper as wire
from tests.support.keeper import Link, Nursery, gone, hf_root, state_of, until

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="sessions of ordinary users have none")
PSS_MAX = 64 << 10
DAEMON = "setsid -f sh -c 'echo DAE''MON $$ END; exec sleep 600'"


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    (tmp_path / "run").mkdir(mode=0o700)
    made = Nursery(tmp_path / "run")
    yield made
    made.close()


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def daemon(link: Link) -> int:
    return int(link.wait_for(b" END").rpartition(b"DAEMON ")[2].split()[0])


def test_the_program_is_the_root_and_hf_root_its_parent(nursery: Nursery) -> None:
    link = nursery.run("a", ["sh", "-c", f"{DAEMON}; exec sleep 600"])
    keeper, program = nursery.keepers["a"], link.welcome.root_pid
    top = hf_root(keeper)
    assert parent(program) == top and parent(top) == keeper
    assert parent(daemon(link)) == top, "it adopts daemons"
    assert not os.listdir(f"/proc/{top}/fd")
    assert os.readlink(f"/proc/{top}/cwd") == "/"
    rollup = Path(f"/proc/{top}/smaps_rollup").read_text()
    pss = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    assert pss << 10 <= PSS_MAX


@pytest.mark.parametrize(
    ("script", "code"), [("exit 7", 7), ("exit 0", 0), ("kill -9 $$", -9), ("kill -TERM $$", -15)]
)
def test_the_end_of_the_program_is_told_as_it_was(nursery: Nursery, script: str, code: int) -> None:
    link = nursery.run("a", ["sh", "-c", script])
    assert os.waitstatus_to_exitcode(link.exit_status()) == code
    assert not hf_root(nursery.keepers["a"])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_signal_to_hf_root_does_not_change_how_the_program_ended(
    nursery: Nursery, number: int
) -> None:
    link = nursery.run("a", ["sh", "-c", f"read X; kill -{number} $$"])
    for pending in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        os.kill(hf_root(nursery.keepers["a"]), pending)
    link.type(b"\r")
    assert os.waitstatus_to_exitcode(link.exit_status()) == -number


def test_a_daemon_survives_the_program(nursery: Nursery) -> None:
    link = nursery.run("a", ["sh", "-c", f"{DAEMON}; read X; exit 3"])
    pid = daemon(link)
    link.type(b"\r")
    assert os.waitstatus_to_exitcode(link.exit_status()) == 3
    assert parent(pid) == nursery.keepers["a"]
    link.signal(signal.SIGKILL, wire.SCOPE_ALL)
    until(lambda: gone(pid), "the end of the daemon")


def test_signals_to_the_session_do_not_reach_hf_root(nursery: Nursery) -> None:
    link = nursery.run("a", ["sh", "-c", f"{DAEMON}; exec sleep 600"])
    pid, top = daemon(link), hf_root(nursery.keepers["a"])
    program = link.welcome.root_pid
    link.signal(signal.SIGSTOP, wire.SCOPE_ALL)
    until(lambda: state_of(program) == state_of(pid) == "T", "both to stop")
    link.signal(signal.SIGKILL, wire.SCOPE_PROCESS, top)
    link.taken()
    assert state_of(top) == "S"
    link.signal(signal.SIGKILL, wire.SCOPE_ALL)
    assert os.waitstatus_to_exitcode(link.exit_status()) == -signal.SIGKILL
    until(lambda: gone(pid) and gone(top), "the end of all")


def test_a_session_survives_the_death_of_hf_root(nursery: Nursery) -> None:
    link = nursery.run("a", ["sh", "-c", "read X; exit 5"])
    keeper = nursery.keepers["a"]
    os.kill(hf_root(keeper), signal.SIGKILL)
    until(lambda: parent(link.welcome.root_pid) == keeper, "the keeper to adopt the program")
    link.state()
    link.type(b"\r")
    assert os.waitstatus_to_exitcode(link.exit_status()) == 5


def test_it_holds_behind_the_exec_gate(nursery: Nursery) -> None:
    link = nursery.run("a", ["sh", "-c", "echo on; exec cat"], gate=wire.GATE_NONE)
    link.wait_for(b"on")
    gated = nursery.run("b", ["cat"], gate=wire.GATE_REQUIRED)
    for one, filters in ((link, 0), (gated, 1)):
        top = parent(one.welcome.root_pid)
        for pid in (top, one.welcome.root_pid):
            status = Path(f"/proc/{pid}/status").read_text()
            assert f"Seccomp_filters:\t{filters}\n" in status


def test_a_torn_file_of_hf_root_is_written_again(nursery: Nursery) -> None:
    nursery.run("a", ["cat"])
    [path] = nursery.directory.glob("hf-root-*/hf-root")
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[:10])
    link = nursery.run("b", ["cat"])
    assert path.read_bytes() == content and path.stat().st_mode & 0o777 == 0o500
    assert parent(link.welcome.root_pid) == hf_root(nursery.keepers["b"])


def test_a_home_that_allows_no_programs_has_sessions_without_it(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "noexec", "tmpfs", tmp_path], check=True)
    try:
        nursery = Nursery(tmp_path)
        link = nursery.run("a", ["sh", "-c", "read X; exit 6"])
        assert parent(link.welcome.root_pid) == nursery.keepers["a"]
        link.type(b"\r")
        assert os.waitstatus_to_exitcode(link.exit_status()) == 6
        nursery.close()
    finally:
        subprocess.run(["umount", "-l", tmp_path], check=True)
