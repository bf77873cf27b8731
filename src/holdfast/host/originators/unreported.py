"""Which order ran when, on a host to which the kernel reports neither forks nor writes (P3).

The shell's marks tell when an order begins and ends. This is the whole truth while the order leaves
no process behind and a single operator typed during the order. Otherwise another cause may have
written at that time, and the author of a change is `unknown`:

- from the start of a session to its first prompt, and always in a shell that reports no start of an
  order (POSIX shells) or in another program;
- from an order that leaves a process behind to the first prompt without such a process;
- during an order into which several operators typed.

The keeper adopts orphans, so that no process of a session leaves the tree below the keeper.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.core.originators.lineage import UNKNOWN as UNKNOWN_CAUSE
from holdfast.core.originators.writers import Author
from holdfast.host.processes import proc_scan

if TYPE_CHECKING:
    from holdfast.core.originators.activity import Activity
    from holdfast.host.session.session import Session

TELL_STARTS: Final = ("bash", "zsh")


class Unreported:
    """The causes that marks do not explain, as acts of an unknown operator."""

    def __init__(self, activity: Activity) -> None:
        self._activity = activity
        self._doubts: set[str] = set()  # ids of sessions
        self._orders: dict[str, tuple[float, int]] = {}  # begin, and inputs before

    def begin(self, session: Session, now: float) -> None:
        self._doubts.add(session.id)
        self._activity.began(_unknown(session), now)

    def end(self, session: Session, now: float) -> None:
        self._orders.pop(session.id, None)
        if session.id in self._doubts:
            self._doubts.remove(session.id)
            self._activity.ended(_unknown(session), now)

    def started(self, session: Session, now: float) -> None:
        self._orders[session.id] = now, session.commands.lineage.inputs

    def prompt(self, session: Session, now: float, told: bool) -> None:
        """A prompt: looks for processes that the order left, unless the kernel reports them."""
        if told:
            return self.end(session, now)
        began, inputs = self._orders.pop(session.id, (None, 0))
        if began is not None and len(session.commands.lineage.typed_since(inputs - 1)) > 1:
            self._activity.began(_unknown(session), began)
            self._activity.ended(_unknown(session), now)
        calm = session.commands.kind in TELL_STARTS and all(
            one.pid == session.record.root_pid for one in proc_scan.of_session(session.keeper_pid)
        )
        if calm is (session.id in self._doubts):
            (self.end if calm else self.begin)(session, now)


def _unknown(session: Session) -> Author:
    return Author(session.id, UNKNOWN_CAUSE)
