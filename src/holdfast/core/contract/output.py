"""Output and state of a session: screen, bytes, processes, attention."""

from __future__ import annotations

from typing import Final

from holdfast.core.contract.message import ABSENT, Absent, Json, Size, checked, message
from holdfast.model.limits import SESSIONS_MAX

CONDITIONS: Final = ("idle", "input", "secret", "exit", "command", "text:REGEX", "port:NUMBER")
"""The conditions of `wait`; a colon stands before a value."""
CONDITIONS_MAX: Final = 16  # of a single wait


@message
class View:
    """`ansi`: the screen with colours too. `history`: the number of lines of scrollback."""

    session: str
    ansi: bool = False
    history: int = 0


@message
class Cursor:
    """The cursor on the screen, from 0."""

    x: int
    y: int
    visible: bool


@message
class Waiting:
    """The event that a session waits for, the reason in words, and the foreground program."""

    for_: str
    why: str
    foreground: str


@message
class Viewed:
    """The screen of a session; of an ended session, the last screen."""

    id: str
    name: str
    state: str
    size: Size
    lines: tuple[str, ...]
    cursor: Cursor | None
    alternate: bool
    title: str
    modes: Json
    offset: int
    exit_code: int | None
    waiting: Waiting | None
    ansi: str | Absent = ABSENT
    history: tuple[str, ...] | Absent = ABSENT
    gate: str | Absent | None = ABSENT
    limits: Json | Absent = ABSENT
    reason: str | Absent = ABSENT


@message
class Read:
    """Output from an offset on. `strict`: refuse if some bytes have rolled off."""

    session: str
    from_: int | None = None
    follow: bool = False
    strict: bool = False
    for_terminal: bool = False


@message
class ReadReply:
    """The offsets of the bytes that were sent, and the number of bytes that had rolled off."""

    id: str
    start: int
    end: int
    lost: int


@message
class Wait:
    """A condition or several; the first that holds ends the wait. `timeout`: 0 for no limit.

    `since`: look for text in the output from there on and nowhere else. An offset, a reference to a
    range of output, or a reference to an act of `run`.
    """

    session: str
    for_: str | tuple[str, ...] = checked(
        f"1 to {CONDITIONS_MAX} conditions can be waited for at once",
        "`for` is one, or a list of them",
    )
    timeout: float = 0.0
    since: str | None = None


@message
class Waited:
    """The condition that holds, and the evidence."""

    id: str
    for_: str
    seen: str
    exit_code: int | Absent | None = ABSENT
    foreground: str | Absent = ABSENT
    pid: int | Absent | None = ABSENT
    actor: str | Absent | None = ABSENT
    act: str | Absent | None = ABSENT
    where: str | Absent = ABSENT


@message
class Graph:
    """`follow`: every change until the session ends. `wrote`: only the writers of these files."""

    session: str
    follow: bool = False
    wrote: tuple[object, ...] = ()


@message
class GraphReply:
    """Processes, files, pipes and sockets of a session, each process with the act that started it.

    A followed request ends with `reason` and `exit_code` alone, one for files with `wrote`.
    """

    id: str
    name: str
    epoch: int | Absent = ABSENT
    events: bool | Absent = ABSENT
    file_events: bool | Absent = ABSENT
    timers: tuple[Json, ...] | Absent = ABSENT
    time: float | Absent = ABSENT
    members: str | Absent = ABSENT
    processes: list[Json] | Absent = ABSENT
    stopped: tuple[Json, ...] | Absent = ABSENT
    files: list[Json] | Absent = ABSENT
    pipes: list[Json] | Absent = ABSENT
    sockets: list[Json] | Absent = ABSENT
    terminal: Json | Absent | None = ABSENT
    unreadable: list[int] | Absent = ABSENT
    cut: Json | Absent = ABSENT
    wrote: tuple[Json, ...] | Absent = ABSENT
    not_told: Json | Absent = ABSENT
    reason: str | Absent = ABSENT
    exit_code: int | Absent | None = ABSENT


@message
class Attention:
    """`sessions`: none means all that the caller may observe. `follow`: every change too."""

    sessions: tuple[str, ...] = checked(
        "`sessions` is a list of names",
        f"at most {SESSIONS_MAX}; none means all that you may observe",
        default=(),
    )
    follow: bool = False


@message
class AttentionReply:
    """The notices of all sessions in question: see docs/reference/attention.md."""

    attention: tuple[Json, ...]
