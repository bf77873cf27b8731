"""Events that reach an attached client, and the effects with which the client reacts.

The loop turns input of the terminal, the host and the clock into events. `AttachState.handle`
returns effects, and the loop carries them out in their order. These are plain classes: `dataclass`
and `NamedTuple` would double the time to the first screen.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.client.signing import SigningTarget
    from holdfast.core.policy.approvals import Answer
    from holdfast.core.record.uncovered import Range
    from holdfast.model.errors import HoldfastError
    from holdfast.model.jsontext import Json


class _Value:
    """Base of events and effects. Tests compare them by type and fields."""

    __slots__: tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._fields() == other._fields()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self._fields()!r}"

    def _fields(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)


# ---------------------------------------------------------------- events


class Event(_Value):
    __slots__ = ()


class Keys(Event):
    """The user typed or pasted this."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


class Frame(Event):
    """The host sent a frame."""

    __slots__ = ("kind", "payload")

    def __init__(self, kind: int, payload: bytes | memoryview) -> None:
        self.kind, self.payload = kind, payload


class Attached(Event):
    """The host accepted the request to attach. `ring`: with descriptors of the ring."""

    __slots__ = ("answer", "ring")

    def __init__(self, answer: Json, ring: bool) -> None:
        self.answer, self.ring = answer, ring


class AttachFailed(Event):
    """A request to attach, or to connect and attach, failed."""

    __slots__ = ("error",)

    def __init__(self, error: HoldfastError | OSError) -> None:
        self.error = error


class Lost(Event):
    """The connection to the host broke, or the host closed the connection."""

    __slots__ = ("error",)

    def __init__(self, error: HoldfastError) -> None:
        self.error = error


class Dialling(Event):
    """A thread opens the line to another machine; `Found` follows."""


class Found(Event):
    """That thread is done."""


class Missed(Event):
    """Output rolled off the ring before it could be shown."""


class Drained(Event):
    """The terminal has taken all output of the ring."""


class Resized(Event):
    """The size of the user's terminal has changed (`AttachState.size`)."""


class Redraw(Event):
    """Another program wrote to the user's terminal while this one was stopped."""


class Signalled(Event):
    """The process was told to end by this signal."""

    __slots__ = ("name", "number")

    def __init__(self, number: int, name: str) -> None:
        self.number, self.name = number, name


class TerminalGone(Event):
    """The user's terminal does not exist any more."""


class Tick(Event):
    """The time that `AttachState.deadline` gave has come."""


class Leave(Event):
    """The loop has ended: sign the last keys and say goodbye to the host."""


# ---------------------------------------------------------------- effects


class Effect(_Value):
    __slots__ = ()


class Send(Effect):
    """Send a frame to the host."""

    __slots__ = ("frame",)

    def __init__(self, frame: bytes) -> None:
        self.frame = frame


class SendAct(Effect):
    """Sign a request as an act on the session, and send it under this number."""

    __slots__ = ("fields", "number", "op", "target")

    def __init__(self, number: int, op: str, fields: Json, target: SigningTarget) -> None:
        self.number, self.op, self.fields, self.target = number, op, fields, target


class KeepReceipt(Effect):
    """Keep the machine's acknowledgement of an act."""

    __slots__ = ("recorded",)

    def __init__(self, recorded: Json) -> None:
        self.recorded = recorded


class SendCover(Effect):
    """Sign a range of keys, and send the signature under this number."""

    __slots__ = ("keys", "number", "target")

    def __init__(self, number: int, target: SigningTarget, keys: Range) -> None:
        self.number, self.target, self.keys = number, target, keys


class SendAnswer(Effect):
    """Sign the answer to a question, and send it under this number."""

    __slots__ = ("answer", "number", "question")

    def __init__(self, number: int, question: Json, answer: Answer) -> None:
        self.number, self.question, self.answer = number, question, answer


class Write(Effect):
    """Write to the user's terminal."""

    __slots__ = ("data",)

    def __init__(self, data: bytes | memoryview) -> None:
        self.data = data


class Draw(Effect):
    """Draw these lines instead of the session's screen."""

    __slots__ = ("lines",)

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines


class Notice(Effect):
    """Draw a line over the first row, if the terminal can take more output."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


class DiscardTyped(Effect):
    """Drop the keys that the terminal holds: the user typed them before this screen."""


class OpenRing(Effect):
    """Read output from the ring from this offset on."""

    __slots__ = ("offset", "resumed")

    def __init__(self, offset: int, resumed: bool = False) -> None:
        self.offset, self.resumed = offset, resumed


class StopRing(Effect):
    """Stop reading the ring until a screen says where to continue."""


class CloseRing(Effect):
    """Close the ring: the client changes to a different session."""


class Drain(Effect):
    """Show the rest of the output, then report `Drained`."""


class Title(Effect):
    """Set the title of the terminal, as soon as all earlier output is out."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


class Disconnect(Effect):
    """Close the rest of the connection."""


class Connect(Effect):
    """Connect to the host again and attach."""


class Attach(Effect):
    """Attach to `AttachState.session` on the present connection."""


class Suspend(Effect):
    """Stop this process, as Ctrl-Z does in a shell."""


class Finish(Effect):
    """End the loop with this last line for the user and this exit code.

    `moved`: the error of a session that goes on at another machine.
    """

    __slots__ = ("code", "message", "moved")

    def __init__(self, message: str, code: int = 0, moved: HoldfastError | None = None) -> None:
        self.message, self.code, self.moved = message, code, moved
