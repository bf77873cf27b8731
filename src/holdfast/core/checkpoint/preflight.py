"""Decides whether a session can be saved, and names the losses of a restored session.

The facts are observed before anything stops. A blocker refuses the checkpoint; a loss is told. Some
obstacles show only when CRIU meets them; `explain` puts CRIU's errors into words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

BYTES_PER_S: Final = 0.25e9  # images are written at 0.3 to 1.6 GB/s, and packed at about 0.5
BASE_S: Final = 0.2  # a checkpoint of a small session
ROOM: Final = 1.2  # of the memory: page maps, copied files and a margin
NAMED_MAX: Final = 5
COPIED_MAX: Final = 256 << 20  # of files that are copied while all stand still
_HOLDERS: Final = ("hf-nursery", "hf-keeper")  # of any home; a host comes with its nursery
NOTHING: Final = -1  # copies no file, and deleted files of any size


class Process(NamedTuple):
    """A process of the session. `holds`: targets of its descriptors that matter."""

    pid: int
    name: str
    holds: tuple[str, ...] = ()
    tracer: int = 0
    filters: int = 0  # of seccomp, that it installed itself
    nested: bool = False  # it made namespaces of its own
    rss: int = 0  # bytes of its private memory, also in swap
    unlinked: tuple[str, ...] = ()  # deleted files that it has mapped


class HeldFile(NamedTuple):
    """A file, or memory that processes share. `deleted`: bytes that CRIU copies for that reason."""

    name: str
    size: int
    holder: str = ""  # a process
    deleted: int = 0
    written: bool = False  # it is open for writing


class Facts(NamedTuple):
    """Facts about a session and this machine."""

    layout: str  # "contained" or "plain"
    planned: bool = True  # the host knows how the session was made
    processes: tuple[Process, ...] = ()
    connections: tuple[str, ...] = ()  # that will not survive, as "local -> remote"
    shared_memory: int = 0  # System V segments
    unread: int = 0  # bytes of input that no program has read
    free: int = 0  # bytes on the disk
    tool: str = ""  # why CRIU cannot be used
    held: tuple[HeldFile, ...] = ()  # once each
    copied_max: int = COPIED_MAX  # or NOTHING, for a fork
    root: bool = True  # the session is of root
    topped: bool = True  # one process, hf-root, is above all others
    host: int = 0  # the process that asks, if it may be below hf-root


class Preflight(NamedTuple):
    """The decision. `blockers` and `losses` are sentences for the user."""

    blockers: tuple[str, ...]
    losses: tuple[str, ...]
    bytes: int  # expected size
    seconds: float  # expected time

    @property
    def possible(self) -> bool:
        return not self.blockers


# Beginnings of a descriptor's target that CRIU cannot save, and the name a user knows.
_UNSAVABLE: Final = (
    ("anon_inode:[io_uring]", "io_uring"),
    ("anon_inode:bpf", "a BPF object"),
    ("anon_inode:[perf_event]", "a performance counter"),
    ("anon_inode:[userfaultfd]", "userfaultfd"),
    ("anon_inode:seccomp", "a seccomp listener"),
    ("anon_inode:kvm", "a virtual machine"),
    ("/dev/kvm", "a virtual machine"),
    ("/dev/nvidia", "a GPU"),
    ("/dev/dri/", "a GPU"),
    ("/dev/kfd", "a GPU"),
    ("/dev/fuse", "a FUSE file system"),
    ("/dev/snd/", "a sound device"),
)


def judge(facts: Facts) -> Preflight:
    memory = sum(one.rss for one in facts.processes)
    held = sum(one.size for one in facts.held if not one.written)
    written = sum(one.size for one in facts.held if one.written)
    size = int((memory + held + min(written, max(facts.copied_max, 0))) * ROOM)
    return Preflight(
        tuple(_blockers(facts, size)),
        tuple(_losses(facts)),
        size,
        seconds(size),
    )


def seconds(size: int) -> float:
    """The expected time of a checkpoint or a restore."""
    return round(BASE_S + size / BYTES_PER_S, 1)


def _blockers(facts: Facts, size: int) -> Iterator[str]:
    if facts.tool:
        yield facts.tool
    if facts.layout != "contained" and not facts.root:
        yield (
            "it is a plain session of an ordinary user: only root may open the memory of programs "
            "and give processes their numbers again; contained sessions (`new --contained`) can be "
            "saved"
        )
        return
    if facts.layout != "contained" and not (facts.planned and facts.topped):
        yield (
            "it is a plain session without hf-root, which keeps its processes together: an earlier "
            "release made it, or its home allows no programs (noexec); end it and start it again"
        )
        return
    if not facts.planned:
        yield "it was made by an earlier release, which did not keep the plan of its file tree"
    if size > facts.free:
        yield f"the disk has {amount(facts.free)} free; about {amount(size)} are needed"
    if facts.layout != "contained" and (own := [*_of_holdfast(facts)]):
        yield (
            f"it holds processes of Holdfast, which must go on: {_some(own)}; they were started "
            "inside it: end their sessions and that host, and start it elsewhere"
        )
    for one in facts.processes:
        yield from _obstacles(one, facts.root)
    for file in facts.held:
        if 0 <= facts.copied_max < file.deleted:
            yield (
                f"{file.holder} has a deleted file of {amount(file.deleted)} open ({file.name}); "
                f"{amount(facts.copied_max)} can be copied"
            )
    if facts.shared_memory:
        yield f"its {facts.shared_memory} segments of System V shared memory cannot be saved"


def _of_holdfast(facts: Facts) -> Iterator[str]:
    for one in facts.processes:
        if one.pid == facts.host:
            yield f"this host ({one.pid})"
        elif one.name in _HOLDERS:
            yield f"{one.name} ({one.pid})"


def _obstacles(one: Process, root: bool) -> Iterator[str]:
    who = f"{one.name} ({one.pid})"
    if one.tracer:
        yield f"{who} is traced by process {one.tracer} (a debugger or strace)"
    if one.nested:
        yield f"{who} has namespaces of its own, as sandboxes and browsers make them"
    elif one.filters > 0:
        yield f"{who} has a seccomp filter of its own, as sandboxes and browsers install them"
    if one.unlinked and not root:
        yield f"{who} has mapped a deleted file ({one.unlinked[0]}), which only root may save"
    kinds = {name for target in one.holds for begin, name in _UNSAVABLE if target.startswith(begin)}
    for name in sorted(kinds):
        yield f"{who} uses {name}"


def _losses(facts: Facts) -> Iterator[str]:
    if facts.connections:
        yield f"TCP connections are closed in the restored session: {_some(facts.connections)}"
    if facts.unread:
        yield f"{facts.unread} bytes of typed input that no program has read are not saved"


def _some(names: Sequence[str]) -> str:
    more = len(names) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def amount(size: int) -> str:
    """A number of bytes in words."""
    return f"{size / 1e6:.0f} MB" if size < 1e9 else f"{size / 1e9:.1f} GB"


# CRIU's errors and their meanings. The first match counts.
_MEANINGS: Final = tuple(
    (re.compile(pattern), meaning)
    for pattern, meaning in (
        (r"has a seccomp filter of its own", r"\g<0>"),
        (
            r"half of stream unix|Dangling connection|External socket is used|Can't dump half",
            "a program is connected to a unix socket of a program outside of the session",
        ),
        (
            r"doesn't live in IPC ns|Can't dump shmem",
            "a program uses System V shared memory, which cannot be saved",
        ),
        (
            r"[Gg]host file|ghost_limit|ghost-limit",
            "a deleted file that a program uses is too large",
        ),
        (
            r"In-flight connection",
            "a server has not yet accepted a connection; try again when it has",
        ),
        (  # the shim says so (checkpointer/shim.c)
            r"SEIZE (\d+): can't read signfo: Device or resource busy",
            r"process \1 has content in long vector registers (SVE), which CRIU does not save; try"
            " again, or when it computes less",
        ),
        (r"io_uring", "a program uses io_uring, which cannot be saved"),
        (
            r"Can't fork for (\d+): File exists",
            r"another process on this machine has the number \1",
        ),
        (r"File (\S+) has bad size (\d+)", r"\1 has changed since the checkpoint"),
        (r"Can't open file (\S+) on restore", r"\1 is missing"),
        (
            r"Can't open (?:file )?(\S+)[^;]*: No such file",
            r"\1 is missing",
        ),
        (r"already traced|Unable to (?:seize|attach).*Operation", "a program is being traced"),
        (r"Can't dump nested (\w+) namespace", r"a program has a \1 namespace of its own"),
        (r"Can't bind inet socket.*Address already in use", "a port is in use on this machine"),
        (r"[Nn]o space left on device", "the disk is full"),
        (r"Can't stat fd|Can't get stat", "a program holds a file of a process that has ended"),
        (r"Unsupported|unsupported", "a program uses something that CRIU cannot save"),
    )
)


_NOISE: Final = "Can't setup RLIMIT_NOFILE"  # CRIU goes on without more descriptors


def explain(text: str) -> str:
    """CRIU's reason in words; the text itself, without noise, if it is unknown."""
    for pattern, meaning in _MEANINGS:
        if found := pattern.search(text):
            return found.expand(meaning)
    return "; ".join(one for one in text.split("; ") if _NOISE not in one) or text
