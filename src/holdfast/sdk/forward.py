"""A listening port of a session on this machine."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Any

from holdfast.client.engine.engine import Engine
from holdfast.client.engine.forward import Forwarding, listener
from holdfast.sdk.results import OnHeld, on_question


class Forward:
    """A port of a session at a local address, for `async with`."""

    def __init__(
        self,
        engine: Engine,
        session: str,
        port: int,
        listen: str | None,
        expose: bool,
        on_held: OnHeld | None = None,
        **more: Any,
    ) -> None:
        self._engine, self._session, self._wanted = engine, session, (listen, expose)
        self._on_held, self._more = on_question(on_held), more
        self._forwarding: Forwarding | None = None
        self._running: asyncio.Task[None] | None = None
        self.port: int = port
        self.host: str = ""
        self.local_port: int = 0

    async def __aenter__(self) -> Forward:
        if self._running is None:
            at = listener(self._wanted[0], self.port, self._wanted[1])
            self.host, self.local_port = at.getsockname()[:2]
            forwarding = Forwarding(
                self._engine, self._session, self.port, at, self._on_held, **self._more
            )
            self._forwarding, self._running = forwarding, asyncio.create_task(forwarding.run())
            opening = asyncio.create_task(forwarding.opened())
            try:
                await asyncio.wait({opening, self._running}, return_when=asyncio.FIRST_COMPLETED)
                if not opening.done():
                    await self._running
            except BaseException:
                await self.close()
                raise
            finally:
                opening.cancel()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def address(self) -> str:
        """Where programs of this machine connect: `127.0.0.1:3000`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.local_port}"

    @property
    def connections(self) -> int:
        """Connections that were accepted here so far."""
        return 0 if self._forwarding is None else self._forwarding.connections

    @property
    def over(self) -> bool:
        """Whether the forward has ended by itself: `wait` has the reason."""
        return self._running is not None and self._running.done()

    async def wait(self) -> None:
        """Returns when the session has ended; raises `NotAllowed` when the right has ended."""
        if self._running is not None:
            await asyncio.shield(self._running)

    async def close(self) -> None:
        """Closes the address and every connection."""
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(BaseException):
                await self._running
