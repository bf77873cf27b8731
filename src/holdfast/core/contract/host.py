"""The host itself."""

from __future__ import annotations

from holdfast.core.contract.message import ABSENT, Absent, Json, MachineAct, message


@message
class Pong:
    """The host's process, release, number of sessions that the caller may see, and term."""

    pid: int
    release: str
    sessions: int
    term: int


@message
class Down(MachineAct):
    """`restart`: the next host takes over at once."""

    restart: bool = False


@message
class GoingDown:
    """The process that stops, and the sessions that keep running."""

    pid: int
    sessions: int


@message
class StoreState:
    """Failed writes of the database, and the last failure."""

    failures: int
    last: str


@message
class Stats:
    """Counters since this host began."""

    events: Json
    store: StoreState
    under_way: Json
    viewers: int
    sessions: int
    term: int
    skips: int


@message
class Metrics:
    """`families`: as JSON instead of the Prometheus text."""

    families: bool = False


@message
class MetricsReply:
    """The numbers, in the form that the request asked for."""

    families: tuple[Json, ...] | Absent = ABSENT
    text: str | Absent = ABSENT
