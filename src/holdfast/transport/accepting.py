"""Accept connections on a listening socket, cancellably.

asyncio's `sock_accept` cannot be cancelled safely while a connection arrives: it then completes a
future that is already done, and logs a traceback.
"""

from __future__ import annotations

import asyncio
import socket


async def accept(listener: socket.socket) -> tuple[socket.socket, tuple[str, int]]:
    """Return the next connection and its address.

    To stop, cancel this call. Close the listener only after the cancellation is complete.
    """
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
