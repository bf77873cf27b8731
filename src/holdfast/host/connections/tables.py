"""Reads the TCP sockets and counters of a network namespace. Runs in a thread.

/proc/PID/net needs no privilege and serves every namespace with a process of ours. The netlink
interface sock_diag was tried: it needs a socket in each namespace. Its notes about destroyed
sockets (Linux 6.18) have both addresses, but neither the inode nor the process.
"""

from __future__ import annotations

import socket
from typing import Final

from holdfast.core.session.connection_losses import Row, Table
from holdfast.host.processes.process import read_proc
from holdfast.host.processes.sockets import STATES, TABLE_BYTES_MAX, end

_FILES: Final = (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6))
_COUNTERS: Final = (("snmp", "Tcp:"), ("netstat", "TcpExt:"))
# A reset by this machine counts like one by the peer: EstabResets has both.
_OURS: Final = ("TCPAbortOnData", "TCPAbortOnClose")
_LISTEN: Final = "listen"
_REPEATED, _PROBING = "01", "04"  # timers: retransmission, and probes of a closed window
_KEEPALIVE: Final = "02"
STUCK: Final = 2  # repetitions of a segment or probe that make a connection stuck


def read(pid: int) -> Table:
    """Of the namespace of that process. OSError: the process is gone."""
    rows = list[Row]()
    for name, family in _FILES:
        for line in read_proc(f"/proc/{pid}/net/{name}", TABLE_BYTES_MAX).splitlines()[1:]:
            field = line.split(maxsplit=10)
            if len(field) < 10 or (state := STATES.get(field[3], "unknown")) == _LISTEN:
                continue
            unacked = int(field[4].partition(b":")[0], 16)
            rows.append(
                Row(
                    name,
                    end(field[1], family)[0],
                    end(field[2], family)[0],
                    state,
                    int(field[9]),
                    unacked,
                    _stuck(field[5].partition(b":")[0].decode(), int(field[6], 16), int(field[8])),
                )
            )
    counted = dict[str, int]()
    for name, wanted in _COUNTERS:
        counted |= _counters(read_proc(f"/proc/{pid}/net/{name}").decode(), wanted)
    resets = counted.get("EstabResets", 0) - sum(counted.get(name, 0) for name in _OURS)
    return Table(rows, resets, counted.get("TCPAbortOnTimeout", 0))


def _stuck(timer: str, repeated: int, probes: int) -> bool:
    """`repeated`: times that a segment was sent again; `probes`: that went without an answer."""
    if timer == _REPEATED:
        return repeated >= STUCK
    return timer in (_KEEPALIVE, _PROBING) and probes >= STUCK


def _counters(text: str, wanted: str) -> dict[str, int]:
    lines = [line.split() for line in text.splitlines() if line.startswith(wanted)]
    if len(lines) < 2:
        return {}
    return {name: int(value) for name, value in zip(lines[0][1:], lines[1][1:], strict=False)}


def counts(pid: int) -> bytes:
    """The numbers of TCP sockets in the namespace. Equal numbers mean: probably no change.

    Costs a hundredth of `read`. Other numbers of these files count the whole machine.
    """
    found = b""
    for name in ("sockstat", "sockstat6"):
        for line in read_proc(f"/proc/{pid}/net/{name}").splitlines():
            if line.startswith((b"TCP:", b"TCP6:")):
                words = line.split()
                found += b" ".join(
                    word + b" " + value
                    for word, value in zip(words[1::2], words[2::2], strict=False)
                    if word in (b"inuse", b"tw")
                )
    return found
