"""Notices about sessions for subscribed readers: when a notice is new, and the backlog of a reader.

A notice is a state, never an event: a reader with the newest notice of each session has the whole
picture. So a slow reader loses no notice that still counts, because a newer notice replaces the
older notice of the same session. A reader that (re)connects gets the present state.

- A notice is news if the kind, the name, or the waiting process changed. Different words (`reads`,
  `waits on`), a process that is identified only now, or the next step of a job are not news.
- An unknown state is observed again before it is reported, because a process that vanishes during
  the observation would read "unknown" for a moment. If the second look fails too, it is reported.
- `since` is the moment when the change was noticed. For a state that is older than the first
  observation it is the best estimate: the last output before a wait, or the start of the work.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

PENDING_MAX: Final = 4096  # sessions with an unreported notice, for one reader
WAITS: Final = ("input", "secret")
OVER: Final = ("exited", "lost")
KINDS: Final = (*WAITS, "approval", "idle", "working", "halted", *OVER, "unknown")
"""In this order: a waiting program comes first, because it cannot continue alone."""


class Notice(NamedTuple):
    session: str
    name: str
    kind: str  # one of KINDS
    why: str
    pid: int | None  # the process that waits or works, if known
    since: float
    foreground: str  # the command line in the foreground
    exit_code: int | None  # of an exited session, if known

    def facts(self) -> dict[str, object]:
        return self._asdict()

    @property
    def program(self) -> str:
        """The command line in the foreground; of the session's own shell only its name."""
        shell, own, _ = self.foreground.partition(" --rcfile ")
        return shell.rpartition("/")[2] if own else self.foreground


def news(before: Notice | None, now: Notice) -> bool:
    return (
        before is None
        or (before.name, before.kind) != (now.name, now.kind)
        or (now.kind in WAITS and None not in (before.pid, now.pid) and before.pid != now.pid)
    )


def doubtful(before: Notice | None, kind: str) -> bool:
    """Say whether to observe once more before this kind is reported."""
    return kind == "unknown" and before is not None and before.kind not in ("unknown", *OVER)


class Pending:
    """The backlog of one reader: the newest notice of each session, in order of arrival."""

    def __init__(self) -> None:
        self.missed = 0  # sessions whose notice was dropped, because there were too many
        self._newest: dict[str, Notice] = {}

    def __bool__(self) -> bool:
        return bool(self._newest or self.missed)

    def put(self, notice: Notice) -> None:
        self._newest.pop(notice.session, None)
        self._newest[notice.session] = notice
        if len(self._newest) > PENDING_MAX:
            del self._newest[next(iter(self._newest))]
            self.missed += 1

    def put_if_none(self, notice: Notice) -> None:
        if notice.session not in self._newest:
            self.put(notice)

    def take(self) -> Iterator[Notice]:
        while self._newest:
            yield self._newest.pop(next(iter(self._newest)))
