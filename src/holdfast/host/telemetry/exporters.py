"""Exports from a running host: metrics on a loopback port, traces to a collector.

Both are off unless they are configured. Neither may keep the host from starting or working. If the
port is taken, the host tries again later. If an extra is not installed, the log and `doctor` say
so. home/config.py refuses a wrong configuration when it reads the file, so an address outside
loopback never gets here.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING, Final

from holdfast.host.telemetry import metrics
from holdfast.model import address
from holdfast.model.errors import HoldfastError
from holdfast.transport import accepting

if TYPE_CHECKING:
    from holdfast.home.settings import Settings
    from holdfast.host.engine import Engine
    from holdfast.host.telemetry.counters import Counters
    from holdfast.host.telemetry.traces import Traces

PAGES_MAX: Final = 16  # simultaneous readers of the metrics page
AGAIN_S, AGAIN_MAX_S = 1.0, 60.0  # pauses before trying a taken port again
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
            *([begin(self._trace(settings))] if settings.otlp else ()),
        ]

    async def _trace(self, settings: Settings) -> None:
        try:
            traces = await asyncio.to_thread(_traces, settings, self._engine.counters)
        except HoldfastError as e:
            log.error("%s: %s", e.message, e.recover)
        except Exception as e:  # a library may reject its settings in other ways
            log.error("no traces: %s: %s", type(e).__name__, e)
        else:
            self._traces = traces
            self._engine.door.on_over.append(traces.over)
            self._engine.act_effects.on_found.append(traces.effects)

    async def _serve(self, host: str, port: int) -> None:
        """Accepts connections up to PAGES_MAX: asyncio's own server has no limit."""
        from holdfast.core.prometheus_text import TYPE
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
                    why = f"no metrics on {host}:{port}: {e.strerror}"
                    log.error("%s; tried again until it is free", why)
            await asyncio.sleep(pause)
            pause = min(2 * pause, AGAIN_MAX_S)

    def _left(self) -> None:
        self._pages -= 1

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._traces is not None:
            self._traces.close()


def _traces(settings: Settings, counters: Counters) -> Traces:
    """Runs in a thread: an operator who types must not wait while these libraries load."""
    from holdfast.host.telemetry.traces import to_collector

    return to_collector(settings.otlp, counters, settings.trace_names, settings.trace_commands)
