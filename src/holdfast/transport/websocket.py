"""The client's end of a WebSocket without a loop or a thread: the owner polls its descriptor.

The protocol is the sans-I/O part of the `websockets` library, so the same code fits into a plain
poll loop, and a key costs one system call. Each message is one frame. Compression is off, because
the content is sealed.

A token goes into the Authorization header, never into the address (model/address.py).
"""

from __future__ import annotations

import contextlib
import errno
import socket
import ssl
import time
from typing import Final

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake, InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from holdfast.model import address
from holdfast.model.address import name
from holdfast.model.errors import NotAllowed, PeerFault, Unavailable, Usage
from holdfast.model.limits import OUTER_BYTES, REMOTE_QUEUE_BYTES
from holdfast.transport.messages import Cutter, masked

SUBPROTOCOL: Final = Subprotocol("holdfast.1")
READ_BYTES: Final = 256 * 1024
REFUSED_STATUS: Final = (401, 403)
SAID_CHARS: Final = 200  # of a server's reason for a refusal


def _secured(sock: socket.socket, url: str, ca: str | None) -> socket.socket:
    """Add TLS: the key that `url` pins, else the authorities in `ca`, else the system's."""
    if (pin := address.pin(url)) is not None:
        from holdfast.transport import pinning

        return pinning.wrap(sock, url, pin, "http/1.1")
    try:
        context = ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as e:
        raise Usage(f"cannot use the certificates in {ca!a}: {e}") from e
    return context.wrap_socket(sock, server_hostname=address.host_and_port(url)[0])


class WebSocket:
    """An open, non-blocking connection: `send` queues, `receive` returns the messages so far."""

    def __init__(self, sock: socket.socket, protocol: ClientProtocol, cutter: Cutter) -> None:
        self._sock, self._protocol, self._cutter = sock, protocol, cutter
        self._plain = not isinstance(sock, ssl.SSLSocket)
        # Allocating that much for each key would cost more than the key
        self._inbox = memoryview(bytearray(READ_BYTES))
        self._out = bytearray()
        self._parts: list[bytes] = []

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def pending(self) -> int:
        """Return the bytes that the socket has not accepted."""
        return len(self._out)

    def send(self, message: bytes) -> None:
        """Queue a message and write what fits. Raises Unavailable when the connection is gone."""
        if self._protocol.state is not State.OPEN:
            raise Unavailable("the relay has closed the connection")
        data = masked(message)
        if self._out:
            self._out += data
            return self.flush()
        try:
            count = self._sock.send(data)
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            count = 0
        except OSError as e:
            raise Unavailable(f"the connection to the relay broke: {e.strerror or e}") from e
        if count < len(data):
            self._out += data[count:]
        if len(self._out) > REMOTE_QUEUE_BYTES:
            raise Unavailable("the relay does not read")

    def flush(self) -> None:
        """Write queued bytes. Raises Unavailable when the connection is gone."""
        try:
            while self._out:
                del self._out[: self._sock.send(self._out)]
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            pass
        except OSError as e:
            raise Unavailable(f"the connection to the relay broke: {e.strerror or e}") from e

    def receive(self) -> list[bytes]:
        """Return the messages that have come.

        Raises Unavailable when the connection is gone, PeerFault for an invalid message.
        """
        messages: list[bytes] = []
        while True:
            try:
                count = self._sock.recv_into(self._inbox)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                break
            except OSError as e:
                raise Unavailable(f"the connection to the relay broke: {e.strerror or e}") from e
            if not count:
                self._protocol.receive_eof()
                break
            self._cut(self._inbox[:count], messages)
            if self._plain:
                break  # poll reports further bytes; only TLS may hold bytes that poll does not see
        if self._protocol.writes:
            self._flush_protocol()
        if not messages and self._protocol.state is not State.OPEN:
            raise Unavailable(
                "the relay closed the connection"
                + (f": {self._protocol.close_reason}" if self._protocol.close_reason else "")
            )
        return messages

    def _cut(self, data: memoryview, found: list[bytes]) -> None:
        for event in self._cutter.feed(data):
            if type(event) is bytes:
                found.append(event)
            elif isinstance(event, Frame):
                if event.opcode is Opcode.TEXT:
                    raise PeerFault("the relay sent text")
                if event.opcode in (Opcode.BINARY, Opcode.CONT):
                    self._parts.append(bytes(event.data))
                    if event.fin:
                        found.append(b"".join(self._parts))
                        self._parts.clear()

    def _flush_protocol(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                self._out += data
        self.flush()

    def stranded(self) -> bool:
        """Tell whether its local address is gone from this machine: no answer can arrive then."""
        if self._sock.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        try:
            address = self._sock.getsockname()
            with socket.socket(self._sock.family, socket.SOCK_STREAM) as other:
                other.bind((address[0], 0, *address[2:]))
        except OSError as e:
            return e.errno == errno.EADDRNOTAVAIL
        return False

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._protocol.send_close()
            self._flush_protocol()
        self._sock.close()


def dial(url: str, token: str | None, ca: str | None, wait_s: float) -> WebSocket:
    """Connect. Raises Unavailable without an answer in time, NotAllowed if refused."""
    deadline, where = time.monotonic() + wait_s, name(url)
    try:
        sock = socket.create_connection(address.host_and_port(url), timeout=wait_s)
    except OSError as e:
        raise Unavailable(
            f"the relay {where} cannot be reached: {e.strerror or e}",
            "is the address right, is the network up?",
        ) from e
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if address.secure(url):
            sock = _secured(sock, url, ca)
    except ssl.SSLError as e:
        sock.close()
        raise Unavailable(
            f"the relay {where} has no certificate that is trusted here: {e.reason or e}",
            "give its certificate with --ca, or the address with the pin that the relay printed",
        ) from e
    except OSError as e:
        sock.close()
        raise _silent(where, e) from e
    except BaseException:
        sock.close()
        raise
    return WebSocket(sock, *handshake(sock, address.bare(url), where, token, deadline))


def handshake(
    sock: socket.socket, url: str, where: str, token: str | None, deadline: float
) -> tuple[ClientProtocol, Cutter]:
    """Open the WebSocket on a connected socket. Closes the socket on any error."""
    try:
        protocol = ClientProtocol(parse_uri(url), subprotocols=[SUBPROTOCOL], max_size=OUTER_BYTES)
        cutter = Cutter(protocol, OUTER_BYTES)
        _open(sock, protocol, cutter, token, deadline)
        sock.setblocking(False)
        return protocol, cutter
    except (InvalidStatus, InvalidHandshake) as e:
        sock.close()
        if isinstance(e, InvalidStatus) and e.response.status_code in REFUSED_STATUS:
            raise NotAllowed(
                f"the relay {where} does not let us in{said(e)}", "ask whoever runs it for a token"
            ) from e
        raise Unavailable(
            f"{where} answers, but not as a relay: {e}", "is the address right?"
        ) from e
    except OSError as e:
        sock.close()
        raise _silent(where, e) from e
    except BaseException:
        sock.close()
        raise


def _silent(where: str, why: OSError) -> Unavailable:
    return Unavailable(f"the relay {where} does not answer: {why.strerror or why}", "try again")


def said(refusal: InvalidStatus) -> str:
    """Return the first words of a server's refusal."""
    words = (refusal.response.body or b"").decode("utf-8", "replace").strip()[:SAID_CHARS]
    return f": {words}" if words and words.isprintable() else ""


def _open(
    sock: socket.socket,
    protocol: ClientProtocol,
    cutter: Cutter,
    token: str | None,
    deadline: float,
) -> None:
    request = protocol.connect()
    if token:
        request.headers["Authorization"] = f"Bearer {token}"
    protocol.send_request(request)
    for data in protocol.data_to_send():
        sock.sendall(data)
    while protocol.state is State.CONNECTING and protocol.handshake_exc is None:
        if (left := deadline - time.monotonic()) <= 0:
            raise TimeoutError("it took too long")
        sock.settimeout(left)
        data = sock.recv(READ_BYTES)
        if not data:
            protocol.receive_eof()
        elif any(isinstance(event, bytes | Frame) for event in cutter.feed(data)):
            raise InvalidHandshake("it speaks before it is spoken to")
    if (error := protocol.handshake_exc) is not None:
        if isinstance(error, InvalidHandshake):
            raise error
        raise InvalidHandshake("no valid HTTP response") from error  # before release 15
    if protocol.subprotocol != SUBPROTOCOL:
        raise InvalidHandshake("it does not speak our protocol")
