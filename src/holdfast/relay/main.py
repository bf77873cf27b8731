"""The relay's composition root: opens what it needs, says that it listens, stops without leaving anybody in doubt.

    holdfast relay serve

SIGTERM and SIGINT stop it: hosts and clients are told that it restarts, so they come back at once instead of guessing. SIGHUP reads the certificate
again, for the next handshakes; one that cannot be read leaves the old one in place. Its output goes to stderr: operations only, never a token, pass, payload or route.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import resource
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from holdfast import __version__, home
from holdfast.home import cores
from holdfast.model.errors import Impossible, Unavailable, Usage
from holdfast.model.limits import RELAY_STOP_S, RELAY_TENANT_BURST_S, RELAY_TENANT_BYTES_S
from holdfast.relay import control, office
from holdfast.relay.admission import Doorkeeper
from holdfast.relay.hub import Hub
from holdfast.relay.metrics import page
from holdfast.relay.registry import Registry
from holdfast.relay.server import Door, listen
from holdfast.relay.store import Store
from holdfast.relay.tenants import Quotas
from holdfast.transport.page import at

if TYPE_CHECKING:
    from holdfast.relay.grpcdoor import GrpcDoor

STOP_LOOK_S = 0.02
log = logging.getLogger("holdfast.relay")
Place = tuple[str, int]  # address and port


class Options(NamedTuple):
    listen: Place
    data: str
    names: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    certificate: tuple[str, str] | None = None  # files: chain and key
    grpc: Place | None = None
    metrics: Place | None = None
    rate: int = RELAY_TENANT_BYTES_S  # bytes that one tenant may send in a second
    json: bool = False
    instead: tuple[Place, ...] = ()  # places to listen at if the first one is taken, in this order
    bound: Callable[[Place], None] = lambda place: None  # is told which it became
    by: str = "hand"  # who started it: `up` ends only what `up` began


class Certificate:
    """The one that is shown now."""

    def __init__(self, files: tuple[str, str]) -> None:
        self._files = files
        self.context, self.pem = self._read()

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
    certificate = Certificate(options.certificate) if options.certificate is not None else None
    with contextlib.suppress(ValueError, OSError):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with asyncio.Runner(loop_factory=_loop()) as runner:
        return runner.run(_serve(options, certificate))


def prepare(data: str) -> None:
    """The directory of a relay, which is nobody else's. Root may ask the relay of another account (relay/control.py)."""
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
    """uvloop where it is installed."""
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
    tokens = store.at_once(office.tokens)
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
        hub.doorkeeper.names = _names(
            options.names, [port for kind, _, _, port in said if kind != "metrics"]
        )
        office_hours = control.Control(
            hub,
            control.socket_of(options.data),
            {"pid": os.getpid(), "release": __version__, "urls": _urls(said), "by": options.by},
        )
        await office_hours.start()
        undo.callback(office_hours.stop)
        _say(said, options.names, options.json)
        if not any(row.revoked is None for row in tokens):
            print(
                "no host can register yet: `holdfast relay token` makes a token",
                file=sys.stderr,
                flush=True,
            )
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


def _listen_first(places: tuple[Place, ...], undo: contextlib.ExitStack) -> socket.socket:
    for place in places[:-1]:
        try:
            return _listen(place, undo)
        except Unavailable as e:
            log.info("%s", e.message)
    return _listen(places[-1], undo)


def _listen(place: Place, undo: contextlib.ExitStack) -> socket.socket:
    try:
        sock = listen(*place)
    except OSError as e:
        raise Unavailable(
            f"cannot listen on {place[0]}:{place[1]}: {e.strerror or e}",
            "is it in use, or not an address of this machine?",
        ) from e
    undo.callback(sock.close)
    return sock


def _bound(sock: socket.socket) -> Place:
    host, port, *_ = sock.getsockname()
    return host, port


def _names(names: tuple[str, ...], ports: list[int]) -> tuple[str, ...]:
    """A name without a port stands for itself and for our ports."""
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


def _say(said: list[tuple[str, str, str, int]], names: tuple[str, ...], as_json: bool) -> None:
    """Where it listens; and, if it has a certificate of its own, by which addresses its doors are dialled under its names."""
    urls = _urls(said)
    reached = [
        url
        for name in names
        for _, scheme, _, port in said
        if scheme in ("wss", "grpcs")
        for url in _reached(scheme, name, port)
    ]
    if as_json:
        print(json.dumps({"listening": urls, "urls": reached}), flush=True)
    else:
        for url in urls.values():
            print(f"listening on {url}", flush=True)
        if reached:
            print(f"reached as {', '.join(reached)}", flush=True)


def _reached(scheme: str, name: str, port: int) -> tuple[str, ...]:
    host, _, given = name.rpartition(":")
    if given.isdigit() and host:
        return (f"{scheme}://{name}",) if int(given) == port else ()
    return (f"{scheme}://{name}" if port == 443 else f"{scheme}://{name}:{port}",)


def _notify(state: str) -> None:
    """To systemd, if it started us and asked for it."""
    path = os.environ.get("NOTIFY_SOCKET")
    if path:
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock,
        ):
            sock.sendto(state.encode(), "\0" + path[1:] if path.startswith("@") else path)
