"""The one tree of errors. Each class owns a stable `name` and the exit code of the public surface.

    HoldfastError
    ├── Usage (2)            the caller asked for something malformed
    │   └── Ambiguous           a beginning of several names or ids; the message lists them
    ├── NotFound (3)         no such session, reference, operator
    ├── Refused (4)          envelope, gate, turn, admission, state of the session
    │   ├── NotAllowed          an operator lacks the right
    │   ├── TurnHeld            another operator holds the turn
    │   ├── Busy                a program other than an idle shell is in the foreground
    │   ├── GateRefused         the policy or an approver refused the act
    │   ├── Held                the act waits for approval; a retry resumes the wait
    │   ├── Stale               the act was signed for a state of the record that is long past
    │   ├── OperatorStopped     another operator stopped this operator in the session
    │   ├── Unfinished          another operator's half-typed line, paste or key is in the way
    │   ├── FromInside          the client runs inside a session, started by another operator
    │   ├── OnceUsed            the idempotency key belongs to another act
    │   ├── Changed             a file changed during its transfer
    │   ├── NotListening        no process of the session listens on that port
    │   ├── Fenced              this incarnation lost its lease, or lives at another machine
    │   └── Nested              a session may not be attached inside itself
    ├── Unavailable (5)      host, keeper or relay cannot be reached; a retry is safe
    │   ├── Saved               the session is on the disk only, and can be restored
    │   ├── PeerFault           the peer broke the protocol
    │   ├── Contradicted        the record lacks or changed an entry with a receipt
    │   └── WrongPin            a relay's key is not the key that its address pins
    ├── Lost (6)             the output rolled off
    ├── Impossible (7)       cannot be done on this machine or in this state
    ├── OutcomeUnknown (8)   an act was sent and not answered, or its effect cannot be known
    └── TimedOut (124)

The wire carries `name`. Both directions go through `BY_NAME`, so that exit status, JSON and
exception always agree.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import ClassVar


class HoldfastError(Exception):
    """Base of all errors that a caller may see: message, how to recover, whether to retry."""

    name: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1
    retry_safe: bool = False
    default_recover: ClassVar[str] = ""

    def __init__(self, message: str, recover: str | None = None, **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.recover = self.default_recover if recover is None else recover
        self.facts = facts

    @property
    def code(self) -> int:
        """The exit code of the command line for this error."""
        return self.exit_code

    def to_wire(self) -> dict[str, object]:
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


class Ambiguous(Usage):
    name = "ambiguous"
    default_recover = "give the whole id or name"


class NotFound(HoldfastError):
    name, exit_code = "not_found", 3
    default_recover = "`holdfast ls --all` lists what exists"


class Refused(HoldfastError):
    name, exit_code = "refused", 4


class NotAllowed(Refused):
    name = "not_allowed"
    default_recover = "`holdfast operator ls` shows the operators who could grant it"


class TurnHeld(Refused):
    name = "turn_held"
    retry_safe = True
    default_recover = (
        "`holdfast turn SESSION request` asks its holder for it, `holdfast seize SESSION` takes it"
        " at once if you may; or wait until it is free"
    )


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
        "`holdfast approvals` lists it; once another operator has decided, repeat the command"
    )


class Stale(Refused):
    name = "stale"
    retry_safe = True
    default_recover = "look at the session as it is now and sign again"


class OperatorStopped(Refused):
    name = "operator_stopped"
    default_recover = "another operator resumes: `holdfast resume SESSION --operator NAME`"


class Unfinished(Refused):
    name = "unfinished"
    retry_safe = True
    default_recover = (
        "wait until the line is entered or cleared, or take over with `holdfast seize SESSION`"
    )


class FromInside(Refused):
    name = "from_inside"
    default_recover = (
        "use a terminal outside of every session; or let a person set `session.inside = "
        '"allow"` in the configuration, which records such acts with both names'
    )


class OnceUsed(Refused):
    name = "once_used"
    default_recover = "use a new key for a new act; repeat an act exactly to get its outcome"


class Changed(Refused):
    name = "changed"
    retry_safe = True
    default_recover = "transfer the file again from its beginning"


class NotListening(Refused):
    name = "not_listening"
    retry_safe = True
    default_recover = "start the server in the session, or name the port on which it listens"


class Fenced(Refused):
    name = "fenced"
    default_recover = "`holdfast lease show SESSION` tells where it lives, and until when to wait"


class Nested(Refused):
    name = "nested"
    default_recover = "detach first, or open another terminal"


class Unavailable(HoldfastError):
    name, exit_code = "unavailable", 5
    retry_safe = True
    default_recover = "`holdfast up` starts the host; sessions keep running without it"


class Saved(Unavailable):
    name = "saved"
    retry_safe = True
    default_recover = "`holdfast restore SESSION` brings it back"


class PeerFault(Unavailable):
    name = "peer_fault"
    retry_safe = False
    default_recover = "both sides should run the same release: `holdfast down`, then `holdfast up`"


class Contradicted(Unavailable):
    name = "contradicted"
    retry_safe = False
    default_recover = (
        "`holdfast log verify SESSION` compares all receipts; keep a copy of HOME/receipts, and ask"
        " who administers that machine"
    )


class WrongPin(Unavailable):
    name = "wrong_pin"
    retry_safe = False
    default_recover = (
        "compare the address with the one that `holdfast relay serve` prints there; if it is the"
        " same, something on the way pretends to be the relay"
    )


class Lost(HoldfastError):
    name, exit_code = "lost", 6
    default_recover = "`holdfast ls --json` shows the range of output that is still kept"


class Impossible(HoldfastError):
    name, exit_code = "impossible", 7
    default_recover = "`holdfast doctor` says what this machine can do"


class OutcomeUnknown(HoldfastError):
    name, exit_code = "outcome_unknown", 8
    default_recover = (
        "look first (`holdfast view SESSION`, `holdfast ls`, `holdfast log SESSION`), or repeat the"
        " command with the same --once KEY, which has one effect; without a key a retry may be a"
        " second act"
    )


class TimedOut(HoldfastError):
    name, exit_code = "timed_out", 124
    retry_safe = True
    default_recover = "try again with a longer --timeout"


# The classes above, in their order.
ALL: tuple[type[HoldfastError], ...] = tuple(
    one
    for one in list(globals().values())
    if isinstance(one, type) and issubclass(one, HoldfastError) and one is not HoldfastError
)
BY_NAME: dict[str, type[HoldfastError]] = {cls.name: cls for cls in ALL}


def from_wire(body: Mapping[str, object]) -> HoldfastError:
    """Make the exception for an error body. An unknown name falls back to its exit code's class.

    A peer may deny that a retry is safe, which depends on the act; it cannot claim the opposite.
    """
    cls = BY_NAME.get(str(body.get("name")))
    if cls is None:
        code = body.get("code")
        cls = next((c for c in ALL if c.exit_code == code), HoldfastError)
    error = cls(str(body.get("message", "unknown error")), str(body.get("recover", "")))
    if body.get("retry_safe") is False:
        error.retry_safe = False
    facts = body.get("facts")
    error.facts = facts if isinstance(facts, dict) else {}
    return error
