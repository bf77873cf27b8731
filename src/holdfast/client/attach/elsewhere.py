"""What other sessions of the machine wait for, told to an attached terminal. Pure.

The host reports questions without any cost while nothing changes. Waits for input and secrets make
the host look at its sessions five times a second, so only users that chose `attach.others = "all"`
are told of them.
"""

from __future__ import annotations

from holdfast.model.printable import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.core.session.waits import Waits
    from holdfast.model.jsontext import Json

ELSEWHERE = ("approvals", "attention", "over")  # events that answer `requests`
KINDS = {"none": (), "approval": ("approval",), "all": ("approval", "input", "secret")}


class Elsewhere:
    """`others`: a key of KINDS."""

    def __init__(self, operator: str, prefix: str, others: str) -> None:
        self._operator, self._prefix, self._kinds = operator, prefix, KINDS[others]
        self._waits: Waits | None = None
        self.questions: list[Json] = []  # of all sessions
        self.asked = False  # this connection follows the waits

    def requests(self) -> list[Json]:
        """The requests for a new connection."""
        if self.asked or not self._kinds:
            return []
        self.asked = True
        ops = ("approvals",) if len(self._kinds) == 1 else ("approvals", "attention")
        return [{"op": op, "follow": True} for op in ops]

    def words(self, event: Json, session: str) -> str | None:
        """The notice for an event. `session`: the attached one, which has notices of its own."""
        if event["event"] == "approvals":
            self.questions = event["approvals"]
            if not self.questions and self._waits is None:
                return None  # spares the import
        if self._waits is None:
            from holdfast.core.session.waits import Waits

            self._waits = Waits(frozenset(self._kinds))
        if event["event"] == "approvals":
            mine = (self._operator, session)
            new = [
                one
                for one in self._waits.asked(self.questions)
                if one.operator != mine[0] and one.session != mine[1]
            ]
            if not new:
                return None
            wait = new[-1]
            counts = any(one["id"] == wait.id and one["counts"] for one in self.questions)
            decide = f" ({self._prefix} y to see and decide)" if counts else ""
            return f"{wait.title}{decide}: {printable(wait.why)}"
        from holdfast.core.session.notices import Notice

        body = event["body"]
        notice = Notice(**{name: body[name] for name in Notice._fields})
        found = self._waits.noticed(notice, before=event["event"] == "over")
        if found is None or found.session == session:
            return None
        program = f" ({printable(found.text)})" if found.text else ""
        return f"{found.title}{program}; {self._prefix} s goes there"
