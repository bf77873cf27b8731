"""Tells a caller how long work goes on, and whether the caller can still give it up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from holdfast.host.runtime.connection import GAVE_UP
from holdfast.model.errors import Refused


def _untold(**facts: Any) -> None: ...


class Progress:
    """Reports each step with its bytes. `stops`: the work is given up if its caller leaves."""

    def __init__(self, put: Callable[..., None] = _untold) -> None:
        self._put = put
        self.stops = True

    def __call__(self, step: str, done: int, **more: Any) -> None:
        self._put(step=step, bytes=done, stops=self.stops, **more)

    def until(self, step: str, done: int, until: float) -> None:
        """`until`: the wall clock's time at which a wait ends, or 0.0."""
        self(step, done, **({"until": until} if until else {}))

    def goes_on(self, step: str) -> None:
        """From now on the work goes on to its end, also without the caller."""
        self.stops = False
        self(step, 0)


def given_up() -> bool:
    """Whether the caller gave up while a step could not stop."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


@contextlib.contextmanager
def giving_up(result: str) -> Iterator[None]:
    """Answer a caller that gave the work up with `result`: what is left. The record has it too."""
    try:
        yield
    except asyncio.CancelledError as e:
        if e.args != (GAVE_UP,):
            raise
        raise Refused(f"given up: {result}", "", given_up=True) from None
