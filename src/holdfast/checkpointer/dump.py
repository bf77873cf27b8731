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
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from dataclasses import asdict
from typing import BinaryIO, NoReturn

from holdfast.checkpointer import memory, room, rpc
from holdfast.checkpointer.criu import HF_ROOT, Call, Failed, Opened, call, connections, large_pipes
from holdfast.wire import checkpointing as wire
from holdfast.wire.checkpointing import Dump, Outcome

_URGENT = 1  # the lowest real-time priority
_SPARED = "-1000"  # never chosen by the kernel when memory is short
_ALL_FROZEN = "query-ext-files"  # CRIU's first question after it has frozen every process
_KINDS = {
    "user": 0x1000_0000,
    "ipc": 0x0800_0000,
    "net": 0x4000_0000,
    "pid": 0x2000_0000,
    "mnt": 0x0002_0000,
}


def serve(control: socket.socket) -> None:
    """Do the job that the host sends, and report."""
    packet, fds, _, _ = socket.recv_fds(control, wire.PACKET_BYTES, wire.DESCRIPTORS_MAX)
    began = time.monotonic()
    job = wire.read_dump(packet)
    images, *more = fds
    namespaces, freezers = more[: len(wire.NAMESPACES)], more[len(wire.NAMESPACES) :]
    init = os.pidfd_open(job.init)
    outcome = Outcome()
    try:
        outcome = _dump(control, job, images, namespaces, freezers, init)
    except Exception as e:
        outcome.problem = _said(e)
    outcome.took_ms = round((time.monotonic() - began) * 1000, 1)
    control.send(wire.pack({"done": asdict(outcome)}))


def _said(problem: Exception) -> str:
    return str(problem) if isinstance(problem, Failed) else f"{type(problem).__name__}: {problem}"


def _dump(
    control: socket.socket,
    job: Dump,
    images: int,
    namespaces: list[int],
    freezers: list[int],
    init: int,
) -> Outcome:
    criu = Opened(job.criu)
    criu.pipes = large_pipes()
    room.reserve(images, job.init)
    _hurry()  # not allowed any more in the session's user namespace
    network = namespaces[wire.NAMESPACES.index("net")]
    own_network = os.fstat(network).st_ino != os.stat("/proc/self/ns/net").st_ino
    for name, fd in zip(wire.NAMESPACES, namespaces, strict=True):
        if os.fstat(fd).st_ino != os.stat(f"/proc/self/ns/{name}").st_ino:
            call(f"the namespace {name}", "setns", fd, _KINDS[name])
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if job.stop:
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
        return outcome
    finally:
        if job.stop:
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
    outcome = Outcome()
    options: rpc.Options = {
        "pid": HF_ROOT,
        "leave_running": not job.stop,
        "ghost_limit": job.copied_max,
        # Inside a user namespace a watched file cannot be opened by its handle.
        "force_irmap": True,
        "irmap_scan_paths": job.watched,
        **connections(own_network),
    }
    frozen_at = 0.0

    def agrees(step: str) -> str:
        nonlocal frozen_at
        if step == "pre-dump":
            frozen_at = time.monotonic()
            _tell(control, "begun", 0)
        if step == _ALL_FROZEN:
            _tell(control, "frozen", 0)
        if step != "post-dump":
            return ""
        room.clear(images)
        _tell(control, "saved", _size(images))
        if found := only_our_filter():
            return f"{found} has a seccomp filter of its own"
        try:
            outcome.written, outcome.too_large = _copy(images, job)
            _tell(control, "copied", _size(images))
            return _agreed(control, outcome)
        except OSError as e:
            return f"{e.filename or 'the files'}: {e.strerror}"

    try:
        Call(criu, images, rpc.DUMP, options, agrees, freezers=freezers).run()
        outcome.frozen_ms = round((time.monotonic() - frozen_at) * 1000, 1)
    except Exception as e:
        outcome.problem = _said(e)
    line.send(wire.pack(asdict(outcome)))
    os._exit(0)


def _copy(images: int, job: Dump) -> tuple[list[str], list[str]]:
    """Copy the files that CRIU does not save."""
    with _created(images, wire.MEMORY_FILE) as f:
        memory.pack(job.memory, f)
    with _created(images, wire.WRITTEN_FILE) as f:
        return memory.pack_written(f, job.memory, job.copied_max, os.getpid())


def _created(images: int, name: str) -> BinaryIO:
    fd = os.open(name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600, dir_fd=images)
    return open(fd, "wb")


def _agreed(control: socket.socket, outcome: Outcome) -> str:
    """Let the host note the moment, and with `stop` ask whether the session may end now."""
    control.send(wire.pack({"saved": True, **asdict(outcome)}))
    packet = control.recv(wire.PACKET_BYTES)
    if not packet or not wire.read(packet).get("go_on"):
        return "the host did not keep the checkpoint"
    return ""


def _tell(control: socket.socket, step: str, count: int) -> None:
    control.send(wire.pack({"step": step, "bytes": count}))


def _size(images: int) -> int:
    with os.scandir(images) as entries:
        return sum(entry.stat().st_size for entry in entries)


def only_our_filter() -> str:
    """Return the name of a process with a second seccomp filter, or an empty text."""
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) in (1, os.getpid()):
            continue
        try:
            for thread in os.listdir(f"/proc/{entry}/task"):
                with open(f"/proc/{entry}/task/{thread}/status") as f:
                    status = dict(line.split(":\t", 1) for line in f.read().splitlines())
                if int(status.get("Seccomp_filters", "1")) > 1:
                    return f"{status['Name']} ({entry})"
        except FileNotFoundError:
            continue  # CRIU's own process has ended
    return ""
