"""The relay's composition root: opens files and sockets, reports the addresses, stops cleanly.

    holdfast relay serve

SIGTERM and SIGINT stop the relay: hosts and clients are told of the restart and reconnect at once.
SIGHUP reads the certificate again for later handshakes; an unreadable file leaves the old
certificate in place. Output goes to stderr: operations only, never a token, pass, payload or route.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import logging
import os
import resource
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from holdfast import __version__, home
from holdfast.home import cores
from holdfast.model import address
from holdfast.model.errors import Impossible, Unavailable, Usage
from holdfast.model.limits import RELAY_STOP_S, RELAY_TENANT_BURST_S, RELAY_TENANT_BYTES_S
from holdfast.relay import admin, control
from holdfast.relay.admission import Doorkeeper
from holdfast.relay.hub import Hub
from holdfast.relay.metrics import page
from holdfast.relay.registry import Registry
from holdfast.relay.server import Door, listen
from holdfast.relay.store import Store
from holdfast.relay.tenants import Quotas
from holdfast.transport import pinning
from holdfast.transport.page import at

if TYPE_CHECKING:
    from holdfast.relay.grpcdoor import GrpcDoor

STOP_LOOK_S = 0.02
ROUTED = ("192.0.2.1", 9)  # of no machine (RFC 5737): asks for the address of the default route
log = logging.getLogger("holdfast.relay")
Endpoint = tuple[str, int]  # address and port


class Options(NamedTuple):
    listen: Endpoint
    data: str
    names: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    certificate: tuple[str, str] | None = None  # files: chain and key
    grpc: Endpoint | None = None
    metrics: Endpoint | None = None
    rate: int = RELAY_TENANT_BYTES_S  # bytes per second of a tenant
    json: bool = False
    instead: tuple[Endpoint, ...] = ()  # tried in order if the first endpoint is taken
    bound: Callable[[Endpoint], None] = lambda endpoint: (
        None
    )  # called with the endpoint that was bound
    self_signed: bool = False  # without `certificate`: make one, and pin its key in the addresses
    by: str = "hand"  # the starter: `up` ends only a relay that `up` began


class Certificate:
    """The certificate in use."""

    def __init__(self, files: tuple[str, str], pinned: bool = False) -> None:
        self._files = files
        self.context, self.pem = self._read()
        der = ssl.PEM_cert_to_DER_cert(self.pem[0].decode("ascii")) if pinned else b""
        self.pin = pinning.of_certificate(der) if pinned else None

    def _read(self) -> tuple[ssl.SSLContext, tuple[bytes, bytes]]:
        chain, key = self._files
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(chain, key, password=lambda: "")  # never ask a terminal
            with open(chain, "rb") as c, open(key, "rb") as k:
                return context, (c.read(), k.read())
        except (OSError, ValueError) as e:
            raise Usage(
                f"cannot use the certificate {chain} with the key {key}: {e}",
                "both in PEM, the key without a passphrase",
            ) from e

    def reload(self) -> None:
        try:
            self.context, self.pem = self._read()
        except Usage as e:
            log.error("the certificate stays: %s", e.message)
        else:
            log.info("the certificate was read again")


def serve(options: Options) -> int:
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    prepare(options.data)
    cores.forbid()
    certificate = _certificate(options)
    with contextlib.suppress(ValueError, OSError):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with asyncio.Runner(loop_factory=_loop()) as runner:
        return runner.run(_serve(options, certificate))


def _certificate(options: Options) -> Certificate | None:
    if options.certificate is not None:
        return Certificate(options.certificate)
    if options.self_signed:
        from holdfast.relay import self_signed

        return Certificate(self_signed.files(options.data), pinned=True)
    return None


def prepare(data: str) -> None:
    """Create the relay's private directory, or check an existing directory.

    Root may ask the relay of another account (relay/control.py).
    """
    try:
        os.makedirs(data, mode=0o700, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as e:
        raise Impossible(
            f"{data} cannot be a directory: {e.strerror}", "give another one with --data"
        ) from e
    except OSError as e:
        raise Unavailable(
            f"cannot create {data}: {e.strerror}", "give another one with --data"
        ) from e
    home.check_private(data)


def _loop() -> type[asyncio.AbstractEventLoop] | None:
    """Return uvloop's loop if it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.Loop  # type: ignore[no-any-return]


async def _serve(options: Options, certificate: Certificate | None) -> int:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(
        lambda _, c: log.error("%s", c.get("message"), exc_info=c.get("exception"))
    )
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    loop.add_signal_handler(
        signal.SIGHUP, certificate.reload if certificate is not None else lambda: None
    )
    store = Store(control.database_of(options.data))
    if store.put_aside:
        log.error(
            "the database was unreadable and is now %s; tokens have to be made anew",
            store.put_aside,
        )
    now = int(time.time())
    tokens = store.at_once(admin.tokens)
    quotas = Quotas(
        tenant_bytes_s=options.rate, tenant_burst=int(options.rate * RELAY_TENANT_BURST_S)
    )
    registry = Registry(
        store.routes(now),
        quotas,
        epoch=time.time() - time.monotonic(),
        software=f"holdfast {__version__}",
    )
    with contextlib.ExitStack() as undo:
        listener = _listen_first((options.listen, *options.instead), undo)
        options.bound(_bound(listener))
        hub = Hub(registry, Doorkeeper((), options.origins), store)
        hub.doorkeeper.learn(tokens)
        store.start()
        undo.callback(store.close)
        doors = [
            Door(hub, listener, lambda: certificate.context if certificate is not None else None)
        ]
        undo.callback(_stop, doors)
        secure = certificate is not None
        said = [("websocket", "wss" if secure else "ws", *_bound(listener))]
        if options.metrics is not None:
            numbers = _listen(options.metrics, undo)
            doors.append(Door(hub, numbers, lambda: None, page))
            said.append(("metrics", "http", *_bound(numbers)))
        grpc = None
        if options.grpc is not None:
            grpc, port = await _grpc(hub, options, certificate)
            said.append(("grpc", "grpcs" if secure else "grpc", options.grpc[0], port))
        pin = certificate.pin if certificate is not None else None
        names = options.names or (_addresses(options) if pin is not None else ())
        hub.doorkeeper.names = _names(
            names, [port for kind, _, _, port in said if kind != "metrics"]
        )
        reached = _all_reached(said, names, pin)
        office_hours = control.Control(
            hub,
            control.socket_of(options.data),
            {
                "pid": os.getpid(),
                "release": __version__,
                # A public relay is dialled by its name: the wildcard address names no relay.
                "urls": _urls(said) | ({"websocket": reached[0]} if pin and reached else {}),
                "by": options.by,
            },
        )
        await office_hours.start()
        undo.callback(office_hours.stop)
        _say(said, reached, options.json)
        for line in _advice(reached, pin, any(row.revoked is None for row in tokens)):
            print(line, file=sys.stderr, flush=True)
        _notify("READY=1")
        await stopping.wait()
        _notify("STOPPING=1")
        log.info("stopping; %d connections are told", len(hub.lines))
        _stop(doors)
        hub.stop()
        end = time.monotonic() + RELAY_STOP_S
        if grpc is not None:
            await grpc.stop()
        while hub.sockets and time.monotonic() < end:
            await asyncio.sleep(STOP_LOOK_S)
    return 0


def _stop(doors: list[Door]) -> None:
    for door in doors:
        door.stop()


async def _grpc(
    hub: Hub, options: Options, certificate: Certificate | None
) -> tuple[GrpcDoor, int]:
    try:
        from holdfast.relay.grpcdoor import GrpcDoor
    except ImportError as e:
        raise Impossible("gRPC is not installed", "install holdfast[grpc]") from e
    assert options.grpc is not None
    host, port = options.grpc
    door = GrpcDoor(hub, (lambda: certificate.pem) if certificate is not None else None)
    bound = await door.start(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    if not bound:
        raise Unavailable(
            f"cannot listen on {host}:{port} for gRPC",
            "is it in use, or not an address of this machine?",
        )
    door.reached = at(host, bound, certificate is not None)
    return door, bound


def _listen_first(endpoints: tuple[Endpoint, ...], undo: contextlib.ExitStack) -> socket.socket:
    for endpoint in endpoints[:-1]:
        try:
            return _listen(endpoint, undo)
        except Unavailable as e:
            log.info("%s", e.message)
    return _listen(endpoints[-1], undo)


def _listen(endpoint: Endpoint, undo: contextlib.ExitStack) -> socket.socket:
    try:
        sock = listen(*endpoint)
    except OSError as e:
        raise Unavailable(
            f"cannot listen on {endpoint[0]}:{endpoint[1]}: {e.strerror or e}",
            "is it in use, or not an address of this machine?",
        ) from e
    undo.callback(sock.close)
    return sock


def _bound(sock: socket.socket) -> Endpoint:
    host, port, *_ = sock.getsockname()
    return host, port


def _names(names: tuple[str, ...], ports: list[int]) -> tuple[str, ...]:
    """Complete the names: one without a port also stands for each of our ports."""
    found = [
        n
        for name in names
        for n in (
            (name,)
            if name.rpartition(":")[2].isdigit()
            else (name, *(f"{name}:{port}" for port in ports))
        )
    ]
    return tuple(dict.fromkeys(n.lower() for n in found))


def _urls(said: list[tuple[str, str, str, int]]) -> dict[str, str]:
    return {
        kind: f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        for kind, scheme, host, port in said
    }


def _all_reached(
    said: list[tuple[str, str, str, int]], names: tuple[str, ...], pin: bytes | None
) -> list[str]:
    """With a certificate: the URLs under the relay's names."""
    return [
        url if pin is None else address.pinned(url, pin)
        for name in names
        for _, scheme, _, port in said
        if scheme in address.SECURE
        for url in _reached(scheme, name, port)
    ]


def _addresses(options: Options) -> tuple[str, ...]:
    """The address by which other machines probably reach this one, if no name was given."""
    host = options.listen[0]
    if not ipaddress.ip_address(host).is_unspecified:
        return (f"[{host}]" if ":" in host else host,)
    # Connecting a datagram socket sends nothing; the kernel chooses the address of the route.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        try:
            sock.connect(ROUTED)
        except OSError:
            return ()
        return (sock.getsockname()[0],)


def _say(said: list[tuple[str, str, str, int]], reached: list[str], as_json: bool) -> None:
    """Print the listening addresses and the URLs for other machines."""
    urls = _urls(said)
    if as_json:
        print(json.dumps({"listening": urls, "urls": reached}), flush=True)
    else:
        for url in urls.values():
            print(f"listening on {url}", flush=True)
        if reached:
            print(f"reached as {', '.join(reached)}", flush=True)


def _advice(reached: list[str], pin: bytes | None, tokens: bool) -> Iterator[str]:
    if pin is not None and not reached:
        yield "give --name with the address by which other machines reach this one"
    if not tokens:
        yield "no host can register yet: `holdfast relay token` makes a token"
    if reached:
        yield f"on each machine: holdfast host connect '{reached[0]}' --token -"


def _reached(scheme: str, name: str, port: int) -> tuple[str, ...]:
    host, _, given = name.rpartition(":")
    if given.isdigit() and host:
        return (f"{scheme}://{name}",) if int(given) == port else ()
    return (f"{scheme}://{name}" if port == 443 else f"{scheme}://{name}:{port}",)


def _notify(state: str) -> None:
    """Notify systemd if systemd started the relay and asked for notifications."""
    path = os.environ.get("NOTIFY_SOCKET")
    if path:
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock,
        ):
            sock.sendto(state.encode(), "\0" + path[1:] if path.startswith("@") else path)
