"""The connection to a relay, by WebSocket, gRPC or ssh as the address says, with the same errors.

A client uses a `Carrier`, a descriptor to poll; a host uses a `Line`, to await. The differences
stay in websocket.py, grpc.py and ssh.py, and each library is loaded only when dialled.
A token travels as `authorization: Bearer`, never in an address.

    Unavailable   no answer, untrusted certificate, not a relay, or the connection ended
    WrongPin      the relay's key is not the key that the address pins
    NotAllowed    the relay does not admit us
    PeerFault     the peer sent an invalid message
    Usage         the address or the certificate file is invalid
    Impossible    gRPC is needed and not installed, or a library is broken
"""

from __future__ import annotations

from typing import Protocol

from holdfast.model import address
from holdfast.model.errors import Impossible


class Carrier(Protocol):
    """A non-blocking connection: `send` queues, `receive` returns the messages that have come."""

    def fileno(self) -> int: ...

    @property
    def pending(self) -> int:
        """Return the number of queued bytes. While not 0, send only answers."""

    def send(self, message: bytes) -> None: ...

    def flush(self) -> None:
        """Write queued bytes: the descriptor is writable."""

    def receive(self) -> list[bytes]:
        """Return the messages that have come: the descriptor is readable."""

    def stranded(self) -> bool:
        """Tell whether its local address is known to be gone from this machine.

        gRPC does not reveal its local address, so it never knows.
        """

    def close(self) -> None: ...


def dial(url: str, token: str | None, ca: str | None, wait_s: float) -> Carrier:
    """Dial a relay within `wait_s`. Clients have passes and no token.

    A carrier may report only by `receive` that the relay does not answer or does not admit us.
    """
    if (way := address.ssh(url)) is not None:
        from holdfast.transport import ssh

        return ssh.dial(way, wait_s)
    if address.parsed(url).scheme in address.GRPC:
        from holdfast.transport import grpc

        return grpc.dial(url, token, ca, wait_s)
    try:
        from holdfast.transport import websocket
    except ImportError as e:
        raise Impossible(
            f"the library websockets cannot be used: {e}", "install Holdfast again"
        ) from e
    return websocket.dial(url, token, ca, wait_s)
