"""What is told of a session to those who asked to be told: one notice, when a new one is news, and what is kept for a reader that is slow.

A notice is a state, never an event: whoever has the newest of each session has the whole picture. So a reader that cannot keep up loses none that still counts: an older notice gives way to the newer
of the same session. Whoever comes (back) is told what is now.

- News is another kind, another name, or another process that waits. That the words differ (`reads`, `waits on`), that it is seen by now who it is, or that a job works on its next step, is not.
- What could not be seen once is looked at again before it is told: a process that vanishes under a look would read "unknown" for a moment. What cannot be seen twice is.
- `since` is the moment when the change was noticed. Of what was so before anybody looked it is the best that is known: of a wait the last output before it, of work the start of what
  works.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

PENDING_MAX: Final = 4096  # sessions of which something waits to be told to one reader
WAITS: Final = ("input", "secret")
OVER: Final = ("exited", "lost")
KINDS: Final = (*WAITS, "approval", "idle", "working", "halted", *OVER, "unknown")
"""By how much somebody is needed is another matter: what a program waits for comes first here, because nothing goes on without it."""


class Notice(NamedTuple):
    session: str
    name: str
    kind: str  # one of KINDS
    why: str
    pid: int | None  # who waits or works, if that is known
    since: float
    foreground: str  # the command line in the foreground
    exit_code: int | None  # of one that has exited, if it is known

    def facts(self) -> dict[str, Any]:
        return self._asdict()


def news(before: Notice | None, now: Notice) -> bool:
    return (
        before is None
        or (before.name, before.kind) != (now.name, now.kind)
        or (now.kind in WAITS and None not in (before.pid, now.pid) and before.pid != now.pid)
    )


def doubtful(before: Notice | None, kind: str) -> bool:
    """Whether it is looked once more before that is told."""
    return kind == "unknown" and before is not None and before.kind not in ("unknown", *OVER)


class Pending:
    """What one reader has not been told yet: the newest of each session, in the order in which they became news."""

    def __init__(self) -> None:
        self.missed = 0  # sessions of which nothing was told, because there were too many
        self._newest: dict[str, Notice] = {}

    def __bool__(self) -> bool:
        return bool(self._newest or self.missed)

    def put(self, notice: Notice) -> None:
        self._newest.pop(notice.session, None)
        self._newest[notice.session] = notice
        if len(self._newest) > PENDING_MAX:
            del self._newest[next(iter(self._newest))]
            self.missed += 1

    def take(self) -> Iterator[Notice]:
        while self._newest:
            yield self._newest.pop(next(iter(self._newest)))
