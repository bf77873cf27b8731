"""Attacks on init, on halt and on the end of a contained session (T4, A4).

Init is process 1 inside. It must be out of reach, every process inside must stand still under
halt, and no process may outlive its session. test_containment_as_user.py repeats this file as an
ordinary user.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
from pathlib import Path

import pytest

from tests.support.containment.lab import (
    CALLS,
    OTHER_USER,
    PRELUDE,
    PYTHON,
    Lab,
    by_number_inside,
    ended,
    halted_and_resumed,
    lives,
    running,
    runs_32_bit,
    session,
    status_of,
)
from tests.support.containment.lab import lab as lab
from tests.support.installation import alive, eventually

INTEL = pytest.mark.skipif(os.uname().machine != "x86_64", reason="call numbers of x86_64")

# ---------------------------------------------------------------- init is out of reach


def test_t4_init_has_no_pipe_that_code_can_write(lab: Lab) -> None:
    """A written status made the session read as ended, while its code ran on."""
    out = lab.py(
        "for fd in range(64):\n"
        "    for at in ('/proc/1/fd', '/proc/1/task/1/fd'):\n"
        "        for status in (0, 256, 9):\n"
        "            path = f'{at}/{fd}'\n"
        "            print('WROTE', tries(put, path, struct.pack('<i', status).decode('latin-1')))"
    )
    assert not re.search(r"^WROTE \d", out, re.M)
    assert lives(lab)


@pytest.mark.parametrize(
    "file",
    ["mem", "environ", "maps", "auxv", "exe", "root", "cwd", "map_files", "fdinfo", "ns/mnt"],
)
def test_t4_init_cannot_be_read(lab: Lab, file: str) -> None:
    out = lab.py(
        f"path = '/proc/1/{file}'\n"
        "print('READ', tries(lambda: os.listdir(path) if os.path.isdir(path) else "
        "os.read(os.open(path, os.O_RDONLY), 64)), tries(os.readlink, path))"
    )
    assert "READ PermissionError" in out


@INTEL
@pytest.mark.parametrize(
    "call",
    [
        "libc.ptrace(16, 1, 0, 0)",
        "libc.ptrace(0x4206, 1, 0, 0)",
        "libc.process_vm_readv(1, vector, 1, vector, 1, 0)",
        "libc.process_vm_writev(1, vector, 1, vector, 1, 0)",
        "libc.syscall(438, pidfd, 0, 0)",
        "libc.syscall(438, pidfd, 3, 0)",
        "libc.syscall(312, os.getpid(), 1, 0, 0, 0)",
        "libc.setns(pidfd, 0x20000)",
        "libc.setns(pidfd, 0x20000000)",
        "libc.setns(pidfd, 0x10000000)",
        "libc.syscall(440, pidfd, vector, 1, 4, 0)",
    ],
    ids=[
        "attach",
        "seize",
        "read memory",
        "write memory",
        "get descriptor 0",
        "get descriptor 3",
        "compare",
        "mount namespace",
        "pid namespace",
        "user namespace",
        "advise memory",
    ],
)
@pytest.mark.parametrize("nested", [False, True], ids=["plain", "nested"])
def test_t4_init_cannot_be_changed(lab: Lab, call: str, nested: bool) -> None:
    """Also with all capabilities of a user namespace made inside."""
    unshare = "print('NESTED', tries(lambda: check(libc.unshare(0x10000000))))\n" if nested else ""
    out = lab.py(
        f"pidfd = check(libc.syscall(434, 1, 0))\n{unshare}"
        "page = ctypes.create_string_buffer(64)\n"
        "vector = struct.pack('QQ', ctypes.addressof(page), 8)\n"
        f"print('CALLED', tries(lambda: check({call})))"
    )
    assert "CALLED PermissionError" in out or ("setns" in call and "CALLED OSError" in out), out
    assert status_of(lab.init_of("lab"), "TracerPid") == "0"
    assert lives(lab)


def test_t4_every_signal_to_init_is_harmless(lab: Lab) -> None:
    """By each call that sends one, with each number."""
    init = lab.init_of("lab")
    lab.py(
        "pidfd = os.pidfd_open(1)\n"
        "info = ctypes.create_string_buffer(128)\n"
        "for number in range(1, 65):\n"
        "    tries(os.kill, 1, number)\n"
        "    libc.syscall(234, 1, 1, number)\n"
        "    for code in (0, -1, -6, -60, 0x80):\n"
        "        struct.pack_into('iiiiii', info, 0, number, 0, code, 0, 0, 0)\n"
        "        libc.syscall(129, 1, number, info)\n"
        "        libc.syscall(297, 1, 1, number, info)\n"
        "        libc.syscall(424, pidfd, number, info, 0)"
    )
    assert alive(init) and lab.init_of("lab") == init
    assert lives(lab)
    halted_and_resumed(lab, "lab")


# A child keeps as many signals pending as it may. Then the kernel has no room for the sender of
# another one: it arrives at init like one from outside.
FLOOD = """
value, r = ctypes.c_void_p(0), os.pipe()
if not os.fork():
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
    while not libc.sigqueue(os.getpid(), 64, value):
        pass
    os.write(r[1], b'x')
    signal.pause()
os.read(r[0], 1)
open(sys.argv[1], 'w').close()
for number in range(1, 65):
    for _ in range(100):
        tries(os.kill, 1, number)
        libc.sigqueue(1, number, value)
"""


def test_t4_a_flood_of_signals(lab: Lab) -> None:
    """The account's other programs still get theirs. The code may stop itself, as it can anyway."""
    with session(lab) as name:
        file = begins(lab, name, FLOOD)
        queued, limit = map(int, status_of(os.getpid(), "SigQ").split("/"))
        assert queued < limit // 2, "signals and timers of the whole account would fail"
        assert json.loads(lab.quick("halt", name, "--json"))["complete"]
        lab.end(name)
        ended(file)


def begins(lab: Lab, name: str, attack: str) -> str:
    """Starts an attack that goes on beside the test; gives its file once it is ready."""
    ready = lab.project / f"ready-{name}"
    file = lab.plant(lab.project / f"attack-{name}.py", PRELUDE + attack)
    lab.sh(f"setsid {PYTHON} {file} {ready} >/dev/null &", name)
    eventually(ready.exists, "the attack to begin")
    return str(file)


def test_t4_init_put_behind_all_others_still_halts(lab: Lab) -> None:
    """Limits, priority and processors of a process of the same user can be set by default."""
    with session(lab) as name:
        lab.py(
            "import resource\n"
            "for limit in (1, 2, 3, 5, 6, 7, 9, 11, 15):\n"
            "    print(tries(resource.prlimit, 1, limit, (1, 1)))\n"
            "print(tries(os.setpriority, os.PRIO_PROCESS, 1, 19))\n"
            "print(tries(os.sched_setscheduler, 1, os.SCHED_IDLE, os.sched_param(0)))\n"
            "print(tries(os.sched_setaffinity, 1, {0}), libc.syscall(251, 1, 1, 3 << 13))\n"
            "print(tries(lambda: open('/proc/1/oom_score_adj', 'w').write('1000')))\n"
            "for _ in range(4):\n"
            "    if not os.fork():\n"
            "        os.setsid()\n"
            "        while True: pass\n",
            name,
        )
        halted_and_resumed(lab, name)


# ---------------------------------------------------------------- halt is complete


# A process traces its children and continues each of them whenever it stops.
TRACER = """
children = []
for _ in range(3):
    child = os.fork()
    if not child:
        while True: pass
    children.append(child)
for child in children:
    check(libc.ptrace(0x4206, child, 0, 0))
open(sys.argv[1], 'w').close()
while True:
    pid, status = os.waitpid(-1, 0x40000000)
    libc.ptrace(7, pid, 0, 0)
"""
# Two processes of two threads. The second thread of each traces the first thread of the other:
# the kernel gives a stop to the first thread, and only that thread stops for its tracer.
MUTUAL = """
r, w = os.pipe()
other = os.getpid()
child = os.fork()
def traces(who):
    check(libc.ptrace(0x4206, who, 0, 0))
    os.write(w, b'x')
    while True:
        pid = libc.waitpid(who, ctypes.byref(ctypes.c_int()), 0x40000000 | 1)
        if pid > 0:
            libc.ptrace(7, who, 0, 0)
threading.Thread(target=traces, args=(child or other,), daemon=True).start()
if child:
    os.read(r, 1), os.read(r, 1)
    open(sys.argv[1], 'w').close()
while True:
    libc.pause()
"""
# The first thread of a process ends. The second is traced by a process that continues it, and takes
# the stops; the third runs.
LEADERLESS = """
r, w = os.pipe()
if not os.fork():
    def traced():
        os.write(w, struct.pack('i', threading.get_native_id()))
        while True:
            libc.pause()
    def runs():
        while True:
            libc.getpid()
    for target in traced, runs:
        threading.Thread(target=target).start()
    libc.syscall(60, 0)
thread = struct.unpack('i', os.read(r, 4))[0]
check(libc.ptrace(0x4206, thread, 0, 0))
if not os.fork():
    signal.pause()
open(sys.argv[1], 'w').close()
while True:
    if libc.waitpid(thread, None, 0x40000000 | 1) > 0:
        libc.ptrace(7, thread, 0, 0)
"""
# Processes that continue each other, in several process groups and sessions.
CONTINUERS = """
for _ in range(4):
    if not os.fork():
        os.setsid()
        while True:
            tries(os.kill, -1, signal.SIGCONT)
open(sys.argv[1], 'w').close()
while True:
    tries(os.kill, -1, signal.SIGCONT)
"""


@pytest.mark.parametrize(
    "attack",
    [TRACER, MUTUAL, LEADERLESS, CONTINUERS],
    ids=["one", "mutual", "leaderless", "continue"],
)
def test_a4_halt_is_complete_while_code_continues_others(lab: Lab, attack: str) -> None:
    with session(lab) as name:
        begins(lab, name, attack)
        halted_and_resumed(lab, name)


# Signals to init lose their sender where the kernel may queue none: by a limit that code sets on
# init, or by a queue that code fills. Init then gets a signal of code like one of the host.
FORGER = """
import resource
def continued():
    signal.signal(signal.SIGCONT, lambda *_: None)
    event, made = bytearray(64), ctypes.c_int()
    struct.pack_into('Qii', event, 0, 0, signal.SIGCONT, 0)
    for n in range(1, 100):  # a stop discards the timers whose signal is pending at that moment
        check(libc.timer_create(1, (ctypes.c_char * 64).from_buffer(event), ctypes.byref(made)))
        when = struct.pack('4q', 0, n * 1_000_000, 0, n * 1_000_000)
        check(libc.timer_settime(made, 0, when, None))
for _ in range(200):  # init stops all, then holds one after the other: the forgers last
    if not os.fork():
        signal.pause()
for number in (10, 12, 36, 36):
    if not os.fork():
        os.setsid()
        continued()
        {way}
        open(sys.argv[1], 'w').close()
        while True:
            os.kill(1, number)
"""
WAYS_TO_LOSE_THE_SENDER = {
    "limit of init": "tries(resource.prlimit, 1, resource.RLIMIT_SIGPENDING, (0, 0))",
    "full queue": "signal.pthread_sigmask(signal.SIG_BLOCK, [64])\n"
    "        while not libc.sigqueue(os.getpid(), 64, ctypes.c_void_p(0)): pass",
}


@pytest.mark.parametrize("way", WAYS_TO_LOSE_THE_SENDER)
def test_a4_no_signal_of_code_inside_ends_a_halt(lab: Lab, way: str) -> None:
    with session(lab) as name:
        file = begins(lab, name, FORGER.format(way=WAYS_TO_LOSE_THE_SENDER[way]))
        for _ in range(3):
            halted_and_resumed(lab, name)
        lab.end(name)
        ended(file)


# prlimit64 (descriptors, queued signals), sched_setparam, sched_setscheduler, sched_setaffinity,
# sched_setattr, setpriority and ioprio_set: numbers of x86_64 and of i386, and arguments.
CALLS_ON_INIT = """
none = (ctypes.c_char * 64)()
space = libc.mmap
space.restype, space.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int,
                                                  ctypes.c_int, ctypes.c_int, ctypes.c_long]
zero = space(None, 4096, 3, 0x62, -1, 0)  # below 4 GiB
for one in (
    (302, 340, 1, 7, zero), (302, 340, 1, 11, zero), (302, 340, 1 | 1 << 32, 11, zero),
    (142, 154, 1, zero), (144, 156, 1, 5, zero), (203, 241, 1, 8, zero), (314, 351, 1, zero),
    (141, 97, 0, 1, 19), (251, 289, 1, 1, 3 << 13),
):
    print('CALLED', *called('{way}', *one))
print('OWN', tries(resource.prlimit, 0, 7, resource.getrlimit(7)))
"""


@INTEL
@pytest.mark.parametrize("way", ["plain", "x32", "32-bit"])
def test_a4_no_limit_or_rank_of_init_can_be_changed(lab: Lab, way: str) -> None:
    """By a limit, init would fail at the next halt and end the session."""
    if way == "32-bit" and not runs_32_bit():
        pytest.skip("the kernel has no 32-bit calls")
    with session(lab) as name:
        out = lab.py(f"import resource\n{CALLS}{CALLS_ON_INIT.format(way=way)}", name)
        answers = re.findall(r"CALLED (\S+ \d+)", out)
        assert len(answers) == 9 and set(answers) <= {"-1 1", "-1 38"} and "OWN (" in out, out
        halted_and_resumed(lab, name)


def test_t4_no_file_of_init_in_proc_can_be_written(lab: Lab) -> None:
    """On a root host they belong to uid 0 inside."""
    out = lab.py(
        "for top, _, names in os.walk('/proc/1'):\n"
        "    for name in names:\n"
        "        if isinstance(tries(os.open, f'{top}/{name}', os.O_WRONLY), int):\n"
        "            print('OPEN', f'{top}/{name}')\n"
        "print('TRIED', tries(put, '/proc/1/oom_score_adj', '1000'))"
    )
    assert "TRIED" in out and "OPEN" not in out, out


# A process is traced by another, so init cannot hold it. The kernel continues it by a timer. The
# tracer asks for SIGKILL when a byte comes through a pipe: it dies while it is held.
DYING_TRACER = """
def timer(number, nanoseconds):
    event, made = bytearray(64), ctypes.c_int()
    struct.pack_into('Qii', event, 0, 0, number, 0)
    check(libc.timer_create(1, (ctypes.c_char * 64).from_buffer(event), ctypes.byref(made)))
    when = struct.pack('4q', 0, nanoseconds, 0, nanoseconds)
    check(libc.timer_settime(made, 0, when, None))
os.mkfifo(sys.argv[1] + '.pipe')
ready = os.pipe()
traced = os.fork()
if not traced:
    os.setsid()
    signal.signal(signal.SIGCONT, lambda *_: None)
    timer(signal.SIGCONT, 5_000_000)
    os.read(ready[0], 1)
    while True: pass
if not os.fork():
    os.setsid()
    check(libc.ptrace(0x4206, traced, 0, 0))
    pipe = os.open(sys.argv[1] + '.pipe', os.O_RDWR)
    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe, 10, signal.SIGKILL)  # F_SETSIG
    fcntl.fcntl(pipe, fcntl.F_SETFL, os.O_ASYNC)
    os.write(ready[1], b'x')
    with open(sys.argv[1] + '.new', 'w') as file:
        file.write(str(os.getpid()))
    os.rename(sys.argv[1] + '.new', sys.argv[1])
    while True:
        os.waitpid(traced, 0x40000000)
        libc.ptrace(7, traced, 0, 0)
"""
KILLED_BY_SIGNAL = 0x400  # PF_SIGNALED of the kernel


def test_a4_a_tracer_that_the_kernel_kills_releases_no_process(lab: Lab) -> None:
    """The tracer of a process dies during the halt; the process still does not run."""
    with session(lab) as name:
        begins(lab, name, DYING_TRACER)
        began = lab.project / f"ready-{name}"
        inside = by_number_inside(lab.members(name))
        tracer = inside[int(began.read_text())]

        def kill_the_tracer() -> None:
            assert not flags(tracer) & KILLED_BY_SIGNAL
            Path(f"{began}.pipe").write_bytes(b"x")
            eventually(
                lambda: not alive(tracer) or flags(tracer) & KILLED_BY_SIGNAL,
                "the kernel to kill the tracer",
            )

        halted_and_resumed(lab, name, kill_the_tracer)
        eventually(lambda: not alive(tracer), "the killed tracer to end after the resume")


def flags(pid: int) -> int:
    """The kernel's flags of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[6])


# ---------------------------------------------------------------- nothing outlives the session


# argv: a mark to be found by, and a kind.
DAEMON = """
import os, select, signal, sys
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
for _ in range(0 if sys.argv[2] == 'nested' else 2):  # with the first process its namespace ends
    if os.fork():
        os._exit(0)
    os.setsid()
os.chdir('/')
null = os.open('/dev/null', os.O_RDWR)
for fd in range(3):
    os.dup2(null, fd)
os.closerange(3, 1 << 10)
while True:
    if sys.argv[2] == 'forking':
        if os.fork():
            os._exit(0)
        select.select([], [], [], 0.001)
    else:
        signal.pause()
"""


def daemon(lab: Lab, name: str, kind: str) -> str:
    """Starts a daemon inside that left its terminal and ignores all signals; gives its mark."""
    mark = f"daemon-{secrets.token_hex(4)}"
    file = lab.plant(lab.project / "daemon.py", DAEMON)
    nested = f"{OTHER_USER}unshare -Urpf --kill-child " if kind == "nested" else ""
    lab.sh(f'cd /; {nested}{PYTHON} -c "$(cat {file})" {mark} {kind} &', name)
    eventually(lambda: running(mark), "the daemon")
    return mark


@pytest.mark.parametrize("kind", ["quiet", "forking"])
@pytest.mark.parametrize("end", ["exit", "end", "halt and end", "host killed", "keeper killed"])
def test_t4_no_daemon_outlives_its_session(lab: Lab, end: str, kind: str) -> None:
    with session(lab) as name:
        mark = daemon(lab, name, kind)
        if end == "exit":
            lab.attempt("run", name, "--", "exit 3")
        elif end == "end":
            lab.end(name)
        elif end == "halt and end":
            lab.quick("halt", name)
            lab.end(name)
        elif end == "host killed":
            os.kill(lab.host_pid, signal.SIGKILL)
            lab.ok("up", "--detach")
            eventually(lambda: running(mark), "the session to outlive its host")
            lab.end(name)
        else:
            os.kill(lab.get(name)["keeper"], signal.SIGKILL)
            eventually(lambda: lab.get(name)["epoch"] == 2, "the next incarnation")
        try:
            ended(mark)
        finally:
            for pid in running(mark):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def test_t4_a_daemon_in_namespaces_of_its_own_ends_too(lab: Lab) -> None:
    with session(lab) as name:
        mark = daemon(lab, name, "nested")
        lab.end(name)
        ended(mark)


def test_t4_process_two_stopped_or_traced_saves_no_daemon(lab: Lab) -> None:
    """Process 2 waits for the session's first program, and is an ordinary process."""
    with session(lab) as name:
        mark = daemon(lab, name, "quiet")
        lab.sh("kill -STOP 2; kill -TTIN 2", name) if lab.shell_of(name) != two(lab, name) else None
        lab.attempt("end", name)
        ended(mark)


def two(lab: Lab, name: str) -> int:
    """The outside pid of the process that is 2 inside."""
    return by_number_inside(lab.members(name))[2]


def test_t4_no_memory_of_a_session_outlives_it_while_the_host_is_stopped(lab: Lab) -> None:
    """The keeper holds the namespaces, and with them what code left in /dev/shm."""
    with session(lab) as name:
        keeper, init, host = lab.get(name)["keeper"], lab.init_of(name), lab.host_pid
        assert "mnt" in namespaces_held(keeper)
        os.kill(host, signal.SIGSTOP)
        try:
            os.kill(init, signal.SIGKILL)
            eventually(lambda: not namespaces_held(keeper), "the keeper to let go")
            assert alive(keeper)
        finally:
            os.kill(host, signal.SIGCONT)
        eventually(lambda: lab.get(name)["exit_code"] is not None, "the host to say that it ended")


def namespaces_held(pid: int) -> set[str]:
    """The kinds of the namespaces of which a process has descriptors."""
    found = set[str]()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            kind, _, rest = os.readlink(f"/proc/{pid}/fd/{fd}").partition(":[")
            found |= {kind} if rest and kind in ("user", "mnt", "ipc", "net", "pid") else set()
    return found


def test_t4_a_session_whose_init_is_gone_has_no_process(lab: Lab) -> None:
    with session(lab) as name:
        mark = daemon(lab, name, "quiet")
        init = lab.init_of(name)
        os.kill(init, signal.SIGKILL)
        ended(mark)
        eventually(lambda: lab.get(name)["exit_code"] is not None, "the host to say that it ended")
