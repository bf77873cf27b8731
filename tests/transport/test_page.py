"""The page of numbers: one request, one answer, and no client stays."""

from __future__ import annotations

import asyncio
import socket

import pytest

from holdfast.model import limits
from holdfast.transport.page import Page


async def ask(text: str, request: bytes, reads: bool) -> tuple[bytes, bool]:
    """The answer, and whether the host's end was over before the asker's was."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    server = await loop.create_server(
        lambda: Page(lambda: text, "text/plain", over.set), "127.0.0.1", 0
    )
    port = server.sockets[0].getsockname()[1]
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    sock.setblocking(False)
    try:
        await loop.sock_connect(sock, ("127.0.0.1", port))
        await loop.sock_sendall(sock, request.replace(b"PORT", str(port).encode()))
        got = b""
        while reads and (more := await loop.sock_recv(sock, 65536)):
            got += more
        async with asyncio.timeout(60):
            await over.wait()
        return got, over.is_set()
    finally:
        sock.close()
        server.close()


def test_the_page_is_given_whole_and_the_connection_closed() -> None:
    text = "x" * 300_000 + "\n"
    got, over = asyncio.run(
        ask(text, b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n\r\n", True)
    )
    assert over and got.startswith(b"HTTP/1.1 200 ") and got.endswith(text.encode())


@pytest.mark.parametrize(
    "request_", [b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n\r\n", b"GET /metr"]
)
def test_a_caller_that_does_not_read_or_never_ends_its_request_is_dropped(
    monkeypatch: pytest.MonkeyPatch, request_: bytes
) -> None:
    monkeypatch.setattr(limits, "RELAY_HELLO_S", 0.2)
    assert asyncio.run(ask("x" * 30_000_000, request_, False))[1]


@pytest.mark.parametrize(
    "request_",
    [
        b"\0\xff\r\n\r\n",
        b"POST /metrics HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nOrigin: http://evil.example\r\n\r\n",
    ],
)
def test_other_requests_do_not_get_the_page(request_: bytes) -> None:
    got, over = asyncio.run(ask("secret", request_, True))
    assert over and b"secret" not in got
