"""Outgoing webhooks: events of the machine, signed and sent to an address, in order.

    HOME/http/OPERATOR.hooks       {v, hooks: [{id, url, on, session, secret, private}]}, mode 0600
    HOME/http/OPERATOR.progress    {v, progress: [{id, after, dead: [..]}]}, mode 0600

A hook follows the events after the last one that it has settled. An event is settled when the
receiver answers 2xx, or after the last attempt as a dead letter; then the next event follows. So
order is kept per hook, and a restart of the server repeats at most one delivery, with the same id.

The headers are those of Standard Webhooks: `webhook-id`, `webhook-timestamp` and
`webhook-signature`, an HMAC-SHA256 over id, timestamp and body.

An operator that may add a hook could make the server ask addresses that only the server reaches.
So an address must be public, unless the hook was added with `--private`. The address that was
checked is the address that is connected to, and redirects are failures.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import hmac
import http.client
import ipaddress
import json
import os
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from holdfast.client.engine.engine import Engine
from holdfast.client.engine.parts import Event
from holdfast.faces.http.store import Store
from holdfast.home import Home
from holdfast.model.errors import HoldfastError, NotFound, Refused, Unavailable, Usage

if TYPE_CHECKING:
    from holdfast.model.jsontext import Json

HOOKS_MAX: Final = 32
URL_CHARS: Final = 2048
SECRET: Final = "whsec_"
SECRET_BYTES: Final = 32
ATTEMPTS: Final = 6
FIRST_PAUSE_S: Final = 1.0  # between attempts; doubled each time: 31 s altogether
ANSWER_S: Final = 10.0  # for each step of a delivery
DELIVERY_S: Final = 30.0  # for a delivery as a whole
DEAD_MAX: Final = 100  # dead letters that a hook keeps, the newest
MODALITY: Final = "http.hooks"
LOOK_S: Final = 1.0  # between two looks whether hooks were added or removed


@dataclass(frozen=True)
class Hook:
    """`on`: names of events; `session.*` means all that begin so. `private`: any address.

    `secret`: of the signature; empty: deliveries are not signed.
    """

    id: str
    url: str
    on: tuple[str, ...]
    session: str | None
    secret: str
    private: bool

    def wants(self, event: str) -> bool:
        return any(
            event.startswith(one[:-1]) if one.endswith("*") else event == one for one in self.on
        )


class Hooks:
    """The hooks of one operator, and how far each has come."""

    def __init__(self, home: Home, operator: str) -> None:
        self._hooks = Store(home, operator, "hooks")
        self._progress = Store(home, operator, "progress")

    def listing(self) -> list[Hook]:
        return [
            Hook(
                one["id"],
                one["url"],
                tuple(one["on"]),
                one["session"],
                one["secret"],
                one["private"],
            )
            for one in self._hooks.entries()
        ]

    def add(
        self, url: str, on: tuple[str, ...], session: str | None, private: bool, after: int
    ) -> Hook:
        check_url(url, private)
        secret = SECRET + base64.b64encode(os.urandom(SECRET_BYTES)).decode()
        made = Hook("h" + os.urandom(4).hex(), url, on, session, secret, private)
        with self._hooks.changing() as hooks, self._progress.changing() as progress:
            if len(hooks) >= HOOKS_MAX:
                raise Refused(f"there are {HOOKS_MAX} hooks", "`holdfast http hook rm ID`")
            hooks.append({**asdict(made), "on": list(on)})
            progress.append({"id": made.id, "after": after, "dead": []})
        return made

    def remove(self, id: str) -> None:
        with self._hooks.changing() as hooks, self._progress.changing() as progress:
            if all(one["id"] != id for one in hooks):
                raise NotFound(f"there is no hook {id}", "`holdfast http hook ls`")
            hooks[:] = [one for one in hooks if one["id"] != id]
            progress[:] = [one for one in progress if one["id"] != id]

    def progress(self, id: str) -> Json:
        """The last settled event, and the dead letters."""
        for one in self._progress.entries():
            if one["id"] == id:
                return one
        return {"id": id, "after": 0, "dead": []}

    def settle(self, id: str, number: int, letter: Json | None = None) -> None:
        with self._progress.changing() as progress:
            for one in progress:
                if one["id"] == id:
                    one["after"] = number
                    one["dead"] = [*one["dead"], *([letter] if letter else [])][-DEAD_MAX:]


# ------------------------------------------------------------ one delivery


def signature(secret: str, id: str, timestamp: int, body: bytes) -> str:
    """The value of `webhook-signature`."""
    key = base64.b64decode(secret.removeprefix(SECRET))
    signed = f"{id}.{timestamp}.".encode() + body
    made = hmac.new(key, signed, hashlib.sha256).digest()
    return "v1," + binascii.b2a_base64(made, newline=False).decode()


def check_url(url: str, private: bool) -> tuple[str, int, str, bool]:
    """Host, port, path and whether TLS is used."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as e:
        raise Usage(f"{url[:80]!a} is not an address: {e}") from e
    if (
        parts.scheme not in ("https", "http")
        or not parts.hostname
        or parts.username is not None
        or len(url) > URL_CHARS
        or not (url.isascii() and url.isprintable() and " " not in url)
    ):
        raise Usage(f"{url[:80]!a} is not an address of a receiver", "like https://example.org/in")
    if parts.scheme == "http" and not private:
        raise Usage("a receiver needs https", "--private allows http and addresses of your network")
    tls = parts.scheme == "https"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return parts.hostname, port or (443 if tls else 80), path, tls


def public(address: str) -> bool:
    """Whether an address is on the public network, also inside of IPv6."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo or (None, None))[1]
        if found in ipaddress.ip_network("64:ff9b::/96"):
            inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        if inner is not None:
            return public(str(inner))
    return found.is_global and not found.is_multicast


def deliver(hook: Hook, id: str, body: bytes, opened: Callable[[socket.socket], None]) -> None:
    """Sends one event; raises Unavailable unless the receiver answers 2xx."""
    host, port, path, tls = check_url(hook.url, hook.private)
    now = int(time.time())
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "holdfast",
        "Connection": "close",
        "webhook-id": id,
        "webhook-timestamp": str(now),
    }
    if hook.secret:
        headers["webhook-signature"] = signature(hook.secret, id, now, body)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [str(one[4][0]) for one in found]
        if not hook.private and not all(map(public, addresses)):
            raise Unavailable(f"{host} is an address of a private network")
        made = socket.create_connection((addresses[0], port), ANSWER_S)
        opened(made)
        if tls:
            made = ssl.create_default_context().wrap_socket(made, server_hostname=host)
        with contextlib.closing(made):
            connection = http.client.HTTPConnection(host, port)
            connection.sock = made  # the address that was checked, not a second look-up
            connection.request("POST", path, body, headers)
            status = connection.getresponse().status
    except (OSError, http.client.HTTPException, ValueError) as e:
        raise Unavailable(f"{type(e).__name__}: {str(e)[:200]}") from e
    if not 200 <= status < 300:
        raise Unavailable(f"the receiver answered {status}")


async def deliver_in_time(hook: Hook, id: str, body: bytes) -> None:
    sockets: list[socket.socket] = []
    try:
        async with asyncio.timeout(DELIVERY_S):
            await asyncio.to_thread(deliver, hook, id, body, sockets.append)
    except TimeoutError:
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        raise Unavailable(f"no answer within {DELIVERY_S:g} s") from None


async def deliver_patiently(hook: Hook, id: str, body: bytes) -> str | None:
    """Several attempts with the same id; why the last one failed, or None."""
    why = None
    for attempt in range(ATTEMPTS):
        if attempt:
            await asyncio.sleep(FIRST_PAUSE_S * 2 ** (attempt - 1))
        try:
            await deliver_in_time(hook, id, body)
            return None
        except Unavailable as e:
            why = e.message
    return why


# ------------------------------------------------------------ all hooks


class Deliveries:
    """Follows events for each hook while the server runs."""

    def __init__(self, hooks: Hooks, connection: Callable[[str], Engine]) -> None:
        self._hooks, self._connection = hooks, connection
        self._tasks: dict[Hook, asyncio.Task[None]] = {}

    async def run(self) -> None:
        try:
            while True:
                known = self._hooks.listing()
                for hook in [one for one in self._tasks if one not in known]:
                    self._tasks.pop(hook).cancel()
                for hook in known:
                    if hook not in self._tasks or self._tasks[hook].done():
                        self._tasks[hook] = asyncio.create_task(self._follow(hook))
                await asyncio.sleep(LOOK_S)
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _follow(self, hook: Hook) -> None:
        """Ends if the host refuses; the next look begins anew at the last settled event."""
        engine = self._connection(MODALITY)
        fields: dict[str, Any] = {"after": self._hooks.progress(hook.id)["after"], "follow": True}
        try:
            with contextlib.suppress(HoldfastError):
                stream = engine.stream("events", patient=True, session=hook.session, **fields)
                async with contextlib.aclosing(stream) as parts:
                    async for part in parts:
                        if isinstance(part, Event) and part.name == "happened":
                            await self._settle(hook, part.body["body"])
        finally:
            await engine.close()

    async def _settle(self, hook: Hook, event: Json) -> None:
        number, name = int(event["number"]), str(event["event"])
        if not hook.wants(name):
            return
        id, body = f"{hook.id}.{number}", json.dumps({"type": name, "data": event}).encode()
        letter: Json | None = None
        if (why := await deliver_patiently(hook, id, body)) is not None:
            letter = {"number": number, "type": name, "why": why, "time": int(time.time())}
        self._hooks.settle(hook.id, number, letter)
