"""A file system that stops answering (a dead file server, a FUSE program of a session).

Such a file system blocks the processes that use it, but neither the host nor other sessions.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.host.processes.process import half
from tests.support.exec_gate.silent_filesystem import (
    FLUSH,
    READ,
    SilentFilesystem,
    needs_fuse,
    waits_for_fuse,
)
from tests.support.installation import Installation, eventually, installation, state_of

pytestmark = needs_fuse
TIMES = 12  # more than the threads of a pool that all sessions share


@pytest.fixture
def hf(tmp_path: Path) -> Iterator[Installation]:
    with installation(tmp_path) as made:
        yield made


@pytest.fixture
def files(hf: Installation, tmp_path: Path) -> Iterator[SilentFilesystem]:
    made = SilentFilesystem(tmp_path / "silent")
    try:
        yield made
    finally:
        made.close()


def other_sessions_work(hf: Installation) -> None:
    assert hf.ok("run", "other", "--", "echo fine").out == "fine\n"
    assert hf.ok("graph", "other", "--json").json["processes"]
    assert hf.ok("attention", "other", "--json").json
    hf.ok("send", "other", "true", "--enter")


def test_s2_open_files_of_a_session_do_not_block_its_observers(
    hf: Installation, files: SilentFilesystem
) -> None:
    hf.ready("other")
    hf.new(
        "held",
        "--",
        sys.executable,
        "-c",
        f"import os; os.chdir({files.at!r}); f = os.open('file', os.O_RDONLY); "
        "print('there'); os.read(0, 1)",
    )
    eventually(lambda: "there" in hf.screen("held"), "the program to start")
    files.silence()
    for _ in range(TIMES):
        graph = hf.ok("graph", "held", "--files", "--json").json
        assert any(one["cwd"] == files.at for one in graph["processes"]) and any(
            one["path"] == f"{files.at}/file" for one in graph["files"]
        )
        assert hf.ok("attention", "held", "--json").json["kind"] == "input"
        hf.ok("view", "held")
    other_sessions_work(hf)
    files.close()  # otherwise the program could not end: the exit closes the file
    hf.end("held")


def test_p4_acts_in_a_silent_directory_do_not_block_other_sessions(
    hf: Installation, files: SilentFilesystem
) -> None:
    """Acts are judged by their directory, which cannot be resolved: they fail in bounded time."""
    hf.ready("other")
    hf.ready("held")
    hf.ok("run", "held", "--", f"cd {shlex.quote(files.at)}; PS1='> '")
    files.silence()
    waiting = [
        hf.start("run", "held", "--timeout", "30", "--", f"cat {shlex.quote(files.at)}/file{n}")
        for n in range(TIMES)
    ]
    waiting += [hf.start("graph", "held", "--json") for _ in range(TIMES)]
    hung = [hf.attach("held", env={"SSH_AUTH_SOCK": f"{files.at}/agent"}) for _ in range(TIMES)]
    other_sessions_work(hf)
    for one in hung:
        one.close()
    for process in waiting:
        process.kill()
        process.communicate()
    other_sessions_work(hf)
    files.close()  # the shell is blocked in that directory too
    hf.end("held")


# argv: a file of the silent file system, a directory for signs. The page with the path is present
# when the gate checks it, and gone when the gate reads it.
ATTACK = """
import ctypes, os, signal, sys, threading
file, signs = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
number = ctypes.c_int
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, number, number, number, ctypes.c_long]
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


@pytest.mark.parametrize("how", ["replaced", "stopped"])
def test_s4_a_host_with_a_blocked_thread_makes_room_for_the_next(
    hf: Installation, files: SilentFilesystem, how: str
) -> None:
    hf.ready("other")
    hf.ready("held")
    hf.ok("run", "held", "--", f"cd {shlex.quote(files.at)}; PS1='> '")
    terminal = hf.attach("other")
    terminal.see("$")
    files.silence()
    hf.start("run", "held", "--", "echo there")
    first = hf.host_pid
    eventually(lambda: waits_for_fuse(first), "a thread of the host to block")
    if how == "replaced":
        hf.ask("down", restart=True)
    else:
        hf.ok("down")
        hf.ok("up", "--detach")
    eventually(lambda: hf.attempt("ls", "--json").rc == 0 and hf.host_pid != first, "the next host")
    other_sessions_work(hf)
    if how == "replaced":
        terminal.send("echo com''es back\r")
        terminal.see("comes back")
    assert waits_for_fuse(first), "the old host still waits"
    files.close()
    eventually(lambda: not waits_for_fuse(first), "the old host to be gone")
    hf.end("held")


def test_a4_a_program_that_blocks_the_loop_does_it_once(
    hf: Installation, files: SilentFilesystem, tmp_path: Path
) -> None:
    """A page that the gate found present is taken away before the gate reads it.

    That wait has no end, so the next host takes over and reads this session's programs in threads.
    """
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
    eventually(lambda: state_of(first) == "T", "the gate to find the page present")
    (signs / "gone").touch()
    eventually((signs / "is-gone").exists, "the page to be gone")
    files.silence()
    os.kill(first, signal.SIGCONT)
    eventually(lambda: hf.host_pid != first, "the next host")
    assert waits_for_fuse(first)
    other_sessions_work(hf)
    hf.ok("halt", "held")
    hf.ok("resume", "held")
    assert hf.host_pid == eventually(lambda: hf.peer("host.sock"), "the listening host"), (
        "the next host is not blocked again"
    )
    files.close()
    eventually(lambda: "CODE 13" in hf.screen("held"), "the exec to be refused")
    assert hf.ok("run", "held", "--", "/bin/echo on").out == "on\n"


def test_s2_a_file_that_cannot_be_closed_blocks_no_child_of_the_host(
    hf: Installation, files: SilentFilesystem
) -> None:
    """A forked child closes the inherited descriptors, which waits for the FUSE server."""
    hf.ready("other")
    if hf.ready("held")["gate"] != "exec":
        pytest.skip("no gate at exec depth here")
    files.silence(READ, FLUSH)
    hf.start("run", "held", "--", f"{files.at}/file")
    first = hf.host_pid
    eventually(lambda: waits_for_fuse(first), "the gate to read the first line of the file")
    other_sessions_work(hf)
    hf.ok("halt", "held")
    hf.ok("resume", "held")
    hf.ask("down", restart=True)
    eventually(lambda: hf.attempt("ls", "--json").rc == 0 and hf.host_pid != first, "the next host")
    other_sessions_work(hf)
    files.close()
    hf.end("held")


# argv: a directory of the silent file system, one for signs. A process that waits for the lock of
# its own memory, which a reader holds that waits for a page of the silent file system.
LOCKED = """
import ctypes, os, signal, sys
files, signs = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
number = ctypes.c_int
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, number, number, number, ctypes.c_long]
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
    hf: Installation, files: SilentFilesystem, tmp_path: Path, start: Callable[[str], object]
) -> int:
    """Starts a process of a session whose memory cannot be read; returns its pid."""
    signs = tmp_path / "signs"
    signs.mkdir()
    (tmp_path / "locked.py").write_text(LOCKED)
    start(f"{sys.executable} {tmp_path}/locked.py {files.at} {signs}")
    eventually((signs / "ready").exists, "the process to be ready")
    files.silence()
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

    return eventually(found, "the process that waits for the lock")


def test_a4_a_job_whose_memory_is_locked_delays_no_seize_and_no_end(
    hf: Installation, files: SilentFilesystem, tmp_path: Path
) -> None:
    hf.people("ann")
    hf.ready("other")
    shell = hf.ready("held")["pid"]
    job = locked(
        hf, files, tmp_path, lambda line: hf.ok("send", "held", f"{line} & true", "--enter")
    )
    first = hf.host_pid
    hf.ok("--as", "ann", "seize", "held")
    other_sessions_work(hf)
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
    other_sessions_work(hf)
    halted = hf.cli("halt", "held", "--json").json
    assert shell in halted["processes"] and job in halted["missed"], (
        "the blocked process cannot be frozen; all others are"
    )
    other_sessions_work(hf)
    hf.cli("resume", "held")
    assert hf.host_pid == first
    for process in waiting:
        process.kill()
        process.communicate()
    files.close()
    hf.end("held")


def test_a4_a_session_whose_first_program_is_locked_can_be_ended(
    hf: Installation, files: SilentFilesystem, tmp_path: Path
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
        other_sessions_work(hf)
    ending = hf.start("end", "held")
    other_sessions_work(hf)
    assert hf.host_pid == first
    files.close()
    ending.wait(60)


# argv: a file of the silent file system, a directory for signs. A process that hangs in an exec:
# the kernel closes its files, and the file system does not answer.
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
def test_a4_a_process_that_cannot_be_examined_delays_no_halt_and_no_next_host(
    hf: Installation, files: SilentFilesystem, tmp_path: Path, what: str
) -> None:
    """The kernel blocks every reader of the stat of a process that hangs in an exec."""
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
    eventually((signs / "ready").exists, "the process to be ready")
    pid = next(
        one["pid"]
        for one in hf.ok("graph", "held", "--json").json["processes"]
        if f"{tmp_path}/half.py" in one["argv"]
    )
    files.silence(FLUSH)
    (signs / "go").touch()
    eventually(lambda: half(pid), "the process to close its files")
    halted = hf.cli("halt", "held", "--json").json
    assert pid in halted["missed"] and (shell in halted["processes"] or shell == pid)
    hf.ok("resume", "held")
    hf.ok("seize", "held")
    assert pid in [one["pid"] for one in hf.ok("graph", "held", "--json").json["processes"]]
    first = hf.host_pid
    os.kill(first, signal.SIGKILL)
    eventually(lambda: state_of(first) in "XZ", "the host to be gone")
    hf.ok("up", "--detach")
    other_sessions_work(hf)
    hf.ask("down", restart=True)
    eventually(lambda: hf.attempt("ls", "--json").rc == 0, "the next host")
    other_sessions_work(hf)
    files.close()
    eventually(lambda: not half(pid), "the exec to finish")
    hf.cli("end", "held")
