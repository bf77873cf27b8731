"""Programs that use the Python API within a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import holdfast
from tests.support.installation import DEADLINE_S, Installation

T = TypeVar("T")


def together(work: Coroutine[Any, Any, T]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(DEADLINE_S):
            return await work

    return asyncio.run(bounded())


def client(hf: Installation, operator: str = "tester") -> holdfast.Client:
    return holdfast.connect(operator=operator, home=str(hf.home))
