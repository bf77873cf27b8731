"""Contained sessions: feels like a shell of this machine, and what is hidden stays hidden, whatever is tried inside.

As root (no user namespace) and as an ordinary user (with one): the last test runs this file again as one.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.keeper import contain
from holdfast.wire import keeper as wire
from tests.host.ordinary_user import ordinary_user
from tests.keeper.harness import Link, Nursery, below, gone, state_of, until

ROOT = os.getuid() == 0
SECRET = "the machine's key"
PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable


class Contained:
    """A home as a host has it, a nursery in it, and sessions that must not see it."""

    def __init__(self, top: Path) -> None:
        self.home = top / "home"
        self.run_directory = self.home / "run"
        self.own = self.run_directory / "s" / "a"
        self.own.mkdir(parents=True)
        for directory in (self.home, self.run_directory):
            directory.chmod(0o700)
        (self.home / "key").write_text(SECRET)
        (self.own / "rc").write_text("kept")
        self.door = top / "door.sock"
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.door))
        self.fresh = top / "fresh"
        self.fresh.mkdir()
        (self.fresh / "old").touch()
        self.nursery = Nursery(self.run_directory)
        self.containment = wire.Containment(
            (bytes(self.home), bytes(self.door), b"/nothing/there"),
            (bytes(self.fresh),),
            (bytes(self.own),),
        )

    def run(self, *argv: str, name: str = "a", **more: object) -> Link:
        return self.nursery.run(name, list(argv), containment=self.containment, **more)

    def says(self, script: str, end: str = "END") -> str:
        """What a shell script inside prints."""
        link = self.run("sh", "-c", f"{script}\necho {end[:1]}''{end[1:]}; exec sleep 600")
        return link.wait_for(end.encode()).decode(errors="replace").replace("\r\n", "\n")

    def tries(self, body: str) -> str:
        """What Python code inside prints; an exception is printed as its type."""
        script = (
            "import ctypes, os, sys, socket, struct\nlibc = ctypes.CDLL(None, use_errno=True)\n"
            "def check(r):\n    if r == -1: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))\n    return r\n"
            f"try:\n{''.join('    ' + line + chr(10) for line in body.splitlines())}"
            "except Exception as e:\n    print(type(e).__name__, e)\n"
        )
        (self.own / "try.py").write_text(script)
        return self.says(f"{PYTHON} {self.own}/try.py")

    def close(self) -> None:
        self.listener.close()
        self.nursery.close()


@pytest.fixture
def contained() -> Iterator[Contained]:
    with tempfile.TemporaryDirectory(
        dir="/tmp", ignore_cleanup_errors=True
    ) as top:  # a socket's path is short
        made = Contained(Path(top))
        yield made
        made.close()


# ---------------------------------------------------------------- like a shell of this machine


def test_it_is_process_two_of_its_own_machine(contained: Contained) -> None:
    out = contained.says("echo pid $$; ps -e -o pid,comm; tty; stty size; echo $TERM; pwd; umask")
    assert "pid 2\n" in out and "/dev/pts/0\n24 80\nxterm\n/\n0022" in out
    assert re.search(r"^ +1 hf-init$", out, re.M) and not re.search(r"hf-keeper|hf-nursery", out)
    assert len(re.findall(r"^ +\d+ ", out, re.M)) == 3, "init, the shell and ps"


def test_the_host_has_the_pids_of_outside(contained: Contained) -> None:
    link = contained.run("bash", "--norc")
    root = link.welcome.root_pid
    assert Path(f"/proc/{root}/comm").read_text() == "bash\n" and root in below(
        contained.nursery.keepers["a"]
    )
    assert link.welcome.root_start == int(
        Path(f"/proc/{root}/stat").read_text().rsplit(")", 1)[1].split()[19]
    )
    state = link.state()
    assert state.foreground == state.session_leader == root
    link.type(b"sleep 601\n")
    until(lambda: link.state().foreground != root, "a job in the foreground")
    until(
        lambda: (
            Path(f"/proc/{link.state().foreground}/cmdline").read_bytes() == b"sleep\x00601\x00"
        ),
        "it to be the sleep",
    )
    link.type(b"\x03")
    until(lambda: link.state().foreground == root, "the shell in the foreground again")


def test_job_control(contained: Contained) -> None:
    link = contained.run("bash", "--norc")

    def runs(name: str) -> bool:
        return any(
            Path(f"/proc/{pid}/comm").read_text() == f"{name}\n"
            for pid in below(contained.nursery.keepers["a"])
        )

    link.type(b"PS1='> '; sleep 601\n")
    until(lambda: link.state().foreground != link.welcome.root_pid and runs("sleep"), "a job")
    link.type(b"\x03")
    until(lambda: link.state().foreground == link.welcome.root_pid, "Ctrl-C")
    link.type(b"echo rc=$?; sleep 602\n")
    link.wait_for(b"rc=130")
    until(lambda: link.state().foreground != link.welcome.root_pid and runs("sleep"), "a job")
    link.type(b"\x1a")
    link.wait_for(b"Stopped")
    link.type(b"jobs; bg; kill -9 %1; wait %1; echo code=$?\n")
    link.wait_for(b"code=137")
    link.type(b"sleep 603 | cat\n")
    until(
        lambda: link.state().foreground != link.welcome.root_pid and runs("sleep") and runs("cat"),
        "a pipeline",
    )
    link.type(b"\x1a")
    until(lambda: link.state().foreground == link.welcome.root_pid, "Ctrl-Z")
    link.type(b"fg\n")
    until(lambda: link.state().foreground != link.welcome.root_pid, "the pipeline again")
    link.type(b"\x1c")
    link.wait_for(b"Quit")
    link.type(b"(exit 3); echo code=$?; kill -TERM $$; kill -HUP $$\n")
    link.wait_for(b"code=3")
    assert os.waitstatus_to_exitcode(link.exit_status()) == -signal.SIGHUP


@pytest.mark.parametrize(
    "script, code",
    [("exit 0", 0), ("exit 7", 7), ("exit 137", 137), ("kill -9 $$", -9), ("kill -TERM $$", -15)],
)
def test_the_exit_code_is_the_programs_own(contained: Contained, script: str, code: int) -> None:
    link = contained.run("sh", "-c", f"sleep 0.05; {script}")
    assert os.waitstatus_to_exitcode(link.exit_status()) == code
    until(lambda: not below(contained.nursery.keepers["a"]), "init to end, since nobody is left")


def test_orphans_are_reaped_and_outlive_the_program_as_elsewhere(contained: Contained) -> None:
    link = contained.run(
        "sh",
        "-c",
        "for i in 1 2 3; do (true &) ; done; (setsid sleep 603 &); sleep 0.1; ps -e -o stat=; echo END; read x; exit 4",
    )
    assert "Z" not in link.wait_for(b"END").decode()
    (init,) = [
        pid
        for pid in below(contained.nursery.keepers["a"])
        if Path(f"/proc/{pid}/comm").read_text() == "hf-init\n"
    ]
    link.type(b"\n")
    assert os.waitstatus_to_exitcode(link.exit_status()) == 4
    (daemon,) = below(init)
    assert Path(f"/proc/{daemon}/comm").read_text() == "sleep\n"
    os.kill(daemon, signal.SIGKILL)
    until(lambda: gone(init), "init to end with the last of them")


def test_when_init_is_killed_the_session_says_killed(contained: Contained) -> None:
    link = contained.run("sh", "-c", "setsid sleep 604 & exec sleep 605")
    until(lambda: len(below(contained.nursery.keepers["a"])) == 3, "all of them")
    everybody = below(contained.nursery.keepers["a"])
    os.kill(everybody[0], signal.SIGKILL)
    assert os.waitstatus_to_exitcode(link.exit_status()) == -signal.SIGKILL
    until(lambda: all(map(gone, everybody)), "the kernel to kill them all")


def test_a_signal_to_all_ends_all(contained: Contained) -> None:
    link = contained.run("sh", "-c", "setsid sleep 604 & exec sleep 605")
    link.signal(signal.SIGTERM, wire.SCOPE_ALL)
    assert os.waitstatus_to_exitcode(link.exit_status()) == -signal.SIGTERM
    until(lambda: not below(contained.nursery.keepers["a"]), "nobody to be left")


def test_the_end_of_output_is_seen(contained: Contained) -> None:
    from holdfast.wire import ring as layout

    link = contained.run("sh", "-c", "echo last words")
    link.exit_status()
    link.flag(layout.FLAG_EOF)
    assert b"last words" in link.all()


def test_nothing_is_inherited_but_the_terminal(contained: Contained) -> None:
    out = contained.says(
        "ls -l /proc/self/fd /proc/1/fd /proc/1/cwd /proc/2/cwd; grep Sig[IB] /proc/self/status"
    )
    links = set(re.findall(r"-> '?([^'\n]*)", out))
    assert {link for link in links if not link.startswith("pipe:")} <= {
        "/dev/pts/0",
        "/dev/null",
        "/",
    } | {link for link in links if re.fullmatch(r"/proc/\d+/fd", link)}
    assert "SigBlk:\t0000000000000000" in out and "SigIgn:\t0000000000000000" in out


def test_what_cannot_be_started_is_said(contained: Contained) -> None:
    result, number, _, text = contained.nursery.spawn(
        "b", ["no-such-program"], containment=contained.containment
    )
    assert (result, number) == (wire.SPAWN_FAILED, 2) and "no-such-program" in text
    result, number, _, text = contained.nursery.spawn(
        "b", ["sh"], cwd=str(contained.home / "key"), containment=contained.containment
    )
    assert result == wire.SPAWN_FAILED and "directory" in text, (
        "what is hidden is no directory to start in"
    )
    assert contained.run("sh", name="b").welcome.status == -1


def test_resizing_and_flushing_reach_inside(contained: Contained, tmp_path: Path) -> None:
    link = contained.run(
        "sh", "-c", "stty raw -echo; echo READY; read x; stty size; exec sleep 600"
    )
    link.wait_for(b"READY")
    link.act(wire.RESIZE, wire.resize_body(132, 43))
    link.type(b"\n")
    link.wait_for(b"43 132")
    link.type(b"unread")
    link.act(wire.FLUSH, flags=wire.ACT_ACK | wire.ACT_REPORT)
    assert wire.read_withdrawn(link.packet(wire.WITHDRAWN)) == []


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_a_tmux_inside_is_of_the_session(contained: Contained) -> None:
    link = contained.run(
        "sh",
        "-c",
        f"export TMUX_TMPDIR={contained.own}; tmux new-session -d 'sleep 606' && tmux ls; echo END; exec sleep 600",
    )
    assert b"1 windows" in link.wait_for(b"END")
    keeper = contained.nursery.keepers["a"]
    assert any(b"606" in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in below(keeper))
    link.signal(signal.SIGKILL, wire.SCOPE_ALL)
    until(lambda: not below(keeper), "all of it to end")


# ---------------------------------------------------------------- what is hidden


def test_t4_the_home_is_empty_but_for_the_sessions_own_files(contained: Contained) -> None:
    out = contained.says(
        f"ls -A {contained.home} {contained.run_directory} {contained.run_directory}/s; cat {contained.own}/rc; "
        f"cat {contained.home}/key; touch {contained.home}/x; echo new >{contained.own}/made; ls -A {contained.fresh}"
    )
    assert (
        "kept" in out and SECRET not in out and "nursery.sock" not in out and ".keeper" not in out
    )
    assert "Read-only" in out or "Permission" in out
    assert (
        (contained.own / "made").read_text() == "new\n"
        and "old" not in out
        and (contained.fresh / "old").exists()
    )


@pytest.mark.parametrize(
    "way",
    [
        "umount {home}",
        "umount -l {home}",
        "mount -o remount,rw {home}",
        "mount --bind / /mnt",
        "mount -t proc proc /proc",
        "nsenter -t 1 -m true",
        "unshare -m umount {home}",
        "unshare -Urm umount {home}",
        "unshare -Urm sh -c 'umount {home}; cat {home}/key'",
        "unshare -Urm sh -c 'mount --bind {top} /mnt && cat /mnt/home/key'",
        "unshare -Urm sh -c 'mount --move {home} /mnt; cat {home}/key'",
        "chroot /proc/1/root cat {home}/key",
        "cat /proc/1/root{home}/key",
        "cat /proc/1/cwd/{home}/key",
        "mv {home} {home}2",
        "cat {home}/../home/key",
    ],
)
def test_t4_the_cover_cannot_be_taken_away(contained: Contained, way: str) -> None:
    command = way.format(home=contained.home, top=contained.home.parent)
    out = contained.says(f"{command}; cat {contained.home}/key; ls {contained.home}")
    assert (
        SECRET not in out
        and "nursery.sock" not in out
        and "Read-only" not in out.split("ls:")[0][:0]
    )
    assert (contained.home / "key").read_text() == SECRET


def test_t4_files_are_not_opened_by_handle(contained: Contained) -> None:
    """open_by_handle_at finds a file whatever covers its path."""
    inode = (contained.home / "key").stat().st_ino
    out = contained.tries(
        f"at = os.open('/', os.O_RDONLY)\nhandle = struct.pack('IiII', 8, 1, {inode & 0xFFFFFFFF}, 0)\n"
        "fd = check(libc.open_by_handle_at(at, handle, os.O_RDONLY))\nprint(os.read(fd, 100))"
    )
    assert "PermissionError" in out and SECRET not in out


def test_t4_no_other_process_can_be_seen_or_signalled(contained: Contained) -> None:
    keeper = contained.nursery.keepers or {}
    assert keeper == {}
    out = contained.tries(
        f"print(sorted(int(n) for n in os.listdir('/proc') if n.isdigit()))\nos.kill({os.getpid()}, 0)"
    )
    assert "ProcessLookupError" in out
    pids = [int(word) for word in re.findall(r"\d+", out.split("]")[0])]
    assert max(pids) < 50 and 1 in pids


def test_t4_no_other_terminal_can_be_opened(contained: Contained) -> None:
    master, slave = os.openpty()
    try:
        out = contained.says("ls /dev/pts")
        assert (
            re.search(r"^0\s+ptmx|^0\nptmx", out, re.M)
            and os.path.basename(os.ttyname(slave)) not in out.split()[1:-2]
        )
    finally:
        os.close(master)
        os.close(slave)


def test_t4_a_hidden_socket_leads_nowhere(contained: Contained) -> None:
    contained.listener.listen()
    assert "Refused" in contained.tries(
        f"s = socket.socket(socket.AF_UNIX)\ns.connect('{contained.door}')\nprint('connected')"
    )


def test_t4_control_groups_cannot_be_reached(contained: Contained) -> None:
    """Nor by CLONE_INTO_CGROUP, which would not mind a read-only mount."""
    out = contained.tries(
        "print(os.listdir('/sys/fs/cgroup'))\n"
        "check(libc.mount(b'none', b'/mnt', b'cgroup2', 0, None))\nprint('mounted')"
    )
    assert "[]" in out and "PermissionError" in out and "mounted" not in out


@pytest.mark.skipif(not ROOT, reason="an ordinary user could not do it anywhere")
@pytest.mark.parametrize(
    "way, sign",
    [
        ("open('/proc/sys/kernel/core_pattern', 'w')", "Read-only"),
        ("open('/proc/sysrq-trigger', 'w')", "No such|Read-only"),
        ("open('/sys/kernel/uevent_helper', 'w')", "No such|Read-only"),
        ("os.mknod('/tmp/disk-of-a-test', 0o60600, os.makedev(254, 0))", "PermissionError"),
        ("check(libc.swapon(b'/nothing', 0))", "PermissionError"),
        ("check(libc.reboot(0))", "PermissionError"),
        ("check(libc.unshare(0x20000))", "PermissionError"),
        ("check(libc.init_module(b'', 0, b''))", "PermissionError|not implemented"),
    ],
)
def test_t4_as_root_the_kernel_takes_no_orders(contained: Contained, way: str, sign: str) -> None:
    assert re.search(sign, contained.tries(f"{way}\nprint('done')"))


@pytest.mark.skipif(not ROOT, reason="an ordinary user could not do it anywhere")
def test_t4_as_root_there_are_no_disks(contained: Contained) -> None:
    out = contained.says(
        "find /dev -type b; ls /dev; echo x >/dev/null && head -c 4 /dev/urandom | wc -c; test -c /dev/tty && echo tty"
    )
    assert "vda" not in out and "loop" not in out and "kmsg" not in out and "mem" not in out.split()
    assert re.search(r"^4$", out, re.M) and "tty" in out


def test_t4_what_could_undo_it_is_given_up_for_good(contained: Contained) -> None:
    out = contained.says("grep Cap /proc/self/status; grep NoNewPrivs /proc/self/status")
    found = {name: int(value, 16) for name, value in re.findall(r"^(Cap\w+):\t(\w+)$", out, re.M)}
    for number in contain.FORBIDDEN:
        assert not any(value >> number & 1 for value in found.values()), number
    assert "NoNewPrivs:\t0" in out and found["CapBnd"]


def test_a_halt_signal_from_inside_stops_nobody(contained: Contained) -> None:
    link = contained.run(
        "sh",
        "-c",
        f"sleep 600 & kill -35 1; {PYTHON} -c 'import os; os.kill(1, 35)'; echo END; exec cat",
    )
    link.wait_for(b"END")
    link.type(b"still there\n")
    link.wait_for(b"still there\r\nstill there")


def test_a4_init_stops_all_when_told_from_outside(contained: Contained) -> None:
    contained.run(
        "sh", "-c", "(setsid sh -c 'while :; do sleep 0.01; done' &); while :; do :; done"
    )
    keeper = contained.nursery.keepers["a"]
    until(lambda: len(below(keeper)) >= 4, "all of them")
    init = below(keeper)[0]
    os.kill(init, wire.HALT_SIGNAL)

    def stopped(pid: int) -> bool:
        try:
            return state_of(pid) in "TZD"  # D: waits for its vforked child, which is stopped
        except OSError:
            return False  # it has just ended: another one follows, or is seen to be stopped

    until(lambda: all(stopped(pid) for pid in below(init)), "all to stop")
    until(lambda: state_of(init) == "S", "process 1 to rest")
    assert len(below(init)) >= 2


# ---------------------------------------------------------------- where it is not allowed


def test_where_user_namespaces_are_forbidden_that_is_said(request: pytest.FixtureRequest) -> None:
    """By a nursery in a user namespace that may have none below, without any capability."""
    if not ROOT:
        pytest.skip("needs root to forbid it")
    directory = Path(tempfile.mkdtemp())
    request.addfinalizer(lambda: shutil.rmtree(directory))
    forbid = 'echo 0 >/proc/sys/user/max_user_namespaces && exec setpriv --bounding-set=-all --inh-caps=-all "$@"'
    process = subprocess.Popen(
        [
            "unshare",
            "--user",
            "--map-root-user",
            "sh",
            "-c",
            forbid,
            "sh",
            *wire.nursery_command(str(directory)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None and process.stderr is not None
        if process.stdout.readline() != b"ready\n":
            pytest.skip(f"no such user namespace here: {process.stderr.read()[-200:]!r}")
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(str(directory / "nursery.sock"))
        sock.sendall(
            wire.spawn(
                wire.Spawn(
                    "a",
                    1,
                    "a.keeper",
                    80,
                    24,
                    1 << 16,
                    1000,
                    argv=(b"sh",),
                    containment=wire.Containment(),
                )
            )
        )
        result, number, _, length = wire.SPAWN_REPLY.unpack(sock.recv(wire.SPAWN_REPLY.size))
        text = sock.recv(length).decode()
        assert (result, number) == (wire.SPAWN_FAILED, 95) and "user namespace" in text
    finally:
        process.kill()
        process.wait()


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
                str(Path(__file__).parents[2]),
                __file__,
            ]
        )
        assert done is not None and done.returncode == 0, (
            (done.stdout[-3000:] + done.stderr[-1000:]) if done else "it did not run"
        )
        assert " passed" in done.stdout
