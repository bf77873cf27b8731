"""Words to the service manager that started this process: ready, stopping, being replaced (sd_notify).

One datagram to the socket it named. Without one nothing happens; and a manager that does not listen holds up nobody.
"""

from __future__ import annotations

import contextlib
import socket

READY = "READY=1"
STOPPING = "STOPPING=1"
RELOADING = "RELOADING=1"


def tell(address: str, *words: str) -> bool:
    """`address`: of NOTIFY_SOCKET, empty if there is none; @ begins an abstract one. Whether it was sent."""
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
