"""Tells several who listen of the same thing. One that raises is said to the log, and keeps none of the others from being told: the end of a session, or a key that counts no more, must reach
everybody whom it concerns, whatever is wrong with one of them. Who is told may stop listening meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import ParamSpec

P = ParamSpec("P")
log = logging.getLogger("holdfast.host")


def tell(listeners: Iterable[Callable[P, object]], /, *args: P.args, **kwargs: P.kwargs) -> None:
    for one in tuple(listeners):
        try:
            one(*args, **kwargs)
        except Exception as e:
            failed(f"in {getattr(one, '__qualname__', one)}", e)


@contextmanager
def anyway(what: str) -> Iterator[None]:
    """What comes after it is done whether or not this can be."""
    try:
        yield
    except Exception as e:
        failed(what, e)


def failed(what: str, error: Exception) -> None:
    """Into the log, as the loop does with what escapes into it."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        log.error("%s", what, exc_info=error)
    else:
        loop.call_exception_handler({"message": what, "exception": error})
