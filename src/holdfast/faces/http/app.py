"""The routes as an ASGI application: guards, then the call, then JSON or server-sent events.

The guards come first, for every path: the Host header must be a name of this server (a page that
rebinds its DNS name has another), and a request with an Origin comes from a browser and is refused.
No cookie is read or set and no CORS header is sent, so a page of another site gets nothing. The
token is read from the header Authorization only.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.client.engine.parts import Part
from holdfast.client.relayed import Answered, Carried
from holdfast.core.contract.table import Operation
from holdfast.faces.http import events, openapi, routes
from holdfast.faces.http.calls import Calls, poll
from holdfast.faces.http.incoming import PREFIX, Acts, Forged, Headers, Incoming, delivery
from holdfast.faces.http.recovery import TOKENS, for_http
from holdfast.faces.http.tokens import Token, Tokens
from holdfast.model.errors import HoldfastError, NotAllowed, Usage
from holdfast.model.ids import is_once

BODY_BYTES: Final = 1 << 20  # of a request; a command has at most 64 KiB
BODY_S: Final = 10.0  # until the body has come as a whole
STREAMS_MAX: Final = 64
STREAMS_PER_TOKEN: Final = 16
HEARTBEAT_S: Final = 15.0
SEND_S: Final = 60.0  # a reader of a stream that takes nothing for so long is cut off
QUERY_CHARS: Final = 8192
HEAD_BYTES: Final = 16 * 1024  # of all headers
RECHECK_S: Final = 1.0  # how often a stream looks whether its token is still valid

Handler = Callable[[Request], Awaitable[Response]]
JSON_HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class App:
    """`hosts`: the values of the Host header that mean this server."""

    def __init__(
        self, calls: Calls, tokens: Tokens, incoming: Incoming, hosts: frozenset[str]
    ) -> None:
        self._calls, self._tokens, self._hosts = calls, tokens, hosts
        self._incoming, self._acts = incoming, Acts(calls.link)
        self._streams: dict[str, int] = {}  # by the name of the token

    async def relayed(self, request: Carried, body: bytes) -> Answered:
        """A webhook that came through a relay: the only route that a relay reaches."""
        found = await self.deliver(request.name, request.headers, body)
        return Answered(found.status_code, "application/json", bytes(found.body))

    def asgi(self, *beside: Callable[[], Coroutine[Any, Any, None]]) -> ASGIApp:
        """The application. `beside` runs while the server does."""

        @contextlib.asynccontextmanager
        async def lifespan(app: Starlette) -> AsyncIterator[None]:
            tasks = [asyncio.create_task(one()) for one in beside]
            yield
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._calls.close()

        app = Starlette(
            routes=[
                Route("/openapi.json", self._document, methods=["GET"]),
                *(
                    Route(
                        routes.PREFIX + row.name,
                        self._handler(row),
                        methods=["POST" if routes.is_post(row) else "GET"],
                    )
                    for row in routes.served()
                ),
                Route(f"{PREFIX}{{name}}", self._receive, methods=["POST"]),
            ],
            exception_handlers={HTTPException: _http_error, Exception: _defect},
            lifespan=lifespan,
        )
        return self._guarded(app)

    # ------------------------------------------------------------ guards

    def _guarded(self, app: ASGIApp) -> ASGIApp:
        async def guard(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            refused = self._refusal(scope)
            await (refused or app)(scope, receive, send)

        return guard

    def _refusal(self, scope: Scope) -> Response | None:
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        if sum(len(name) + len(value) for name, value in headers) > HEAD_BYTES:
            return fault(431, "usage", f"the headers have at most {HEAD_BYTES} bytes")
        hosts = [value.decode("latin-1").lower() for name, value in headers if name == b"host"]
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            return fault(
                421,
                "misdirected",
                "the Host header is not a name of this server",
                "the administrator of this server can add the name",
            )
        if any(name == b"origin" for name, _ in headers):
            return fault(403, "origin", "requests from web pages are refused")
        if len(scope["query_string"]) > QUERY_CHARS:
            return fault(414, "usage", f"a query has at most {QUERY_CHARS} characters")
        return None

    def _token(self, request: Request) -> Token | None:
        given = request.headers.getlist("authorization")
        if len(given) != 1:
            return None
        scheme, _, text = given[0].partition(" ")
        if scheme.lower() != "bearer":
            return None
        return self._tokens.find(text.strip(), time.time())

    # ------------------------------------------------------------ requests

    def _handler(self, row: Operation) -> Handler:
        async def handle(request: Request) -> Response:
            token = self._token(request)
            if token is None:
                return fault(
                    401,
                    "unauthenticated",
                    "a valid token is needed: Authorization: Bearer hf_...",
                    TOKENS,
                    headers={"WWW-Authenticate": "Bearer"},
                )
            try:
                fields = await self._fields(request, token, row)
                if "text/event-stream" in request.headers.get("accept", ""):
                    return await self._stream(request, token, row, fields)
                await self._calls.permit(token, row, fields)
                found = await self._calls.answer(token, row, fields)
            except HoldfastError as e:
                return failed(e)
            except (UnicodeError, RecursionError):
                return failed(Usage("the request has text that is not Unicode"))
            except _TooMuch as e:
                return fault(e.status, "usage", e.message, headers={"Connection": "close"})
            headers = {} if found.location is None else {"Location": found.location}
            return JSONResponse(found.body, found.status, {**JSON_HEADERS, **headers})

        return handle

    async def _fields(self, request: Request, token: Token, row: Operation) -> routes.Fields:
        if not routes.is_post(row):
            given = routes.from_query(row, request.query_params.multi_items())
            return routes.checked(row, given, token.session)
        if request.url.query:
            raise Usage(
                f"{row.name} takes a JSON object and no query",
                "secrets go into headers, never into an address",
            )
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise _TooMuch(415, "the body of an act has Content-Type: application/json")
        try:
            given = json.loads(await body_of(request, BODY_BYTES) or b"{}")
        except ValueError:
            raise Usage("the body is not JSON") from None
        if not isinstance(given, dict):
            raise Usage("the body is not a JSON object")
        fields = routes.checked(row, given, token.session)
        key = request.headers.get("idempotency-key")
        if key is not None:
            if not is_once(key):
                raise Usage("Idempotency-Key has 1 to 128 printable ASCII characters")
            fields["once"] = key
        return fields

    # ------------------------------------------------------------ streams

    async def _stream(
        self, request: Request, token: Token, row: Operation, fields: routes.Fields
    ) -> Response:
        if not routes.streams(row):
            raise Usage(f"{row.name} is not a stream", "ask with Accept: application/json")
        await self._calls.permit(token, row, fields)
        events.resume(row, fields, request.headers.get("last-event-id"))
        if (
            sum(self._streams.values()) >= STREAMS_MAX
            or self._streams.get(token.name, 0) >= STREAMS_PER_TOKEN
        ):
            return fault(429, "streams", "too many streams are open", headers={"Retry-After": "10"})
        self._streams[token.name] = self._streams.get(token.name, 0) + 1
        engine = self._calls.connection(token.modality)
        parts = self._calls.follow(engine, row, fields)
        stack = contextlib.AsyncExitStack()
        stack.callback(self._left, token.name)
        stack.push_async_callback(engine.close)
        stack.push_async_callback(parts.aclose)
        try:
            first = await anext(parts) if row.name == "run" else None
        except HoldfastError:
            await stack.aclose()
            raise
        except BaseException:
            await stack.aclose()
            raise
        return Stream(_written(self._tokens, token, first, parts), stack)

    def _left(self, token: str) -> None:
        self._streams[token] -= 1

    async def _receive(self, request: Request) -> Response:
        try:
            body = await body_of(request, BODY_BYTES)
        except _TooMuch as e:
            return fault(e.status, "usage", e.message, headers={"Connection": "close"})
        return await self.deliver(request.path_params["name"], request.headers, body)

    async def deliver(self, name: str, headers: Headers, body: bytes) -> Response:
        """An incoming webhook; an unknown name and a wrong signature get the same answer."""
        webhook = self._incoming.find(name)
        try:
            if webhook is None:
                raise Forged
            once = delivery(webhook, headers, body, time.time())
            told = await self._acts.do(webhook, once, body)
        except Forged:
            return fault(401, "unauthenticated", "no such webhook, or a wrong signature")
        except HoldfastError as e:
            return failed(e)
        return JSONResponse({"state": "running", **told}, 202, JSON_HEADERS)

    async def _document(self, request: Request) -> Response:
        return JSONResponse(openapi.document(), headers=JSON_HEADERS)


class _TooMuch(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


async def body_of(request: Request, most: int) -> bytes:
    """The whole body, within a size and a time."""
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > most:
        raise _TooMuch(413, f"a body has at most {most} bytes")
    found = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for piece in request.stream():
                found += piece
                if len(found) > most:
                    raise _TooMuch(413, f"a body has at most {most} bytes")
    except (TimeoutError, ClientDisconnect):
        raise _TooMuch(408, f"the body did not come within {BODY_S:g} s") from None
    return bytes(found)


async def _written(
    tokens: Tokens, token: Token, first: Part | None, parts: AsyncGenerator[Part, None]
) -> AsyncGenerator[bytes, None]:
    """The events of a stream. It ends when the token is removed or expires."""
    encoder, silent = events.Encoder(), 0.0
    if first is not None:
        yield encoder.part(first)
    waiting: asyncio.Future[Part] | None = None
    try:
        while True:
            waiting = waiting or asyncio.ensure_future(anext(parts))
            await asyncio.wait({waiting}, timeout=RECHECK_S)
            if not tokens.still(token, time.time()):
                yield events.error(NotAllowed(f"the token {token.name} is not valid any more"))
                return
            if waiting.done():
                part, waiting, silent = waiting.result(), None, 0.0
                yield encoder.part(part)
                continue
            silent += RECHECK_S
            if silent >= HEARTBEAT_S:
                silent = 0.0
                yield events.HEARTBEAT
    except StopAsyncIteration:
        return
    except HoldfastError as e:
        yield events.error(e)
    finally:
        if waiting is not None:
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration, HoldfastError):
                await waiting


class Stream(Response):
    """Server-sent events. A reader that takes nothing for SEND_S is cut off."""

    def __init__(
        self, written: AsyncGenerator[bytes, None], stack: contextlib.AsyncExitStack
    ) -> None:
        super().__init__(headers={**JSON_HEADERS, "X-Accel-Buffering": "no"})
        self.headers["Content-Type"] = "text/event-stream; charset=utf-8"
        del self.headers["Content-Length"]
        self._written, self._stack = written, stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._stack:
            sending = asyncio.create_task(self._send(send))
            leaving = asyncio.create_task(_disconnected(receive))
            try:
                await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (sending, leaving):
                    task.cancel()
                await asyncio.gather(sending, leaving, return_exceptions=True)
                await self._written.aclose()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for data in self._written:
            if data:
                async with asyncio.timeout(SEND_S):
                    await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


# ------------------------------------------------------------ errors


def failed(error: HoldfastError) -> Response:
    """An error of the contract as an answer; an act that waits for approval is no failure."""
    status = routes.status(error)
    body: dict[str, Any] = {"error": for_http(error).to_wire()}
    headers = dict[str, str]()
    if status == 202:
        id = str(error.facts.get("id", ""))
        headers["Location"] = poll("approvals", id=id)
        body = {"state": "held", "approval": {**error.facts, "because": error.message}}
    elif status == 503:
        headers["Retry-After"] = "1"
    return JSONResponse(body, status, {**JSON_HEADERS, **headers})


def fault(
    status: int, name: str, message: str, recover: str = "", headers: dict[str, str] | None = None
) -> Response:
    """An error of HTTP itself, in the same form."""
    error = {"name": name, "code": 4, "message": message, "recover": recover, "retry_safe": False}
    return JSONResponse({"error": error}, status, {**JSON_HEADERS, **(headers or {})})


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    name = "not_found" if error.status_code == 404 else "usage"
    return fault(
        error.status_code,
        name,
        str(error.detail),
        "GET /openapi.json has all routes",
        dict(error.headers or {}),
    )


async def _defect(request: Request, error: Exception) -> Response:
    return fault(500, "defect", "the server failed", "its standard error has the cause")
