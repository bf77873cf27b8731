"""Contained sessions feel like a shell of this machine, and see only the files of their list.

The last test runs this file again as an ordinary user.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.keeper import contain
from holdfast.wire import keeper as wire
from tests.support.contained_keeper import PYTHON, ROOT, SECRET, Contained
from tests.support.keeper import below, descriptors, gone, state_of, until
from tests.support.ordinary_user import ordinary_user


def command(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().rstrip("\n")


@pytest.fixture
def contained() -> Iterator[Contained]:
    with tempfile.TemporaryDirectory(
        dir="/tmp", ignore_cleanup_errors=True
    ) as top:  # a socket's path is short
        made = Contained(Path(top))
        yield made
        made.close()


# ---------------------------------------------------------------- like a shell of this machine


def test_a_contained_program_is_process_three_with_its_own_terminal(contained: Contained) -> None:
    out = contained.says("echo pid $$; ps -e -o pid,comm; tty; stty size; echo $TERM; pwd; umask")
    assert "pid 3\n" in out and "/dev/pts/0\n24 80\nxterm\n/\n0022" in out
    assert re.search(r"^ +1 hf-init$\n +2 hf-root$", out.replace("\r", ""), re.M)
    assert not re.search(r"hf-keeper|hf-nursery", out)
    assert len(re.findall(r"^ +\d+ ", out, re.M)) == 4, "init, hf-root, the shell and ps"


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
    until(
        lambda: not below(contained.nursery.keepers["a"]), "init to end, since no process is left"
    )


def test_orphans_are_reaped_and_end_with_the_program(contained: Contained) -> None:
    link = contained.run(
        "sh",
        "-c",
        "for i in 1 2 3; do (true &) ; done; (setsid sleep 603 &); sleep 0.1; "
        "ps -e -o stat=; echo END; read x; exit 4",
    )
    assert "Z" not in link.wait_for(b"END").decode()
    everybody = below(contained.nursery.keepers["a"])
    assert [command(pid) for pid in everybody] == ["hf-init", "hf-root", "sh", "sleep"]
    link.type(b"\n")
    assert os.waitstatus_to_exitcode(link.exit_status()) == 4
    until(lambda: all(map(gone, everybody)), "the daemon to end with the program")


def test_a_killed_keeper_takes_its_session_along(contained: Contained) -> None:
    """No host could halt it any more."""
    contained.run("sh", "-c", "trap '' HUP; setsid sleep 604 & exec sleep 605")
    keeper = contained.nursery.keepers["a"]
    until(lambda: len(below(keeper)) == 4, "all of them")
    everybody = below(keeper)
    os.kill(keeper, signal.SIGKILL)
    until(lambda: all(map(gone, everybody)), "every process to end")


def test_signals_from_inside_do_not_end_hf_root(contained: Contained) -> None:
    link = contained.run("sh", "-c", "trap '' TERM; kill -TERM -1; sleep 0.1; exit 5")
    assert os.waitstatus_to_exitcode(link.exit_status()) == 5


def test_when_init_is_killed_the_session_says_killed(contained: Contained) -> None:
    link = contained.run("sh", "-c", "setsid sleep 604 & exec sleep 605")
    until(lambda: len(below(contained.nursery.keepers["a"])) == 4, "all of them")
    everybody = below(contained.nursery.keepers["a"])
    os.kill(everybody[0], signal.SIGKILL)
    assert os.waitstatus_to_exitcode(link.exit_status()) == -signal.SIGKILL
    until(lambda: all(map(gone, everybody)), "the kernel to kill them all")


def test_a_signal_to_all_ends_all(contained: Contained) -> None:
    link = contained.run("sh", "-c", "setsid sleep 604 & exec sleep 605")
    link.signal(signal.SIGTERM, wire.SCOPE_ALL)
    assert os.waitstatus_to_exitcode(link.exit_status()) == -signal.SIGTERM
    until(lambda: not below(contained.nursery.keepers["a"]), "no process to be left")


def test_the_end_of_output_is_seen(contained: Contained) -> None:
    from holdfast.wire import ring as layout

    link = contained.run("sh", "-c", "echo last words")
    link.exit_status()
    link.flag(layout.FLAG_EOF)
    assert b"last words" in link.all()


def test_nothing_is_inherited_but_the_terminal(contained: Contained) -> None:
    out = contained.says(
        "ls -l /proc/self/fd /proc/2/fd /proc/2/cwd; grep Sig[IB] /proc/self/status"
    )
    links = set(re.findall(r"-> '?([^'\n]*)", out))
    assert links <= {"/dev/pts/0", "/"} | {
        link for link in links if re.fullmatch(r"/proc/\d+/fd", link)
    }
    assert "SigBlk:\t0000000000000000" in out and "SigIgn:\t0000000000000000" in out


def test_a_failed_start_is_reported(contained: Contained) -> None:
    result, number, _, text = contained.nursery.spawn(
        "b", ["no-such-program"], containment=contained.containment
    )
    assert (result, number) == (wire.SPAWN_FAILED, 2) and "no-such-program" in text
    result, number, _, text = contained.nursery.spawn(
        "b", ["sh"], cwd=str(contained.home / "key"), containment=contained.containment
    )
    assert result == wire.SPAWN_FAILED and "directory" in text, (
        "a hidden path is no directory to start in"
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
        f"export TMUX_TMPDIR={contained.own}; tmux new-session -d 'sleep 606' && tmux ls; "
        "echo END; exec sleep 600",
    )
    assert b"1 windows" in link.wait_for(b"END")
    keeper = contained.nursery.keepers["a"]
    assert any(b"606" in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in below(keeper))
    link.signal(signal.SIGKILL, wire.SCOPE_ALL)
    until(lambda: not below(keeper), "all of it to end")


# ---------------------------------------------------------------- the list


def test_t4_only_listed_files_are_there(contained: Contained) -> None:
    c = contained
    out = c.says(
        f"ls -A {c.home} {c.run_directory} {c.run_directory}/s; cat {c.own}/rc {c.home}/key; "
        f"touch {c.home}/x {c.shown}/x; echo new >{c.own}/made; ls -A {c.shown}; "
        "touch /x /usr/x /dev/x /proc/sys/x; echo ROOT; ls -A /"
    )
    assert "kept" in out and "old" in out and (c.own / "made").read_text() == "new\n"
    assert SECRET not in out and "nursery.sock" not in out and ".keeper" not in out
    assert out.count("Read-only file system") == 5 and "/proc/sys/x" in out
    listed = {m.target.split(b"/")[1].decode() for m in c.containment.mounts}
    there = set(out.split("ROOT\n")[1].split()) - {"END"}
    assert there == listed | {".holdfast", "dev", "proc", "tmp"}


@pytest.mark.parametrize("exchanged", ["shown", "shown/below"])
def test_t4_a_source_that_becomes_a_link_is_refused(contained: Contained, exchanged: str) -> None:
    """A program of another session could exchange the directory at that moment."""
    (contained.shown / "below").mkdir()
    path = contained.shown.parent / exchanged
    path.rename(contained.shown.parent / "moved")
    path.symlink_to(contained.home)
    source = bytes(contained.shown / "below")
    mounts = (*contained.containment.mounts, wire.Mount(wire.MOUNT_READ, b"/there", source))
    result, number, _, text = contained.nursery.spawn(
        "b", ["sh"], containment=wire.Containment(mounts)
    )
    assert (result, number) == (wire.SPAWN_FAILED, 95) and "symbolic link" in text
    assert text.startswith(f"{wire.NOT_AS_PLANNED}{contained.shown}")


def test_t4_a_target_that_is_gone_from_a_shown_directory_is_named(contained: Contained) -> None:
    source, target = bytes(contained.own), bytes(contained.shown / "gone" / "below")
    mounts = (*contained.containment.mounts, wire.Mount(wire.MOUNT_READ, target, source))
    result, _, _, text = contained.nursery.spawn("b", ["sh"], containment=wire.Containment(mounts))
    assert result == wire.SPAWN_FAILED
    assert text.startswith(f"{wire.NOT_AS_PLANNED}{contained.shown}/gone/below: Read-only")


def test_t4_a_link_in_a_writable_directory_leads_no_mount_out(contained: Contained) -> None:
    """Programs of an earlier session may have left it in a home that was kept."""
    (contained.own / "way").symlink_to(contained.home)
    target = bytes(contained.own / "way/out")
    mounts = (*contained.containment.mounts, wire.Mount(wire.MOUNT_READ, target, b"/usr"))
    result, _, _, text = contained.nursery.spawn("b", ["sh"], containment=wire.Containment(mounts))
    assert result == wire.SPAWN_FAILED and "out" in text
    assert not (contained.home / "out").exists()


def test_t4_a_cover_hides_a_file_or_a_directory(contained: Contained) -> None:
    (contained.shown / "directory").mkdir()
    (contained.shown / "directory/x").touch()
    (contained.shown / "file").write_text(SECRET)
    covers = tuple(
        wire.Mount(wire.MOUNT_EMPTY, bytes(contained.shown / name))
        for name in ("directory", "file", "missing")
    )
    contained.containment = wire.Containment((*contained.containment.mounts, *covers))
    out = contained.says(f"cd {contained.shown}; ls directory; cat file; echo x >file; ls")
    assert SECRET not in out and "x\n" not in out.split("cannot")[0]
    assert "Read-only" in out and "missing" not in out


@pytest.mark.parametrize(
    "way",
    [
        "umount /usr",
        "umount -l /proc/sys",
        "mount -o remount,rw /usr",
        "mount -o remount,bind,rw /usr",
        "mount --bind / {own}",
        "mount -t proc proc /proc",
        "nsenter -t 1 -m true",
        "nsenter -t 1 -a true",
        "unshare -m umount /usr",
        "unshare -Urm umount /usr",
        "unshare -Urm mount -o remount,bind,rw /usr",
        "unshare -Urm sh -c 'mount --bind / {own} && ls {own}'",
        "unshare -Urm sh -c 'mount --move /usr {own}'",
        "unshare -Urm sh -c 'umount -l / ; cat {home}/key'",
        "unshare -Urmp --fork sh -c 'mount -t proc proc /proc'",
        "chroot /proc/1/root cat {home}/key",
        "cat /proc/1/root{home}/key",
        "cat /proc/1/cwd/{home}/key",
        "chroot {own} cat ../../../../key",
    ],
)
def test_t4_the_tree_cannot_be_left_or_changed(contained: Contained, way: str) -> None:
    command = way.format(home=contained.home, own=contained.own)
    out = contained.says(
        f"{command} && echo WORKED''1; cat {contained.home}/key; touch /usr/x && echo WORKED''2"
    )
    assert SECRET not in out and "WORKED" not in out and "nursery.sock" not in out
    assert not os.path.exists("/usr/x")


def test_t4_files_are_not_opened_by_handle(contained: Contained) -> None:
    """open_by_handle_at finds a file even if a mount covers its path."""
    inode = (contained.home / "key").stat().st_ino
    out = contained.tries(
        "at = os.open('/', os.O_RDONLY)\n"
        f"handle = struct.pack('IiII', 8, 1, {inode & 0xFFFFFFFF}, 0)\n"
        "fd = check(libc.open_by_handle_at(at, handle, os.O_RDONLY))\nprint(os.read(fd, 100))"
    )
    assert "PermissionError" in out and SECRET not in out


def test_t4_no_other_process_can_be_seen_or_signalled(contained: Contained) -> None:
    keeper = contained.nursery.keepers or {}
    assert keeper == {}
    out = contained.tries(
        "print(sorted(int(n) for n in os.listdir('/proc') if n.isdigit()))\n"
        f"os.kill({os.getpid()}, 0)"
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


def test_t4_a_socket_outside_the_list_is_not_there(contained: Contained) -> None:
    contained.listener.listen()
    assert "FileNotFoundError" in contained.tries(
        f"s = socket.socket(socket.AF_UNIX)\ns.connect('{contained.door}')\nprint('connected')"
    )


def test_t4_an_abstract_socket_is_out_of_reach_with_another_network(contained: Contained) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{contained.home}")
        listener.listen()
        attempt = (
            f"s = socket.socket(socket.AF_UNIX)\ns.connect('\\0{contained.home}')\n"
            "print('connected')"
        )
        contained.containment = contained.containment._replace(net=wire.NET_NONE)
        assert "ConnectionRefusedError" in contained.tries(attempt)


def test_a_network_of_its_own_has_a_loopback(contained: Contained) -> None:
    contained.containment = contained.containment._replace(net=wire.NET_NONE)
    out = contained.tries(
        "s = socket.create_server(('127.0.0.1', 0))\n"
        "socket.create_connection(s.getsockname())\nprint(socket.if_nameindex())"
    )
    assert "[(1, 'lo')]" in out


def test_t4_control_groups_cannot_be_reached(contained: Contained) -> None:
    """Nor by CLONE_INTO_CGROUP, which would not mind a read-only mount."""
    out = contained.tries(
        "print(os.path.exists('/sys/fs/cgroup'))\n"
        "check(libc.mount(b'none', b'/mnt', b'cgroup2', 0, None))\nprint('mounted')"
    )
    assert "False" in out and "Error" in out and "mounted" not in out


def test_t4_init_cannot_be_traced_or_opened(contained: Contained) -> None:
    out = contained.tries(
        "for name in ('fd/3', 'mem', 'root', 'cwd', 'environ', 'ns/mnt', 'exe'):\n"
        "    try:\n"
        "        print(name, os.open('/proc/1/' + name, os.O_RDONLY))\n"
        "    except OSError as e:\n"
        "        print(name, type(e).__name__)\n"
        "fd = os.pidfd_open(1)\n"
        "for call in ((438, fd, 3, 0), (101, 16, 1, 0, 0), (101, 0x4206, 1, 0, 0)):\n"
        "    print(call, libc.syscall(*call), ctypes.get_errno())\n"
    )
    assert out.count("PermissionError") == 7 and len(re.findall(r"\) -1 1\b", out)) == 3


def test_t4_programs_cannot_type_into_their_terminal(contained: Contained) -> None:
    out = contained.tries(
        "import fcntl, termios\n"
        "for number in (0x5412, 0x541C):\n"
        "    for high in (0, 1 << 32):\n"
        "        number = ctypes.c_ulong(number | high)\n"
        "        print(libc.syscall(16, 0, number, b'x'), ctypes.get_errno())\n"
        "        number = number.value & 0xFFFF\n"
        "print(fcntl.ioctl(0, termios.FIONREAD, bytes(4)))"
    )
    assert len(re.findall(r"^-1 1$", out, re.M)) == 4 and "b'\\x00" in out


def test_an_ordinary_account_keeps_its_number(contained: Contained) -> None:
    out = contained.says("id -u; id -g; cat /proc/self/uid_map")
    assert out.split()[:2] == [f"{os.getuid()}", f"{os.getgid()}"]
    assert len(set(out.split()[2:4])) == 1, "each mapped id is itself"


def test_the_keeper_holds_init_and_its_namespaces(contained: Contained) -> None:
    contained.run("sleep", "600")
    keeper = contained.nursery.keepers["a"]
    init, _, program = below(keeper)
    own = {os.readlink(f"/proc/{program}/ns/{name}") for name in ("user", "mnt", "ipc", "pid")}
    held = descriptors(keeper)
    assert own < {target for target, _ in held} and own.isdisjoint(
        os.readlink(f"/proc/self/ns/{name}") for name in ("user", "mnt", "ipc", "pid")
    )
    assert any(f"Pid:\t{init}\n" in notes for _, notes in held)


@pytest.mark.skipif(not ROOT, reason="an ordinary user could not do it anywhere")
@pytest.mark.parametrize(
    "way, sign",
    [
        ("open('/proc/sys/kernel/core_pattern', 'w')", "Read-only"),
        ("open('/proc/sysrq-trigger', 'w')", "No such|Read-only"),
        ("open('/sys/kernel/uevent_helper', 'w')", "No such|Read-only"),
        ("os.mknod('/dev/shm/disk', 0o60600, os.makedev(254, 0))", "PermissionError"),
        ("check(libc.swapon(b'/nothing', 0))", "PermissionError"),
        ("check(libc.reboot(0))", "PermissionError"),
        ("check(libc.unshare(0x20000))", "PermissionError"),
        ("import time; time.clock_settime(time.CLOCK_REALTIME, 0)", "PermissionError"),
        ("socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)", "PermissionError"),
        ("socket.socket(socket.AF_PACKET, socket.SOCK_RAW)", "family not supported"),
        ("check(libc.sethostname(b'x', 1))", "PermissionError"),
        ("check(libc.init_module(b'', 0, b''))", "PermissionError|not implemented"),
    ],
)
def test_t4_as_root_the_kernel_takes_no_orders(contained: Contained, way: str, sign: str) -> None:
    assert re.search(sign, contained.tries(f"{way}\nprint('done')"))


@pytest.mark.skipif(not ROOT, reason="an ordinary user could not do it anywhere")
def test_t4_as_root_there_are_no_disks(contained: Contained) -> None:
    out = contained.says(
        "find /dev -type b; ls /dev; echo x >/dev/null && head -c 4 /dev/urandom | wc -c; "
        "test -c /dev/tty && echo tty"
    )
    assert "vda" not in out and "loop" not in out and "kmsg" not in out and "mem" not in out.split()
    assert re.search(r"^4$", out, re.M) and "tty" in out


def test_t4_few_capabilities_are_left(contained: Contained) -> None:
    out = contained.says("grep Cap /proc/self/status; grep NoNewPrivs /proc/self/status")
    found = {name: int(value, 16) for name, value in re.findall(r"^(Cap\w+):\t(\w+)$", out, re.M)}
    kept = sum(1 << number for number in contain.KEPT)
    assert found["CapBnd"] == kept and all(value & ~kept == 0 for value in found.values())
    assert found["CapEff"] == (kept if ROOT else 0) and "NoNewPrivs:\t1" in out


def test_a_halt_signal_from_inside_has_no_effect(contained: Contained) -> None:
    link = contained.run(
        "sh",
        "-c",
        f"sleep 600 & kill -35 1; {PYTHON} -c 'import os; os.kill(1, 35)'; echo END; exec cat",
    )
    link.wait_for(b"END")
    link.type(b"still there\n")
    link.wait_for(b"still there\r\nstill there")


def test_t4_a_flood_of_signals_leaves_others_of_the_account_their_own(contained: Contained) -> None:
    out = contained.tries(
        "import signal\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [40])\n"
        "sent = 0\n"
        "info = struct.pack('3i', 40, 0, -1) + bytes(116)\n"
        "while sent < 1 << 20 and libc.syscall(129, os.getpid(), 40, info) == 0:\n"
        "    sent += 1\n"
        "print('queued', sent)"
    )
    queued = int(re.findall(r"queued (\d+)", out)[0])
    assert 0 < queued <= resource.getrlimit(resource.RLIMIT_SIGPENDING)[0] // 8


def test_a4_init_stops_all_when_told_from_outside(contained: Contained) -> None:
    contained.run(
        "sh", "-c", "(setsid sh -c 'while :; do sleep 0.01; done' &); while :; do :; done"
    )
    keeper = contained.nursery.keepers["a"]
    until(lambda: len(below(keeper)) >= 5, "all of them")
    init = below(keeper)[0]
    os.kill(keeper, wire.HALT_SIGNAL)

    def stopped(pid: int) -> bool:
        try:
            return state_of(pid) in "tZD"  # D: waits for its vforked child, which is stopped
        except OSError:
            return False  # the process has just ended: another follows, or turns out to be stopped

    until(lambda: all(stopped(pid) for pid in below(init)), "all to stop")
    until(lambda: state_of(init) == "S", "process 1 to rest")
    assert len(below(init)) >= 2
    until(lambda: command(init) == wire.HALTED_NAME.decode(), "process 1 to hold them")
    os.kill(keeper, wire.RELEASE_SIGNAL)
    until(lambda: command(init) == wire.INIT_NAME.decode(), "process 1 to release them")
    until(lambda: all(state_of(pid) in "TZD" for pid in below(init)), "all to be stopped only")


# ---------------------------------------------------------------- without permission


def test_where_user_namespaces_are_forbidden_that_is_said(request: pytest.FixtureRequest) -> None:
    """By a nursery in a user namespace that may have none below, without any capability."""
    if not ROOT:
        pytest.skip("needs root to forbid it")
    directory = Path(tempfile.mkdtemp())
    request.addfinalizer(lambda: shutil.rmtree(directory))
    forbid = (
        "echo 0 >/proc/sys/user/max_user_namespaces && "
        'exec setpriv --bounding-set=-all --inh-caps=-all "$@"'
    )
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
