"""The kernel's tables of sockets in the network namespace of a process: inode -> socket.

/proc/net is the reader's own namespace; /proc/PID/net is that of the process. The tables are read
whole: only netlink has a filter by inode, and netlink covers the caller's namespace alone. A
namespace without sockets of ours is never read.
"""

from __future__ import annotations

import socket
import sys

from holdfast.core.session.graph import Socket
from holdfast.host.processes.process import read_proc

TABLE_BYTES_MAX = 64 << 20  # of a /proc/PID/net table
Table = dict[int, Socket]

_UNIX_LISTENING = 0x10000  # __SO_ACCEPTCON
STATES = {
    b"01": "established",
    b"02": "connecting",
    b"03": "accepting",
    b"04": "closing",
    b"05": "closing",
    b"06": "closed",
    b"07": "closed",
    b"08": "close-wait",
    b"09": "closing",
    b"0A": "listen",
    b"0B": "closing",
    b"0C": "accepting",
}
_UNIX = {b"01": "", b"02": "connecting", b"03": "established", b"04": "closing"}
_NAMES = (
    ("tcp", socket.AF_INET),
    ("tcp6", socket.AF_INET6),
    ("udp", socket.AF_INET),
    ("udp6", socket.AF_INET6),
    ("raw", socket.AF_INET),
    ("raw6", socket.AF_INET6),
)


def table(pid: int) -> Table:
    found: Table = {}
    for kind, family in _NAMES:
        for line in _lines(f"/proc/{pid}/net/{kind}"):
            field = line.split()
            if len(field) > 9:
                inode = int(field[9])
                local, port = end(field[1], family)
                remote, other = end(field[2], family)
                state = (
                    STATES.get(field[3], "unknown")
                    if kind.startswith("tcp")
                    else "established"
                    if field[3] == b"01"
                    else "bound"
                )
                unsent, _, unread = field[4].partition(b":")
                found[inode] = Socket(
                    0,
                    -1,
                    kind,
                    local,
                    remote if other else "",
                    state,
                    port,
                    0 if state == "listen" else int(unsent, 16),
                    0 if state == "listen" else int(unread, 16),
                    inode,
                )
    for line in _lines(f"/proc/{pid}/net/unix"):
        field = line.split(maxsplit=7)
        if len(field) > 6:
            path = field[7].decode("utf-8", "surrogateescape") if len(field) > 7 else ""
            state = (
                "listen" if int(field[3], 16) & _UNIX_LISTENING else _UNIX.get(field[5], "unknown")
            )
            found[int(field[6])] = Socket(0, -1, "unix", path, "", state, inode=int(field[6]))
    return found


def end(text: bytes, family: socket.AddressFamily) -> tuple[str, int]:
    host, _, port = text.partition(b":")
    number = int(port, 16)
    name = address(host, family)
    return f"[{name}]:{number}" if family == socket.AF_INET6 else f"{name}:{number}", number


def address(text: bytes, family: socket.AddressFamily) -> str:
    """The kernel prints addresses as 32-bit words in the machine's byte order."""
    words = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
    return socket.inet_ntop(family, b"".join(word.to_bytes(4, sys.byteorder) for word in words))


def _lines(path: str) -> list[bytes]:
    try:
        return read_proc(path, TABLE_BYTES_MAX).splitlines()[1:]
    except OSError:
        return []
