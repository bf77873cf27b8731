"""Frames through gRPC, with the same messages, certificates and errors as transport/websocket.py.

Needs the extra [grpc]. A connection is a separate channel with a single call,
`holdfast.v1.Relay/Connect`, whose messages are frames; the library serializes nothing. Connections
share nothing and the library retries nothing: a channel that redials by itself would compete with
our own reconnection. Liveness is the frames' own PING.

The library's blocking interface is used by two threads per connection, which ring a bell: a pipe
for a client, which polls, and the event loop for a host, which awaits. `grpc.aio` was tried for the
host. It is somewhat quicker, but keeps sockets of ended calls open until garbage collection, loses
the reason of an end that comes during a write, and takes part in every loop of the process.
Messages wait in short bounded queues on both sides; the rest is the library's own window.

Switched off in the library: its own list of authorities (we use the system's, as for TLS
elsewhere), proxies from the environment, its own resolver, its log on stderr (which may be a
person's terminal), and its fork handlers (they wait for threads; we only exec). The last three are
read from the environment while the library loads, so they are set for that moment only and reach no
child.
"""

from __future__ import annotations

import contextlib
import os
import re
import ssl
import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final

from holdfast.model import address
from holdfast.model.errors import (
    HoldfastError,
    Impossible,
    NotAllowed,
    PeerFault,
    Unavailable,
    Usage,
)
from holdfast.model.limits import OUTER_BYTES, REMOTE_QUEUE_BYTES, STREAM_WINDOW_BYTES, KiB

SETTINGS: Final = {
    "GRPC_VERBOSITY": "NONE",
    "GRPC_DNS_RESOLVER": "native",
    "GRPC_ENABLE_FORK_SUPPORT": "0",
}


def _load() -> ModuleType:
    for key, value in SETTINGS.items():
        os.putenv(key, value)
    try:
        import grpc
    except ImportError as e:
        raise Impossible(
            "gRPC is not installed here, and this address asks for it: install holdfast[grpc]",
            "or use the relay's wss:// address, if it has one",
        ) from e
    finally:
        for key in SETTINGS:
            os.unsetenv(key)
    found: ModuleType = grpc
    return found


library = _load()

METHOD: Final = "/holdfast.v1.Relay/Connect"
OPTIONS: Final = (
    ("grpc.max_receive_message_length", OUTER_BYTES),
    ("grpc.max_send_message_length", OUTER_BYTES),
    ("grpc.max_metadata_size", 16 * KiB),
    ("grpc.use_local_subchannel_pool", 1),  # failures of other connections do not count
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.service_config_disable_resolution", 1),
)
SLACK_BYTES: Final = 64 * KiB  # handed to the library, not counted as queued
# That the user has not fetched: nothing more is taken from the library
ARRIVED_BYTES: Final = 2 * STREAM_WINDOW_BYTES
CLOSE_S: Final = 1.0  # to send queued messages before closing
SAID_CHARS: Final = 200
SYSTEM: Final = re.compile(r"[0-9a-f]{8}\.[0-9]+")  # a certificate in a directory of authorities


# ---------------------------------------------------------------- certificates


def roots(ca: str | None) -> bytes:
    """Return the system's authorities, or only the certificates in the file `ca`."""
    try:
        ssl.create_default_context(cafile=ca)  # raises if the file has none
        if ca is not None:
            return _read(ca)
        found = ssl.get_default_verify_paths()
        pem = (
            _read(found.cafile)
            if found.cafile
            else b"\n".join(
                _read(f"{found.capath}/{one}")
                for one in sorted(os.listdir(found.capath))
                if SYSTEM.fullmatch(one)
            )
            if found.capath
            else b""
        )
    except (OSError, ssl.SSLError) as e:
        raise Usage(f"cannot use the certificates in {ca!a}: {e}") from e
    if not pem.strip():
        raise Unavailable(
            "no authorities for certificates are known on this machine",
            "give the relay's certificate with --ca",
        )
    return pem


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _channel(url: str, ca: str | None, wait_s: float) -> Any:
    host, port = address.host_and_port(url)
    target = f"dns:///[{host}]:{port}" if ":" in host else f"dns:///{host}:{port}"
    if not address.secure(url):
        return library.insecure_channel(target, options=OPTIONS)
    options: tuple[tuple[str, int | str], ...] = OPTIONS
    if (pin := address.pin(url)) is not None:
        # The library cannot check a key itself. So the certificate is fetched, its key checked, and
        # the certificate given to the library as the only authority, under its own name.
        from holdfast.transport import pinning

        authority, name = pinning.fetch(url, pin, wait_s)
        options = (*OPTIONS, ("grpc.ssl_target_name_override", name or host))
    else:
        authority = roots(ca)
    return library.secure_channel(
        target, library.ssl_channel_credentials(root_certificates=authority), options=options
    )


# ---------------------------------------------------------------- errors


def fault(
    who: str, code: object, details: str, refused: Callable[[str], NotAllowed]
) -> HoldfastError:
    """Translate the end of a call. `details` come from the library or the relay: cut short."""
    status, said = library.StatusCode, _said(details)
    more = f": {said}" if said else ""
    if code in (status.UNAUTHENTICATED, status.PERMISSION_DENIED):
        return refused(more)
    if code is status.RESOURCE_EXHAUSTED and "larger than max" in details:
        return PeerFault(f"{who} sent more than a frame can be")
    if code is status.RESOURCE_EXHAUSTED:
        return Unavailable(f"{who} has no room now{more}", "try again")
    if any(
        word in details
        for word in (
            "CERTIFICATE_VERIFY_FAILED",
            "verification check failed",
            "Verification Check failed",
            "peer certificate",
        )
    ):
        return Unavailable(
            f"{who} has no certificate that is trusted here{more}",
            "give its certificate with --ca, or the address with the pin that the relay printed",
        )
    if "handshake failed" in details:
        return Unavailable(f"{who} answers, but not with TLS{more}", "is the address right?")
    if (
        code is status.UNIMPLEMENTED
        or "HTTP/2" in details
        or "http2 header" in details
        or "http1" in details
    ):
        return Unavailable(f"{who} answers, but not as a relay{more}", "is the address right?")
    if "failed to connect" in details or "resol" in details:
        return Unavailable(
            f"{who} cannot be reached{more}", "is the address right, is the network up?"
        )
    if code is status.OK:
        return Unavailable(f"{who} closed the connection")
    return Unavailable(f"the connection to {who} broke{more}", "try again")


def _said(details: str) -> str:
    words = re.sub(r"^.*last error: ", "", details, flags=re.DOTALL)
    words = re.sub(r"^[A-Z_]+: +", "", words)
    words = re.sub(r"^ipv[46]:\S+: +", "", words)[:SAID_CHARS].strip()
    return words if words.isprintable() else ""


# ---------------------------------------------------------------- a connection


class Call:
    """A connection. Its threads ring `bell` with the lock held.

    The bell rings when a message came or the call ended (once until `receive`), and when there is
    room again.
    """

    def __init__(
        self,
        channel: Any,
        who: str,
        refused: Callable[[str], NotAllowed],
        token: str | None,
        bell: Callable[[], None],
    ) -> None:
        self._channel, self._who, self._refused, self._bell = channel, who, refused, bell
        self._lock = threading.Lock()
        self._more = threading.Condition(self._lock)  # to send
        self._room = threading.Condition(self._lock)  # for what arrives
        self._rung = self.closed = False
        self._out: deque[bytes] = deque()
        self._in: deque[bytes] = deque()
        self._queued = self.arrived = 0
        self.end: HoldfastError | None = None
        self._over = threading.Event()
        self._call = channel.stream_stream(METHOD)(
            self._messages(), metadata=[("authorization", f"Bearer {token}")] if token else None
        )
        threading.Thread(target=self._read, name="from a relay", daemon=True).start()

    @property
    def pending(self) -> int:
        """Return the bytes that the library has not accepted."""
        return max(0, self._queued - SLACK_BYTES) if self.end is None else 0

    def send(self, message: bytes) -> None:
        """Queue a message.

        If the connection is gone the message is dropped; `receive` tells why.
        """
        with self._lock:
            if self.end is not None or self.closed:
                return
            if self._queued > REMOTE_QUEUE_BYTES:
                raise Unavailable("the relay takes nothing")
            self._out.append(message)
            self._queued += len(message)
            self._more.notify()

    def receive(self) -> list[bytes]:
        """Return the messages that have come.

        Raises Unavailable when the connection is gone, NotAllowed if the relay does not admit us,
        PeerFault for an invalid message.
        """
        with self._lock:
            self._rung = False
            messages = list(self._in)
            self._in.clear()
            if self.arrived >= ARRIVED_BYTES:
                self._room.notify()
            self.arrived = 0
            if self.end is not None:
                if not messages:
                    raise self.end
                self._wake()
            return messages

    def close(self, undo: Callable[[], None] = lambda: None) -> None:
        """Close. Queued messages are still sent if the relay reads soon; the caller does not wait.

        After `undo` the bell no longer rings.
        """
        with self._lock:
            if self.closed:
                return
            self.closed = True
            undo()
            self._more.notify()
            self._room.notify()
        if self.end is not None:
            self._channel.close()
        else:
            threading.Thread(target=self._finish, name="leaving a relay", daemon=True).start()

    # ------------------------------------------------------------ in separate threads

    def _wake(self) -> None:
        if not self._rung and not self.closed:
            self._rung = True
            self._bell()

    def _messages(self) -> Iterator[bytes]:
        """Yield messages; the library asks for the next one when it has accepted the last."""
        while True:
            with self._lock:
                self._more.wait_for(lambda: self._out or self.closed or self.end is not None)
                if self.end is not None or not self._out:
                    return
                message = self._out.popleft()
            yield message
            with self._lock:
                waited = self.pending
                self._queued -= len(message)
                if waited and not self.pending and not self.closed:
                    self._bell()  # even if rung: the sender may wait for room

    def _read(self) -> None:
        try:
            for message in self._call:
                with self._lock:
                    self._room.wait_for(lambda: self.arrived < ARRIVED_BYTES or self.closed)
                    if not self.closed:
                        self._in.append(message)
                        self.arrived += len(message)
                        self._wake()
            end = fault(self._who, library.StatusCode.OK, "", self._refused)
        except library.RpcError as e:
            end = fault(self._who, e.code(), e.details() or "", self._refused)
        except Exception as e:  # the library raises anything when its channel closes
            end = Unavailable(f"the connection to {self._who} broke: {type(e).__name__}")
        with self._lock:
            self.end = end
            self._wake()
            self._more.notify()
        self._over.set()

    def _finish(self) -> None:
        self._over.wait(CLOSE_S)
        self._call.cancel()
        self._channel.close()


class Polled:
    """A connection as a descriptor to poll: readable when a message came or there is room again."""

    def __init__(self, url: str, token: str | None, ca: str | None, wait_s: float) -> None:
        who = f"the relay {address.name(url)}"
        channel = _channel(url, ca, wait_s)
        self._bell, self._ring = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.call = Call(
            channel,
            who,
            lambda more: NotAllowed(
                f"{who} does not let us in{more}", "ask whoever runs it for a token"
            ),
            token,
            self._rings,
        )

    def _rings(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the pipe is full of earlier rings
            os.write(self._ring, b"!")

    def fileno(self) -> int:
        return self._bell

    @property
    def pending(self) -> int:
        return self.call.pending

    def send(self, message: bytes) -> None:
        self.call.send(message)

    def flush(self) -> None:
        pass

    def receive(self) -> list[bytes]:
        with contextlib.suppress(BlockingIOError):
            os.read(self._bell, 64)  # first: messages from now on ring again
        return self.call.receive()

    def stranded(self) -> bool:
        return False

    def close(self) -> None:
        def undo() -> None:
            os.close(self._bell)
            os.close(self._ring)

        self.call.close(undo)


def dial(url: str, token: str | None, ca: str | None, wait_s: float) -> Polled:
    """Start a connection. Its first `receive` tells whether the relay answers."""
    return Polled(url, token, ca, wait_s)
