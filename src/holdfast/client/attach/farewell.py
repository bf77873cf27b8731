"""How attach ends: the last line that the user sees, and the exit code."""

from __future__ import annotations

import signal
from typing import Any

from holdfast.model.errors import HoldfastError, NotAllowed, NotFound


class Finished(Exception):
    """Why the loop ended."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.message, self.code = message, code


def sent_away(session: str, error: HoldfastError) -> Finished:
    """The host does not have us here any more: why, and who could help. A session that is over is no failure."""
    code = (
        0
        if isinstance(error, NotFound)
        else NotAllowed.exit_code
        if getattr(error, "reason", "") == "admission"
        else error.exit_code
    )
    return Finished(
        f"[holdfast] {session}: {error.message}"
        + (f"\n  {error.recover}" if error.recover and code else ""),
        code,
    )


def ended(session: str, event: dict[str, Any]) -> Finished:
    code = event.get("exit_code")
    return Finished(
        f"[holdfast] {session} ended ({f'exit code {code}' if code is not None else event.get('reason')})"
    )


def detached(session: str) -> Finished:
    return Finished(
        f"[holdfast] detached from {session}; it keeps running. `holdfast attach {session}` comes back."
    )


def stopped(session: str, machine: str | None) -> Finished:
    return Finished(
        f"[holdfast] the host was stopped; {session} keeps running. `holdfast up`{f' on {machine}' if machine else ''}, then attach again.",
        5,
    )


def told_to_leave(session: str, number: int) -> Finished:
    return Finished(
        f"[holdfast] {signal.Signals(number).name}: detached from {session}; it keeps running",
        128 + number,
    )
