"""The one tree of errors. Each class owns a stable `name` and the exit code of the public surface.

    HoldfastError
    ├── Usage (2)            the caller asked for something malformed
    ├── NotFound (3)         no such session, reference, operator
    ├── Refused (4)          envelope, gate, turn, admission, state of the session
    │   ├── NotAllowed          an operator lacks the right
    │   ├── TurnHeld            somebody else holds the turn
    │   ├── Busy                something other than an idle shell is in the foreground
    │   ├── GateRefused         the policy, or whoever was asked, says no
    │   ├── Held                it waits for approval; the same act asked again goes on from there
    │   ├── Stale               it was signed for a state of the record that is long past
    │   ├── Unfinished          somebody else's half-typed line, paste or key is in the way
    │   └── Nested              a session may not be attached inside itself
    ├── Unavailable (5)      host, keeper or relay cannot be reached; trying again is safe
    │   └── PeerFault           the other side broke the protocol
    ├── Lost (6)             asked for what rolled off, or an outcome nobody can know
    ├── Impossible (7)       cannot be done on this machine or in this state
    └── TimedOut (124)

The wire carries `name`; both directions go through `BY_NAME`, so CLI status, JSON and exception cannot drift.
"""

from __future__ import annotations

from typing import Any, ClassVar


class HoldfastError(Exception):
    """Base of all errors a caller may see: what happened, how to recover, whether a retry is safe."""

    name: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1
    retry_safe: ClassVar[bool] = False
    default_recover: ClassVar[str] = ""

    def __init__(self, message: str, recover: str | None = None, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.recover = self.default_recover if recover is None else recover
        self.facts = facts

    def to_wire(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "code": self.exit_code,
            "message": self.message,
            "recover": self.recover,
            "retry_safe": self.retry_safe,
            **({"facts": self.facts} if self.facts else {}),
        }


class Usage(HoldfastError):
    name, exit_code = "usage", 2
    default_recover = "see `holdfast COMMAND --help`"


class NotFound(HoldfastError):
    name, exit_code = "not_found", 3
    default_recover = "`holdfast ls --all` lists what exists"


class Refused(HoldfastError):
    name, exit_code = "refused", 4


class NotAllowed(Refused):
    name = "not_allowed"
    default_recover = "`holdfast operator ls` shows who could grant it"


class TurnHeld(Refused):
    name = "turn_held"
    retry_safe = True
    default_recover = "`holdfast turn SESSION request` asks its holder for it, `holdfast seize SESSION` takes it at once if you may; or wait until it is free"


class Busy(Refused):
    name = "busy"
    retry_safe = True
    default_recover = (
        "wait for the program (`holdfast wait SESSION --for idle`) or steer it with `holdfast send`"
    )


class GateRefused(Refused):
    name = "gate_refused"
    default_recover = (
        "`holdfast policy show` has the rules; `holdfast policy try` explains a verdict"
    )


class Held(Refused):
    name = "held"
    retry_safe = True
    default_recover = (
        "`holdfast approvals` shows what waits; somebody else decides it, then do the same again"
    )


class Stale(Refused):
    name = "stale"
    retry_safe = True
    default_recover = "look at the session as it is now and sign again"


class Unfinished(Refused):
    name = "unfinished"
    retry_safe = True
    default_recover = (
        "wait until it is entered or given up, or take over with `holdfast seize SESSION`"
    )


class Nested(Refused):
    name = "nested"
    default_recover = "detach first, or open another terminal"


class Unavailable(HoldfastError):
    name, exit_code = "unavailable", 5
    retry_safe = True
    default_recover = "`holdfast up` starts the host; sessions keep running without it"


class PeerFault(Unavailable):
    name = "peer_fault"
    retry_safe = False
    default_recover = "both sides should run the same release: `holdfast down`, then `holdfast up`"


class Lost(HoldfastError):
    name, exit_code = "lost", 6
    default_recover = "`holdfast ls --json` shows the range of output that is still kept"


class Impossible(HoldfastError):
    name, exit_code = "impossible", 7
    default_recover = "`holdfast doctor` says what this machine can do"


class TimedOut(HoldfastError):
    name, exit_code = "timed_out", 124
    retry_safe = True
    default_recover = "try again with a longer --timeout"


ALL: tuple[type[HoldfastError], ...] = (
    Usage,
    NotFound,
    Refused,
    NotAllowed,
    TurnHeld,
    Busy,
    GateRefused,
    Held,
    Stale,
    Unfinished,
    Nested,
    Unavailable,
    PeerFault,
    Lost,
    Impossible,
    TimedOut,
)
BY_NAME: dict[str, type[HoldfastError]] = {cls.name: cls for cls in ALL}


def from_wire(body: dict[str, Any]) -> HoldfastError:
    """The exception for an error body; a name from a newer release becomes the class of its exit code."""
    cls = BY_NAME.get(str(body.get("name")))
    if cls is None:
        code = body.get("code")
        cls = next((c for c in ALL if c.exit_code == code), HoldfastError)
    error = cls(str(body.get("message", "unknown error")), str(body.get("recover", "")))
    facts = body.get("facts")
    error.facts = facts if isinstance(facts, dict) else {}
    return error
