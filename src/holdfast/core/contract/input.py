"""Input: text, commands, signals, and the signature over typed keys."""

from __future__ import annotations

from holdfast.core.contract.message import (
    ABSENT,
    Absent,
    Json,
    SessionAct,
    Signed,
    checked,
    message,
)


@message
class Send(SessionAct):
    """Text, then named keys, as if typed. `prompt`: as of `run`."""

    text: str
    keys: tuple[str, ...] = checked("keys are names", default=())
    paste: bool = False
    prompt: str | Absent = ABSENT


@message
class Sent:
    """`act`: the session's number of the act; `ref`: the reference to the act.

    `offset`: the end of the output just before the input was typed; absent if the request was a
    repeat. `inherits`: state of other operators that passed with the turn to this operator.
    """

    id: str
    bytes: int
    act: int
    ref: str
    offset: int | Absent = ABSENT
    inherits: Json | Absent = ABSENT


@message
class Run(SessionAct):
    """A command for the session's shell.

    `timeout`: seconds to follow the command, 0 for no limit. `resume`: the offset in the output
    from which a repeated request goes on. `for_terminal`: leave out queries that a second terminal
    must not answer. `stdin`: the command reads input that the client sends in STDIN frames, instead
    of the terminal. `prompt`: a reference to the prompt that led to the command, for the record.
    """

    text: str
    timeout: float = 0.0
    resume: int | None = None
    for_terminal: bool = False
    stdin: bool = False
    prompt: str | Absent = ABSENT


@message
class RunOutput:
    """Where the command's output stands in the session's output."""

    start: int
    end: int
    ref: str


@message
class Ran:
    """The result of a command. `lost`: bytes of output that rolled off before they were read.

    `kernel_exit`: the kernel's exit code of the program, if the text calls a single program and the
    kernel reports exits. `shell_exit`: the shell's word, if the kernel contradicts it. `stdin`:
    bytes of the client's input that the command read, as far as the host knows. `inherits`: state
    of other operators that passed with the turn to this operator.
    """

    exit_code: int | None
    output: RunOutput
    lost: int
    session: str
    ended: bool
    act: int | None
    ref: str | None
    kernel_exit: int | Absent = ABSENT
    shell_exit: int | Absent = ABSENT
    stdin: int | Absent = ABSENT
    inherits: Json | Absent = ABSENT


@message
class Signal(SessionAct):
    """A signal by name or number to a process; `tree`: and to all processes below."""

    pid: int
    signal: str
    tree: bool = False


@message
class Signalled:
    """The processes that got the signal, and processes of other accounts that did not."""

    id: str
    name: str
    pid: int
    command: str
    signal: str
    count: int
    sent: tuple[int, ...]
    refused: tuple[int, ...]


@message
class Cover:
    """A signature over keys that this client typed while attached."""

    session: str
    signed: Signed = checked("{op}: a signature has statement, signature, salt")


@message
class Entry:
    """An entry of the record."""

    seq: int
    hash: str


@message
class Covered:
    """The entry of the record that has the signature."""

    recorded: Entry
