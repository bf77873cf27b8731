"""Ends the TCP connections of a restored session's own network to peers outside of that network.

The peer's half is gone, and so is the state of the program that connects the network. Without this,
a program that waits for such a peer would wait for ever: nothing answers, and nothing fails. Its
calls fail with ECONNABORTED instead (R4). Connections with both ends inside go on.

By netlink (sock_diag), from a process inside of the network namespace with the rights there.
"""

from __future__ import annotations

import _socket
import struct

_SOCK_DIAG = 4  # the protocol of netlink
_BY_FAMILY, _DESTROY, _ERROR, _DONE = 20, 21, 2, 3
_REQUEST, _ACK, _DUMP = 1, 4, 0x300
_HEADER = struct.Struct("=IHHII")
_ASKED = struct.Struct("=BBBBI")
_ID_BYTES, _ID_AT = 48, 4  # in an answer, after family, state, timer and repetitions
_PORTS = struct.Struct(">HH")
# All states but TIME_WAIT, CLOSE and LISTEN: there is no other end, or no connection.
_STATES = 0xFFF & ~(1 << 6 | 1 << 7 | 1 << 10)
_ANSWER_BYTES = 1 << 16
_MAPPED = bytes(10) + b"\xff\xff"

End = tuple[bytes, int]


def close_connections() -> int:
    """Returns the number of connections that were ended; OSError if the kernel cannot do that."""
    line = _socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW, _SOCK_DIAG)
    try:
        return _close(line)
    finally:
        line.close()


def _close(line: _socket.socket) -> int:
    families = (_socket.AF_INET, _socket.AF_INET6)
    found = [(family, name) for family in families for name in _listed(line, family)]
    pairs = {_ends(family, name) for family, name in found}
    lost = [(family, name) for family, name in found if _ends(family, name)[::-1] not in pairs]
    for family, name in lost:
        _ask(line, _DESTROY, _REQUEST | _ACK, family, name)
        (code,) = struct.unpack_from("=i", line.recv(_ANSWER_BYTES), _HEADER.size)
        if code:
            raise OSError(-code, "the connection cannot be ended")
    return len(lost)


def _ask(line: _socket.socket, kind: int, flags: int, family: int, name: bytes) -> None:
    body = _ASKED.pack(family, _socket.IPPROTO_TCP, 0, 0, _STATES) + name
    line.send(_HEADER.pack(_HEADER.size + len(body), kind, flags, 1, 0) + body)


def _listed(line: _socket.socket, family: int) -> list[bytes]:
    """The kernel's names of all connections of a family."""
    _ask(line, _BY_FAMILY, _REQUEST | _DUMP, family, bytes(_ID_BYTES))
    found = list[bytes]()
    while True:
        data, at = line.recv(_ANSWER_BYTES), 0
        while at + _HEADER.size <= len(data):
            size, kind, *_ = _HEADER.unpack_from(data, at)
            if kind in (_DONE, _ERROR) or size < _HEADER.size:
                return found
            start = at + _HEADER.size + _ID_AT
            found.append(data[start : start + _ID_BYTES])
            at += (size + 3) & ~3


def _ends(family: int, name: bytes) -> tuple[End, End]:
    """This end and the other: address and port."""
    here, there = _PORTS.unpack_from(name)
    size = 4 if family == _socket.AF_INET else 16
    local, remote = (_plain(name[at : at + size]) for at in (4, 20))
    return (local, here), (remote, there)


def _plain(address: bytes) -> bytes:
    return address[12:] if len(address) == 16 and address.startswith(_MAPPED) else address
