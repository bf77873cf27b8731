"""The ways in which attach ends: the last line that the user sees, and the exit code."""

from __future__ import annotations

from holdfast.client.attach.events import Finish
from holdfast.model.errors import HoldfastError, NotAllowed, NotFound, Saved
from holdfast.model.printable import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.model.jsontext import Json


def waits_for_restore(error: object) -> str:
    """The notice of a client that waits until its session is restored; else empty."""
    return f"{error.message}; {error.recover}; waiting for that" if isinstance(error, Saved) else ""


def restoring(event: Json) -> str:
    """The notice while the host brings the session back from the disk, or moves it."""
    if isinstance(machine := event.get("machine"), str):
        return f"{printable(str(event.get('name')))} is being moved to {printable(machine)}"
    size = event.get("bytes")
    much = f" ({int(size) / 1e6:.1f} MB)" if isinstance(size, int) else ""
    return f"restoring {printable(str(event.get('name')))} from the disk{much}"


def sent_away(session: str, error: HoldfastError) -> Finish:
    """The host does not admit this client any more. An ended session is not a failure."""
    code = (
        0
        if isinstance(error, NotFound)
        else NotAllowed.exit_code
        if getattr(error, "reason", "") == "admission"
        else error.exit_code
    )
    return Finish(
        f"[holdfast] {session}: {error.message}"
        + (f"\n  {error.recover}" if error.recover and code else ""),
        code,
        error if error.facts.get("known_as") else None,
    )


def ended(session: str, event: Json) -> Finish:
    code = event.get("exit_code")
    why = f"exit code {code}" if code is not None else event.get("reason")
    changed = event.get("tool_files")
    return Finish(f"[holdfast] {session} ended ({why})" + changed_tool_files(changed))


def changed_tool_files(changed: object) -> str:
    """A line about files that a session changed and that the user's tools execute later."""
    if not isinstance(changed, list) or not changed:
        return ""
    named = ", ".join(printable(str(path)) for path in changed)
    return f"\n[holdfast] look before you go on: your tools may execute what it changed: {named}"


def ended_unseen(end: Finish) -> Finish:
    """The session ended, and output rolled off before the terminal took it.

    No host sends a screen of an ended session.
    """
    return Finish(f"{end.message}; your terminal missed some of its last output", end.code)


def detached(session: str) -> Finish:
    return Finish(
        f"[holdfast] detached from {session}; it keeps running. "
        f"`holdfast attach {session}` comes back."
    )


def detached_by(session: str, operator: str) -> Finish:
    """An operator sent this client away."""
    return Finish(
        f"[holdfast] {printable(operator)} detached this terminal from {session}; it keeps running."
        f" `holdfast attach {session}` comes back."
    )


def stopped(session: str, machine: str | None) -> Finish:
    return Finish(
        f"[holdfast] the host was stopped; {session} keeps running. "
        f"`holdfast up`{f' on {machine}' if machine else ''}, then attach again.",
        5,
    )


def told_to_leave(session: str, number: int, name: str) -> Finish:
    """A signal asked this process to end."""
    return Finish(f"[holdfast] {name}: detached from {session}; it keeps running", 128 + number)
