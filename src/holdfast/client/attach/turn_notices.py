"""Notices about the turn: the holder, requests, and the shell state a new holder inherits. Pure.

The turn is invisible until contended: typing into a free session shows on the screen and needs no
notice.
"""

from __future__ import annotations

from holdfast.model.printable import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.model.jsontext import Json

SHOWN_TEXT = 40  # characters of a program

COMMANDS = {  # key after the prefix -> request
    b"t": ("seize", {}),
    b"g": ("turn", {"act": "grant"}),
    b"x": ("turn", {"act": "refuse"}),
    b"a": ("turn", {"act": "request"}),
    b"H": ("halt", {}),
    b"R": ("resume", {}),
}


class TurnNotices:
    """Words the host's events about the turn, and remembers which operators wait for it."""

    def __init__(self, me: str, prefix: str) -> None:
        self.me, self.prefix = me, prefix
        self.holder: str | None = None
        self.waiting: list[str] = []

    def request(self, key: bytes) -> Json | str:
        """The request of a prefix command, or why there is none."""
        op, fields = COMMANDS[key]
        if fields.get("act") in ("grant", "refuse"):
            if not self.waiting:
                return "nobody asks for the turn"
            return {"op": op, **fields, "to": self.waiting[0]}
        return {"op": op, **fields}

    def refusal(self, error: Json) -> str:
        """Why a request or a key was refused, with the key that helps."""
        message, name = str(error.get("message")), error.get("name")
        if name == "turn_held":
            return f"{message}; {self.prefix} a asks for it, {self.prefix} t takes it"
        if name == "unfinished":
            return f"{message}; {self.prefix} t takes over with it"
        if message.endswith("is halted"):
            return f"{message}; {self.prefix} R resumes it"
        return message

    def greeting(self, session: Json, lost: bool) -> str | None:
        """The notice on attach: in a halted session nothing moves, and no key is taken.

        `lost`: this is another incarnation than before.
        """
        turn = session.get("turn")
        self.holder = str(turn["holder"]) if turn else None
        if session.get("state") != "halted":
            return "a new incarnation; keys typed before were not sent to it" if lost else None
        return self.refusal({"message": f"{session['name']} is halted"})

    @property
    def writes(self) -> str:
        """Which operator writes, for the title of the terminal."""
        if self.holder is None:
            return "the turn is free"
        return "you write" if self.holder == self.me else f"{self.holder} writes"

    def words(self, event: Json) -> str | None:
        """The notice for an event, if there is one."""
        name = event.get("event")
        if name in ("turn", "turn_asked", "turn_withdrawn"):
            self.waiting = [str(o) for o in event.get("waiting") or ()]
        if name == "turn":
            self.holder = str(event["holder"]) if event.get("holder") else None
            return self._turn(event)
        if name == "turn_asked" and event.get("holder") == self.me:
            return (
                f"{event.get('operator')} asks for the turn: "
                f"{self.prefix} g gives it, {self.prefix} x refuses"
            )
        if (
            name == "turn_withdrawn"
            and event.get("operator") == self.me
            and event.get("why") != "left"
        ):
            return f"your request for the turn was {event.get('why')}"
        if name == "inherits":
            from holdfast.core.session.inheritance import in_a_line

            return "you have the turn" + in_a_line(event, self.me)
        if name == "halted" and event.get("because"):
            return printable(f"halted: {event['because']}; {self.prefix} R resumes")
        if name == "fenced":
            why = f"{event.get('why')}; `holdfast lease show` says for how long"
            return printable(f"fenced, everything stands still: {why}")
        if name == "unfenced":
            return "the lease is back; the session goes on"
        if name == "stopped":
            by, who = event.get("by"), event.get("operator")
            if who == self.me:
                return f"{by} stopped you here: your programs are frozen, your input is refused"
            return f"{by} stopped the programs of {who} ({event.get('how')})"
        if name == "operator_resumed":
            who = "your programs" if event.get("operator") == self.me else event.get("operator")
            return f"{event.get('by')} resumed {who}"
        if name == "limit_near":
            used, limit = int(event["used"]), int(event["limit"])
            return f"{100 * used // limit}% of this session's {event['resource']} limit are used"
        if name == "killed_for_memory":
            named = f"{event['program'] or 'a process'} ({event['pid'] or 'unknown'})"
            return printable(f"out of memory: {named} was killed")
        if name == "draining":
            return (
                f"{event.get('operator')} drains this machine: the session is saved within "
                f"{float(event['within']):.0f} s, and this terminal waits until it is back"
            )
        if name == "drain_over":
            return f"{event.get('operator')} ended the drain"
        if name == "network_lost":
            return "this session has lost its network; a new session gets one again"
        if name == "halted":
            return (
                f"{event.get('operator')} halted everything ({event.get('how')}); "
                f"{self.prefix} R resumes"
            )
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
            program = str(event.get("program"))[-SHOWN_TEXT:]
            fate = (
                "was not started" if name == "not_started" else "is not what was shown to the gate"
            )
            return printable(f"{program}{whose} {fate}: {event.get('because')}")
        if name == "recovered":
            return (
                f"{event.get('operator')} is an administrator of this machine now, by "
                "`operator recover`; `holdfast operator revoke` undoes that"
            )
        if name == "resumed":
            return f"{event.get('operator')} resumed the session"
        return None

    def _turn(self, event: Json) -> str | None:
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
        return (
            f"{holder} {verb}"
            + (" from you" if previous == self.me else f" from {previous}" if previous else "")
            + (" and holds it until released" if how == "seize" else "")
        )
