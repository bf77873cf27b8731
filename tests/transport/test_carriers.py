"""T3: both doors of a relay, dialled: a caller cannot tell them apart, with any peer."""

from __future__ import annotations

import json
import os
import select
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from holdfast.client import remote
from holdfast.core.sealed import route as routes
from holdfast.home.machines import Machine, Way
from holdfast.model import address, signing
from holdfast.model.agreement import public
from holdfast.model.errors import (
    HoldfastError,
    Impossible,
    NotAllowed,
    PeerFault,
    Unavailable,
    Usage,
)
from holdfast.model.limits import OUTER_BYTES, REMOTE_QUEUE_BYTES
from holdfast.transport import carriers
from holdfast.transport import grpc as ours
from holdfast.transport.carriers import Carrier
from holdfast.wire import outer
from tests.support.commands.certificates import certificate
from tests.support.installation import eventually
from tests.support.relays import RelayProcess

WAIT_S = 20.0
DOORS = ("websocket", "grpc")
SCHEMES = {"websocket": "ws", "grpc": "grpc"}
PASS = b"p" * 32
HELLO = outer.encode(outer.Hello(outer.LOWEST, outer.VERSION, outer.CLIENT, "test"))


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    with RelayProcess(
        str(tmp_path_factory.mktemp("relay") / "data"), "--grpc", "127.0.0.1:0"
    ) as made:
        yield made


def following(carrier: Carrier, wait_s: float = WAIT_S) -> list[outer.Frame]:
    """The next frames."""
    poll, end = select.poll(), time.monotonic() + wait_s
    poll.register(carrier.fileno(), select.POLLIN)
    while time.monotonic() < end:
        poll.modify(carrier.fileno(), select.POLLIN | (select.POLLOUT if carrier.pending else 0))
        events = dict(poll.poll(1000)).get(carrier.fileno(), 0)
        if events & select.POLLOUT:
            carrier.flush()
        if events & ~select.POLLOUT and (found := carrier.receive()):
            return [outer.decode(one) for one in found]
    raise AssertionError("nothing came")


def refusal(url: str, ca: str | None = None, token: str | None = None) -> HoldfastError:
    """The error of a caller that gets no connection."""
    with pytest.raises(HoldfastError) as caught:
        carrier = carriers.dial(url, token, ca, WAIT_S)
        try:
            carrier.send(HELLO)
            following(carrier)
        finally:
            carrier.close()
    return caught.value


@contextmanager
def server(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server that is no relay: each connection is given to `serve`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def one(sock: socket.socket) -> None:
            with sock, suppress(OSError):
                sock.settimeout(WAIT_S)
                serve(sock)

        def accept() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=one, args=(listener.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def silent(sock: socket.socket) -> None:
    while sock.recv(65536):
        pass


# ---------------------------------------------------------------- the same


@pytest.mark.parametrize("hosts", DOORS)
@pytest.mark.parametrize("clients", DOORS)
@pytest.mark.smoke
def test_every_byte_passes_both_ways_by_either_door(
    relay: RelayProcess, hosts: str, clients: str
) -> None:
    url, secret, ready = relay.urls[hosts], signing.generate(), threading.Event()
    blocks = [os.urandom(size) for size in (1, 4096, 65_535, 20_000, 65_535, 65_535)]

    def host() -> None:
        with closing(carriers.dial(url, relay.token(), None, WAIT_S)) as line:
            line.send(outer.encode(outer.Hello(outer.LOWEST, outer.VERSION, outer.HOST, "test")))
            (welcome,) = following(line)
            assert isinstance(welcome, outer.Welcome)
            signature = routes.sign(secret, address.name(url), welcome.nonce, 1)
            line.send(
                outer.encode(
                    outer.Register(signing.public(secret), 1, signature, (routes.digest(PASS),))
                )
            )
            assert isinstance(following(line)[0], outer.Registered)
            ready.set()
            while not isinstance((frames := following(line))[-1], outer.Close):
                for frame in frames:
                    if isinstance(frame, outer.Incoming):
                        line.send(outer.encode(outer.Accept(frame.stream)))
                    elif isinstance(frame, outer.Data):
                        line.send(outer.encode(frame))
            line.send(outer.encode(outer.Ping(b"whatever")))
            assert following(line) == [outer.Pong(b"whatever")]

    beside = threading.Thread(target=host, daemon=True)
    beside.start()
    assert ready.wait(WAIT_S)
    with closing(carriers.dial(relay.urls[clients], None, None, WAIT_S)) as carrier:
        carrier.send(HELLO)
        assert isinstance(following(carrier)[0], outer.Welcome)
        carrier.send(outer.encode(outer.Open(1, routes.route(signing.public(secret)), PASS)))
        assert following(carrier) == [outer.Accept(1)]
        for block in blocks:
            carrier.send(outer.encode(outer.Data(1, block)))
        came: list[bytes] = []
        poll = select.poll()
        while len(came) < len(blocks):
            poll.register(
                carrier.fileno(), select.POLLIN | (select.POLLOUT if carrier.pending else 0)
            )
            for _, event in poll.poll(WAIT_S * 1000):
                if event & select.POLLOUT:
                    carrier.flush()
                if event & select.POLLIN:
                    came += [
                        frame.payload
                        for one in carrier.receive()
                        if isinstance(frame := outer.decode(one), outer.Data)
                    ]
        assert came == blocks
        carrier.send(
            outer.encode(outer.Close(1, outer.DONE))
        )  # and then it is closed: the last words arrive
    beside.join(WAIT_S)
    assert not beside.is_alive()


@pytest.mark.parametrize("door", DOORS)
def test_a_token_that_does_not_count(relay: RelayProcess, door: str) -> None:
    found = refusal(relay.urls[door], token="hfr_" + "x" * 43)
    assert (
        isinstance(found, NotAllowed)
        and found.message
        == f"the relay {address.name(relay.urls[door])} does not let us in: "
        "this token does not admit anybody"
    )


@pytest.mark.parametrize("door", DOORS)
def test_an_unreachable_relay_is_a_typed_error(door: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    found = refusal(f"{SCHEMES[door]}://127.0.0.1:{port}")
    assert (
        type(found) is Unavailable
        and found.message.startswith(f"the relay 127.0.0.1:{port} cannot be reached: ")
        and "refused" in found.message
    )
    unknown = refusal(f"{SCHEMES[door]}s://nowhere.invalid")
    assert type(unknown) is Unavailable and unknown.message.startswith(
        "the relay nowhere.invalid cannot be reached: "
    )


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    "says",
    (
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n",
        bytes(64),
        b"",
    ),
)
def test_a_server_that_is_no_relay_is_a_typed_error(door: str, says: bytes) -> None:
    def serve(sock: socket.socket) -> None:
        sock.recv(65536)
        sock.sendall(says)

    with server(serve) as port:
        found = refusal(f"{SCHEMES[door]}://127.0.0.1:{port}")
        assert isinstance(found, Unavailable) and f"127.0.0.1:{port}" in found.message


def test_the_other_door_of_a_relay_is_no_door(relay: RelayProcess) -> None:
    ports = relay.port_of("websocket"), relay.port_of("grpc")
    for scheme, port in zip(("grpc", "ws"), ports, strict=True):
        found = refusal(f"{scheme}://127.0.0.1:{port}")
        assert type(found) is Unavailable and f"127.0.0.1:{port} " in found.message


# ---------------------------------------------------------------- certificates


@pytest.mark.parametrize("door", DOORS)
def test_certificates_are_checked_the_same(door: str, tmp_path: Path) -> None:
    for name in ("right", "other"):
        (tmp_path / name).mkdir()
    chain, key = certificate(tmp_path / "right", "localhost", 1)
    other, _ = certificate(tmp_path / "other", "localhost", 2)
    with RelayProcess(
        str(tmp_path / "relay"),
        "--tls-cert",
        str(chain),
        "--tls-key",
        str(key),
        "--name",
        "localhost",
        "--grpc",
        "127.0.0.1:0",
    ) as made:
        assert set(json.loads(json.dumps(made.urls))) == {"websocket", "grpc"}
        url = f"{SCHEMES[door]}s://localhost:{made.port_of(door)}"
        with closing(carriers.dial(url, None, str(chain), WAIT_S)) as carrier:
            carrier.send(HELLO)
            assert isinstance(following(carrier)[0], outer.Welcome)
        for wrong in (
            refusal(url, str(other)),
            refusal(url),
            refusal(url.replace("localhost", "127.0.0.1"), str(chain)),
        ):
            assert (
                type(wrong) is Unavailable
                and "has no certificate that is trusted here: " in wrong.message
                and "--ca" in wrong.recover
            )
        assert isinstance(refusal(url, str(other), made.token()), Unavailable | ssl.SSLError)
        assert isinstance(refusal(url, str(key)), Usage) and isinstance(
            refusal(url, str(tmp_path / "none")), Usage
        )
        assert isinstance(
            refusal(f"{SCHEMES[door]}://localhost:{made.port_of(door)}"), Unavailable
        ), "TLS there, none here"
    with server(silent) as port:
        pass
    assert isinstance(refusal(f"{SCHEMES[door]}s://localhost:{port}"), Unavailable)


# ---------------------------------------------------------------- hostile relays

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
ACK = bytes((0, 0, 0, 4, 1, 0, 0, 0, 0))


def h2(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + body


def field(name: bytes, value: bytes) -> bytes:
    """Of a header, neither compressed nor remembered."""
    return b"\0" + bytes((len(name),)) + name + bytes((len(value),)) + value


OPENED = h2(1, 4, 1, b"\x88" + field(b"content-type", b"application/grpc"))  # 200
BAD: dict[str, bytes] = {
    "goaway": h2(7, 0, 0, (0).to_bytes(4, "big") + (0).to_bytes(4, "big")),
    "goaway, calm down": h2(
        7, 0, 0, (0).to_bytes(4, "big") + (11).to_bytes(4, "big") + b"too_many_pings"
    ),
    "reset": h2(3, 0, 1, (8).to_bytes(4, "big")),
    "reset, refused": h2(3, 0, 1, (7).to_bytes(4, "big")),
    "a page": h2(1, 5, 1, b"\x8d"),  # 404
    "a status that is none": OPENED + h2(1, 5, 1, field(b"grpc-status", b"9999")),
    "words that are none": OPENED
    + h2(1, 5, 1, field(b"grpc-status", b"14") + field(b"grpc-message", b"%1B]0;evil%07 %ff")),
    "too large a message": OPENED
    + h2(0, 0, 1, b"\0" + (OUTER_BYTES + 1).to_bytes(4, "big") + b"x" * 100),
    "compressed": OPENED + h2(0, 0, 1, b"\1" + (4).to_bytes(4, "big") + b"xxxx"),
    "half a message, end": OPENED + h2(0, 1, 1, b"\0" + (100).to_bytes(4, "big") + b"x"),
    "data of nobody, end": h2(0, 0, 77, b"x"),
    "end": OPENED,
    "headers that cannot be read": h2(1, 4, 1, b"\xff" * 40),
    "headers without end": h2(
        1, 4, 1, b"\x88" + b"".join(field(b"x-%d" % n, b"y" * 120) for n in range(400))
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_any_http2_failure_is_a_typed_end(what: str) -> None:
    def serve(sock: socket.socket) -> None:
        sock.sendall(SETTINGS)
        came = b""
        while not _headers(came):
            came += (piece := sock.recv(65536))
            if not piece:
                return
        sock.sendall(ACK + BAD[what])
        if "goaway" in what or "end" in what:
            return
        silent(sock)

    with server(serve) as port:
        found = refusal(f"grpc://127.0.0.1:{port}")
        assert (
            isinstance(found, Unavailable)
            and found.message.isprintable()
            and len(found.message) < 400
        )
        if what == "too large a message":
            assert isinstance(found, PeerFault)


def _headers(came: bytes) -> bool:
    """Whether the request is there: a HEADERS frame after the preface."""
    at = len(PREFACE)
    while at + 9 <= len(came):
        if came[at + 3] == 1:
            return True
        at += 9 + int.from_bytes(came[at : at + 3], "big")
    return False


class Tap:
    """A scripted gRPC server: sends `message` `count` times, and reads only if `reads`."""

    def __init__(self, message: bytes = b"", count: int = 0, reads: bool = True) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self.said, self.over = 0, threading.Event()

        def connect(messages: Iterator[bytes], context: Any) -> Iterator[bytes]:
            if reads:
                next(messages)
            for _ in range(count):
                yield message
                self.said += 1
            self.over.wait(WAIT_S)

        self._server = grpc.server(ThreadPoolExecutor(4))
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    "holdfast.v1.Relay", {"Connect": grpc.stream_stream_rpc_method_handler(connect)}
                ),
            )
        )
        self.url = f"grpc://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def close(self) -> None:
        self.over.set()
        self._server.stop(0).wait()


def test_messages_that_the_client_does_not_fetch_stop_the_sender() -> None:
    with (
        closing(Tap(b"x" * 65_000, 2000)) as tap,
        closing(carriers.dial(tap.url, None, None, WAIT_S)) as carrier,
    ):
        assert isinstance(carrier, ours.Polled)
        carrier.send(HELLO)
        poll, before = select.poll(), -1
        poll.register(carrier.fileno(), select.POLLIN)
        assert poll.poll(WAIT_S * 1000)
        while before != tap.said:  # until no message moves any more
            before = tap.said
            threading.Event().wait(0.3)  # poll
        assert (
            tap.said * 65_000 < 32_000_000 and carrier.call.arrived <= ours.ARRIVED_BYTES + 65_000
        )
        got = 0
        while got < 2000:
            assert poll.poll(WAIT_S * 1000)
            got += len(carrier.receive())


def test_the_queue_for_a_relay_that_does_not_read_is_bounded() -> None:
    with (
        closing(Tap(reads=False)) as tap,
        closing(carriers.dial(tap.url, None, None, WAIT_S)) as carrier,
        pytest.raises(Unavailable, match="takes nothing"),
    ):
        for _ in range(200 + REMOTE_QUEUE_BYTES // 60_000):
            carrier.send(b"x" * 60_000)


def box(*urls: str) -> Machine:
    return Machine(
        "box",
        bytes(32),
        public(bytes(range(32))),
        "ann",
        0,
        tuple(Way(url, bytes(16), PASS) for url in urls),
    )


def test_garbage_is_a_fault_of_the_relay() -> None:
    for message in (b"", b"garbage", b"\xff" * 65_000, outer.encode(outer.Registered(bytes(16)))):
        with closing(Tap(message, 3)) as tap, pytest.raises(PeerFault):
            remote.dial(box(tap.url), bytes(range(1, 33)))


def test_an_unusable_address_does_not_hide_a_usable_one() -> None:
    with closing(Tap(b"garbage", 1)) as tap:
        for urls in ((tap.url, "gopher://x"), ("gopher://x", tap.url)):
            with pytest.raises(PeerFault):
                remote.dial(box(*urls), bytes(range(1, 33)))
        with pytest.raises(Usage):
            remote.dial(box("gopher://x"), bytes(range(1, 33)))


# ---------------------------------------------------------------- as a guest in a process


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.endswith(" a relay")]


def test_a_closed_connection_leaves_no_thread_and_no_descriptor(relay: RelayProcess) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with closing(carriers.dial(relay.urls["grpc"], None, None, WAIT_S)) as carrier:
            carrier.send(HELLO)
            following(carrier)
    eventually(lambda: not threads(), "its threads are gone", WAIT_S)
    eventually(
        lambda: len(os.listdir("/proc/self/fd")) <= descriptors + 8,
        "its descriptors are closed",
        WAIT_S,
    )


GUEST = """
import os, subprocess, sys, threading, time
from holdfast.transport import carriers
from holdfast.wire import outer
import select
carrier = carriers.dial(sys.argv[1], None, None, 20.0)
carrier.send(outer.encode(outer.Hello(outer.LOWEST, outer.VERSION, outer.CLIENT, "guest")))
poll = select.poll(); poll.register(carrier.fileno(), select.POLLIN); poll.poll(20000)
assert carrier.receive()
code = "import os; print(*(f'GRPC_{n}' in os.environ for n in ('VERBOSITY', 'DNS_RESOLVER')))"
command = [sys.executable, "-c", code]
seen = subprocess.run(command, capture_output=True, text=True, check=True).stdout
assert seen == "False False\\n", seen
for _ in range(3):
    pid = os.fork()
    if not pid:
        os.execv("/bin/true", ["true"])
    assert os.waitpid(pid, 0)[1] == 0
carrier.send(outer.encode(outer.Ping(b"12345678")))
while not (came := carrier.receive()):
    poll.poll(20000)
assert outer.decode(came[0]) == outer.Pong(b"12345678")
print("done", flush=True)
"""


@pytest.mark.parametrize(
    "ends", ("", "carrier.close()", "import os; os.kill(os.getpid(), 15)", "raise SystemExit(0)")
)
def test_a_grpc_client_forks_execs_and_exits_silently(relay: RelayProcess, ends: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", GUEST + ends, relay.urls["grpc"]],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == (
        "done\n",
        "",
        -15 if "kill" in ends else 0,
    )


def test_without_grpc_the_error_names_the_package_to_install() -> None:
    script = (
        "import sys; sys.modules['grpc'] = None\nfrom holdfast.transport import carriers\n"
        "from holdfast.model.errors import Impossible\n"
        "try: carriers.dial('grpcs://relay.example', None, None, 1.0)\n"
        "except Impossible as e: print(e.message)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert (
        done.stdout
        == "gRPC is not installed here, and this address asks for it: install holdfast[grpc]\n"
        and Impossible.exit_code == 7
    )
