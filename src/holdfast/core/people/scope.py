"""The scope of an envelope: machine, session, commands, time and rate.

A missing limit does not limit. A scope is narrower than a second scope if it has every limit of the
second and no limit is looser. This rule (`widening`) decides what may be handed on, when a link is
made and again at each check. A scope has no "or": an operator who needs two sessions gets two
envelopes, so that the comparison can be made field by field.

`commands` are names of programs (`git`). They limit the rights that start programs, `run` and
`new`. Keys cannot be told apart by command, so an envelope with `commands` does not allow typing at
all. There are no classes of programs: whether a program only reads depends on its arguments.

A `rate` [count, seconds] is a bucket of `count` acts that refills at count / seconds. A narrower
rate has neither a larger burst nor a quicker refill.

To add a limit, change `_READ`, `show`, `widening`, `inherit`, `outside` and
docs/reference/envelopes.md, and add a vector.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from holdfast.model import ids, signing
from holdfast.model.rights import MACHINE_WIDE

if TYPE_CHECKING:
    from holdfast.model.canonical import Canonical

TIME_MAX: Final = 1 << 53  # numbers of every language represent it exactly
COMMANDS_MAX: Final = 32  # names in one envelope
COMMAND_CHARS: Final = 64
RATE_COUNT_MAX: Final = 1_000_000
RATE_SECONDS_MAX: Final = 366 * 86400
STARTS_PROGRAMS: Final = frozenset(("run", "new"))
# Rights to order programs in a session. The limit of an operator that may type is no limit.
ORDERS: Final = frozenset(("run", "input"))
_COMMAND = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9._+-]{{0,{COMMAND_CHARS - 1}}}\Z", re.ASCII)

Command = tuple[frozenset[str], ...]
"""The programs that a text would start, each with its names. Empty: not known."""


class Malformed(ValueError):
    """A value is not an envelope, or its links contradict each other; `code` is for programs."""

    def __init__(self, message: str, code: str = "malformed") -> None:
        super().__init__(message)
        self.code = code


class Scope(NamedTuple):
    machine: bytes | None = None
    session: str | None = None
    commands: frozenset[str] | None = None
    not_before: int | None = None
    expires: int | None = None
    rate: tuple[int, int] | None = None

    def show(self) -> dict[str, Canonical]:
        """Return the scope as it stands in a link: only the limits that exist."""
        found: dict[str, Canonical] = {}
        if self.machine is not None:
            found["machine"] = signing.show(self.machine)
        if self.session is not None:
            found["session"] = self.session
        if self.commands is not None:
            found["commands"] = sorted(self.commands)
        if self.not_before is not None:
            found["not_before"] = self.not_before
        if self.expires is not None:
            found["expires"] = self.expires
        if self.rate is not None:
            found["rate"] = list(self.rate)
        return found


class Facts(NamedTuple):
    """The facts about an act that a scope is checked against."""

    machine: bytes
    session: str | None = None
    command: Command | None = None


class Denied(NamedTuple):
    code: str
    reason: str


# ------------------------------------------------------------ reading


def read_key(value: object) -> bytes:
    if type(value) is not str:
        raise Malformed("a key is not text")
    try:
        return signing.read(value)
    except ValueError as e:
        raise Malformed(str(e)) from e


def _session(value: object) -> str:
    if type(value) is not str or not ids.is_session_id(value):
        raise Malformed("a scope names something that is no session id")
    return value


def _commands(value: object) -> frozenset[str]:
    if type(value) is not list or not 0 < len(value) <= COMMANDS_MAX:
        raise Malformed(f"the commands of a scope are a list of 1 to {COMMANDS_MAX}")
    if not all(type(name) is str and _COMMAND.match(name) for name in value):
        raise Malformed("a scope names something that is no command")
    if value != sorted(set(value)):
        raise Malformed("the commands of a scope are not sorted, or not unique")
    return frozenset(value)


def _time(value: object) -> int:
    return _whole(value, 0, TIME_MAX, "a time")


def _rate(value: object) -> tuple[int, int]:
    if type(value) is not list or len(value) != 2:
        raise Malformed("a rate is [count, seconds]")
    return _whole(value[0], 1, RATE_COUNT_MAX, "the count of a rate"), _whole(
        value[1], 1, RATE_SECONDS_MAX, "the seconds of a rate"
    )


def _whole(value: object, low: int, high: int, what: str) -> int:
    if type(value) is not int or not low <= value <= high:  # to Python, a bool is an int
        raise Malformed(f"{what} is not a whole number from {low} to {high}")
    return value


_READ: Final[Mapping[str, Callable[[object], Any]]] = {
    "machine": read_key,
    "session": _session,
    "commands": _commands,
    "not_before": _time,
    "expires": _time,
    "rate": _rate,
}


def read(value: object) -> Scope:
    """Parse the scope of a link; Malformed for any other value."""
    if type(value) is not dict:
        raise Malformed("a scope is not an object")
    if unknown := [name for name in value if name not in _READ]:
        raise Malformed(f"a scope has the unknown limit {unknown[0][:40]!a}")
    scope = Scope(**{name: _READ[name](item) for name, item in value.items()})
    if (
        scope.not_before is not None
        and scope.expires is not None
        and scope.not_before >= scope.expires
    ):
        raise Malformed("a scope ends before it begins")
    return scope


# ------------------------------------------------------------ comparing


def widening(parent: Scope, child: Scope) -> str | None:
    """Return the limit of `parent` that `child` exceeds, as the end of "it ..."; else None."""
    for name, outer, inner in zip(Scope._fields, parent, child, strict=True):
        if outer is not None and inner is None:
            return f"drops the limit `{name}`"
    if parent.machine not in (None, child.machine):
        return "is for another machine"
    if parent.session not in (None, child.session):
        return "is for another session"
    if (
        parent.commands is not None
        and child.commands is not None
        and not child.commands <= parent.commands
    ):
        return f"adds the command {min(child.commands - parent.commands)}"
    if (
        parent.not_before is not None
        and child.not_before is not None
        and child.not_before < parent.not_before
    ):
        return "begins before the one it comes from"
    if parent.expires is not None and child.expires is not None and child.expires > parent.expires:
        return "outlives the one it comes from"
    if parent.rate is not None and child.rate is not None:
        (count, seconds), (most, within) = child.rate, parent.rate
        if count > most or count * within > most * seconds:
            return "allows a higher rate"
    return None


def inherit(parent: Scope, wanted: Scope) -> Scope:
    """Return `wanted`, with every missing limit taken from the parent."""
    return parent._replace(
        **{name: limit for name, limit in wanted._asdict().items() if limit is not None}
    )


def outside(scope: Scope, right: str, facts: Facts, now: float) -> Denied | None:
    """Return why this right is not within the scope for this act; None if it is.

    The rate is counted elsewhere (rate.py).
    """
    if scope.machine is not None and scope.machine != facts.machine:
        return Denied("machine", "the envelope is for another machine")
    if scope.session is not None:
        if right in MACHINE_WIDE:
            return Denied(
                "session", f"`{right}` concerns the machine, and the envelope is for one session"
            )
        if scope.session != facts.session:
            return Denied("session", "the envelope is for another session")
    if scope.not_before is not None and now < scope.not_before:
        return Denied("early", f"the envelope begins in {span(scope.not_before - now)}")
    if scope.expires is not None and now >= scope.expires:
        return Denied("expired", f"the envelope ended {span(now - scope.expires)} ago")
    if scope.commands is not None:
        if right == "input":
            return Denied(
                "command",
                "the envelope is for certain commands, and keys cannot be told apart by command",
            )
        if right in STARTS_PROGRAMS and not permits(scope.commands, facts.command):
            return Denied(
                "command", f"the envelope is only for {', '.join(sorted(scope.commands))}"
            )
    return None


def permits(commands: frozenset[str], command: Command | None) -> bool:
    """Say whether every program of the command has a listed name."""
    return bool(command) and all(not names.isdisjoint(commands) for names in command or ())


def span(seconds: float) -> str:
    """Return the approximate duration for display."""
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"
