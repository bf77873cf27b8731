"""Accepting can be ended at any moment, without a line in the log."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from holdfast.transport import accepting


def test_each_connection_is_accepted_once() -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            waiting = asyncio.create_task(accepting.accept(listener))
            await asyncio.sleep(0)
            with (
                socket.create_connection(listener.getsockname()) as one,
                socket.create_connection(listener.getsockname()) as other,
            ):
                first, second = await waiting, await accepting.accept(listener)
                assert [first[1], second[1]] == [one.getsockname(), other.getsockname()]
                assert not first[0].getblocking() and not second[0].getblocking()
                first[0].close()
                second[0].close()

    asyncio.run(main())


def test_a_connection_at_the_moment_of_cancellation_logs_nothing() -> None:
    said: list[dict[str, Any]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: said.append(context))
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        waiting = asyncio.create_task(accepting.accept(listener))
        waiting.add_done_callback(lambda _: listener.close())
        await asyncio.sleep(0)
        with socket.create_connection(listener.getsockname()):
            loop.call_soon(
                waiting.cancel
            )  # runs in the turn in which the loop learns of a connection, before the callback
            await asyncio.wait([waiting])
        assert waiting.cancelled() and listener.fileno() == -1
        await asyncio.sleep(0)

    asyncio.run(main(), debug=True)
    assert said == []
