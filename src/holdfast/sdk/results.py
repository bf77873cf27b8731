"""The values that the API returns: frozen dataclasses with plain fields.

A field that an older host does not send has its default; a field that a newer host adds is ignored.
So programs and hosts of different releases understand each other.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a terminal in character cells."""

    cols: int = 80
    rows: int = 24


@dataclass(frozen=True, slots=True)
class Range:
    """A range of absolute offsets in a session's output."""

    start: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True)
class Liveness:
    """The state of the session's program, of the host, and of the way from other machines."""

    process: str = "unknown"
    host: str = "unknown"
    relay: str = "unknown"


@dataclass(frozen=True, slots=True)
class TurnState:
    """The operator that holds the turn, and the operators that wait for it.

    `inherits`: the state of other operators that passed with the turn, after a request for it.
    """

    holder: str
    since: float = 0.0
    idle_s: float = 0.0
    waiting: tuple[str, ...] = ()
    inherits: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Attached:
    """A client that is attached to a session."""

    operator: str
    modality: str = ""
    observe: bool = False
    device: str | None = None


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session as `sessions.list()` and `session.info()` show it."""

    id: str
    name: str
    machine: str = ""
    state: str = "unknown"
    liveness: Liveness = Liveness()
    epoch: int | None = None
    created: float | None = None
    idle_s: float | None = None
    size: Size | None = None
    operators: tuple[Attached, ...] = ()
    turn: TurnState | None = None
    output: Range | None = None
    argv: tuple[str, ...] = ()
    cwd: str | None = None
    pid: int | None = None
    layout: str | None = None
    exit_code: int | None = None
    reason: str | None = None
    ref: str | None = None

    @property
    def path(self) -> str:
        """The id with its machine, for `sessions.get`."""
        return f"{self.machine}/{self.id}" if self.machine else self.id


class Listing(list[SessionInfo]):
    """Sessions of several machines. `unreachable`: why a machine gave no answer, by its name."""

    unreachable: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a command.

    `state` is `done`, `running` (the time limit passed; the command goes on) or `ended` (the
    session ended with the command). `lost` counts bytes of output that rolled off unread.
    `inherits`: the state of other operators that passed with the turn to this operator.
    """

    exit_code: int | None
    output: str
    ref: str | None
    state: str
    data: bytes = field(default=b"", repr=False)
    lost: int = 0
    offsets: Range | None = None
    inherits: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Question:
    """The policy asks for an approval of the act: the id of the question, and the reason."""

    id: str
    because: str = ""
    expires_in: float = 0.0


OnHeld = Callable[[Question], object]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Output from an absolute offset; or none, and the `gap`: bytes before it that rolled off."""

    offset: int
    data: bytes
    gap: int = 0
    end: int = 0  # the offset behind the data, which may have fewer bytes


@dataclass(frozen=True, slots=True)
class Output:
    """Output of an attached terminal, up to the offset `end`.

    `screen`: a painted screen that replaces the display, at the start and after a long lag. Other
    output may have fewer bytes than offsets: queries that the host answers are left out.
    """

    end: int
    data: bytes
    screen: bool = False


@dataclass(frozen=True, slots=True)
class Sent:
    """Typed input: the number of bytes, and the reference to the act."""

    bytes: int
    ref: str | None = None
    offset: int | None = None
    inherits: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cursor:
    """The cursor on the screen, counted from 0."""

    x: int
    y: int
    visible: bool = True


@dataclass(frozen=True, slots=True)
class Waiting:
    """The awaited event (idle, input, secret, working …), the reason, the foreground command."""

    for_: str
    why: str = ""
    foreground: str = ""


@dataclass(frozen=True, slots=True)
class Screen:
    """The screen of a session at an offset of its output."""

    lines: tuple[str, ...]
    offset: int
    size: Size = Size()
    cursor: Cursor | None = None
    alternate: bool = False
    title: str = ""
    state: str = "unknown"
    waiting: Waiting | None = None
    exit_code: int | None = None
    history: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The rows without trailing blanks, down to the last row that has text."""
        return "\n".join(line.rstrip() for line in self.lines).rstrip("\n")


@dataclass(frozen=True, slots=True)
class Waited:
    """The condition that holds, and the evidence for it."""

    for_: str
    seen: str
    exit_code: int | None = None
    foreground: str | None = None
    pid: int | None = None
    actor: str | None = None
    act: str | None = None
    where: str | None = None


@dataclass(frozen=True, slots=True)
class Halted:
    """How the processes were stopped or resumed, and whether every process was reached.

    `operator`: the operator whose processes were stopped; None: the whole session. `left_out`: pid
    and reason of each process that was not stopped on purpose.
    """

    how: str
    complete: bool
    took_ms: float = 0.0
    processes: tuple[int, ...] = ()
    missed: tuple[int, ...] = ()
    ref: str | None = None
    operator: str | None = None
    left_out: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Seized:
    """The former holder of the turn, and the state that was inherited with it.

    `stopped`: how the processes of the former holder were stopped, if that was asked.
    """

    previous: str | None
    turn: TurnState | None = None
    flushed: bool = False
    inherits: Mapping[str, Any] = field(default_factory=dict)
    stopped: Halted | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a session."""

    reason: str
    exit_code: int | None = None
    signal: str = ""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A session that was saved to disk.

    `ended`: its processes ended with the checkpoint. `losses`: what a restored session will lack.
    `written`: files that were open for writing and were copied. `frozen_ms`: how long the
    processes stood still. `bytes`: before packing; `stored`: on the disk; `added`: of these, bytes
    that no earlier checkpoint had.
    """

    checkpoint: str
    id: str
    name: str
    epoch: int
    at: float
    by: str = ""
    ended: bool = False
    bytes: int = 0
    offset: int = 0
    act: int = 0
    losses: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    frozen_ms: float = 0.0
    took_ms: float = 0.0
    stored: int = 0
    added: int = 0
    path: str | None = None


@dataclass(frozen=True, slots=True)
class Preflight:
    """Whether a session can be saved. `blockers` and `losses` are sentences for a person.

    `bytes` and `seconds`: the expected size and time.
    """

    possible: bool
    blockers: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    bytes: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class LostConnection:
    """A TCP connection that did not survive. `unacked`: bytes without an answer of the peer."""

    local: str
    remote: str
    pid: int
    program: str
    actor: str
    act: str | None = None
    unacked: int = 0
    protocol: str = "tcp"


@dataclass(frozen=True, slots=True)
class Restored:
    """A new incarnation of a saved session. `at`: the moment that its memory is from.

    `replaced`: files that have their saved content again; `kept`: an archive of the newer content.
    `connections`: those that did not survive. `halted`: its programs stand still until `resume`.
    `re_established`: only if the memory is lost; then it has the facts of the event
    `session.re_established`.
    """

    id: str
    name: str
    checkpoint: str | None
    epoch: int
    at: float | None = None
    pid: int | None = None
    replaced: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    connections: tuple[LostConnection, ...] = ()
    kept: str | None = None
    halted: bool = False
    re_established: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Resolved:
    """What a reference means now. `elsewhere`: `machine`, `key`, `epoch` of a session that went."""

    ref: str
    known: bool
    state: str
    exit_code: int | None = None
    under_way: bool | None = None
    machine: str = ""  # that knows the reference; empty: this machine
    elsewhere: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Approval:
    """An act that waits for the decision of a second operator."""

    id: str
    operator: str
    act: str
    text: str
    because: str
    session: str = ""
    name: str = ""
    rule: str = ""
    expires_in: float = 0.0
    counts: bool = False
    why_not: str | None = None


@dataclass(frozen=True, slots=True)
class Scope:
    """The limits of given rights; None: no such limit. Times are seconds since 1970.

    `commands`: the names of the programs that `run` and `new` may start. `rate`: acts and seconds.
    """

    session: str | None = None
    expires: int | None = None
    not_before: int | None = None
    commands: tuple[str, ...] | None = None
    rate: tuple[int, ...] | None = None
    machine: str | None = None


@dataclass(frozen=True, slots=True)
class Envelope:
    """Rights that were given to a key of an operator.

    `holder`: the key. `through`: the operators that handed the rights on. `state`: valid, or the
    reason why the rights do not count.
    """

    id: str
    rights: tuple[str, ...]
    scope: Scope = Scope()
    holder: str = ""
    given: int = 0
    given_by: str = ""
    through: tuple[str, ...] = ()
    state: str = ""


@dataclass(frozen=True, slots=True)
class OperatorKey:
    """A key of an operator, and the device that holds it. Times are seconds since 1970."""

    key: str
    device: str = ""
    added: int = 0
    added_by: str = ""
    revoked: int | None = None
    revoked_by: str | None = None


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator with its keys and given rights. `kind`: human, agent or service."""

    name: str
    kind: str
    added: int = 0
    added_by: str = ""
    revoked: int | None = None
    revoked_by: str | None = None
    keys: tuple[OperatorKey, ...] = ()
    envelopes: tuple[Envelope, ...] = ()


@dataclass(frozen=True, slots=True)
class Granted:
    """Rights that were given just now: to the operator `name`, within `scope`."""

    id: str
    name: str
    rights: tuple[str, ...]
    scope: Scope = Scope()


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that this home can reach; the empty name is this machine."""

    name: str
    operator: str = ""
    presence: str = "unknown"  # online, or unknown with the reason in `why`
    sessions: int | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file of a session. `type`: file, directory, link, fifo, socket or device.

    `modified`: seconds since 1970. `owner`: the number of the account. `target`: of a link.
    `version` changes with the content and the attributes; entries of a listing do not have it.
    """

    name: str
    type: str = "file"
    size: int = 0
    mode: int = 0
    modified: float = 0.0
    owner: int = 0
    target: str | None = None
    version: str | None = None
    path: str | None = None


@dataclass(frozen=True, slots=True)
class Transferred:
    """A file after its transfer. `changed`: the file changed while it was read."""

    path: str
    size: int
    sha256: str
    mode: int = 0
    modified: float = 0.0
    changed: bool = False
    replaced: bool = False


@dataclass(frozen=True, slots=True)
class FileMatch:
    """A file that a search found; `line` and `text` of a line that has the text."""

    path: str
    type: str = "file"
    size: int = 0
    line: int | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """The matches of a search. `cut`: the bound that ended it early, else empty."""

    path: str
    matches: tuple[FileMatch, ...] = ()
    cut: str = ""
    unreadable: int = 0


# ------------------------------------------------------------ to and from JSON


def on_question(on_held: OnHeld | None) -> Callable[[Mapping[str, Any]], None]:
    """Calls `on_held` with the question of an event `held`."""

    def held(event: Mapping[str, Any]) -> None:
        if on_held is not None:
            on_held(read(Question, event))

    return held


def given(**fields: str | bool | None) -> dict[str, Any]:
    """The fields that have a value; an older host does not know all of them."""
    return {name: value for name, value in fields.items() if value is not None}


def read(cls: type[T], body: Mapping[str, Any], **more: Any) -> T:
    """The value for a JSON object of the host; `more`: fields that the object does not have."""
    known = _readers(cls)  # type: ignore[arg-type]
    given = {name: reader(body[wire]) for name, (wire, reader) in known.items() if wire in body}
    return cls(**(given | more))


@functools.cache
def _readers(cls: Any) -> dict[str, tuple[str, Any]]:
    hints = typing.get_type_hints(cls)
    return {
        one.name: (one.name.rstrip("_"), functools.partial(_value, hints[one.name]))
        for one in fields(cls)
    }


def _value(hint: Any, value: Any) -> Any:
    """A JSON value as the type of a field; a value of another kind is left as it is."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        options = [one for one in typing.get_args(hint) if one is not type(None)]
        return None if value is None else _value(options[0], value)
    if is_dataclass(hint) and isinstance(value, Mapping):
        return read(hint, value)  # type: ignore[arg-type]
    if typing.get_origin(hint) is tuple and isinstance(value, list):
        return tuple(_value(typing.get_args(hint)[0], one) for one in value)
    return value
