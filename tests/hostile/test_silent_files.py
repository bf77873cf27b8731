"""A file system that stops to answer (a dead file server, a FUSE program of a session) holds up those who use it, and nobody else."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.e2e.harness import Installation, eventually, installation, state_of

from holdfast.host.process import half

pytestmark = pytest.mark.skipif(
    os.getuid() != 0 or not os.path.exists("/dev/fuse"),
    reason="needs root and /dev/fuse to mount a file system of one's own",
)

TIMES = 12  # more than the threads that a whole host shares where nothing is shared out

# argv: where to mount. A file system in which every name is a file that holds /bin/true, and which believes nothing it was told before, until a line is read from stdin: then it does
# not answer what that line names (numbers of requests), or nothing at all.
SERVER = """
import ctypes, os, struct, sys, threading
at = sys.argv[1]
libc = ctypes.CDLL(None, use_errno=True)
fuse = os.open("/dev/fuse", os.O_RDWR)
if libc.mount(b"silent", at.encode(), b"fuse", 0, b"fd=%d,rootmode=40000,user_id=0,group_id=0" % fuse):
    sys.exit(99)
unheard, all = set(), set(range(256))
def attributes(node):
    return struct.pack("<QQQQQQIIIIIIIIII", node, 4096, 8, 0, 0, 0, 0, 0, 0, 0o40755 if node == 1 else 0o100755, 1, 0, 0, 0, 4096, 0)
def serve():
    while True:
        try:
            _, what, number, node = struct.unpack_from("<IIQQ", os.read(fuse, 1 << 20))
        except OSError:
            return
        if what in unheard or what in (2, 42):
            continue
        answer = {26: struct.pack("<IIIIHHIIHHI28x", 7, 31, 65536, 0, 0, 0, 65536, 1, 0, 0, 0), 1: struct.pack("<QQQQII", 2, 1, 0, 0, 0, 0) + attributes(2),
                  3: struct.pack("<QII", 0, 0, 0) + attributes(node), 14: struct.pack("<QII", 1, 0, 0), 27: struct.pack("<QII", 1, 0, 0), 15: b"/bin/true\\0".ljust(4096, b"\\0"), 25: b""}.get(what)
        os.write(fuse, struct.pack("<IiQ", 16 + len(answer or b""), -38 if answer is None else 0, number) + (answer or b""))
threading.Thread(target=serve, daemon=True).start()
print("mounted", flush=True)
unheard |= {int(word) for word in sys.stdin.readline().split()} or all
print("silent", flush=True)
sys.stdin.readline()
"""


READ, FLUSH = 15, 25


class FileSystem:
    def __init__(self, at: Path) -> None:
        at.mkdir()
        self.at = str(at)
        self._server = subprocess.Popen(
            [sys.executable, "-c", SERVER, self.at], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        if not self._says("mounted"):
            pytest.skip("it cannot be mounted here")

    def _says(self, word: str) -> bool:
        assert self._server.stdout is not None
        return self._server.stdout.readline().decode().strip() == word

    def hush(self, *requests: int) -> None:
        assert self._server.stdin is not None
        self._server.stdin.write(b"%s\n" % " ".join(map(str, requests)).encode())
        self._server.stdin.flush()
        assert self._says("silent")

    def close(self) -> None:
        self._server.kill()  # whoever waits for it gets an error then
        self._server.communicate()
        subprocess.run(["umount", "-l", self.at], check=False)


@pytest.fixture
def hf(tmp_path: Path) -> Iterator[Installation]:
    with installation(tmp_path) as made:
        yield made


@pytest.fixture
def files(hf: Installation, tmp_path: Path) -> Iterator[FileSystem]:
    made = FileSystem(tmp_path / "silent")
    try:
        yield made
    finally:
        made.close()


def others_go_on(hf: Installation) -> None:
    assert hf.ok("run", "other", "--", "echo fine").out == "fine\n"
    assert hf.ok("graph", "other", "--json").json["processes"]
    assert hf.ok("attention", "other", "--json").json
    hf.ok("send", "other", "true", "--enter")


def test_s2_what_a_session_has_open_keeps_nobody_from_looking_at_it(
    hf: Installation, files: FileSystem
) -> None:
    hf.ready("other")
    hf.new(
        "held",
        "--",
        sys.executable,
        "-c",
        f"import os; os.chdir({files.at!r}); f = os.open('file', os.O_RDONLY); print('there'); os.read(0, 1)",
    )
    eventually(lambda: "there" in hf.screen("held"), "it to be there")
    files.hush()
    for _ in range(TIMES):
        graph = hf.ok("graph", "held", "--files", "--json").json
        assert any(one["cwd"] == files.at for one in graph["processes"]) and any(
            one["path"] == f"{files.at}/file" for one in graph["files"]
        )
        assert hf.ok("attention", "held", "--json").json["kind"] == "input"
        hf.ok("view", "held")
    others_go_on(hf)
    files.close()  # who is ended would wait for it, too: to close the file
    hf.end("held")


def test_p4_acts_of_a_session_that_stands_there_hold_up_no_other(
    hf: Installation, files: FileSystem
) -> None:
    """What it would run is judged by where it is, and where that is cannot be seen: it is bounded, and said."""
    hf.ready("other")
    hf.ready("held")
    hf.ok("run", "held", "--", f"cd {shlex.quote(files.at)}; PS1='> '")
    files.hush()
    waiting = [
        hf.start("run", "held", "--timeout", "30", "--", f"cat {shlex.quote(files.at)}/file{n}")
        for n in range(TIMES)
    ]
    waiting += [hf.start("graph", "held", "--json") for _ in range(TIMES)]
    hung = [hf.attach("held", env={"SSH_AUTH_SOCK": f"{files.at}/agent"}) for _ in range(TIMES)]
    others_go_on(hf)
    for one in hung:
        one.close()
    for process in waiting:
        process.kill()
        process.communicate()
    others_go_on(hf)
    files.close()  # its shell stands still in there, too
    hf.end("held")


# argv: a file of that file system, a directory for signs. Its page is there when the gate looks at it, and is gone when the gate reads it.
ATTACK = """
import ctypes, os, signal, sys, threading
file, signs = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
fd = os.open(file, os.O_RDONLY)
page = libc.mmap(None, 4096, 1, 2, fd, 0)
assert ctypes.string_at(page) == b"/bin/true"
def when(sign):
    while not os.path.exists(f"{signs}/{sign}"):
        signal.sigtimedwait([signal.SIGUSR1], 0.02)
def take_it_away():
    when("gone")
    libc.madvise(ctypes.c_void_p(page), 4096, 4)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    open(f"{signs}/is-gone", "w").close()
open(f"{signs}/ready", "w").close()
when("go")
threading.Thread(target=take_it_away).start()
libc.execv(ctypes.c_void_p(page), (ctypes.c_char_p * 2)(b"true", None))
print("CODE", ctypes.get_errno(), flush=True)
"""


def stuck(pid: int) -> bool:
    """A thread of it is in the kernel, and no signal gets it out."""
    for wchan in Path("/proc").glob(f"{pid}/task/*/wchan"):
        with contextlib.suppress(OSError):
            if "request_wait_answer" in wchan.read_text():
                return True
    return False


@pytest.mark.parametrize("how", ["replaced", "stopped"])
def test_s4_a_host_with_a_thread_that_hangs_makes_room_for_the_next(
    hf: Installation, files: FileSystem, how: str
) -> None:
    hf.ready("other")
    hf.ready("held")
    hf.ok("run", "held", "--", f"cd {shlex.quote(files.at)}; PS1='> '")
    terminal = hf.attach("other")
    terminal.see("$")
    files.hush()
    hf.start("run", "held", "--", "echo there")
    first = hf.host_pid
    eventually(lambda: stuck(first), "a thread of the host to hang")
    if how == "replaced":
        hf.ask("down", restart=True)
    else:
        hf.ok("down")
        hf.ok("up", "--detach")
    eventually(lambda: hf.attempt("ls", "--json").rc == 0 and hf.host_pid != first, "the next host")
    others_go_on(hf)
    if how == "replaced":
        terminal.send("echo com''es back\r")
        terminal.see("comes back")
    assert stuck(first), "the old one is still there"
    files.close()
    eventually(lambda: not stuck(first), "the old host to be gone")
    hf.end("held")


def test_a4_a_program_that_holds_up_the_loop_holds_it_up_once(
    hf: Installation, files: FileSystem, tmp_path: Path
) -> None:
    """A page that the gate saw is taken away before it reads it. Nothing ends that, so the next host comes, and reads the programs of that session in threads."""
    signs = tmp_path / "signs"
    signs.mkdir()
    hf.ready("other")
    if hf.ready("held")["gate"] != "exec":
        pytest.skip("no gate at exec depth here")
    (tmp_path / "attack.py").write_text(ATTACK)
    hf.start("run", "held", "--", f"{sys.executable} {tmp_path}/attack.py {files.at}/file {signs}")
    eventually((signs / "ready").exists, "the attack to be ready")
    hf.ok("down")
    hf.ok("up", "--detach", env={"HOLDFAST_PROBE": "stop@host.exec.paged"})
    first = hf.host_pid
    (signs / "go").touch()
    eventually(lambda: state_of(first) == "T", "the gate to have seen the page")
    (signs / "gone").touch()
    eventually((signs / "is-gone").exists, "the page to be gone")
    files.hush()
    os.kill(first, signal.SIGCONT)
    eventually(lambda: hf.host_pid != first, "the next host")
    assert stuck(first)
    others_go_on(hf)
    hf.ok("halt", "held")
    hf.ok("resume", "held")
    assert hf.host_pid == eventually(lambda: hf.peer("host.sock"), "who listens"), (
        "and it is not held up again"
    )
    files.close()
    eventually(lambda: "CODE 13" in hf.screen("held"), "the exec to be refused")
    assert hf.ok("run", "held", "--", "/bin/echo on").out == "on\n"


def test_s2_a_file_that_was_opened_and_cannot_be_closed_keeps_no_child_of_the_host(
    hf: Installation, files: FileSystem
) -> None:
    """Whoever is forked from a process has its descriptors, and closes them first: a file of a FUSE program is closed when that program says so."""
    hf.ready("other")
    if hf.ready("held")["gate"] != "exec":
        pytest.skip("no gate at exec depth here")
    files.hush(READ, FLUSH)
    hf.start("run", "held", "--", f"{files.at}/file")
    first = hf.host_pid
    eventually(lambda: stuck(first), "the gate to look whether it is a script")
    others_go_on(hf)
    hf.ok("halt", "held")
    hf.ok("resume", "held")
    hf.ask("down", restart=True)
    eventually(lambda: hf.attempt("ls", "--json").rc == 0 and hf.host_pid != first, "the next host")
    others_go_on(hf)
    files.close()
    hf.end("held")


# argv: a directory of that file system, one for signs. A process whose memory is locked: it waits for the lock, which somebody has who reads a page that the file system does not give.
LOCKED = """
import ctypes, os, signal, sys
files, signs = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
fd = os.open(f"{files}/file", os.O_RDONLY)
page = libc.mmap(None, 4096, 1, 2, fd, 0)
open(f"{signs}/ready", "w").close()
while not os.path.exists(f"{signs}/go"):
    signal.sigtimedwait([signal.SIGUSR1], 0.02)
me, reader = os.getpid(), os.fork()
if not reader:
    os.pread(os.open(f"/proc/{me}/mem", os.O_RDONLY), 8, page)
    os._exit(0)
while b"request_wait" not in open(f"/proc/{reader}/wchan", "rb").read():
    signal.sigtimedwait([signal.SIGUSR1], 0.02)
open(f"{signs}/locked", "w").close()
libc.mmap(None, 4096, 1, 2, fd, 0)
"""


def locked(
    hf: Installation, files: FileSystem, tmp_path: Path, start: Callable[[str], object]
) -> int:
    """A process of a session whose memory nobody can read."""
    signs = tmp_path / "signs"
    signs.mkdir()
    (tmp_path / "locked.py").write_text(LOCKED)
    start(f"{sys.executable} {tmp_path}/locked.py {files.at} {signs}")
    eventually((signs / "ready").exists, "it to be ready")
    files.hush()
    (signs / "go").touch()
    eventually((signs / "locked").exists, "its memory to be locked")

    def found() -> int:
        for one in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (one / "wchan").read_text().startswith("vm_mmap") and state_of(
                    int(one.name)
                ) == "D":
                    return int(one.name)
        return 0

    return eventually(found, "who waits for it")


def test_a4_a_job_whose_memory_is_locked_delays_no_seize_and_no_end(
    hf: Installation, files: FileSystem, tmp_path: Path
) -> None:
    hf.people("ann")
    hf.ready("other")
    shell = hf.ready("held")["pid"]
    job = locked(
        hf, files, tmp_path, lambda line: hf.ok("send", "held", f"{line} & true", "--enter")
    )
    first = hf.host_pid
    hf.ok("--as", "ann", "seize", "held")
    others_go_on(hf)
    assert hf.ok("signal", "held", str(job), "WINCH", "--tree").out
    waiting = [
        hf.start(*args)
        for _ in range(TIMES)
        for args in (
            ("graph", "held", "--json"),
            ("graph", "held", "--follow"),
            ("attention", "held"),
            ("signal", "held", str(job), "WINCH"),
        )
    ]
    others_go_on(hf)
    halted = hf.cli("halt", "held", "--json").json
    assert shell in halted["processes"] and job in halted["missed"], (
        "who hangs cannot be frozen; everybody else is"
    )
    others_go_on(hf)
    hf.cli("resume", "held")
    assert hf.host_pid == first
    for process in waiting:
        process.kill()
        process.communicate()
    files.close()
    hf.end("held")


def test_a4_a_session_whose_first_program_is_locked_can_be_ended(
    hf: Installation, files: FileSystem, tmp_path: Path
) -> None:
    hf.ready("other")
    locked(hf, files, tmp_path, lambda line: hf.new("held", "--", *shlex.split(line)))
    first = hf.host_pid
    for args in (
        ("send", "held", "x", "--enter"),
        ("view", "held"),
        ("attention", "held"),
        ("halt", "held"),
        ("resume", "held"),
    ):
        hf.cli(*args)
        others_go_on(hf)
    ending = hf.start("end", "held")
    others_go_on(hf)
    assert hf.host_pid == first
    files.close()
    ending.wait(60)


# argv: a file of that file system, a directory for signs. A process that is half another program: its files are being closed, and the file system does not say that they are.
HALF = """
import os, signal, sys
file, signs = sys.argv[1:]
fd = os.open(file, os.O_RDONLY)
open(f"{signs}/ready", "w").close()
while not os.path.exists(f"{signs}/go"):
    signal.sigtimedwait([signal.SIGUSR1], 0.02)
os.execv("/bin/true", ["true"])
"""


@pytest.mark.parametrize("what", ["job", "first program"])
def test_a4_a_program_that_nobody_may_look_at_holds_up_no_halt_and_no_next_host(
    hf: Installation, files: FileSystem, tmp_path: Path, what: str
) -> None:
    """The kernel keeps everybody waiting who asks for the stat of a process that hangs in the middle of an exec."""
    signs = tmp_path / "signs"
    signs.mkdir()
    (tmp_path / "half.py").write_text(HALF)
    line = [sys.executable, f"{tmp_path}/half.py", f"{files.at}/file", str(signs)]
    hf.ready("other")
    if what == "job":
        shell = hf.ready("held")["pid"]
        hf.ok("send", "held", f"{shlex.join(line)} & true", "--enter")
    else:
        shell = hf.new("held", "--", *line)["pid"]
    eventually((signs / "ready").exists, "it to be ready")
    pid = next(
        one["pid"]
        for one in hf.ok("graph", "held", "--json").json["processes"]
        if f"{tmp_path}/half.py" in one["argv"]
    )
    files.hush(FLUSH)
    (signs / "go").touch()
    eventually(lambda: half(pid), "it to close its files")
    halted = hf.cli("halt", "held", "--json").json
    assert pid in halted["missed"] and (shell in halted["processes"] or shell == pid)
    hf.ok("resume", "held")
    hf.ok("seize", "held")
    assert pid in [one["pid"] for one in hf.ok("graph", "held", "--json").json["processes"]]
    first = hf.host_pid
    os.kill(first, signal.SIGKILL)
    eventually(lambda: state_of(first) in "XZ", "it to be gone")
    hf.ok("up", "--detach")
    others_go_on(hf)
    hf.ask("down", restart=True)
    eventually(lambda: hf.attempt("ls", "--json").rc == 0, "the next host")
    others_go_on(hf)
    files.close()
    eventually(lambda: not half(pid), "it to go on")
    hf.cli("end", "held")
