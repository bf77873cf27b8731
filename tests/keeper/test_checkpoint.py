"""A session can be saved and restored by CRIU, with its walls and its exec gate.

Contained, and plain as root. The last test runs this file again as an ordinary user. The tests need
CRIU from scripts/criu.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.wire import keeper as wire
from holdfast.wire import notification
from holdfast.wire.checkpointing import OUTPUT_FILE, Outcome
from tests.support.contained_keeper import PYTHON, ROOT, Contained
from tests.support.keeper import WAIT_S, Link, Nursery, below, gone, state_of, until
from tests.support.ordinary_user import ordinary_user
from tests.support.recovery.checkpoint import Failed, Held, criu, dump

libc = ctypes.CDLL(None)
KEEP_SIZE, ROOM_BYTES, BLOCK_BYTES = 1, 32 << 20, 512


class Box(Contained):
    """A keeper, the images of its session, and sessions restored from them."""

    def __init__(self, top: Path, plain: bool) -> None:
        criu()
        super().__init__(top)
        self.images = top / "images"
        self.restored = 0
        self.plain = plain

    @property
    def walls(self) -> wire.Containment | None:
        return None if self.plain else self.containment

    def run(self, *argv: str, name: str = "a", **more: Any) -> Link:
        return self.nursery.run(name, list(argv), containment=self.walls, **more)

    def held(self, name: str = "a") -> Held:
        return Held.of_keeper(self.nursery.keepers[name])

    def dump(self, stop: bool = True, name: str = "a", **more: Any) -> Outcome:
        held = self.held(name)
        try:
            return dump(held, self.images, self.walls, stop, **more)
        finally:
            held.close()

    def restore(self, gate: int = 0, output: bytes = b"", base: int = 0) -> Again:
        """Restore the session in a new keeper, whose output begins at `base`."""
        (self.images / OUTPUT_FILE).write_bytes(output)
        found = criu()
        self.restored += 1
        name = f"again-{self.restored}"
        result, _, _, text = self.nursery.spawn(
            name,
            [],
            containment=self.walls,
            gate=gate,
            epoch=2,
            base=base,
            thaw=bytes(self.images),
            criu=tuple(map(os.fsencode, (found.program, found.loader, *found.libraries))),
        )
        if result != wire.SPAWN_OK:
            raise Failed(text)
        return Again(self.nursery, name)


class Again:
    """The host's side of a restored session."""

    def __init__(self, nursery: Nursery, name: str) -> None:
        self.name, self.link = name, nursery.link(name)
        self.seen = self.link.ring.start

    @property
    def program(self) -> int:
        return self.link.welcome.root_pid

    def type(self, data: bytes) -> None:
        self.link.type(data)

    def wait_for(self, text: bytes) -> bytes:
        """Wait for output; return everything up to and with it, since the last call."""
        ring = self.link.ring

        def said() -> bytes:
            return ring.copy(self.seen, ring.head) or b""

        until(lambda: text in said(), f"{text!r} in {said()[-2000:]!r}")
        found = said().partition(text)[0] + text
        self.seen += len(found)
        return found

    def foreground(self) -> int:
        return self.link.state().foreground

    def exit_status(self) -> int:
        return self.link.exit_status()


@pytest.fixture(params=["contained", "plain"])
def box(request: pytest.FixtureRequest) -> Iterator[Box]:
    plain = request.param == "plain"
    if plain and not ROOT:
        pytest.skip("only root can restore a plain session")
    # A short path: a socket's address has few bytes.
    with tempfile.TemporaryDirectory(prefix="hf-", ignore_cleanup_errors=True) as top:
        made = Box(Path(top), plain)
        yield made
        made.close()


contained = pytest.mark.parametrize("box", ["contained"], indirect=True)
plain = pytest.mark.parametrize("box", ["plain"], indirect=True)


def shell(box: Box, *lines: str, gate: int = wire.GATE_NONE) -> Link:
    """Start a shell inside and let it finish these lines."""
    link = box.run("bash", "--norc", gate=gate)
    for line in lines:
        link.type(line.encode() + b"\r")
    link.type(b"echo REA''DY\r")
    link.wait_for(b"READY\r\n")
    return link


def command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


SHOW = (
    "set +m; for p in $PPID $$ $DAEMON; do grep -E '^(Name|Uid|Gid|Groups|NoNewPrivs|Seccomp.*|"
    "Cap.*|NSpid):' /proc/$p/status; ls -x /proc/$p/fd; "
    "cat /proc/$p/limits /proc/$p/oom_score_adj; cut -d' ' -f 1,2,4-8,18,19 /proc/$p/stat; done; "
    "mounts | sed 's/^[0-9:]* //' | sort; stty -a; tty; umask; "
    "id; cat /proc/self/uid_map; readlink /proc/$$/exe /proc/$$/cwd; set -m"
)


def shown(text: bytes) -> list[str]:
    """The output of SHOW, between the marks.

    Without what is another among the machine's processes and terminals: the keeper of hf-root, and
    the number of the terminal.
    """
    said = text.decode().partition("BEGIN\r\n")[2].partition("END\r\n")[0]
    said = re.sub(r"(?<=\(hf-root\) )\d+|(?<=/dev/pts/)\d+", "N", said)
    said = re.sub(r"(\(bash\) \d+ \d+ \d+) \d+", r"\1 N", said)
    return said.split("\r\n")


# ---------------------------------------------------------------- dump


def test_a_saved_session_goes_on(box: Box) -> None:
    """Also a program that waits in poll, which must not see EINTR."""
    os.mkfifo(box.own / "fifo")
    file = box.own / "followed"
    file.write_text("one\n")
    link = shell(box, "X=kept", f"tail -f {file} &", f"tail -f {box.own}/fifo &")
    link.wait_for(b"one\r\n")
    for _ in range(2):
        assert not box.dump(stop=False).problem
        shutil.rmtree(box.images)
    with file.open("a") as f:
        f.write("two\n")
    link.wait_for(b"two\r\n")
    (box.own / "fifo").write_text("three\n")
    link.wait_for(b"three\r\n")
    link.type(b"echo still $X; exit 7\r")
    link.wait_for(b"still kept\r\n")
    assert os.waitstatus_to_exitcode(link.exit_status()) == 7


def test_memory_is_written_into_room_that_was_reserved_before_the_freeze(box: Box) -> None:
    link = shell(box, "X=kept")
    box.images.mkdir()
    kept = box.images / "pages-2.img"  # the shell's; hf-root's is the first
    with kept.open("xb") as f:
        libc.fallocate(f.fileno(), KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(ROOM_BYTES))
    assert not box.dump(stop=False).problem
    assert 0 < kept.stat().st_size < ROOM_BYTES <= kept.stat().st_blocks * BLOCK_BYTES
    assert all(one.stat().st_size for one in box.images.glob("pages-*"))
    link.type(b"echo still $X\r")
    link.wait_for(b"still kept\r\n")


def test_a_session_with_an_unknown_filter_is_not_saved_and_goes_on(box: Box) -> None:
    (box.own / "filter.py").write_text(
        "import ctypes, struct, sys\n"
        "code = ctypes.create_string_buffer(struct.pack('<HBBI', 6, 0, 0, 0x7fff0000))\n"
        "program = struct.pack('HxxxxxxQ', 1, ctypes.addressof(code))\n"
        "assert not ctypes.CDLL(None).prctl(22, 2, ctypes.c_char_p(program), 0, 0)\n"
        "print('FIL' + 'TERED', flush=True)\n"
        "print('heard', sys.stdin.readline())\n"
    )
    link = box.run(PYTHON, f"{box.own}/filter.py")
    link.wait_for(b"FILTERED")
    with pytest.raises(Failed, match=r"python3.* has a seccomp filter of its own"):
        box.dump()
    link.type(b"me\r")
    link.wait_for(b"heard me")


@contained
def test_programs_cannot_reach_criu_while_it_saves_them(box: Box) -> None:
    (box.own / "hunt.py").write_text(
        "import os\n"
        "print('HUN' + 'TING', flush=True)\n"
        "met, reached = set(), set()\n"
        "def read(path):\n"
        "    try:\n"
        "        with open(path, 'rb') as f:\n"
        "            return f.read(1)\n"
        "    except OSError:\n"
        "        return b''\n"
        "def link(path):\n"
        "    try:\n"
        "        return os.readlink(path)\n"
        "    except OSError:\n"
        "        return b''\n"
        "def names(path):\n"
        "    try:\n"
        "        return os.listdir(path)\n"
        "    except OSError:\n"
        "        return []\n"
        "while not os.path.exists('stop'):\n"
        "    for pid in set(os.listdir('/proc')) - {'1', '2', '3'}:\n"
        "        if pid.isdigit() and read(f'/proc/{pid}/comm'):\n"
        "            met.add(pid)\n"
        "            links = ['root', 'cwd', 'exe', 'ns/mnt']\n"
        "            links += [f'fd/{n}' for n in names(f'/proc/{pid}/fd')]\n"
        "            reached |= {one for one in links if link(f'/proc/{pid}/{one}')}\n"
        "            files = ('mem', 'environ', 'maps', 'auxv')\n"
        "            reached |= {one for one in files if read(f'/proc/{pid}/{one}')}\n"
        "print('met', len(met), 'reached', sorted(reached), 'OVER')\n"
    )
    link = box.run(PYTHON, "hunt.py", cwd=str(box.own))
    link.wait_for(b"HUNTING")
    for _ in range(3):
        with contextlib.suppress(Failed):  # the program had a file of an ended process open
            box.dump(stop=False)
    (box.own / "stop").touch()
    said = link.wait_for(b"OVER").replace(b"\r\n", b"").decode()
    assert re.search(r"met [1-9]\d* reached \[\] OVER", said), said


def goes_on(link: Link) -> None:
    """Its shell answers, init obeys, and init still reports the end."""
    link.type(b"echo still $X; exit 7\r")
    link.wait_for(b"still kept\r\n")
    assert os.waitstatus_to_exitcode(link.exit_status()) == 7


@pytest.mark.parametrize("go_on", [False, None], ids=["refuses", "has died"])
def test_a_session_ends_only_if_the_host_has_kept_its_checkpoint(
    box: Box, go_on: bool | None
) -> None:
    link = shell(box, "X=kept")
    with pytest.raises(Failed):
        box.dump(go_on=go_on)
    goes_on(link)


@pytest.mark.parametrize("stop", [False, True], ids=["going on", "to end"])
@pytest.mark.parametrize("step", ["begun", "saved", "copied"])
def test_a_session_survives_the_death_of_the_checkpointer(box: Box, step: str, stop: bool) -> None:
    """The host lets init go on. CRIU dies too, if it has written the images.

    While it puts its code into the processes, its own death by SIGKILL could end one of them.
    """

    def kill(told: dict[str, Any], process: subprocess.Popen[bytes]) -> None:
        for pid in (*below(process.pid), process.pid) if told.get("step") == step else ():
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                if step != "begun" or b"swrk" not in command(pid):
                    os.kill(pid, signal.SIGKILL)

    link = shell(box, "X=kept")
    with pytest.raises(Failed):
        box.dump(stop, seen=kill)
    if init := box.held().init:
        os.kill(init, signal.SIGCONT)
    goes_on(link)


def test_a_session_survives_a_full_disk(box: Box) -> None:
    if not ROOT:
        pytest.skip("only root can mount a small file system")
    link = shell(box, "X=kept")
    box.images.mkdir()
    tmpfs = ("mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(box.images))
    subprocess.run(tmpfs, check=True)
    try:
        for stop in (False, True):
            with pytest.raises(Failed):
                box.dump(stop)
    finally:
        subprocess.run(("umount", str(box.images)), check=True)
    goes_on(link)


def test_a_session_that_forks_all_the_time_is_saved(box: Box) -> None:
    link = shell(box, "X=kept", "while :; do (true); (true) & wait; done &")
    for _ in range(3):
        box.dump(stop=False)
        shutil.rmtree(box.images)
    box.dump()
    assert link.exit_status()
    again = box.restore()
    again.type(b"kill %1; echo still $X\r")
    again.wait_for(b"still kept\r\n")


@pytest.mark.parametrize("count", [50, pytest.param(500, marks=pytest.mark.soak)])
def test_a_session_of_many_processes_comes_back(box: Box, count: int) -> None:
    link = shell(box, f"set +m; for n in {{1..{count}}}; do sleep 9999 & done; echo $! >/dev/null")
    box.dump()
    assert link.exit_status()
    again = box.restore()
    again.type(b"jobs -r | wc -l; echo COUN''TED\r")
    again.wait_for(b"%d\r\nCOUNTED\r\n" % count)


def test_a_session_of_an_account_with_very_many_pipes_is_saved(box: Box) -> None:
    """Beyond a limit of the account, the kernel makes only tiny pipes for CRIU."""
    held = list[int]()
    try:
        with contextlib.suppress(OSError):  # at most as many descriptors as are allowed
            for _ in range(1100):
                held += os.pipe()
        link = shell(box, "X=$(head -c 3000000 /dev/zero | tr '\\0' x)")
        box.dump()
        assert link.exit_status()
        again = box.restore()
        again.type(b"echo still ${#X}\r")
        again.wait_for(b"still 3000000\r\n")
    finally:
        for fd in held:
            os.close(fd)


def test_pipes_of_a_program_come_back_in_an_account_with_very_many_pipes(box: Box) -> None:
    """The kernel makes them smaller than they were."""
    held = list[int]()
    (box.own / "pipes.py").write_text(
        "import os\nr, w = os.pipe()\nos.write(w, b'kept')\ninput('begun\\n')\n"
        "print(os.read(r, 9).decode(), 'over')\n"
    )
    try:
        link = shell(box)
        link.type(f"{PYTHON} {box.own}/pipes.py\r".encode())
        link.wait_for(b"begun\r\n")
        box.dump()
        assert link.exit_status()
        with contextlib.suppress(OSError):
            for _ in range(1100):
                held += os.pipe()
        again = box.restore()
        again.type(b"\r")
        again.wait_for(b"kept over\r\n")
    finally:
        for fd in held:
            os.close(fd)


# ---------------------------------------------------------------- restore


def terminal_of(pid: int) -> tuple[int, int]:
    """The device of a process's controlling terminal, and the group in its foreground."""
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(stat[4]), int(stat[5])


def test_restored_jobs_keep_their_controlling_terminal(box: Box) -> None:
    """Each of them, in the foreground and in the background, also after a second restore."""
    link = shell(box, "sleep 8888 &")
    link.type(b"bash --norc\r")
    link.type(b"sleep 9999\r")
    top = link.welcome.root_pid
    until(lambda: any(b"9999" in command(pid) for pid in below(top)), "the foreground job")
    name = "a"
    for _ in range(2):
        box.dump(name=name)
        again = box.restore()
        name = again.name
        job, inner = sorted(_children(again.program), key=below)
        (front,) = below(inner)
        shutil.rmtree(box.images)
        device, group = terminal_of(front)
        assert device and group == front == again.foreground()
        assert {terminal_of(pid) for pid in (again.program, inner, job)} == {(device, group)}
        for pid in (again.program, inner, job, front):
            opened = map(os.readlink, Path(f"/proc/{pid}/fd").iterdir())
            assert not [path for path in opened if "ptmx" in path]
    again.type(b"\x03")
    until(lambda: not below(inner), "the end of the foreground job")


def test_a_stopped_job_can_be_saved_again_and_again(box: Box) -> None:
    link = shell(box, "X=kept")
    link.type(b"sleep 9999\r")
    until(lambda: b"9999" in command(link.state().foreground), "a job in the foreground")
    link.type(b"\x1a")
    link.wait_for(b"Stopped")
    for _ in range(3):
        box.dump(stop=False)
        shutil.rmtree(box.images)
    box.dump()
    assert link.exit_status()
    again = box.restore()
    [job] = [pid for pid in below(again.program) if b"9999" in command(pid)]
    assert state_of(job) == "T", "it does not run before it is continued"
    again.type(b"fg %+\r")
    until(lambda: again.foreground() == job and state_of(job) == "S", "the job to go on")
    again.type(b"\x03")
    goes_on(again.link)


def test_a_daemon_that_has_the_terminal_open_does_not_hide_its_leader(box: Box) -> None:
    """CRIU may meet the daemon first, to which the kernel does not name leader and foreground."""
    shell(box, "X=kept; setsid -f sleep 8888")
    name = "a"
    for _ in range(3):
        box.dump(name=name)
        again = box.restore()
        name = again.name
        shutil.rmtree(box.images)
        again.type(b"sleep 9999\r")
        until(
            lambda: any(b"9999" in command(pid) for pid in _children(again.program)),
            "a job in the foreground, which no longer runs the shell's code",
        )
        assert again.foreground() != again.program
        again.type(b"\x03")
        until(lambda: again.foreground() == again.program, "the shell in the foreground")
        again.type(b"setsid -f sleep 8888; echo still $X\r")
        again.wait_for(b"still kept\r\n")
    top = parent(again.program)
    until(
        lambda: sum(b"8888" in command(pid) for pid in _children(top)) == 4,
        "hf-root to have adopted the new daemons too",
    )


FRONT = """\
import fcntl, os, signal, sys, termios
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
def lose(terminal):
    if os.fork() == 0:
        os.setpgid(0, 0)
        os.tcsetpgrp(terminal, os.getpgrp())
        os._exit(0)
    os.wait()
    print("without", "front", flush=True)
    signal.sigwait([signal.SIGUSR1])
    print("in front:", os.tcgetpgrp(terminal) == os.getpgrp(), flush=True)
master, slave = os.openpty()
if sys.argv[1] == "inner" and os.fork() == 0:
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    lose(slave)
elif sys.argv[1] == "inner":
    os.wait()
else:
    lose(0)
"""


@pytest.mark.parametrize("which", ["own", "inner"])
def test_a_terminal_with_an_ended_group_in_its_foreground_comes_back(box: Box, which: str) -> None:
    """As between the end of a job and the shell's return to the foreground."""
    (box.own / "front.py").write_text(FRONT)
    link = box.run(PYTHON, f"{box.own}/front.py", which)
    link.wait_for(b"without front\r\n")
    box.dump()
    again = box.restore()
    leader = again.program if which == "own" else below(again.program)[0]
    os.kill(leader, signal.SIGUSR1)
    again.wait_for(b"in front: True\r\n")


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_program_that_leads_the_session_keeps_inner_terminals(box: Box) -> None:
    """It holds their masters itself; they and the session's own have the numbers they had."""
    (box.own / "inner.py").write_text(
        "import os\nends = [os.openpty() for _ in range(2)]\n"
        "for _ in range(2):\n"
        "    print('names', *(os.ttyname(slave) for _, slave in ends), os.ttyname(0))\n"
        "    input('more\\n')\n"
    )
    link = box.run(PYTHON, f"{box.own}/inner.py")
    names = link.wait_for(b"more\r\n")
    if box.walls:
        assert names == b"names /dev/pts/1 /dev/pts/2 /dev/pts/0\r\nmore\r\n"
    box.dump()
    again = box.restore()
    again.type(b"\r")
    said = again.wait_for(b"more\r\n")[2:]
    # Another program may have taken a number among the machine's terminals.
    assert said == names if box.walls else len(set(re.findall(rb"pts/\d+", said))) == 3


def test_a_session_comes_back_as_it_was(box: Box) -> None:
    """Its variables, jobs, daemon, process numbers and terminal, and its walls."""
    daemon = f"setsid -f sh -c 'echo $$ >{box.own}/daemon; exec sleep 777'"
    link = shell(
        box,
        "stty -echoctl",
        # Mounts of the machine may change.
        "mounts() { " + ("cut -d' ' -f 3- /proc/self/mountinfo; }" if box.walls else ":; }"),
        "X=kept; alias hi='echo alias $X'; trap 'echo trapped' USR1; ulimit -n 100",
        "sleep 12345 &",
        "(sleep 500; echo) | cat &",
        daemon,
        f"until [ -s {box.own}/daemon ]; do :; done; read DAEMON <{box.own}/daemon",
    )
    link.type(b"sleep 4242\r")
    until(lambda: b"4242" in command(link.state().foreground), "a job in the foreground")
    link.type(b"\x1a")
    link.wait_for(b"Stopped")
    link.type(b"echo BEG''IN; " + SHOW.encode() + b"; jobs -l; echo EN''D\r")
    before = shown(link.wait_for(b"END\r\n"))
    held = box.held()
    namespaces = {os.fstat(fd).st_ino for name, fd in held.namespaces.items() if name != "net"}
    box.dump()
    assert os.waitstatus_to_exitcode(link.exit_status()) == -signal.SIGKILL

    again = box.restore()
    fresh = box.held(again.name).namespaces
    assert namespaces.isdisjoint(os.fstat(fd).st_ino for fd in fresh.values())
    again.type(b"hi; echo BEG''IN; " + SHOW.encode() + b"; jobs -l; echo EN''D\r")
    assert b"alias kept\r\n" in again.wait_for(b"BEGIN\r\n")
    after = shown(b"BEGIN\r\n" + again.wait_for(b"END\r\n"))
    assert after == before and any("sleep 4242" in line for line in after)
    again.type(b"kill -USR1 $$; fg %+\r")
    again.wait_for(b"trapped")
    until(lambda: again.foreground() != again.program, "a job in the foreground")
    again.type(b"\x03")
    until(lambda: again.foreground() == again.program, "the shell in the foreground")
    again.type(b"echo code $?; exit 5\r")
    again.wait_for(b"code 130\r\n")
    assert os.waitstatus_to_exitcode(again.exit_status()) == 5
    pid = again.program
    until(lambda: gone(pid), "the end of the program and all others")


def test_a_job_that_was_stopped_at_the_terminal_stays_stopped(box: Box) -> None:
    """By SIGTTIN, as it read in the background, and by SIGTTOU, as it wrote there."""
    link = shell(box, "stty tostop", "cat & echo nev''er &")
    top = link.welcome.root_pid
    until(lambda: [state_of(pid) for pid in below(top)] == ["T", "T"], "two stopped jobs")
    for _ in range(2):
        box.dump(stop=False)
        shutil.rmtree(box.images)
        assert [state_of(pid) for pid in below(top)] == ["T", "T"]
    box.dump()
    assert link.exit_status()
    again = box.restore()
    assert [state_of(pid) for pid in below(again.program)] == ["T", "T"]
    again.type(b"fg %1\r")
    until(lambda: again.foreground() != again.program, "a job in the foreground")
    again.type(b"words\r\x04")
    again.wait_for(b"words\r\nwords\r\n")
    until(lambda: again.foreground() == again.program, "the shell in the foreground")
    again.type(b"fg %2\r")
    again.wait_for(b"\r\nnever\r\n")


def test_an_editor_comes_back_with_unsaved_text(box: Box) -> None:
    if shutil.which("vim") is None:
        pytest.skip("vim is not installed here")
    link = shell(box)
    link.type(f"vim -u NONE {box.own}/text\r".encode())
    link.wait_for(b"[New")
    link.type(b"iunsaved words")
    link.wait_for(b"unsaved words")
    box.dump()
    assert not (box.own / "text").exists()
    again = box.restore()
    # Now and then vim draws the first keys after a restore with the next key only.
    again.type(b", and more")
    again.type(b"\x1b")
    again.wait_for(b"more")
    again.type(b":wq\r")
    again.wait_for(b"bash-")
    assert (box.own / "text").read_text() == "unsaved words, and more\n"


@contained
def test_a_copy_runs_beside_the_original_and_can_be_saved_itself(box: Box) -> None:
    link = shell(box, "X=kept")
    box.dump(stop=False)
    copy = box.restore()
    copy.type(b"X=$X,copied; echo $X\r")
    copy.wait_for(b"kept,copied\r\n")
    link.type(b"echo $X,original\r")
    link.wait_for(b"kept,original\r\n")
    shutil.rmtree(box.images)
    box.dump(name=copy.name)
    again = box.restore()
    again.type(b"echo $X,again\r")
    again.wait_for(b"kept,copied,again\r\n")


@contained
def test_files_in_memory_come_back(box: Box) -> None:
    """Open ones, mapped ones, and others; /dev/shm is a memory file system of the session."""
    (box.own / "memory.py").write_text(
        "import mmap, os\n"
        "os.mkdir('/dev/shm/folder', 0o700)\n"
        "file = open('/dev/shm/folder/mapped', 'w+b')\n"
        "file.truncate(8192)\n"
        "mapped = mmap.mmap(file.fileno(), 8192)\n"
        "mapped[5000:5004] = b'page'\n"
        "os.link('/dev/shm/folder/mapped', '/tmp/../dev/shm/linked')\n"
        "os.symlink('folder', '/dev/shm/way')\n"
        "open('/tmp/memory/closed', 'w').write('closed')\n"
        "gone = open('/tmp/memory/gone', 'w+')\n"
        "gone.write('deleted')\n"
        "gone.flush()\n"
        "os.unlink('/tmp/memory/gone')\n"
        "print('PRE' + 'PARED', flush=True)\n"
        "input()\n"
        "gone.seek(0)\n"
        "mapped[0:4] = b'new!'\n"
        "linked = open('/dev/shm/way/../linked', 'rb').read()\n"
        "mode = oct(os.stat('/dev/shm/folder').st_mode)\n"
        "text = open('/tmp/memory/closed').read()\n"
        "print(gone.read(), text, linked[:4], linked[5000:5004], mode)\n"
    )
    link = shell(box)
    link.type(f"{PYTHON} {box.own}/memory.py\r".encode())
    link.wait_for(b"PREPARED")
    box.dump()
    again = box.restore()
    again.type(b"\r")
    again.wait_for(b"deleted closed b'new!' b'page' 0o40700\r\n")


def test_files_open_for_writing_come_back_as_they_were(box: Box) -> None:
    """What they had become meanwhile is kept beside the images."""
    link = shell(box)
    link.type(f"cd {box.own}; exec 7>>grown 8>removed; echo one >&7; echo one >&8\r".encode())
    link.type(b"echo WRI''TTEN\r")
    link.wait_for(b"WRITTEN\r\n")
    assert box.dump(stop=False).written == [f"{box.own}/grown", f"{box.own}/removed"]
    link.type(b"echo two >&7; exit\r")
    assert link.exit_status() == 0
    (box.own / "removed").unlink()
    again = box.restore()
    again.type(b"echo three >&7; echo three >&8; echo WRI''TTEN\r")
    again.wait_for(b"WRITTEN\r\n")
    assert (box.own / "grown").read_text() == "one\nthree\n"
    assert (box.own / "removed").read_text() == "one\nthree\n"
    with tarfile.open(box.images / "replaced.tar") as archive:
        [replaced] = archive.getmembers()
        content = archive.extractfile(replaced)
        assert content is not None and content.read() == b"one\ntwo\n"


def test_a_failed_restore_says_why_and_leaves_nothing(box: Box) -> None:
    """A file that the program reads has changed: its size tells."""
    (box.own / "read").write_text("some")
    link = shell(box, f"exec 7<{box.own}/read 8>{box.own}/written")
    box.dump()
    assert link.exit_status()
    (box.own / "read").write_text("more words")
    (box.own / "written").write_text("of another program")
    with pytest.raises(Failed, match="bad size"):
        box.restore()
    assert (box.own / "written").read_text() == "of another program"
    assert (box.images / "replaced.tar").stat().st_size == 0, "nothing has given way"
    (box.own / "read").write_text("some")
    again = box.restore()
    again.type(b"read X <&7; echo it says $X\r")
    again.wait_for(b"it says some\r\n")


@plain
def test_a_restored_session_without_a_keeper_is_ended(box: Box) -> None:
    """Another keeper listens at the place of the new one."""
    link = shell(box, "X=kept; sleep 8888 &", f"exec 8>{box.own}/written")
    before = [box.held().top, link.welcome.root_pid, *below(link.welcome.root_pid)]
    box.dump()
    assert link.exit_status()
    (box.own / "written").write_text("of another program")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        other.bind(str(box.nursery.path("again-1")))
        other.listen()
        with pytest.raises(Failed, match="a keeper listens at"):
            box.restore()
    assert all(map(gone, before))
    assert (box.own / "written").read_text() == "of another program"
    again = box.restore()
    assert again.program == before[1]
    again.type(b"echo still $X\r")
    again.wait_for(b"still kept\r\n")


def test_s5_output_goes_on_at_the_next_offset(box: Box) -> None:
    link = shell(box)
    link.type(b"echo mo''re\r")
    link.wait_for(b"more\r\n")
    box.dump()
    assert link.exit_status()
    before, end = link.all(), link.ring.head
    again = box.restore(output=before[-4000:], base=end)
    again.type(b"echo ag''ain\r")
    again.wait_for(b"again\r\n")
    ring = again.link.ring
    assert (ring.copy(ring.start, end) or b"") == before[-4000:]
    assert again.link.welcome.epoch == 2


@contained
def test_a_network_of_its_own_comes_back_with_its_connections(box: Box) -> None:
    box.containment = wire.Containment(box.containment.mounts, wire.NET_OWN)
    (box.own / "server.py").write_text(
        "import socket\n"
        "sock = socket.create_server(('127.0.0.1', 4711))\n"
        "print('LIS' + 'TENING', flush=True)\n"
        "while True:\n"
        "    file = sock.accept()[0].makefile('rw')\n"
        "    for line in file:\n"
        "        print('served', line, end='', file=file, flush=True)\n"
    )
    link = shell(box, f"{PYTHON} {box.own}/server.py &")
    link.wait_for(b"LISTENING")
    link.type(b"exec 7<>/dev/tcp/127.0.0.1/4711; echo one >&7; read X <&7; echo $X\r")
    link.wait_for(b"served one\r\n")
    link.type(b"echo two >&7; echo SE''NT\r")
    link.wait_for(b"SENT\r\n")
    box.dump()
    again = box.restore()
    again.type(b"read X <&7; echo $X; echo three >&7; read X <&7; echo $X\r")
    again.wait_for(b"served two\r\n")
    again.wait_for(b"served three\r\n")
    again.type(b"exec 7>&-; exec 7<>/dev/tcp/127.0.0.1/4711; echo four >&7; read X <&7; echo $X\r")
    again.wait_for(b"served four\r\n")


@contained
def test_the_end_of_the_keeper_ends_a_restored_session(box: Box) -> None:
    link = shell(box, "sleep 600 &")
    box.dump()
    assert link.exit_status()
    again = box.restore()
    keeper = box.nursery.keepers[again.name]
    os.kill(keeper, signal.SIGKILL)
    until(lambda: gone(again.program), "the end of the session")


# ---------------------------------------------------------------- the exec gate


def answer_exec(listener: int, error: int = 0) -> int:
    """Answer the next exec; return the process that asked."""
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    assert poll.poll(int(WAIT_S * 1000))[0][1] & select.POLLIN
    data = bytearray(notification.NOTIFICATION.size)
    fcntl.ioctl(listener, notification.RECV, data)
    number, pid, *_ = notification.NOTIFICATION.unpack(data)
    flags = 0 if error else notification.CONTINUE
    reply = notification.ANSWER.pack(number, 0, -error, flags)
    fcntl.ioctl(listener, notification.SEND, reply)
    return int(pid)


def test_p4_a_restored_session_has_its_exec_gate_again(box: Box) -> None:
    link = shell(box, "X=kept", gate=wire.GATE_REQUIRED)
    box.dump()
    assert link.exit_status()
    again = box.restore(wire.GATE_REQUIRED)
    again.link.sock.send(wire.gate())
    _, [listener], _, _ = socket.recv_fds(again.link.sock, 1 << 16, 1)
    again.type(b"/bin/echo ran $X; /bin/echo never; echo code $?\r")
    assert answer_exec(listener) > 0
    again.wait_for(b"ran kept\r\n")
    answer_exec(listener, errno.EACCES)
    assert b"\nnever" not in again.wait_for(b"code 126\r\n")
    held = box.held(again.name)
    for pid in (again.program, *(_children(held.init) if held.init else (held.top,))):
        assert "Seccomp_filters:\t1\n" in Path(f"/proc/{pid}/status").read_text()


def _children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


# ---------------------------------------------------------------- as an ordinary user


@pytest.mark.skipif(not ROOT, reason="it is being run as an ordinary user")
def test_all_of_this_as_an_ordinary_user() -> None:
    criu()
    with ordinary_user() as user:
        done = user.run(
            [
                user.python("pytest"),
                *("-m", "pytest", "-q", "-rs", "-c", os.devnull, "-p", "no:cacheprovider"),
                *("--import-mode=importlib", "--rootdir", str(Path(__file__).parents[2])),
                __file__,
            ]
        )
        assert done is not None and done.returncode == 0, (
            (done.stdout[-3000:] + done.stderr[-1000:]) if done else "it did not run"
        )
        assert re.search(r"\d\d passed", done.stdout), done.stdout
