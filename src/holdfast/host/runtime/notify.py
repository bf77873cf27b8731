"""Calls several listeners. A listener's error is logged; the other listeners are still called.

The end of a session or the revocation of a key must reach every listener, even if a listener has a
defect. A listener may remove itself from the list during the call.
"""

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
            log_error(f"in {getattr(one, '__qualname__', one)}", e)


@contextmanager
def log_errors(what: str) -> Iterator[None]:
    """Logs an error of the block; the code after the block runs in any case."""
    try:
        yield
    except Exception as e:
        log_error(what, e)


def log_error(what: str, error: Exception) -> None:
    """Logs an error in the same way as the loop logs an unhandled exception."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        log.error("%s", what, exc_info=error)
    else:
        loop.call_exception_handler({"message": what, "exception": error})
