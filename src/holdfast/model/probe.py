"""A named point in a program where a test may wait, stop or kill it.

`probe("host.input.sent")` does nothing unless a composition root armed it
(`holdfast.testing.probes`). Fault tests use probes to kill real processes at exact places instead
of guessing with sleeps. Each call site has its own name.
"""

from __future__ import annotations

from collections.abc import Callable

_hook: Callable[[str], None] | None = None


def probe(name: str) -> None:
    if _hook is not None:
        _hook(name)


def arm(hook: Callable[[str], None]) -> None:
    global _hook
    _hook = hook
