"""The way to a relay, whichever of its doors the address names: both give the same, and fail in the same words.

A client has a `Carrier`, a descriptor to poll; a host has a `Line`, to await. What differs stays in transport/websocket.py and transport/grpc.py; each
library is loaded only by who dials by it. A token is given apart and travels as `authorization: Bearer`, never in an address.

    Unavailable   nobody answers, the certificate is not trusted, it is no relay, the connection ended
    NotAllowed    it is a relay, and does not let us in
    PeerFault     it sent what is no message of ours
    Usage         the address or the file of certificates is none
    Impossible    gRPC is asked for and not installed, or a library is broken
"""

from __future__ import annotations

from typing import Protocol

from holdfast.model import address
from holdfast.model.errors import Impossible


class Carrier(Protocol):
    """One connection. Not blocking: `send` keeps what is not taken yet, `receive` gives what there is."""

    def fileno(self) -> int: ...

    @property
    def pending(self) -> int:
        """Bytes that wait to be taken. While there are any, nothing more should be sent but answers."""

    def send(self, message: bytes) -> None: ...

    def flush(self) -> None:
        """The descriptor is writable."""

    def receive(self) -> list[bytes]:
        """The descriptor is readable: what has come, if anything."""

    def stranded(self) -> bool:
        """Whether it is known to come from an address that this machine no longer has. gRPC does not say from where it comes."""

    def close(self) -> None: ...


def dial(url: str, token: str | None, ca: str | None, wait_s: float) -> Carrier:
    """Clients have no token: they have passes. It may take as long as that; a carrier may say only by `receive` that nobody is there, or that we are not let in."""
    if address.parsed(url).scheme in address.GRPC:
        from holdfast.transport import grpc

        return grpc.dial(url, token, ca)
    try:
        from holdfast.transport import websocket
    except ImportError as e:
        raise Impossible(
            f"the library websockets cannot be used: {e}", "install Holdfast again"
        ) from e
    return websocket.dial(url, token, ca, wait_s)
