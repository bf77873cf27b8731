"""`holdfast attach` on a terminal, once the terminal shows the session."""

from __future__ import annotations

from tests.support.installation import (
    Installation,
    Terminal,
)


def attached(
    hf: Installation,
    name: str,
    *args: str,
    size: tuple[int, int] = (80, 24),
    see: str = "$",
    env: dict[str, str] | None = None,
) -> Terminal:
    """With `see` on the screen; empty: as soon as keys reach the session."""
    terminal = hf.attach(name, *args, size=size, env=env)
    terminal.until(lambda: not terminal.restored, "the terminal to be raw")
    terminal.see(see)
    return terminal
