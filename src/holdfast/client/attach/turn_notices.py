"""What attach says about the others on the session: who has the turn, who asks for it, what one inherits with it.

The turn is invisible until contended: that somebody types into a free session is on the screen anyway and needs no words.
"""

from __future__ import annotations

from typing import Any

from holdfast.core.originators import told_of
from holdfast.model.printable import printable

SHOWN_TEXT = 40  # of what somebody staged or started
SHOWN_JOBS = 2
SHOWN_CHANGES = 3

COMMANDS = {  # key after the prefix -> the request it makes
    b"t": ("seize", {}),
    b"g": ("turn", {"act": "grant"}),
    b"x": ("turn", {"act": "refuse"}),
    b"a": ("turn", {"act": "request"}),
    b"H": ("halt", {}),
    b"R": ("resume", {}),
}


class Company:
    """What is known of the others from the host's events."""

    def __init__(self, me: str, prefix: str) -> None:
        self.me, self.prefix = me, prefix
        self.waiting: list[str] = []

    def request(self, key: bytes) -> dict[str, Any] | str:
        """What a prefix command asks of the host, or why it cannot."""
        op, fields = COMMANDS[key]
        if fields.get("act") in ("grant", "refuse"):
            if not self.waiting:
                return "nobody asks for the turn"
            return {"op": op, **fields, "to": self.waiting[0]}
        return {"op": op, **fields}

    def refusal(self, error: dict[str, Any]) -> str:
        """Why something was not done, and the key that helps."""
        message, name = str(error.get("message")), error.get("name")
        if name == "turn_held":
            return f"{message}; {self.prefix} a asks for it, {self.prefix} t takes it"
        if name == "unfinished":
            return f"{message}; {self.prefix} t takes over with it"
        if message.endswith("is halted"):
            return f"{message}; {self.prefix} R resumes it"
        return message

    def words(self, event: dict[str, Any]) -> str | None:
        """What to tell the user of an event; None if nothing."""
        name = event.get("event")
        if name in ("turn", "turn_asked", "turn_withdrawn"):
            self.waiting = [str(o) for o in event.get("waiting") or ()]
        if name == "turn":
            return self._turn(event)
        if name == "turn_asked" and event.get("holder") == self.me:
            return f"{event.get('operator')} asks for the turn: {self.prefix} g gives it, {self.prefix} x refuses"
        if (
            name == "turn_withdrawn"
            and event.get("operator") == self.me
            and event.get("why") != "left"
        ):
            return f"your request for the turn was {event.get('why')}"
        if name == "inherits":
            return "you have the turn" + self._inherited(event)
        if name == "halted":
            return f"{event.get('operator')} halted everything ({event.get('how')}); {self.prefix} R resumes"
        if name == "ends":
            verb, names = (
                "watch" if event.get("right") == "observe" else "type",
                " or ".join(map(str, event.get("grantors") or ())),
            )
            return f"you may {verb} here for {event.get('in_s'):.0f} s more" + (
                f"; {names} can grant more" if names else ""
            )
        if name in ("not_started", "not_as_shown"):
            whose = "" if event.get("operator") == self.me else f" ({event.get('operator')})"
            return printable(
                f"{str(event.get('program'))[-SHOWN_TEXT:]}{whose} {'was not started' if name == 'not_started' else 'is not what was shown to the gate'}: {event.get('because')}"
            )
        if name == "resumed":
            return f"{event.get('operator')} resumed the session"
        return None

    def _inherited(self, event: dict[str, Any]) -> str:
        line = ", ".join(
            f"{p['text'][:SHOWN_TEXT]!r} by {p['operator']}" for p in event.get("staged") or ()
        )
        others = [job for job in event.get("jobs") or () if job["actor"] != self.me]
        runs = ", ".join(
            f"{job['command'][:SHOWN_TEXT]!r} by {job['actor']}" for job in others[:SHOWN_JOBS]
        )
        more = f" and {len(others) - SHOWN_JOBS} more" if len(others) > SHOWN_JOBS else ""
        return (
            (f"; on the line: {line}" if line else "")
            + (f"; runs: {runs}{more}" if runs else "")
            + self._changed(event)
        )

    def _changed(self, event: dict[str, Any]) -> str:
        """What others made of the shell. What nobody knows is told where everything is asked for, not in one line."""
        told = [
            told_of(one["kind"], one["name"][:SHOWN_TEXT], one["actor"], one.get("sure", True))
            for one in event.get("changed") or ()
            if one["actor"] not in (self.me, "unknown")
        ]
        more = f" and {len(told) - SHOWN_CHANGES} more" if len(told) > SHOWN_CHANGES else ""
        return printable(f"; changed: {', '.join(told[:SHOWN_CHANGES])}{more}") if told else ""

    def _turn(self, event: dict[str, Any]) -> str | None:
        holder, previous, how = event.get("holder"), event.get("previous"), event.get("how")
        if how in ("write", "free") or holder == previous:
            return None
        if holder == self.me:
            return f"you have the turn{f' ({previous} had it)' if previous else ''}"
        verb = {
            "seize": "took the turn",
            "hand": "was handed the turn",
            "grant": "was given the turn",
        }.get(str(how), "has the turn")
        return f"{holder} {verb}" + (
            " from you" if previous == self.me else f" from {previous}" if previous else ""
        )
