"""The nursery and its launcher: environments, errors of a start, and the waiting process."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.model.limits import SPAWN_BYTES
from holdfast.wire import keeper as wire
from holdfast.wire import ring as layout
from tests.support.keeper import WAIT_S, Link, Nursery, below, gone, stop, until

# ---------------------------------------------------------------- the program's world


def test_the_program_gets_three_descriptors_and_a_sane_world(nursery: Nursery) -> None:
    link = nursery.run(
        "a",
        [
            "sh",
            "-c",
            "ls /proc/self/fd | tr '\\n' ' '; echo END; grep Sig[IB] /proc/self/status; "
            "umask; pwd; tty; stty size; echo $0; exec cat",
        ],
        cwd="/usr",
        umask=0o027,
        cols=111,
        rows=33,
    )
    out = link.wait_for(b"33 111\r\nsh\r\n")
    assert out.startswith((b"0 1 2 3 END", b"0 1 2 END"))  # 3 is ls reading the directory
    assert b"SigBlk:\t0000000000000000" in out and b"SigIgn:\t0000000000000000" in out
    assert b"0027\r\n/usr\r\n/dev/pts/" in out
    state = link.state()
    assert state.foreground == state.session_leader == link.welcome.root_pid
    assert state.iflag & 0o40000, "the terminal knows UTF-8"


def may_raise_limits() -> bool:
    """Whether this process has CAP_SYS_RESOURCE."""
    status = Path("/proc/self/status").read_text()
    return bool(int(status.partition("CapEff:")[2].split()[0], 16) >> 24 & 1)


def test_t4_the_program_has_its_limits_and_not_the_keepers_place_with_the_oom_killer(
    nursery: Nursery,
) -> None:
    """With CAP_SYS_RESOURCE, nursery and keeper go last (-900); no program inherits that."""
    show = "cat /proc/self/oom_score_adj; ulimit -Hc; ulimit -Sf; nice; echo END; exec cat"
    limits = ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 512 * 100))
    link = nursery.run(
        "a",
        ["sh", "-c", show],
        limits=(*limits, (wire.LIMIT_OOM, 300), (wire.LIMIT_NICE, 17)),
    )
    assert b"300\r\n0\r\n100\r\n17\r\nEND" in link.wait_for(b"END")
    other = nursery.run("b", ["sh", "-c", show])
    assert other.wait_for(b"END").startswith(b"0\r\n")
    expected = "-900" if may_raise_limits() else "0"
    for pid in (nursery.process.pid, nursery.keepers["a"]):
        assert Path(f"/proc/{pid}/oom_score_adj").read_text().strip() == expected


def test_a_nursery_started_badly_still_gives_programs_a_sane_world(tmp_path: Path) -> None:
    """Blocked and ignored signals and open descriptors of its starter end at the nursery."""
    leak = os.open(tmp_path / "leak", os.O_RDWR | os.O_CREAT)
    os.set_inheritable(leak, True)

    def before() -> None:
        signal.pthread_sigmask(
            signal.SIG_BLOCK, set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}
        )
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTTOU, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)

    nursery = Nursery(tmp_path, pass_fds=(leak,), preexec_fn=before)
    try:
        link = nursery.run(
            "a",
            ["sh", "-c", "grep Sig[IB] /proc/self/status; ls -l /proc/self/fd; echo END; exit 5"],
        )
        out = link.wait_for(b"END")
        assert (
            b"SigBlk:\t0000000000000000" in out
            and b"SigIgn:\t0000000000000000" in out
            and b"leak" not in out
        )
        assert os.waitstatus_to_exitcode(link.exit_status()) == 5, (
            "the keeper hears of its child's end"
        )
        opened = [
            os.readlink(f"/proc/{nursery.keepers['a']}/fd/{fd}")
            for fd in os.listdir(f"/proc/{nursery.keepers['a']}/fd")
        ]
        assert str(tmp_path / "leak") not in opened
    finally:
        nursery.close()
        os.close(leak)


def test_the_environment_is_passed_byte_for_byte(nursery: Nursery) -> None:
    entries = (
        b"PATH=/usr/bin:/bin",
        b"NEWLINE=a\nb\n",
        b"BYTES=\xff\xfe\x80",
        b"EMPTY=",
        b"EQUALS=a=b=c",
        "WORD=\u00e9\u4e16".encode(),
        b"BASH_FUNC_f%%=() {  :\n}",
        b"SP ACE=x",
        b"LONG=" + b"z" * 100_000,
    )
    link = nursery.run("a", ["cat", "/proc/self/environ"], env=entries)
    link.flag(layout.FLAG_EOF)
    assert link.all().replace(b"\r\n", b"\n") == b"".join(entry + b"\0" for entry in entries)


def test_arguments_are_passed_byte_for_byte(nursery: Nursery) -> None:
    words = [b"printf", b"%s;", b"", b"\xff\xfe", b"a b\nc", "\u4e16".encode()]
    request = wire.Spawn(
        "a", 1, "a.keeper", 80, 24, 1 << 16, 1000, argv=(*words,), env=(b"PATH=/usr/bin:/bin",)
    )
    assert nursery.ask(wire.spawn(request), "a")[0] == wire.SPAWN_OK
    assert nursery.link("a").wait_for("\u4e16;".encode()) == b";\xff\xfe;a b\r\nc;\xe4\xb8\x96;"


def test_a_script_without_an_interpreter_line_is_the_shells(nursery: Nursery) -> None:
    script = nursery.directory / "plain"
    script.write_text("echo plain $1\n")
    script.chmod(0o755)
    assert nursery.run("a", [str(script), "words"]).wait_for(b"plain words")


# ---------------------------------------------------------------- failed starts


def test_a_failed_start_is_reported(nursery: Nursery) -> None:
    directory = nursery.directory
    (directory / "data").write_text("x")
    for argv, cwd, number, named in [
        (["/no/such/program"], "/", errno.ENOENT, "/no/such/program"),
        (["no-such-program"], "/", errno.ENOENT, "no-such-program"),
        (["/usr"], "/", errno.EACCES, "/usr"),
        ([str(directory / "data")], "/", errno.EACCES, "data"),
        ([str(directory / "data" / "below")], "/", errno.ENOTDIR, "below"),
        (["sh"], "/no/such/place", errno.ENOENT, "/no/such/place"),
        (["sh"], str(directory / "data"), errno.ENOTDIR, "data"),
        (["sh", "-c", "x" * 300_000], "/", errno.E2BIG, "sh"),
    ]:
        result, found, pid, text = nursery.spawn(
            "a", argv, cwd=cwd
        )  # the name is free again at once
        assert (result, pid) == (wire.SPAWN_FAILED, 0), (argv, text)
        assert found == number and named in text, (argv, found, text)
    until(lambda: not below(nursery.process.pid), "all that was begun for it to be gone")
    assert not [name for name in os.listdir(directory) if ".keeper" in name]


def test_requests_that_cannot_be_meant_are_refused_with_the_reason(nursery: Nursery) -> None:
    sound = wire.Spawn("a", 1, "a.keeper", 80, 24, 1 << 16, 1000, argv=(b"cat",))
    for wrong in (
        sound._replace(argv=()),
        sound._replace(argv=(b"",)),
        sound._replace(socket="../x"),
        sound._replace(socket=""),
        sound._replace(cols=1),
        sound._replace(rows=65535),
        sound._replace(ring_bytes=0),
        sound._replace(ring_bytes=1 << 40),
        sound._replace(label=bytes(40_000)),
        sound._replace(session="s" * 300),
        sound._replace(env=(b"=x",)),
        sound._replace(env=(b"x",)),
        sound._replace(argv=(b"a\0b",)),
        sound._replace(cwd=b"\0"),
        sound._replace(umask=0o1000),
        sound._replace(status=70_000),
        sound._replace(away_ms=10**12),
        sound._replace(ring_tail=b"more than there was"),
        sound._replace(accepted=2**63),
        sound._replace(adopt_pid=1),
    ):
        result, number, _, text = nursery.ask(wire.spawn(wrong), "a")
        assert (result, number) == (wire.SPAWN_FAILED, errno.EINVAL) and text.startswith(
            "bad spawn request: "
        ), text
    header = wire.SPAWN_HEADER
    for raw, why in (
        (header.pack(b"HFS1", 99, 0), "version 99"),
        (header.pack(b"HFS1", wire.VERSION, SPAWN_BYTES + 1), "at most"),
        (b"GET / HTTP/1.1\r\n", "begins with"),
        (header.pack(b"HFS1", wire.VERSION, 3) + b"abc", "truncated"),
    ):
        assert why in nursery.ask(raw, "a")[3]


def test_a_name_in_use_is_refused_and_a_stale_one_is_not(nursery: Nursery) -> None:
    """A host that asks again after a lost answer must not make the first session unreachable."""
    first = nursery.run("a", ["sh", "-c", "echo first; exec cat"])
    first.wait_for(b"first")
    result, number, _, _ = nursery.spawn("a", ["cat"])
    assert (result, number) == (wire.SPAWN_FAILED, errno.EADDRINUSE)
    assert nursery.link("a").wait_for(b"first")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(nursery.path("b")))
    assert nursery.run("b", ["sh", "-c", "echo second; exec cat"]).wait_for(b"second")


def test_a_failure_of_the_machine_is_not_the_requests(nursery: Nursery) -> None:
    """No place for the socket: reported as such, with an errno that no program can have."""
    with nursery.connect() as sock:
        shutil.rmtree(nursery.directory)
        sock.sendall(
            wire.spawn(wire.Spawn("a", 1, "a.keeper", 80, 24, 1 << 16, 1000, argv=(b"cat",)))
        )
        result, number, _, text = nursery.answer(sock, "a")
    assert (result, number) == (wire.SPAWN_FAILED, errno.EIO) and text


# ---------------------------------------------------------------- waiting


def test_an_unfinished_request_does_not_block_the_nursery(nursery: Nursery) -> None:
    silent, half, gone_away = nursery.connect(), nursery.connect(), nursery.connect()
    half.sendall(
        wire.spawn(wire.Spawn("h", 1, "h.keeper", 80, 24, 1 << 16, 1000, argv=(b"cat",)))[:20]
    )
    gone_away.sendall(b"HF")
    gone_away.close()
    assert nursery.run("a", ["cat"]).state().tag == 1
    half.close()
    silent.close()
    held = {nursery.keepers["a"], *below(nursery.keepers["a"])}
    until(lambda: set(below(nursery.process.pid)) == held, "all of theirs to be gone")


def test_many_at_once(nursery: Nursery) -> None:
    def one(n: int) -> int:
        return nursery.spawn(f"s{n}", ["sh", "-c", f"echo this is {n}; exec cat"])[0]

    with ThreadPoolExecutor(20) as pool:
        assert set(pool.map(one, range(40))) == {wire.SPAWN_OK}
    for n in range(40):
        nursery.link(f"s{n}").wait_for(b"this is %d\r\n" % n)


def test_nothing_of_the_starter_stays_open(tmp_path: Path) -> None:
    """A starter that waits for the end of the nursery's output is not blocked by sessions."""
    read_end, write_end = os.pipe()
    nursery = Nursery(tmp_path, stderr=write_end)
    os.close(write_end)
    try:
        link = nursery.run("a", ["cat"])
        assert (
            nursery.process.stdout is not None
            and nursery.process.stdout.read() == b""
            and os.read(read_end, 1) == b""
        )
        kinds = sorted(
            os.readlink(f"/proc/{nursery.keepers['a']}/fd/{fd}")
            .partition("/tmp")[0]
            .partition("[")[0]
            .partition("(")[0]
            .strip()
            for fd in os.listdir(f"/proc/{nursery.keepers['a']}/fd")
        )
        # null twice and the log; terminal, ring (and its mapping), snapshot, bell; poll, wake-up
        # pipe, listener and host
        assert kinds == sorted(
            [
                "",
                "/dev/null",
                "/dev/null",
                "/dev/ptmx",
                "/memfd:holdfast-ring",
                "/memfd:holdfast-ring",
                "/memfd:holdfast-screen",
                "anon_inode:",
                "anon_inode:",
                "pipe:",
                "pipe:",
                "socket:",
                "socket:",
            ]
        ), kinds
        link.close()
    finally:
        nursery.close()
        os.close(read_end)


# ---------------------------------------------------------------- the nursery's own end


def test_one_nursery_per_home(nursery: Nursery) -> None:
    second = subprocess.run(nursery.command, capture_output=True, check=False, timeout=WAIT_S)
    assert second.returncode == 3 and b"another nursery" in second.stdout


def late(sock: socket.socket) -> None:
    """The nursery has accepted and forked before the first byte comes."""
    sock.send(wire.QUIT_MAGIC[:1])
    sock.sendall(wire.QUIT_MAGIC[1:])


@pytest.mark.parametrize(
    "quit_", [lambda s: s.sendall(wire.QUIT_MAGIC), late], ids=["at once", "in pieces"]
)
def test_the_nursery_quits_when_asked_and_keepers_stay(
    nursery: Nursery, quit_: Callable[[socket.socket], None]
) -> None:
    link = nursery.run("a", ["cat"])
    with nursery.connect() as sock:
        sock.settimeout(WAIT_S)
        until(lambda: below(nursery.process.pid), "a launcher that waits")
        quit_(sock)
        assert sock.recv(1) == b"", "the end of the connection says that the home is free"
    nursery.process.wait(WAIT_S)
    assert nursery.process.returncode == 0
    link.type(b"alive\n")
    link.wait_for(b"alive")
    nursery.process = nursery.start()
    assert nursery.run("b", ["cat"]).state().tag == 1


def test_s4_a_keeper_that_dies_takes_its_session_only(nursery: Nursery) -> None:
    links: list[Link] = [nursery.run(name, ["cat"]) for name in ("a", "b")]
    os.kill(nursery.keepers["a"], signal.SIGKILL)
    until(lambda: gone(links[0].welcome.root_pid), "its program to be hung up")
    until(links[0].closed, "its connection to end")
    links[1].type(b"alive\n")
    links[1].wait_for(b"alive")
    del nursery.keepers["a"]
    os.unlink(nursery.path("a"))


def test_no_session_starts_for_a_host_that_has_disconnected(
    nursery: Nursery, tmp_path: Path
) -> None:
    """A host that gave up waiting has reported that there is no session.

    A slow nursery must not make one afterwards.
    """
    ran = tmp_path / "ran"
    stop(nursery.process.pid)
    request = wire.Spawn(
        "late",
        1,
        "late.keeper",
        80,
        24,
        1 << 16,
        1000,
        argv=(b"touch", os.fsencode(ran)),
        env=(b"PATH=/usr/bin:/bin",),
    )
    with nursery.connect() as sock:
        sock.sendall(wire.spawn(request))
    os.kill(nursery.process.pid, signal.SIGCONT)
    for n in range(3):
        assert nursery.spawn(f"after{n}", ["cat"])[0] == wire.SPAWN_OK
    assert not ran.exists() and not (nursery.directory / "late.keeper").exists()
