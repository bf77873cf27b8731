"""Observes by the processes of a session whether the session is busy (R8).

A session is active if, since the last look, its processes used the processor for more than
BUSY_SHARE, started a process, printed output, or moved bytes over a TCP connection; and as long as
a program in the foreground works. A program that waits for a person is idle, however long. What
cannot be seen counts as activity, so that no session is reaped by mistake.

Bytes are counted for each TCP socket by the kernel's socket diagnosis, in the network of the
machine. Of a network of its own, all segments and datagrams count. UDP in the network of the
machine is not counted, and unix sockets nowhere.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.core.reaper.reaper import DEFAULT, Resident
from holdfast.host.processes import proc_scan
from holdfast.host.processes.net_entry import namespace
from holdfast.host.processes.process import Stat, read_proc, read_short
from holdfast.host.session.attention_probe import read_attention
from holdfast.host.session.session import Session
from holdfast.model.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.host.processes.cgroups import Groups

BUSY_SHARE: Final = 0.01  # of one processor; servers and editors that wait use less
PORTS_NAMED: Final = 3
NAME_CHARS: Final = 40
_COUNTED: Final = ("InSegs", "OutSegs", "InDatagrams", "OutDatagrams")
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_ESTABLISHED: Final = 1
_SOCK_DIAG_BY_FAMILY, _DUMP, _DONE, _ERROR = 20, 0x301, 3, 2
_INET_DIAG_INFO: Final = 2
_RECEIVED_AT: Final = 120  # in struct tcp_info: tcpi_bytes_acked, tcpi_bytes_received


class Sample(NamedTuple):
    """Counters of a session. `cpu_s` falls when a process ends that no process waited for."""

    at: float
    cpu_s: float
    processes: frozenset[tuple[int, int]]  # pid and start time
    output: int
    moved: dict[int, int]  # bytes by socket; of a network of its own, packets under key 0
    ports: tuple[int, ...]  # listening TCP ports


def sample(session: Session, groups: Groups, tcp: dict[int, int]) -> Sample:
    """Read the counters; blocks. `tcp`: bytes of each connection in the network of the machine."""
    found = proc_scan.of_session(session.keeper_pid)
    root = session.record.root_pid
    own = namespace(root)
    if own and own != namespace(os.getpid()):
        moved = {0: _segments(root)}
    else:
        held = {inode for one in found for inode in proc_scan.socket_inodes(one.pid)}
        moved = {inode: tcp[inode] for inode in held & tcp.keys()}
    listening = proc_scan.listening(one.pid for one in found)
    return Sample(
        time.monotonic(),
        cpu_seconds(session, groups, found),
        frozenset((one.pid, one.start) for one in found),
        session.ring.head,
        moved,
        tuple(sorted({one.port for one in listening if one.port})),
    )


def cpu_seconds(session: Session, groups: Groups, found: list[Stat]) -> float:
    """Processor time of the session: of its control group, or of its living processes."""
    group = groups.find(session.id, session.record.root_pid)
    if group:
        with contextlib.suppress(OSError, ValueError, IndexError):
            return int(read_proc(f"{group}/cpu.stat").split()[1]) / 1e6
    total = 0
    for one in found:
        with contextlib.suppress(OSError, ValueError, IndexError):
            field = read_short(f"/proc/{one.pid}/stat").rpartition(b")")[2].split()
            total += sum(map(int, field[11:15]))
    return total / _TICKS


class Watch:
    """The activity of one session over several looks."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.choice = DEFAULT
        self.memory = 0
        self._last: Sample | None = None
        self._active_at = session.last_activity  # monotonic
        self._used_at = 0.0

    def used(self) -> None:
        """An operator acted on the session, or was attached."""
        self._used_at = time.monotonic()

    @property
    def idle_s(self) -> float:
        """Since the last activity that was observed."""
        session = self.session
        at = max(self._active_at, self._used_at, session.last_activity, session.viewers.left_at)
        return max(0.0, time.monotonic() - at)

    async def look(
        self, groups: Groups, tcp: dict[int, int], attached: bool, asked: bool
    ) -> Resident | None:
        """The session as a Resident; None if it ends just now."""
        session, cannot = self.session, ""
        try:
            now = await session.looked(sample, session, groups, tcp)
            busy, person = self._compared(now), ""
            if not busy and not attached:
                busy, person = await self._waits(now)
            if not await _can_be_saved(session):
                cannot = PLAIN
        except HoldfastError as e:
            busy, person = f"it cannot be looked at: {e.message}", ""
        if session.ended.done() or session.ending:
            return None
        if busy:
            self._active_at = time.monotonic()
        if attached or asked:
            self.used()
        return Resident(
            session.id,
            self.idle_s,
            self.memory,
            attached,
            asked,
            busy,
            person,
            cannot,
            self.choice,
        )

    def _compared(self, now: Sample) -> str:
        """Why the session was active since the last look; empty if it was not."""
        last, self._last = self._last, now
        if last is None:
            return ""
        share = (now.cpu_s - last.cpu_s) / max(now.at - last.at, 0.001)
        if share > BUSY_SHARE:
            return f"its processes use {share:.0%} of a processor"
        if now.processes - last.processes:
            return "it starts processes"
        if now.output != last.output:
            return "it prints output"
        if any(last.moved.get(key, 0) != count for key, count in now.moved.items()):
            return "its connections move data"
        return ""

    async def _waits(self, now: Sample) -> tuple[str, str]:
        """Why it is busy, or why a person must not lose it."""
        session = self.session
        if session.state == "halted":
            return "", "it is halted, and goes on when a person resumes it"
        found = await read_attention(session, await session.marks_seen())
        what = (found.foreground or "a program")[:NAME_CHARS]
        if found.kind == "working":
            return f"{what} runs in the foreground", ""
        if found.kind == "unknown":
            return f"what it waits for is not known: {found.why}", ""
        if found.kind in ("input", "secret"):
            return "", f"{what} waits for a person"
        if session.turn.begun():
            return "", "a line is typed and not entered"
        if list(session.stopped):
            return "", "an operator's processes are stopped there"
        if now.ports:
            named = ", ".join(map(str, now.ports[:PORTS_NAMED]))
            return "", f"it serves port {named}"
        return "", ""


PLAIN: Final = "it is a plain session, which cannot be saved; `checkpoint --check` says why"


async def _can_be_saved(session: Session) -> bool:
    if session.layout.get("layout") == "contained":
        return True
    return await session.looked(proc_scan.hf_root, session.keeper_pid) > 0


# ---------------------------------------------------------------- bytes of connections


def _segments(pid: int) -> int:
    """Segments of TCP and datagrams of UDP in the process's own network (proc_net(5), snmp)."""
    total = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = [line.split() for line in read_proc(f"/proc/{pid}/net/snmp").decode().splitlines()]
        for names, values in zip(lines[::2], lines[1::2], strict=False):
            if names[0] in ("Tcp:", "Udp:"):
                counted = dict(zip(names, values, strict=True))
                total += sum(int(counted.get(name, "0")) for name in _COUNTED)
    return total


def tcp_bytes() -> dict[int, int]:
    """Bytes sent and received by each established TCP socket of this network, by inode."""
    found = dict[int, int]()
    with contextlib.suppress(OSError):
        for family in (socket.AF_INET, socket.AF_INET6):
            found |= _diagnosed(family)
    return found


def _diagnosed(family: int) -> dict[int, int]:
    """One dump of the kernel's socket diagnosis (sock_diag(7))."""
    found = dict[int, int]()
    body = struct.pack(
        "=BBBxI48x", family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), 1 << _ESTABLISHED
    )
    head = struct.pack("=IHHII", 16 + len(body), _SOCK_DIAG_BY_FAMILY, _DUMP, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, 4) as asked:
        asked.settimeout(1.0)
        asked.send(head + body)
        while True:
            data = asked.recv(1 << 18)
            at = 0
            while at + 16 <= len(data):
                length, kind, _, _, _ = struct.unpack_from("=IHHII", data, at)
                if kind in (_DONE, _ERROR) or length < 16:
                    return found
                _read_socket(data[at + 16 : at + length], found)
                at += (length + 3) & ~3


def _read_socket(message: bytes, found: dict[int, int]) -> None:
    """One inet_diag_msg of 72 bytes, then attributes."""
    if len(message) < 72:
        return
    (inode,) = struct.unpack_from("=I", message, 68)
    at = 72
    while at + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, at)
        if length < 4:
            return
        if kind == _INET_DIAG_INFO and length >= 4 + _RECEIVED_AT + 16:
            acked, received = struct.unpack_from("=QQ", message, at + 4 + _RECEIVED_AT)
            found[inode] = acked + received
        at += (length + 3) & ~3
