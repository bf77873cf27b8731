"""Incoming webhooks: a provider's signed request does one fixed act of the service operator.

    HOME/http/OPERATOR.incoming    {v, incoming: [{name, provider, session, op, text, secret}]}

The act is fixed when the webhook is added. The payload never becomes part of a command's text: a
`run` reads the payload from its standard input, and a `send` ignores it. The provider's id of the
delivery is the idempotency key, so that a repeated delivery has one effect.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from holdfast.client.link import Link
from holdfast.client.stdin import Source
from holdfast.faces.http.hooks import SECRET, signature
from holdfast.faces.http.store import Store
from holdfast.home import Home
from holdfast.model.errors import HoldfastError, NotFound, OutcomeUnknown, Refused, Usage
from holdfast.model.ids import check_name

if TYPE_CHECKING:
    from holdfast.model.jsontext import Json

PREFIX: Final = "/in/"
PROVIDERS: Final = ("github", "stripe", "standard")
WEBHOOKS_MAX: Final = 32
NAME_CHARS: Final = 48
SECRET_BYTES: Final = 32
SECRET_CHARS: Final = 512
FRESH_S: Final = 300  # how far the signed time of a delivery may be from now
BEGIN_S: Final = 8.0  # until the command has begun; providers wait 10 s for an answer
UNDER_WAY_MAX: Final = 16
MODALITY: Final = "http.in."

Headers = Mapping[str, str]  # by the name in lower case


class Forged(Exception):
    """The signature is missing, wrong or old."""


@dataclass(frozen=True)
class Webhook:
    """`op`: `run` or `send`, with the fixed `text`."""

    name: str
    provider: str
    session: str
    op: str
    text: str
    secret: str

    @property
    def modality(self) -> str:
        return MODALITY + self.name


class Incoming:
    """The incoming webhooks of one operator."""

    def __init__(self, home: Home, operator: str) -> None:
        self._store = Store(home, operator, "incoming")

    def listing(self) -> list[Webhook]:
        return [
            Webhook(
                one["name"],
                one["provider"],
                one["session"],
                one["op"],
                one["text"],
                one["secret"],
            )
            for one in self._store.entries()
        ]

    def find(self, name: str) -> Webhook | None:
        return next((one for one in self.listing() if one.name == name), None)

    def add(
        self, name: str, provider: str, session: str, op: str, text: str, secret: str | None
    ) -> Webhook:
        if len(check_name(name)) > NAME_CHARS:
            raise Usage(f"the name of a webhook has at most {NAME_CHARS} characters")
        if secret is None:
            secret = SECRET + base64.b64encode(os.urandom(SECRET_BYTES)).decode()
        if not secret or len(secret) > SECRET_CHARS:
            raise Usage(f"a secret has 1 to {SECRET_CHARS} characters")
        made = Webhook(name, provider, session, op, text, secret)
        with self._store.changing() as entries:
            if any(one["name"] == name for one in entries):
                raise Refused(f"there is a webhook {name}", f"`holdfast http incoming rm {name}`")
            if len(entries) >= WEBHOOKS_MAX:
                raise Refused(f"there are {WEBHOOKS_MAX} webhooks", "remove one first")
            entries.append(asdict(made))
        return made

    def remove(self, name: str) -> None:
        with self._store.changing() as entries:
            if all(one["name"] != name for one in entries):
                raise NotFound(f"there is no webhook {name}", "`holdfast http incoming ls`")
            entries[:] = [one for one in entries if one["name"] != name]


# ------------------------------------------------------------ signatures


def delivery(webhook: Webhook, headers: Headers, body: bytes, now: float) -> str:
    """The id of a delivery whose signature is right; raises Forged otherwise."""
    found: str | None
    try:
        if webhook.provider == "github":
            made = "sha256=" + _hex(webhook.secret, body)
            _same(made, headers["x-hub-signature-256"])
            found = headers["x-github-delivery"]
        elif webhook.provider == "stripe":
            pairs = [part.partition("=")[::2] for part in headers["stripe-signature"].split(",")]
            at = dict(pairs)["t"]
            _fresh(at, now)
            made = _hex(webhook.secret, f"{at}.".encode() + body)
            _same(made, *(value for name, value in pairs if name == "v1"))
            found = json.loads(body)["id"]
        else:
            id, at = headers["webhook-id"], headers["webhook-timestamp"]
            _fresh(at, now)
            made = signature(webhook.secret, id, int(at), body)
            _same(made, *headers["webhook-signature"].split())
            found = id
    except (KeyError, ValueError, TypeError, binascii.Error, RecursionError) as e:
        raise Forged from e
    if not isinstance(found, str) or not found:
        raise Forged
    return hashlib.sha256(f"{webhook.name}\0{found}".encode("utf-8", "replace")).hexdigest()


def _hex(secret: str, data: bytes) -> str:
    return hmac.new(secret.encode(), data, hashlib.sha256).hexdigest()


def _same(made: str, *given: str) -> None:
    if not any(hmac.compare_digest(made.encode(), one.strip().encode()) for one in given):
        raise Forged


def _fresh(at: str, now: float) -> None:
    if not at.isascii() or not at.isdigit() or abs(int(at) - now) > FRESH_S:
        raise Forged


# ------------------------------------------------------------ acts


class Acts:
    """Does the acts of webhooks; each on a connection of its own, which follows the command."""

    def __init__(self, link: Callable[[str], Link]) -> None:
        self._link = link
        self._under_way: set[asyncio.Future[Any]] = set()

    async def do(self, webhook: Webhook, once: str, payload: bytes) -> Json:
        """Returns when the act has begun: the reference of a command, which goes on."""
        if len(self._under_way) >= UNDER_WAY_MAX:
            raise _busy()
        loop = asyncio.get_running_loop()
        began: asyncio.Future[Json] = loop.create_future()

        def tell(event: Json) -> None:
            if event.get("event") == "began":
                loop.call_soon_threadsafe(_settle, began, {"ref": event.get("ref")})

        doing = asyncio.ensure_future(
            asyncio.to_thread(_act, self._link(webhook.modality), webhook, once, payload, tell)
        )
        self._under_way.add(doing)
        doing.add_done_callback(self._done)
        await asyncio.wait({began, doing}, timeout=BEGIN_S, return_when=asyncio.FIRST_COMPLETED)
        if began.done():
            return began.result()
        if doing.done():
            return {"ref": doing.result().get("ref")}
        raise OutcomeUnknown(
            "the act has not begun yet", "a repeated delivery has one effect with this one"
        )

    def _done(self, doing: asyncio.Future[Any]) -> None:
        self._under_way.discard(doing)
        if not doing.cancelled():
            doing.exception()  # told to the provider, or to no one after the answer


def _settle(began: asyncio.Future[Json], told: Json) -> None:
    if not began.done():
        began.set_result(told)


def _act(
    link: Link, webhook: Webhook, once: str, payload: bytes, tell: Callable[[Json], None]
) -> Json:
    fields: dict[str, Any] = {"session": webhook.session, "text": webhook.text, "once": once}
    try:
        if webhook.op == "send":
            return link.request("send", keys=["Enter"], hold=0.0, **fields)
        fd = os.memfd_create("payload", os.MFD_CLOEXEC)
        try:
            with open(fd, "r+b", closefd=False) as file:
                file.write(payload)
                file.seek(0)
            link.source = Source(fd)
            return link.request(
                "run", None, on_event=tell, stdin=True, hold=0.0, resume=None, **fields
            )
        finally:
            os.close(fd)
    finally:
        link.close()


def _busy() -> HoldfastError:
    from holdfast.model.errors import Unavailable

    return Unavailable(f"{UNDER_WAY_MAX} webhooks are under way", "repeat the delivery later")
