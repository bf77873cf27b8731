"""Finds clients that run inside a session, and refuses acts in another operator's name (A7).

The kernel names the process of a local client when the client connects. The processes above it are
read at once, so a client cannot hide by leaving its parent or by cleaning its environment. The
process of a client that comes through a relay is unknown. If a program of this account can read
that client's key here (`Connection.stray`), the client may run inside any session, and the operator
who started the client is unknown. A program that cron, `at` or a service manager starts for a
session cannot be seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from holdfast.core.originators import inside
from holdfast.core.originators.inside import Inside
from holdfast.core.originators.lineage import UNKNOWN, Cause
from holdfast.home.settings import Settings
from holdfast.host.originators.lineage import Lineages
from holdfast.host.runtime.connection import Connection
from holdfast.host.session.session import Session
from holdfast.model.errors import FromInside


class Operators(Protocol):
    """The machine's operators (host/people/rights.py)."""

    @property
    def several(self) -> bool: ...


class Insiders:
    def __init__(
        self,
        sessions: Mapping[str, Session],
        lineages: Lineages,
        settings: Settings,
        operators: Operators,
    ) -> None:
        """`settings.inside` may allow acts in another operator's name, which are then recorded."""
        self._sessions, self._lineages = sessions, lineages
        self._allow, self._operators = settings.inside == "allow", operators

    def session_of(self, conn: Connection) -> Session | None:
        """The innermost session whose process tree contains this client."""
        if not conn.around:
            return None
        keepers = {one.keeper_pid: one for one in self._sessions.values()}
        return next((keepers[pid] for pid in conn.around if pid in keepers), None)

    def of(self, conn: Connection) -> Inside | None:
        """The session that the client is in, and the operators that started the client."""
        if conn.stray:
            return Inside(None, (UNKNOWN.actor,)) if self._operators.several else None
        if (session := self.session_of(conn)) is None:
            return None
        cause = self._cause(session, conn.around)
        operators = inside.starters(cause, session.commands.lineage.inputs_of())
        return Inside(session.ref, operators, cause.ref(session.ref))

    def check(self, conn: Connection, op: str, harmless: bool = False) -> None:
        """Raises FromInside if the client acts in another operator's name."""
        found = self.of(conn) if (conn.around or conn.stray) and not self._allow else None
        if found is None or not inside.refuses(found, conn.operator, op, harmless):
            return
        if found.session is None:
            raise FromInside(
                "this client comes through a relay, and its key lies open on this machine: it may "
                f"run inside a session and cannot act as {conn.operator}",
                "on this machine use the local host, outside of every session; another machine "
                "needs a key of its own (`holdfast device add`)",
                operators=list(found.operators),
            )
        names = ", ".join(found.others(conn.operator))
        started = "an unknown operator" if names == UNKNOWN.actor else names
        raise FromInside(
            f"this client runs inside a session, and {started} may have started it: "
            f"it cannot act as {conn.operator}",
            operators=list(found.operators),
            session=found.session,
        )

    def _cause(self, session: Session, around: Iterable[int]) -> Cause:
        """The cause of the nearest process that the lineage knows; not of the shell as a parent."""
        self._lineages.catch_up()
        lineage = session.commands.lineage
        for n, pid in enumerate(around):
            if pid == lineage.root and n and session.commands.kind is not None:
                break
            if pid in lineage.members:
                return self._lineages.behind(session, pid)
        return UNKNOWN
