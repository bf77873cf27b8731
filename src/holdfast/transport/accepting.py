"""Who comes to a listening socket. asyncio's `sock_accept` cannot be told to stop while somebody comes: it answers a future that is over, and says so in the log."""

from __future__ import annotations

import asyncio
import socket
from typing import Any


async def accept(listener: socket.socket) -> tuple[socket.socket, Any]:
    """The next one, and where it comes from. To stop, cancel; the listener may be closed when that is through, not before."""
    while True:
        try:
            sock, address = listener.accept()
        except BlockingIOError:
            await _knock(listener)
        else:
            sock.setblocking(False)
            return sock, address


async def _knock(listener: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    came: asyncio.Future[None] = loop.create_future()
    loop.add_reader(listener, _settle, came)
    try:
        await came
    finally:
        loop.remove_reader(listener)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
