"""The graph of a session with real processes: descriptors, connections and unreadable parts."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core.session.graph import File, Graph, subtree
from holdfast.host.processes import graph as graphs
from holdfast.host.processes.graph import look
from holdfast.host.requests.signals import deliver
from tests.support.ordinary_user import ordinary_user

ME = os.getpid()


@contextlib.contextmanager
def python(code: str) -> Iterator[subprocess.Popen[bytes]]:
    """A child that prints a line when ready, and lives as long as the block."""
    with subprocess.Popen(
        [sys.executable, "-c", code + "\nprint('ready', flush=True)\nimport sys; sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        try:
            yield child
        finally:
            child.kill()


def never(pid: int) -> None:
    """The originator of the process is unknown."""


def files_of(graph: Graph, pid: int) -> dict[str, File]:
    return {os.path.basename(f.path): f for f in graph.files if f.pid == pid}


def test_s2_a_process_that_is_not_dumpable_has_its_own_uid() -> None:
    """Like the init of a contained session. The kernel gives all its files in /proc to root."""
    with ordinary_user() as user:
        become = f"os.setgid({user.gid}); os.setuid({user.uid})"
        hide = "ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)"
        with python(f"import ctypes, os; {become}; {hide}") as child:
            assert os.stat(f"/proc/{child.pid}/status").st_uid == 0
            (one,) = [p for p in look(ME, ME).processes if p.pid == child.pid]
            assert one.uid == user.uid


def test_s2_open_files_have_offset_mode_and_locks(tmp_path: Path) -> None:
    (tmp_path / "read").write_bytes(b"0123456789")
    with python(f"""
import os, fcntl
os.chdir({str(tmp_path)!r})
r = os.open("read", os.O_RDONLY); os.read(r, 4)
w = os.open("write", os.O_RDWR | os.O_CREAT); os.write(w, b"abc")
fcntl.lockf(w, fcntl.LOCK_EX, 10, 5)
a = os.open("append", os.O_WRONLY | os.O_CREAT | os.O_APPEND); fcntl.flock(a, fcntl.LOCK_SH)
g = os.open("gone", os.O_WRONLY | os.O_CREAT); os.unlink("gone")
n = os.open("name (deleted)", os.O_WRONLY | os.O_CREAT)
d = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
os.mkfifo("fifo"); f = os.open("fifo", os.O_RDWR)
""") as child:
        graph = look(ME, child.pid)
        found = files_of(graph, child.pid)
        assert (found["read"].offset, found["read"].mode, found["read"].kind) == (4, "r", "file")
        assert (found["write"].offset, found["write"].mode) == (3, "rw")
        assert [(lock.kind, lock.write, lock.start, lock.end) for lock in found["write"].locks] == [
            ("posix", True, 5, 14)
        ]
        assert found["append"].mode == "wa" and [
            (lock.kind, lock.write, lock.end) for lock in found["append"].locks
        ] == [("flock", False, None)]
        assert found["gone"].deleted and not found["read"].deleted
        assert not found["name (deleted)"].deleted, "a file may be called so"
        assert found[tmp_path.name].kind == "directory" and found["fifo"].kind == "fifo"
        (process,) = (p for p in graph.processes if p.pid == child.pid)
        assert (
            process.cwd == str(tmp_path)
            and process.argv[0] == sys.executable
            and process.ppid == ME
        )
        assert (
            process.exe == os.path.realpath(sys.executable)
            and process.state in ("sleeping", "running")
            and process.memory > 1 << 20
            and process.uid == os.geteuid()
        )


def test_s2_pipes_name_both_ends() -> None:
    with subprocess.Popen(
        ["sh", "-c", "echo ready >&2; sleep 1000 | cat; true"],
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as child:
        assert child.stderr is not None and child.stderr.readline() == b"ready\n"
        try:
            while True:
                graph = look(ME, child.pid, files=True)
                names = {p.pid: p.comm for p in graph.processes}
                between = [
                    pipe
                    for pipe in graph.pipes
                    if [names.get(e.pid) for e in pipe.writers] == ["sleep"]
                    and [names.get(e.pid) for e in pipe.readers] == ["cat"]
                ]
                if between:
                    break
            assert between[0].writers[0].fd == 1 and between[0].readers[0].fd == 0
            start = next(p.start for p in graph.processes if p.pid == child.pid)
            assert [p.comm for p in subtree(graph.processes, {child.pid: start}, never)][:1] == [
                "sh"
            ] and {p.comm for p in subtree(graph.processes, {child.pid: start}, never)} == {
                "sh",
                "sleep",
                "cat",
            }
            assert subtree(graph.processes, {1: 1}, never) == []
        finally:
            os.killpg(child.pid, signal.SIGKILL)


def test_s2_sockets_listening_and_connected_with_unread_bytes(tmp_path: Path) -> None:
    with python(f"""
import socket
l = socket.create_server(("127.0.0.1", 0))
c = socket.create_connection(l.getsockname()); s, _ = l.accept()
c.sendall(b"unread")
u = socket.socket(socket.AF_UNIX); u.bind({str(tmp_path / "door")!r}); u.listen()
d = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); d.bind(("127.0.0.1", 0))
n = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, 0)
""") as child:
        while True:
            sockets = [s for s in look(ME, child.pid).sockets if s.pid == child.pid]
            if any(s.unread == 6 for s in sockets):
                break
        (listener,) = (s for s in sockets if s.kind == "tcp" and s.state == "listen")
        assert (
            listener.local == f"127.0.0.1:{listener.port}"
            and listener.remote == ""
            and listener.unread == 0
        )
        ends = {(s.local, s.remote) for s in sockets if s.state == "established"}
        (client, server) = sorted(ends, key=lambda e: e[0] == listener.local)
        assert server == (listener.local, client[0]) and client[1] == listener.local
        assert [(s.local, s.state) for s in sockets if s.kind == "unix"] == [
            (str(tmp_path / "door"), "listen")
        ]
        assert [s.state for s in sockets if s.kind == "udp"] == ["bound"]
        assert [s.kind for s in sockets if s.kind == "other"] == ["other"], (
            "it is listed though nothing is known of it"
        )


def test_s2_a_daemon_that_left_its_session_is_a_member_and_not_on_the_terminal() -> None:
    """This process is no subreaper, so the test starts the daemon below a child that is one."""
    code = """
import ctypes, os, sys, time
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", "1000"])
    os._exit(0)
os.wait()
"""
    with python(code) as child:
        while not (found := [p for p in look(child.pid, child.pid).processes if p.comm == "sleep"]):
            pass
        assert (
            found[0].ppid == child.pid
            and not found[0].on_terminal
            and found[0].sid != os.getsid(child.pid)
        )
        os.kill(found[0].pid, signal.SIGKILL)


def test_a_process_that_vanishes_or_died_is_no_error() -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    zombie = next(p for p in look(ME, ME).processes if p.pid == child.pid)
    assert zombie.state == "zombie" and zombie.argv == ()
    child.wait()
    assert all(p.pid != child.pid for p in look(ME, ME, lambda: {child.pid}).processes)


def test_a_graph_has_a_limit_and_counts_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "DESCRIPTORS_MAX", 3)
    with python("import os; x = [os.open('/', 0) for _ in range(9)]") as child:
        graph = look(child.pid, child.pid, lambda: {child.pid})
        assert graph.cut["descriptors"] >= 9 and len(graph.files) + len(graph.sockets) <= 3
    assert look(ME, ME, lambda: {ME}, most=0).cut["processes"] >= 1
    assert graphs._short(("x" * 3000, "y")) == ("x" * graphs.ARGV_CHARS_MAX, "...")


def test_a_lock_line_that_is_odd_is_left_out() -> None:
    assert (
        graphs._lock(b"lock:\t1: POSIX") is None
        and graphs._lock(b"lock: 1: POSIX ADVISORY WRITE 1 0:0:0 x EOF") is None
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become another user")
def test_s2_processes_of_another_account_are_marked_unreadable() -> None:
    with ordinary_user() as user, python("") as child:
        code = (
            "from holdfast.host.processes.graph import look; g = look(1, 1, lambda: "
            f"{{{child.pid}}}); print([p.pid for p in g.processes if p.pid == {child.pid}], "
            f"list(g.unreadable).count({child.pid}))"
        )
        done = user.run([user.python("cryptography"), "-c", code])
        assert done is not None and done.stdout.split() == [f"[{child.pid}]", "1"], done


def test_the_table_of_another_network_namespace_is_read() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs a network namespace")
    with subprocess.Popen(
        [
            "unshare",
            "-n",
            sys.executable,
            "-c",
            """
import subprocess, socket, sys
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
l = socket.create_server(("127.0.0.1", 4711))
print("ready", flush=True); sys.stdin.read()
""",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        try:
            assert [
                s.local for s in look(ME, ME).sockets if s.state == "listen" and s.port == 4711
            ] == ["127.0.0.1:4711"]
        finally:
            child.kill()


def test_fcntl_is_what_the_kernel_calls_posix() -> None:
    """The kernel chooses the words in /proc; a lock of ours among them shows a correct reading."""
    fd = os.open("/proc/self/exe", os.O_RDONLY)
    try:
        fcntl.lockf(fd, fcntl.LOCK_SH)
        assert [
            (lock.kind, lock.write)
            for f in graphs._descriptors(look(os.getppid(), ME, lambda: {ME}, files=False)).files
            if (f.pid, f.fd) == (ME, fd)
            for lock in f.locks
        ] == [("posix", False)]
    finally:
        os.close(fd)


def test_p5_a_process_that_had_ended_does_not_count_as_reached() -> None:
    with python("") as child:
        (one,) = (p for p in look(ME, ME, files=False).processes if p.pid == child.pid)
        gone = one._replace(pid=child.pid + 1, ppid=child.pid, start=one.start + 1)
        assert deliver(
            one, signal.SIGCONT, True, lambda: (one, gone._replace(pid=2**22 - 1)), never
        ) == ([child.pid], [])
        assert deliver(one._replace(start=one.start - 1), signal.SIGKILL, False, tuple, never) == (
            [],
            [],
        )
        assert child.poll() is None
