"""Saves a running session: enters its namespaces, and lets CRIU write the images.

    this process ── in the session's namespaces, except the pid namespace
      └─ child ── in the pid namespace too: starts CRIU and answers it

CRIU freezes the processes, writes the images and asks at `post-dump` whether to go on. Then this
program copies the files that CRIU does not save. To end the session, the host stores the images
before the answer: only then CRIU kills the processes. An earlier failure, also the death of this
process or of the host, leaves the session running.

A halted session stands still in frozen control groups, which CRIU cannot save. The groups are
thawed once CRIU has seized all processes, and frozen again before CRIU lets them go (shim.c).

Process 1 is stopped while a session is being ended: otherwise process 1 and CRIU would end with
hf-root.

A plain session of root has the machine's namespaces, hf-root (keeper/plain.py), and no process 1.
"""

from __future__ import annotations

import contextlib
import os
import time

from holdfast.checkpointer import mapped_files, memory, room, rpc
from holdfast.checkpointer.criu import (
    HF_ROOT,
    PROGRAM,
    Call,
    Failed,
    Opened,
    call,
    connections,
    large_pipes,
    received,
)
from holdfast.wire import checkpointing as wire
from holdfast.wire.checkpointing import Dump, Outcome

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
    from typing import BinaryIO, NoReturn
else:
    import _signal as signal
    import _socket as socket

_TERMINALS = 136  # the first major number of /dev/pts
_URGENT = 1  # the lowest real-time priority
_SPARED = "-1000"  # never chosen by the kernel when memory is short
_TIME_ZONES = "/usr/share/zoneinfo"  # watched by browsers; CRIU itself looks in / and /etc
_ALL_FROZEN = "query-ext-files"  # CRIU's first question after it has frozen every process
_STOP_WAIT_S, _PAUSE_S = 0.5, 0.0005  # for processes that CRIU let go to stop again
_KINDS = {
    "user": 0x1000_0000,
    "ipc": 0x0800_0000,
    "net": 0x4000_0000,
    "pid": 0x2000_0000,
    "mnt": 0x0002_0000,
}


def serve(control: socket.socket) -> None:
    """Do the job that the host sends, and report."""
    packet, fds = received(control, wire.DESCRIPTORS_MAX)
    if not packet:  # there is no job after all
        return
    began = time.monotonic()
    job = wire.read_dump(packet)
    images, *more = fds
    entered = 0 if job.top else len(wire.NAMESPACES)
    namespaces, freezers = more[:entered], more[entered:]
    init = -1 if job.top else os.pidfd_open(job.init)
    outcome = Outcome()
    try:
        with mapped_files.opener() as opener:
            outcome = _dump(control, job, images, namespaces, freezers, init, opener)
    except Exception as e:
        outcome = Outcome(_said(e))
    outcome = outcome._replace(took_ms=round((time.monotonic() - began) * 1000, 1))
    control.send(wire.pack({"done": outcome._asdict()}))


def _said(problem: Exception) -> str:
    return str(problem) if isinstance(problem, Failed) else f"{type(problem).__name__}: {problem}"


def _dump(
    control: socket.socket,
    job: Dump,
    images: int,
    namespaces: list[int],
    freezers: list[int],
    init: int,
    opener: socket.socket | None,
) -> Outcome:
    criu = Opened(job.criu)
    criu.pipes = large_pipes()
    criu.opener = opener
    room.reserve(images, [job.top] if job.top else room.children(job.init))
    _hurry()  # not allowed any more in the session's user namespace
    own_network = False
    for name, fd in zip(wire.NAMESPACES, namespaces, strict=False):
        if name == "net":
            own_network = os.fstat(fd).st_ino != os.stat("/proc/self/ns/net").st_ino
        if os.fstat(fd).st_ino != os.stat(f"/proc/self/ns/{name}").st_ino:
            call(f"the namespace {name}", "setns", fd, _KINDS[name])
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if job.stop and init >= 0:
        signal.pidfd_send_signal(init, signal.SIGSTOP)
    ended = False
    try:
        pid = os.fork()
        if pid == 0:
            ours.close()
            _inside(control, theirs, job, criu, images, freezers, own_network)
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        theirs.close()
        packet = ours.recv(wire.PACKET_BYTES)
        os.waitpid(pid, 0)
        if not packet:
            raise Failed("CRIU's starter died")
        outcome = wire.read_outcome(wire.read(packet))
        ended = job.stop and not outcome.problem
        if not job.stop and not outcome.problem:
            _tell(control, "resumed", _size(images))
            room.settle(images)
        return outcome
    finally:
        if job.stop and init >= 0:
            signal.pidfd_send_signal(init, signal.SIGKILL if ended else signal.SIGCONT)


def _hurry() -> None:
    """Run before ordinary programs, and do not die for memory, if allowed (root); inherited.

    The session stands still while CRIU works, and `nice` does not count between terminal sessions.
    """
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(_URGENT))
        with open("/proc/self/oom_score_adj", "w") as f:
            f.write(_SPARED)


def _inside(
    control: socket.socket,
    line: socket.socket,
    job: Dump,
    criu: Opened,
    images: int,
    freezers: list[int],
    own_network: bool,
) -> NoReturn:
    """In the session's pid namespace: run CRIU, send the outcome to the parent, exit."""
    outcome, top = Outcome(), job.top or HF_ROOT
    options: rpc.Options = {
        "pid": top,
        "leave_running": not job.stop,
        "ghost_limit": job.copied_max,
        # Inside a user namespace a watched file cannot be opened by its handle.
        "force_irmap": not job.top,
        "irmap_scan_paths": (*job.watched, _TIME_ZONES),
        **connections(own_network),
    }
    frozen_at = 0.0
    stopped = [pid for pid in room.members([top]) if _state(pid) == "T"]

    def agrees(step: str) -> str:
        nonlocal frozen_at, outcome
        if step == "pre-dump":
            frozen_at = time.monotonic()
            _tell(control, "begun", 0)
        if step == _ALL_FROZEN:
            _tell(control, "frozen", 0)
        if step != "post-dump":
            return ""
        if job.stop:  # the host packs the images before the answer
            room.settle(images)
        _tell(control, "saved", _size(images))
        if found := foreign_filter(top):
            return f"{found} has a seccomp filter of its own"
        try:
            written, too_large = _copy(images, job, top)
            outcome = outcome._replace(written=written, too_large=too_large)
            _tell(control, "copied", _size(images))
            return _agreed(control, outcome)
        except OSError as e:
            return f"{e.filename or 'the files'}: {e.strerror}"

    try:
        plain = job.top > 0
        Call(criu, images, rpc.DUMP, options, agrees, freezers=freezers, no_stops=plain).run()
        frozen_ms = round((time.monotonic() - frozen_at) * 1000, 1)
        outcome = outcome._replace(frozen_ms=frozen_ms)
    except Exception as e:
        outcome = outcome._replace(problem=_said(e))
    _await_stops(stopped)
    line.send(wire.pack(outcome._asdict()))
    os._exit(0)


def _state(pid: int) -> str:
    """Return the letter of a process's state; empty if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _await_stops(stopped: list[int]) -> None:
    """Wait until processes that were stopped before are stopped again, or have ended.

    When CRIU releases a stopped process, the process runs for a moment. A halt in that moment would
    take it for a running one, and the resume would continue it.
    """
    deadline = time.monotonic() + _STOP_WAIT_S
    while any(_state(pid) not in "TZX" for pid in stopped) and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)


def _copy(images: int, job: Dump, top: int) -> tuple[list[str], list[str]]:
    """Copy the files that CRIU does not save, and note what CRIU may miss."""
    with _created(images, wire.PROGRAM_FILE) as f:
        f.write(wire.pack_program(_program(job)))
    with _created(images, wire.MEMORY_FILE) as f:
        memory.pack(job.memory, f)
    with _created(images, wire.WRITTEN_FILE) as f:
        return memory.pack_written(f, job.memory, job.copied_max, room.members([top]))


def _program(job: Dump) -> wire.Program:
    pid = PROGRAM
    if job.top:
        with open(f"/proc/{job.top}/cmdline") as f:
            pid = int(f.read().split("\0")[1])
    with open(f"/proc/{pid}/stat") as f:
        device, foreground = map(int, f.read().rpartition(")")[2].split()[4:6])
    return wire.Program(pid, max(foreground, 0), terminal_number(device))


def terminal_number(device: int) -> int:
    """The number below /dev/pts of a device as /proc/PID/stat has it."""
    major, minor = device >> 8 & 0xFFF, device & 0xFF | device >> 12 & 0xFFF00
    return (major - _TERMINALS) * 256 + minor if major >= _TERMINALS else 0


def _created(images: int, name: str) -> BinaryIO:
    fd = os.open(name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600, dir_fd=images)
    return open(fd, "wb")


def _agreed(control: socket.socket, outcome: Outcome) -> str:
    """Let the host note the moment, and with `stop` ask whether the session may end now."""
    control.send(wire.pack({"saved": True, **outcome._asdict()}))
    packet = control.recv(wire.PACKET_BYTES)
    if not packet or not wire.read(packet).get("go_on"):
        return "the host did not keep the checkpoint"
    return ""


def _tell(control: socket.socket, step: str, count: int) -> None:
    control.send(wire.pack({"step": step, "bytes": count}))


def _size(images: int) -> int:
    with os.scandir(images) as entries:
        return sum(entry.stat().st_size for entry in entries)


def foreign_filter(top: int) -> str:
    """Return the name of a process with more seccomp filters than hf-root, or an empty text."""
    own = _filters(f"/proc/{top}")[0]
    for pid in room.members([top]):
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                count, name = _filters(f"/proc/{pid}/task/{thread}")
                if count > own:
                    return f"{name} ({pid})"
        except FileNotFoundError:
            continue  # CRIU's own process has ended
    return ""


def _filters(task: str) -> tuple[int, str]:
    with open(f"{task}/status") as f:
        status = dict(line.split(":\t", 1) for line in f.read().splitlines())
    return int(status.get("Seccomp_filters", "1")), status["Name"]
