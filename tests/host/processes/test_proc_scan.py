"""Real programs on real terminals, and the kernel's view of them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.session.attention import Attention, AttentionKind, TtyWait, classify
from holdfast.host.processes import proc_scan, tty_wait
from holdfast.host.processes.process import Stat, boot_id, parse_stat, read_argv, read_stat
from holdfast.host.processes.tty_wait import blocked_on_tty, tty_rdev_of
from tests.support.keeper import until
from tests.support.ordinary_user import ordinary_user

DEADLINE_S = 120.0
UNIX98_SLAVE_MAJOR, TIOCGPTN = 136, 0x80045430
BASH = ["bash", "--norc", "--noprofile", "-i"]
PYTHON = sys.executable


class Terminal:
    """A program that leads a session on a fresh PTY; this process is the root of the tree."""

    def __init__(self, argv: list[str]) -> None:
        self.output = b""
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            try:
                os.environ.update(
                    TERM="xterm-256color", PS1="$ ", HISTFILE="/dev/null", LESS="", HOME="/"
                )
                os.execvp(argv[0], argv)
            finally:
                os._exit(127)
        os.set_blocking(self.master, False)

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def drain(self, wait_s: float = 0.0) -> None:
        if select.select([self.master], [], [], wait_s)[0]:
            with contextlib.suppress(OSError):
                self.output += os.read(self.master, 65_536)

    def until(self, condition: Callable[[], bool], what: Callable[[], object]) -> None:
        end = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < end, f"not reached: {what()}; output {self.output[-500:]!r}"
            self.drain(0.01)

    def until_printed(self, text: str) -> None:
        self.until(lambda: text.encode() in self.output, lambda: text)

    def attention(self, prompt: bool | None = None, shell: bool = True) -> Attention:
        local = termios.tcgetattr(self.master)[3]
        mode = proc_scan.TerminalMode(
            bool(local & termios.ICANON),
            bool(local & termios.ECHO),
            os.tcgetpgrp(self.master) or None,
        )
        everyone = proc_scan.descendants(os.getpid())
        shell_pid = self.pid if shell else None
        return classify(proc_scan.terminal_facts(mode, self.rdev, shell_pid, prompt, everyone))

    @property
    def rdev(self) -> int:
        """The device number of the slave end."""
        number = struct.unpack("I", fcntl.ioctl(self.master, TIOCGPTN, bytes(4)))[0]
        return os.makedev(UNIX98_SLAVE_MAJOR, number)

    def foreground(self) -> list[Stat]:
        return proc_scan.group(proc_scan.descendants(os.getpid()), os.tcgetpgrp(self.master))

    def until_attention(
        self, kind: AttentionKind, program: str, prompt: bool | None = None, shell: bool = True
    ) -> Attention:
        """Waits until `program` is in the foreground and the terminal is `kind`, and stays so."""
        seen: list[Attention] = []

        def reached() -> bool:
            there = any(
                one.comm.startswith(program) for one in self.foreground()
            )  # before: the shell that has not read the line yet waits for input as well
            seen.append(self.attention(prompt, shell))
            return there and seen[-1].kind is kind

        self.until(reached, lambda: (kind, program, seen[-1:], self.foreground()))
        for _ in range(5):
            self.drain(0.005)
            again = self.attention(prompt, shell)
            assert again.kind is kind, again
        return seen[-1]

    def close(self) -> None:
        everyone = [
            one.pid for one in proc_scan.descendants(os.getpid()) if one.session == self.pid
        ]
        for pid in [*everyone, self.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        os.close(self.master)
        os.waitpid(self.pid, 0)


def port_listening(root: int, port: int) -> proc_scan.Socket | None:
    pids = [one.pid for one in proc_scan.descendants(root)]
    return next((one for one in proc_scan.listening(pids) if one.port == port), None)


@contextlib.contextmanager
def terminal(argv: list[str]) -> Iterator[Terminal]:
    opened = Terminal(argv)
    try:
        yield opened
    finally:
        opened.close()


@contextlib.contextmanager
def script(text: str, *args: str) -> Iterator[subprocess.Popen[str]]:
    """A Python program with pipes on both sides; killed at the end with all its descendants."""
    running = subprocess.Popen(
        [PYTHON, "-c", text, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield running
    finally:
        for one in proc_scan.descendants(running.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(one.pid, signal.SIGKILL)
        running.kill()
        running.communicate()


def line_of(running: subprocess.Popen[str]) -> str:
    assert running.stdout is not None
    return running.stdout.readline().strip()


# --- the wait of the terminal ---------------------------------------------------------------------

NESTED_EPOLL = (
    "from select import epoll; e, f = epoll(), epoll(); f.register(0, 1); e.register(f); e.poll()"
)
CASES: list[tuple[str, AttentionKind, str]] = [
    ("cat", AttentionKind.INPUT, "cat"),
    ("sh -c 'echo hi; cat; true'", AttentionKind.INPUT, "sh"),
    (f"{PYTHON} -c 'input()'", AttentionKind.INPUT, "python"),
    (f"{PYTHON} -c 'import getpass; getpass.getpass()'", AttentionKind.SECRET, "python"),
    ("read -s x", AttentionKind.SECRET, "bash"),
    ("sleep 600", AttentionKind.WORKING, "sleep"),
    ("sleep 600 | cat", AttentionKind.WORKING, "sleep"),
    ("while :; do :; done", AttentionKind.WORKING, "bash"),
    (f"{PYTHON} -c 'while True: pass'", AttentionKind.WORKING, "python"),
    ("tail -f /etc/passwd", AttentionKind.WORKING, "tail"),
    ("vim -u NONE -N -n", AttentionKind.INPUT, "vim"),
    (f"{PYTHON} -q", AttentionKind.INPUT, "python"),
    ("less /etc/passwd", AttentionKind.INPUT, "less"),
    ("seq 100000 | less", AttentionKind.INPUT, "less"),
    ("top", AttentionKind.INPUT, "top"),
    ("node", AttentionKind.INPUT, "node"),
    (
        f"{PYTHON} -c 'import threading as t, sys; t.Thread(target=input).start(); "
        "t.Event().wait()'",
        AttentionKind.INPUT,
        "python",
    ),
    (
        f"{PYTHON} -c 'import select; e = select.epoll(); e.register(0, select.EPOLLIN); e.poll()'",
        AttentionKind.INPUT,
        "python",
    ),
    (f"{PYTHON} -c '{NESTED_EPOLL}'", AttentionKind.INPUT, "python"),
    (
        f"{PYTHON} -c 'import select; p = select.poll(); p.register(0, select.POLLIN); p.poll()'",
        AttentionKind.INPUT,
        "python",
    ),
    (
        f"{PYTHON} -c 'import select; p = select.poll(); p.register(0, select.POLLERR); p.poll()'",
        AttentionKind.WORKING,
        "python",
    ),
    (
        f"{PYTHON} -c 'import os, select; select.select([os.pipe()[0]], [], [])'",
        AttentionKind.WORKING,
        "python",
    ),
    (f"{PYTHON} -c 'import os; os.read(os.pipe()[0], 1)'", AttentionKind.WORKING, "python"),
    (f"{PYTHON} -c 'import os; os.readv(0, [bytearray(9)])'", AttentionKind.INPUT, "python"),
    (f"{PYTHON} -c 'open(\"/dev/tty\").readline()' </dev/null", AttentionKind.INPUT, "python"),
]


@pytest.mark.parametrize(
    ("command", "kind", "program"),
    CASES,
    ids=[command.replace(PYTHON, "python")[:70] for command, _, _ in CASES],
)
def test_s2_working_input_and_secret_are_told_apart(
    command: str, kind: AttentionKind, program: str
) -> None:
    if shutil.which(command.split()[0]) is None and command.split()[0] not in ("read", "while"):
        pytest.skip(f"{command.split()[0]} is not installed")
    with terminal(BASH) as session:
        session.until_attention(AttentionKind.IDLE, "bash")
        session.type(command + "\n")
        seen = session.until_attention(kind, program, prompt=False)
        assert seen.why


@pytest.mark.parametrize("argv", [BASH, ["zsh", "-f", "-i"]], ids=["bash", "zsh"])
def test_s2_a_shell_that_edits_lines_is_idle_without_marks(argv: list[str]) -> None:
    if shutil.which(argv[0]) is None:
        pytest.skip(f"{argv[0]} is not installed")
    with terminal(argv) as session:
        seen = session.until_attention(AttentionKind.IDLE, argv[0])
        assert seen.why == f"{argv[0]} (pid {session.pid}) is at its prompt"
        session.type("half a li")  # typed, not entered: the prompt still waits
        session.until_printed("half a li")
        session.until_attention(AttentionKind.IDLE, argv[0])


def test_s2_dash_needs_its_mark_to_be_idle() -> None:
    with terminal(["dash", "-i"]) as session:
        session.until_attention(AttentionKind.INPUT, "dash", prompt=None)
        session.until_attention(AttentionKind.IDLE, "dash", prompt=True)
        session.type("while :; do :; done\n")
        session.until_attention(
            AttentionKind.WORKING, "dash", prompt=True
        )  # the mark is stale by now


def test_s2_read_in_the_shell_is_input_when_marks_say_so() -> None:
    with terminal(BASH) as session:
        session.until_attention(AttentionKind.IDLE, "bash")
        session.type("read -r -p 'asking: ' x\n")
        session.until_printed("asking: ")
        session.until_attention(AttentionKind.INPUT, "bash", prompt=False)


def test_s2_a_shell_without_job_control() -> None:
    with terminal([*BASH, "+m"]) as session:
        session.until_attention(AttentionKind.IDLE, "bash")
        session.type("sleep 3\n")  # not ended by Ctrl-C: without job control bash may lose that
        session.until_attention(AttentionKind.WORKING, "sleep")
        session.until_attention(AttentionKind.IDLE, "bash")
        session.type("cat\n")
        session.until_attention(AttentionKind.INPUT, "cat")


def test_s2_a_program_in_charge_is_never_idle() -> None:
    with terminal([PYTHON, "-q"]) as session:
        session.until_attention(AttentionKind.INPUT, "python", shell=False)


def test_s2_tmux_whose_server_reads_for_its_client(tmp_path: Path) -> None:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")
    inside = (
        "import ctypes, os, sys; ctypes.CDLL(None).prctl(36, 1); "
        "import pty; pid, m = pty.fork(); os.environ['TERM'] = 'xterm-256color'; "
        "pid or os.execvp('tmux', ['tmux', '-f', '/dev/null', '-S', sys.argv[1], 'new', "
        "'sleep 600']); "
        "print(pid, flush=True)\n"
        "import select\n"
        "while select.select([m, 0], [], []):\n"
        "    if select.select([0], [], [], 0)[0]: break\n"
        "    os.read(m, 65536)\n"
    )
    path = tmp_path / "tmux"
    with script(inside, str(path)) as keeper:
        client = int(line_of(keeper))
        end = time.monotonic() + DEADLINE_S
        while True:
            found = read_stat(client)
            assert found is not None
            rdev = tty_rdev_of(found.tty_nr)
            mode = proc_scan.TerminalMode(icanon=False, echo=False, fg_pgrp=found.tpgid)
            everyone = proc_scan.descendants(keeper.pid)
            facts = proc_scan.terminal_facts(mode, rdev, None, None, everyone)
            seen = classify(facts)
            if seen.kind is AttentionKind.INPUT:
                break
            assert time.monotonic() < end, (facts, seen)
            select.select([], [], [], 0.01)
        assert "tmux: server" in seen.why


def test_why_names_program_and_pid() -> None:
    with terminal(BASH) as session:
        session.until_attention(AttentionKind.IDLE, "bash")
        session.type("cat\n")
        seen = session.until_attention(AttentionKind.INPUT, "cat")
        leader = session.foreground()[0]
        assert seen.why == f"cat (pid {leader.pid}) reads the terminal"
        assert read_argv(leader.pid) == ("cat",)


# --- a process and the terminal -------------------------------------------------------------------


def test_a_stopped_reader_does_not_wait() -> None:
    with terminal(["cat"]) as session:
        rdev = session.rdev

        def look() -> TtyWait:
            return blocked_on_tty(session.pid, rdev)

        session.until(lambda: look() is TtyWait.READ, look)
        os.kill(session.pid, signal.SIGSTOP)
        session.until(lambda: look() is TtyWait.STOPPED, look)
        os.kill(session.pid, signal.SIGCONT)
        session.until(lambda: look() is TtyWait.READ, look)
        # A different terminal.
        assert blocked_on_tty(session.pid, rdev + 1) is TtyWait.NONE
        os.kill(session.pid, signal.SIGKILL)
        session.until(lambda: look() is TtyWait.GONE, look)


@pytest.mark.parametrize(
    ("argv", "wait"),
    [
        (["cat"], TtyWait.READ),
        (["vim", "-u", "NONE", "-N", "-n"], TtyWait.POLL_ANY),
        (["sleep", "600"], TtyWait.NONE),
        (
            [PYTHON, "-c", "import os, select; select.select([os.pipe()[0]], [], [])"],
            TtyWait.POLL_ANY,
        ),
        (
            [
                PYTHON,
                "-c",
                "import os, select; r = os.pipe()[0]; os.closerange(0, 3); select.select([r], [], "
                "[])",
            ],
            TtyWait.NONE,
        ),
        ([PYTHON, "-c", "import socket; s = socket.socket(); input()"], TtyWait.UNKNOWN),
    ],
    ids=["cat", "vim", "sleep", "polls-a-pipe", "no-terminal", "has-a-socket"],
)
def test_without_the_right_to_ptrace_wchan_is_used(
    argv: list[str], wait: TtyWait, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(task: str) -> bytes:
        raise PermissionError(1, "ptrace_scope", task)

    monkeypatch.setattr(tty_wait, "read_syscall", refused)
    with terminal(argv) as session:
        rdev = session.rdev

        def look() -> TtyWait:
            return blocked_on_tty(session.pid, rdev)

        def started() -> bool:  # before the exec, the child is a copy of this process
            return read_argv(session.pid) == tuple(argv)

        session.until(lambda: started() and look() is wait, look)


def test_s2_another_users_process_is_unknown() -> None:
    if os.getuid() == 0:
        pytest.skip("root may look at every process; the repetition as an ordinary user runs this")
    assert blocked_on_tty(1, os.makedev(136, 0)) is TtyWait.UNKNOWN
    assert proc_scan.unreadable([1, os.getpid()]) == [1]


# --- identity -------------------------------------------------------------------------------------


def test_identity_of_this_process() -> None:
    me = read_stat(os.getpid())
    assert me is not None and (me.pid, me.ppid) == (os.getpid(), os.getppid())
    assert me.start == getattr(read_stat(os.getpid()), "start", None)
    assert boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_zombie_and_gone_are_told_apart() -> None:
    child = subprocess.Popen(["true"])
    first = read_stat(child.pid)
    assert first is not None
    end = time.monotonic() + DEADLINE_S
    while (now := read_stat(child.pid)) is not None and now.state != "Z":
        assert time.monotonic() < end
    assert now is not None and now.start == first.start
    child.wait()
    assert read_stat(child.pid) is None


def test_a_reused_pid_is_recognised() -> None:
    last_pid = Path("/proc/sys/kernel/ns_last_pid")
    if os.getuid() != 0 or not last_pid.exists():
        pytest.skip("needs root and a kernel with ns_last_pid to have a pid handed out twice")
    first = subprocess.Popen(["sleep", "600"])
    who = read_stat(first.pid)
    first.kill()
    first.wait()
    assert who is not None
    for _ in range(200):  # a different program of this machine may fork in between
        last_pid.write_text(str(who.pid - 1))
        second = subprocess.Popen(["sleep", "600"])
        try:
            now = read_stat(second.pid)
            if second.pid == who.pid and now is not None and now.start != who.start:
                return
        finally:
            second.kill()
            second.wait()
    pytest.fail("the pid was not handed out again")


@pytest.mark.parametrize("name", ["a b", "a) R 1 (b", "((", "))", ") S 0 0", "\n", "ü"])
def test_any_name_is_parsed(name: str) -> None:
    rename = (
        "import sys; open('/proc/self/comm', 'w').write(sys.argv[1]); print(flush=True); input()"
    )
    with script(rename, name) as child:
        line_of(child)
        found = read_stat(child.pid)
        assert found is not None
        assert (found.comm, found.ppid, found.pgrp) == (name, os.getpid(), os.getpgrp())
        assert read_argv(child.pid)[1:3] == ("-c", rename)


@given(
    st.binary(max_size=15),
    st.lists(st.integers(min_value=-1, max_value=2**63), min_size=50, max_size=50),
)
def test_parse_stat_takes_any_name(comm: bytes, numbers: list[int]) -> None:
    line = b"42 (" + comm + b") S " + b" ".join(b"%d" % number for number in numbers) + b"\n"
    found = parse_stat(line)
    assert (found.pid, found.state, found.comm) == (42, "S", comm.decode("utf-8", "replace"))
    assert (found.ppid, found.pgrp, found.session, found.tty_nr, found.tpgid) == tuple(numbers[:5])
    assert found.start == numbers[18]


@given(st.binary(max_size=200))
def test_parse_stat_refuses_garbage_with_value_or_index_error(data: bytes) -> None:
    with contextlib.suppress(ValueError, IndexError):
        parse_stat(data)


# --- the tree -------------------------------------------------------------------------------------

REAPER = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(36, 1)
"""


def test_s2_a_daemon_that_forked_twice_is_found_with_its_port() -> None:
    daemon = (
        REAPER
        + """
import http.server
r, w = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp(sys.executable, [sys.executable, "-u", "-c", "import http.server as h, os;"
            "s = h.HTTPServer(('127.0.0.1', 0), h.SimpleHTTPRequestHandler);"
            "print(os.getpid(), s.server_port, flush=True); s.serve_forever()"])
    os._exit(0)
os.wait()
sys.stdin.read()
"""
    )
    with script(daemon) as keeper:
        pid, port = (int(word) for word in line_of(keeper).split())
        found = {one.pid: one for one in proc_scan.descendants(keeper.pid)}
        assert found[pid].ppid == keeper.pid
        assert found[pid].session not in (keeper.pid, os.getsid(0))
        assert port_listening(keeper.pid, port) == proc_scan.Socket(pid, "tcp", "127.0.0.1", port)
        assert port_listening(keeper.pid, port + 1 if port < 65535 else 1) is None
        os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + DEADLINE_S
        while port_listening(keeper.pid, port) is not None:
            assert time.monotonic() < end


def test_s2_http_server_of_the_standard_library() -> None:
    server = subprocess.Popen(
        [PYTHON, "-u", "-m", "http.server", "--bind", "127.0.0.1", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        port = int(line_of(server).split(" port ")[1].split()[0])
        found = port_listening(os.getpid(), port)
        assert found == proc_scan.Socket(server.pid, "tcp", "127.0.0.1", port)
    finally:
        server.kill()
        server.communicate()
    assert port_listening(os.getpid(), port) is None


def test_listening_knows_ipv6_and_unix(tmp_path: Path) -> None:
    with socket.socket() as four, socket.socket(socket.AF_UNIX) as unix:
        four.bind(("127.0.0.1", 0))
        assert not [
            one for one in proc_scan.listening([os.getpid()]) if one.port == four.getsockname()[1]
        ]
        four.listen()
        unix.bind(str(tmp_path / "a socket"))
        unix.listen()
        found = proc_scan.listening([os.getpid()])
        assert proc_scan.Socket(os.getpid(), "tcp", "127.0.0.1", four.getsockname()[1]) in found
        assert proc_scan.Socket(os.getpid(), "unix", str(tmp_path / "a socket"), None) in found
    with socket.socket(socket.AF_INET6) as six:
        try:
            six.bind(("::1", 0))
        except OSError as reason:
            pytest.skip(f"no IPv6 here: {reason}")
        six.listen()
        wanted = proc_scan.Socket(os.getpid(), "tcp6", "::1", six.getsockname()[1])
        assert wanted in proc_scan.listening([os.getpid()])


def test_listening_looks_into_other_network_namespaces() -> None:
    serve = (
        "import socket, sys; s = socket.socket(); s.bind(('0.0.0.0', 0)); s.listen(); "
        "print(s.getsockname()[1], flush=True); sys.stdin.read()"
    )
    inside = subprocess.Popen(
        ["unshare", "-r", "-n", PYTHON, "-c", serve],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        said = line_of(inside)
        if not said:
            pytest.skip("no network namespace for this user here")
        found = port_listening(os.getpid(), int(said))
        assert found is not None
        assert found.address == "0.0.0.0"
    finally:
        inside.kill()
        inside.communicate()


def test_descendants_in_order_with_their_fields() -> None:
    with terminal(BASH) as session:
        session.until_attention(AttentionKind.IDLE, "bash")
        session.type("sh -c 'sleep 600; true' & cat\n")
        session.until_attention(AttentionKind.INPUT, "cat")

        def running() -> list[str]:
            return sorted(one.comm for one in proc_scan.descendants(session.pid))

        session.until(lambda: running() == ["cat", "sh", "sleep"], running)
        below = proc_scan.descendants(session.pid)
        names = [one.comm for one in below]
        assert names.index("sh") < names.index("sleep")
        by_name = {one.comm: one for one in below}
        assert read_argv(by_name["sleep"].pid) == ("sleep", "600")
        assert by_name["sleep"].ppid == by_name["sh"].pid
        assert by_name["cat"].pgrp == by_name["cat"].tpgid != by_name["sh"].pgrp
        assert {one.session for one in below} == {session.pid}
        assert tty_rdev_of(by_name["cat"].tty_nr) == session.rdev
        assert session.pid not in [one.pid for one in below]
    assert proc_scan.descendants(2**22 + 1) == []


def test_descendants_of_threads_are_found() -> None:
    threaded = (
        "import subprocess, threading, sys\n"
        "def start():\n p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True); "
        "p.wait()\n"
        "threading.Thread(target=start, daemon=True).start(); sys.stdin.read()"
    )
    with script(threaded) as parent:
        assert int(line_of(parent)) in [one.pid for one in proc_scan.descendants(parent.pid)]


def test_no_settled_process_is_missed_while_others_come_and_go() -> None:
    storm = (
        REAPER
        + """
import signal
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
parents = []
for n in range(4):  # each forks short-lived children, whose own children become ours
    pid = os.fork()
    if pid == 0:
        while True:
            child = os.fork()
            if child == 0:
                if os.fork() == 0:
                    os._exit(0)
                os._exit(0)
            os.waitpid(child, 0)
settled = []
for n in range(40):
    r, w = os.pipe()
    if os.fork() == 0:
        os.setsid()
        grandchild = os.fork()
        if grandchild == 0:
            os.close(r); os.close(w)
            signal.pause()
            os._exit(0)
        os.write(w, b"%d" % grandchild)
        os._exit(0)
    os.close(w)
    settled.append(os.read(r, 20).decode())
print(*settled, flush=True)
while True:
    os.wait()
"""
    )
    with script(storm) as keeper:
        settled = {int(word) for word in line_of(keeper).split()}
        assert len(settled) == 40
        for _ in range(150):
            missed = settled - {one.pid for one in proc_scan.descendants(keeper.pid)}
            assert not missed


@pytest.mark.parametrize("watched", ["parent", "grandparent"])
def test_an_orphan_that_moves_up_behind_the_walk_is_found(
    watched: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent of the orphan dies after the walk has read the root's list.

    That happens just before the walk reads the list of the parent, or of the parent's parent.
    """
    family = (
        REAPER
        + """
def forked(then):
    pid = os.fork()
    if pid == 0:
        then()
    return pid
def reap_for_ever():
    while True:
        try:
            os.wait()
        except ChildProcessError:
            import signal
            signal.pause()
def middle():
    pid = forked(reap_for_ever)
    print(os.getppid(), os.getpid(), pid, flush=True)
    reap_for_ever()
forked(lambda: (forked(middle), reap_for_ever()))
reap_for_ever()
"""
    )
    with script(family) as keeper:
        grandparent, parent, orphan = (int(word) for word in line_of(keeper).split())
        read = proc_scan._children
        killed: list[int] = []

        def children(pid: int) -> list[int]:
            if pid == {"parent": parent, "grandparent": grandparent}[watched] and not killed:
                os.kill(parent, signal.SIGKILL)
                killed.append(parent)
                end = time.monotonic() + DEADLINE_S
                while read_stat(parent) or orphan not in read(keeper.pid):
                    assert time.monotonic() < end
            return read(pid)

        monkeypatch.setattr(proc_scan, "_children", children)
        assert orphan in [one.pid for one in proc_scan.descendants(keeper.pid)]
        assert killed


# --- the same as an ordinary user -----------------------------------------------------------------


def test_all_of_this_holds_for_an_ordinary_user() -> None:
    root = Path(__file__).parents[3]
    with ordinary_user() as user:
        python = user.python("pytest", "hypothesis", "pytest_timeout", "holdfast")
        done = user.run(
            [
                python,
                "-m",
                "pytest",
                "-q",
                "-p",
                "no:cacheprovider",
                "--rootdir",
                str(root),
                "-c",
                str(root / "pyproject.toml"),
                "-k",
                "not parse_stat",
                __file__,
            ]
        )
        assert done is not None
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        assert " passed" in done.stdout


def test_t4_a_process_in_the_kernel_session_of_the_keeper_is_not_the_sessions() -> None:
    """It is the connector of a contained session's network."""
    keeper = subprocess.Popen(
        ["sh", "-c", "sleep 600 & setsid sleep 601 & echo ready; wait"],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert keeper.stdout is not None and keeper.stdout.readline() == b"ready\n"

        def found() -> list[bool]:
            return [one.session == one.pid for one in proc_scan.of_session(keeper.pid)]

        until(lambda: found() == [True], "only the process with a session of its own")
        assert len(proc_scan.descendants(keeper.pid)) == 2
    finally:
        os.killpg(keeper.pid, signal.SIGKILL)
        for one in proc_scan.descendants(keeper.pid):
            os.kill(one.pid, signal.SIGKILL)
        keeper.wait()
