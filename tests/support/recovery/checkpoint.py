"""Save a session of a keeper with the checkpointer, like a host."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast.home import programs
from holdfast.host.runtime.criu import VARIABLE, find
from holdfast.model.errors import Impossible
from holdfast.wire import checkpointing as wire
from holdfast.wire.spawning import MOUNT_MEMORY, MOUNT_WRITE, Containment
from tests.support.installation import Installation
from tests.support.keeper import hf_root, until

COPIED_MAX = 1 << 20


def criu() -> wire.Criu:
    """CRIU as the product finds CRIU; skip the test without CRIU."""
    try:
        return find(os.environ.get(VARIABLE, ""))
    except Impossible as e:
        pytest.skip(f"no CRIU here: {e}")


class Failed(Exception):
    """The checkpointer failed."""


@dataclass(frozen=True, slots=True)
class Held:
    """The keeper's descriptors of a contained session, the only way to the namespaces.

    A plain session has none, but hf-root (`top`).
    """

    init: int
    namespaces: dict[str, int]
    top: int = 0

    @classmethod
    def of_keeper(cls, pid: int) -> Held:
        if top := hf_root(pid):
            return cls(0, {}, top)
        fds = Path(f"/proc/{pid}/fd")
        named = {os.readlink(path).partition(":")[0]: path for path in fds.iterdir()}
        pidfd = next(path.name for path in fds.iterdir() if "pidfd" in os.readlink(path))
        notes = Path(f"/proc/{pid}/fdinfo/{pidfd}").read_text()
        return cls(
            int(notes.partition("Pid:\t")[2].split()[0]),
            {name: os.open(named[name], os.O_RDONLY | os.O_CLOEXEC) for name in wire.NAMESPACES},
        )

    def close(self) -> None:
        for fd in self.namespaces.values():
            os.close(fd)


def dump(
    held: Held,
    directory: Path,
    containment: Containment | None,
    stop: bool = False,
    go_on: bool | None = True,
    seen: Callable[[dict[str, Any], subprocess.Popen[bytes]], None] = lambda told, process: None,
) -> wire.Outcome:
    """Save the session. `go_on`: the answer to `saved`; None: the host dies instead."""
    directory.mkdir(mode=0o700, exist_ok=True)
    job = wire.Dump(
        criu(),
        held.init,
        stop,
        targets(containment, MOUNT_WRITE),
        ("/dev/shm", *targets(containment, MOUNT_MEMORY)) if containment is not None else (),
        COPIED_MAX,
        held.top,
    )
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    images = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    process = subprocess.Popen(
        programs.lean("checkpointer", f"{theirs.fileno()}"),
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    theirs.close()
    namespaces = [held.namespaces[name] for name in wire.NAMESPACES if not held.top]
    try:
        socket.send_fds(ours, [wire.pack_dump(job)], [images, *namespaces])
        while packet := ours.recv(wire.PACKET_BYTES):
            told = wire.read(packet)
            seen(told, process)
            if told.get("saved"):
                if go_on is None:
                    break
                ours.send(wire.pack({"go_on": go_on}))
            if "done" in told:
                outcome = wire.read_outcome(told["done"])
                if outcome.problem:
                    raise Failed(outcome.problem)
                process.wait()
                with pytest.raises(ProcessLookupError):  # not even a dead process is left
                    os.killpg(process.pid, 0)
                return outcome
    except ConnectionError as e:
        raise Failed("the checkpointer was killed") from e
    finally:
        os.close(images)
        ours.close()
        process.wait()
    raise Failed("the checkpointer ended without an answer")


def unsavable(keeper: int) -> None:
    """Make a plain session one that cannot be saved; those of ordinary users are in any case."""
    if top := hf_root(keeper):
        os.kill(top, signal.SIGKILL)
        until(lambda: not hf_root(keeper), "the end of hf-root")


def targets(containment: Containment | None, kind: int) -> tuple[str, ...]:
    if containment is None:
        return ()
    return tuple(os.fsdecode(m.target) for m in containment.mounts if m.kind == kind)


@contextlib.contextmanager
def without_new_keepers(hf: Installation) -> Iterator[None]:
    """The nursery stands still, so that a restore that begins cannot end."""
    nursery = hf.peer("nursery.sock")
    assert nursery is not None
    os.kill(nursery, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(nursery, signal.SIGCONT)
