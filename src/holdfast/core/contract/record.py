"""The record of acts, and the events of the machine."""

from __future__ import annotations

from holdfast.core.contract.message import Json, MachineAct, checked, message


@message
class Log:
    """The newest entries, or the oldest after a number; `follow`: each new entry too."""

    session: str
    after: int | None = None
    limit: int = 100
    follow: bool = False


@message
class LogReply:
    """Entries of a session's record, or of the machine's."""

    id: str
    entries: tuple[Json, ...]


@message
class Exported:
    """The size of the export."""

    id: str
    name: str
    entries: int
    bytes: int


@message
class Redact(MachineAct):
    """Entries that lose their content.

    `record`: a session by id or name, the id of a forgotten session, or `machine`. `reason`: is
    recorded and shown.
    """

    record: str
    seqs: tuple[int, ...] = checked("`seqs` is a list of numbers of entries")
    reason: str = ""


@message
class Redacted:
    """The entries that had content, which is gone now."""

    id: str
    name: str
    seqs: tuple[int, ...]


@message
class Events:
    """Events after a number; `follow`: each new event too."""

    session: str | None = None
    after: int = 0
    limit: int = 100
    follow: bool = False


@message
class EventsReply:
    """Events, the oldest first (docs/reference/events.md)."""

    events: list[Json]
