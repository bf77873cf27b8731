"""Messages to the service manager that started this process: ready, stopping, reloading
(sd_notify).

Each is a datagram to the socket that the manager named. Without such a socket nothing is sent, and
a manager that does not listen delays no caller.
"""

from __future__ import annotations

import contextlib
import socket

READY = "READY=1"
STOPPING = "STOPPING=1"
RELOADING = "RELOADING=1"


def tell(address: str, *words: str) -> bool:
    """Send words to NOTIFY_SOCKET (empty: none; @ begins an abstract name). Return success."""
    if not address.startswith(("/", "@")):
        return False
    name = (
        b"\0" + address[1:].encode()
        if address[0] == "@"
        else address.encode("utf-8", "surrogateescape")
    )
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.sendto("\n".join(words).encode(), name)
        return True
    return False
