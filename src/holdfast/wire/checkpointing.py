"""The packets between the host and the checkpointer (holdfast/checkpointer).

The host starts one process for each checkpoint. Host and process share a SOCK_SEQPACKET socket,
whose descriptor is the process's argument. One packet is one JSON object. Both programs are of the
same release.

    host to checkpointer     | with descriptors
    -------------------------|------------------------------------------------------------------
    the job (Dump)           | the directory for images, then NAMESPACES (not of a plain session),
                             | then the files `cgroup.freeze` of the session's frozen groups
    {"go_on": true or false} | the answer to `saved`; anything but true makes the dump fail

    checkpointer to host     | means
    -------------------------|------------------------------------------------------------------
    {"step": S, "bytes": N}  | progress: `begun`, `frozen`, `saved`, `copied`, `resumed`
    {"saved": true, ...}     | all images are written and the processes are frozen. With `stop`,
                             | they end after {"go_on": true}
    {"done": {...}}          | the last packet: an Outcome
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

PACKET_BYTES: Final = 1 << 18
DESCRIPTORS_MAX: Final = 64
FREEZERS_MAX: Final = 48
# Order in which a process enters the namespaces: the user namespace first, for its capabilities.
NAMESPACES: Final = ("user", "ipc", "net", "pid", "mnt")
# File names in the directory of images that are not CRIU's.
MEMORY_FILE: Final = "memory.tar"
WRITTEN_FILE: Final = "written.tar"
OUTPUT_FILE: Final = "output"
HALTED_FILE: Final = "halted"
PROGRAM_FILE: Final = "program"  # three numbers: see Program
REPLACED_FILE: Final = "replaced.tar"  # a link of the host to a place on the disk
DELETED: Final = " (deleted)"  # after the name of a mapping or descriptor, in /proc
# Deleted by their nature; CRIU saves their content as memory.
_ANONYMOUS: Final = ("/dev/zero", "/memfd:", "/anon_hugepage", "/SYSV")


def is_deleted_file(mapped: str) -> bool:
    """Tell whether the name of a mapping is that of a deleted file."""
    return mapped.endswith(DELETED) and not mapped.startswith(_ANONYMOUS)


class Criu(NamedTuple):
    """How to execute CRIU: paths of the program, of its loader, and of directories of libraries."""

    program: str
    loader: str
    libraries: tuple[str, ...]
    version: str = ""

    def argv(self, *more: str) -> list[str]:
        """The command outside of a session."""
        libraries = ":".join(self.libraries)
        return [self.loader, "--library-path", libraries, "--argv0", "criu", self.program, *more]


class Dump(NamedTuple):
    """Save a session. `init` is process 1 inside, as the host numbers it.

    A plain session has none: `top` is hf-root, which is 0 for a contained session.
    """

    criu: Criu
    init: int
    stop: bool  # end the processes once they are saved
    watched: tuple[str, ...]  # directories inside with files that programs may watch
    memory: tuple[str, ...]  # memory file systems inside
    copied_max: int  # bytes of files open for writing that are copied
    top: int = 0


class Halted(NamedTuple):
    """HALTED_FILE: which processes begin stopped; without the file none does.

    `all`: every process. `stopped`: these, as the session numbers them. `marks`: signals, of which
    one marks a process that was stopped before the halt.
    """

    all: bool = False
    stopped: tuple[int, ...] = ()
    marks: tuple[int, ...] = ()


class Program(NamedTuple):
    """PROGRAM_FILE: the session's program, the group in the foreground of its terminal, and the
    number of the terminal. Of a contained session it may be missing: an earlier release made it."""

    pid: int = 3
    foreground: int = 0
    terminal: int = 0


class Outcome(NamedTuple):
    """The result. `problem`: why the session could not be saved; empty if it was.

    `written`: files that were open for writing and were copied. `frozen_ms`: how long the processes
    stood still.
    """

    problem: str = ""
    log: str = ""
    frozen_ms: float = 0.0
    took_ms: float = 0.0
    written: Sequence[str] = ()
    too_large: Sequence[str] = ()


def pack(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode()


def read(packet: bytes) -> dict[str, Any]:
    found = json.loads(packet)
    if not isinstance(found, dict):
        raise ValueError("a packet is a JSON object")
    return found


def pack_dump(job: Dump) -> bytes:
    return pack({**job._asdict(), "criu": job.criu._asdict()})


def read_dump(packet: bytes) -> Dump:
    found = read(packet)
    criu = found["criu"]
    return Dump(
        Criu(criu["program"], criu["loader"], tuple(criu["libraries"]), criu["version"]),
        int(found["init"]),
        bool(found["stop"]),
        tuple(found["watched"]),
        tuple(found["memory"]),
        int(found["copied_max"]),
        int(found["top"]),
    )


def read_halted(data: bytes) -> Halted:
    found = read(data)
    return Halted(found["all"], tuple(found["stopped"]), tuple(found["marks"]))


def pack_program(program: Program) -> bytes:
    return f"{program.pid} {program.foreground} {program.terminal}".encode()


def read_program(data: bytes) -> Program:
    return Program(*map(int, data.split()))


def read_outcome(done: dict[str, Any]) -> Outcome:
    return Outcome(**done)
