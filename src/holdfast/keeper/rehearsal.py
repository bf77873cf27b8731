"""The host's part in the nursery's rehearsal of a keeper's life (nursery._rehearse).

A forked child plays it. An interpreter rewrites its bytecode and fills its caches while code runs
for the first times. Such changes after the fork turn shared pages into a keeper's own memory;
changes before the fork are shared by all keepers. The rehearsal therefore does all that an ordinary
session does: start, claim, keys, output, size, state, consumed, exit, release. Measured: without
the rehearsal a keeper costs twice as much.
"""

from __future__ import annotations

import _socket
import os
import struct

from holdfast.wire import keeper as wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal

ROUNDS = 12  # the interpreter specialises a function after 8 calls; a session calls some once
ALLOWED_S = 5
_SOCKET = "rehearsal.sock"
_PROGRAM = (b"/bin/sh", b"-c", b"read line; echo $line; exit 3")


class TooLong(BaseException):
    """The rehearsal hangs. A BaseException, because the keeper's own code must not catch it."""


def too_long(number: int, frame: object) -> None:
    raise TooLong


def begin() -> list[_socket.socket]:
    """Start the host's side; return the connections on which it asks for keepers in turn."""
    pairs = [_socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM) for _ in range(ROUNDS)]
    if os.fork() == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(ALLOWED_S)
            for theirs, _ in pairs:
                _play(theirs)
        finally:
            os._exit(0)
    for theirs, _ in pairs:
        theirs.close()
    return [ours for _, ours in pairs]


def _play(nursery: _socket.socket) -> None:
    nursery.sendall(
        wire.spawn(wire.Spawn("rehearsal", 1, _SOCKET, 80, 24, 1 << 16, 1000, argv=_PROGRAM))
    )
    nursery.recv(wire.SPAWN_REPLY.size)
    host = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    host.connect(_SOCKET)
    host.send(wire.hello(1))
    _, ancillary, _, _ = host.recvmsg(1 << 16, _socket.CMSG_SPACE(12))
    heard: set[int] = set()

    def ask(packet: bytes, answer: int) -> None:
        heard.discard(answer)
        host.send(packet)
        while answer not in heard:
            heard.add(host.recv(1 << 16)[0])

    host.send(wire.label(b"rehearsal"))
    ask(wire.withdraw(1, 1), wire.WITHDRAWN)
    for number, text in enumerate((b"a", b"b", b"\n")):
        host.send(wire.act(wire.INPUT, (1, 2 * number + 1, 7, number + 1, wire.ACT_ACK), text))
        host.send(wire.resize(wire.Act(1, 2 * number + 2, 0, 0), 100 + number, 30))
        host.send(wire.consumed(number + 1))
        ask(wire.query(number), wire.STATE)
    while wire.EXITED not in heard:
        heard.add(host.recv(1 << 16)[0])
    host.send(wire.release())
    host.recv(1)
    host.close()
    for fd in struct.unpack("3i", ancillary[0][2]):
        os.close(fd)
