"""Save a contained session into a directory of images, and restore it from there."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast.wire.spawning import MOUNT_MEMORY, MOUNT_WRITE, Containment
from tests.support.criu import images
from tests.support.criu.worker import (
    DESCRIPTORS_MAX,
    NAMESPACES,
    PACKET_BYTES,
    Dump,
    Failed,
    Outcome,
    Restore,
)

SOURCE = Path(__file__).resolve().parents[3]
_WORKER = "from tests.support.criu.worker import main; main()"
FETCHED = SOURCE / ".cache" / "criu"


def criu_directory() -> Path:
    """Return the directory that scripts/criu made; skip the test if there is none."""
    place = Path(os.environ.get("HOLDFAST_CRIU_DIRECTORY") or FETCHED)
    if not (place / "state").exists():
        pytest.skip("no CRIU here: scripts/criu fetches it")
    return place


@dataclass(frozen=True, slots=True)
class Held:
    """The keeper's descriptors of a contained session: only they lead to its namespaces."""

    init: int
    namespaces: dict[str, int]

    @classmethod
    def of_keeper(cls, pid: int) -> Held:
        keeper, fds = os.pidfd_open(pid), Path(f"/proc/{pid}/fd")
        named = {os.readlink(path).partition(":")[0]: path for path in fds.iterdir()}
        init = next(int(path.name) for path in fds.iterdir() if "pidfd" in os.readlink(path))
        try:
            return cls(
                _copy(keeper, init),
                {name: os.open(named[name], os.O_RDONLY | os.O_CLOEXEC) for name in NAMESPACES},
            )
        finally:
            os.close(keeper)

    def close(self) -> None:
        for fd in (self.init, *self.namespaces.values()):
            os.close(fd)


@dataclass(slots=True)
class Restored:
    """A restored session: everything that a keeper needs to take it over."""

    program: int  # its process, as it is numbered outside
    init: socket.socket  # tells the program's wait status; init ends when this is closed
    held: Held
    master: int
    listener: int  # of the exec gate, or -1
    outcome: Outcome

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.held.init, signal.SIGKILL)
        self.init.close()
        self.held.close()
        for fd in (self.master, self.listener):
            if fd >= 0:
                os.close(fd)


def dump(held: Held, directory: Path, containment: Containment, kill: bool = False) -> Outcome:
    """Save the session; `kill` ends it, otherwise it goes on. It goes on too if the dump fails.

    Init is stopped meanwhile. It would end with hf-root, and with it the pid namespace and CRIU.
    """
    directory.mkdir(mode=0o700, exist_ok=True)
    signal.pidfd_send_signal(held.init, signal.SIGSTOP)
    try:
        job = Dump(
            tuple(held.namespaces),
            kill,
            _targets(containment, MOUNT_WRITE),
            ("/dev/shm", *_targets(containment, MOUNT_MEMORY)),
        )
        outcome, _ = _work(job, directory, list(held.namespaces.values()))
    except BaseException:
        signal.pidfd_send_signal(held.init, signal.SIGCONT)
        raise
    signal.pidfd_send_signal(held.init, signal.SIGKILL if kill else signal.SIGCONT)
    return outcome


def restore(directory: Path, containment: Containment, gate: int = 0) -> Restored:
    """Restore the session in new namespaces with the same file tree. The images are changed."""
    images.prepare(directory)
    job = Restore(containment, gate, images.highest_pid(directory))
    outcome, fds = _work(job, directory, [])
    init, pidfd, user, mnt, ipc, net, pid, master, *listener = fds
    namespaces = {"user": user, "ipc": ipc, "net": net, "pid": pid, "mnt": mnt}
    return Restored(
        outcome.program,
        socket.socket(fileno=init),
        Held(pidfd, namespaces),
        master,
        listener[0] if listener else -1,
        outcome,
    )


def _targets(containment: Containment, kind: int) -> tuple[str, ...]:
    return tuple(os.fsdecode(m.target) for m in containment.mounts if m.kind == kind)


def _work(job: Dump | Restore, directory: Path, fds: list[int]) -> tuple[Outcome, list[int]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    places = [os.open(p, os.O_RDONLY | os.O_DIRECTORY) for p in (criu_directory(), directory)]
    worker = subprocess.Popen(
        [sys.executable, "-c", _WORKER, f"{theirs.fileno()}"],
        pass_fds=[theirs.fileno()],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.DEVNULL,
        cwd="/",
    )
    theirs.close()
    try:
        socket.send_fds(ours, [pickle.dumps(job)], [*places, *fds])
        packet, given, _, _ = socket.recv_fds(ours, PACKET_BYTES, DESCRIPTORS_MAX)
    finally:
        ours.close()
        worker.wait()
        for fd in places:
            os.close(fd)
    if not packet:
        raise Failed("the worker ended without an answer")
    outcome: Outcome = pickle.loads(packet)
    if outcome.problem:
        for fd in given:
            os.close(fd)
        raise Failed(outcome.problem)
    return outcome, given


def _copy(process: int, fd: int) -> int:
    """Copy a descriptor of another process."""
    libc = ctypes.CDLL(None, use_errno=True)
    copy: int = libc.syscall(ctypes.c_long(438), process, fd, 0)  # pidfd_getfd
    if copy < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    return copy
