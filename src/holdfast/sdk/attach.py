"""A terminal attached to a session, as a duplex stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from types import TracebackType

from holdfast.client.engine.attach import Attached
from holdfast.client.engine.engine import Engine
from holdfast.sdk.results import Output


class Attachment:
    """A terminal of the session, for `async with`; iterate for the output.

    The first output is the present screen. The stream survives the loss of the host: no byte is
    missing, and none comes twice.
    """

    def __init__(self, engine: Engine, session: str, size: tuple[int, int], observe: bool) -> None:
        self._attached: Attached = engine.attached(session, size, observe)

    async def __aenter__(self) -> Attachment:
        await self._attached.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def read(self) -> Output | None:
        """The next output; None when the session has ended."""
        piece = await self._attached.read()
        return None if piece is None else Output(piece.end, piece.data, piece.screen)

    async def __aiter__(self) -> AsyncGenerator[Output, None]:
        while (output := await self.read()) is not None:
            yield output

    async def write(self, data: bytes) -> None:
        """Types bytes, with the turn; returns when the session has taken them.

        A refusal of the turn or the policy is raised here.
        """
        await self._attached.write(data)

    async def resize(self, cols: int, rows: int) -> None:
        """Gives the terminal another size, if the turn is free or yours."""
        self._attached.resize(cols, rows)

    async def close(self) -> None:
        """Detaches. The session goes on."""
        await self._attached.close()
