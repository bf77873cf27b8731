"""What the host tells others about itself while it runs: numbers on a loopback port, traces to a collector. Both are off unless they are configured.

Neither may keep the host from starting or from anything else: a port that is taken is tried again, an extra that is not installed is said in the log and by `doctor`. What is wrong with
the configuration itself is refused when that is read (home/config.py): an address that is not a loopback one never gets here.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING, Final

from holdfast.host import metrics
from holdfast.model import address
from holdfast.model.errors import HoldfastError
from holdfast.transport import accepting

if TYPE_CHECKING:
    from holdfast.home.config import Settings
    from holdfast.host.engine import Engine
    from holdfast.host.tally import Tally
    from holdfast.host.traces import Traces

PAGES_MAX: Final = 16  # at a time
AGAIN_S, AGAIN_MAX_S = 1.0, 60.0  # until a port that is taken is tried again
log = logging.getLogger("holdfast.telemetry")


class Telemetry:
    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._pages = 0
        self._traces: Traces | None = None
        begin = asyncio.get_running_loop().create_task
        self._tasks = [
            *(
                [begin(self._serve(*address.endpoint(settings.metrics)))]
                if settings.metrics
                else ()
            ),
            *([begin(self._trace(settings.otlp, settings.trace_names))] if settings.otlp else ()),
        ]

    async def _trace(self, where: str, names: bool) -> None:
        try:
            traces = await asyncio.to_thread(_traces, where, self._engine.tally, names)
        except HoldfastError as e:
            log.error("%s: %s", e.message, e.recover)
        except Exception as e:  # what else a library may not like about its settings
            log.error("no traces: %s: %s", type(e).__name__, e)
        else:
            self._traces, self._engine.door.on_over = traces, traces.over

    async def _serve(self, host: str, port: int) -> None:
        """Accepts by itself: asyncio's own server has no bound."""
        from holdfast.core.exposition import TYPE
        from holdfast.transport.page import Page

        loop = asyncio.get_running_loop()
        with await self._listen(host, port) as listener:
            while True:
                try:
                    sock, _ = await accepting.accept(listener)
                except OSError:
                    await asyncio.sleep(AGAIN_S)
                    continue
                if self._pages >= PAGES_MAX:
                    sock.close()
                    continue
                self._pages += 1
                try:
                    await loop.connect_accepted_socket(
                        lambda: Page(lambda: metrics.text(self._engine), TYPE, self._left), sock
                    )
                except OSError:
                    sock.close()
                    self._left()

    async def _listen(self, host: str, port: int) -> socket.socket:
        if not address.loopback(host):
            raise ValueError("the numbers are for this machine")
        pause = AGAIN_S
        while True:
            sock = socket.socket(
                socket.AF_INET6 if ":" in host else socket.AF_INET,
                socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC,
            )
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind((host, port))
                sock.listen(PAGES_MAX)
                return sock
            except OSError as e:
                sock.close()
                if pause == AGAIN_S:
                    log.error(
                        "no metrics on %s:%d: %s; tried again until it is free",
                        host,
                        port,
                        e.strerror,
                    )
            await asyncio.sleep(pause)
            pause = min(2 * pause, AGAIN_MAX_S)

    def _left(self) -> None:
        self._pages -= 1

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._traces is not None:
            self._traces.close()


def _traces(where: str, tally: Tally, names: bool) -> Traces:
    """In a thread: loading what it needs takes longer than anybody who types should wait."""
    from holdfast.host.traces import to_collector

    return to_collector(where, tally, names)
