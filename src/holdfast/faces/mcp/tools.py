"""The tools, as the agent reads them. Data only: `front.py` sends it before anything is loaded.

Every word here costs tokens in each conversation of each agent. Sets of further tools are served
only if they are asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from holdfast.model.jsontext import Json

NAME: Final = "holdfast"
WAIT_MAX_S: Final = 45.0  # for one call: clients give up after 60 s
WAIT_S: Final = 20.0
CHARS_MAX: Final = 50_000
CHARS: Final = 8_000
CHARS_MIN: Final = 200

INSTRUCTIONS: Final = (
    "A live terminal session, shared with people. Use run for commands; directory, variables and "
    "jobs persist. State running: the command goes on, poll with read(ref). held: a human must "
    "approve; poll read(ref), never retry or work around it. waiting_for_turn: a human is typing; "
    "the command starts by itself afterwards. needs_input: answer with send. needs_secret: ask "
    "the human to type it. Do not sleep in a loop: use wait."
)

_SESSION: Final = {"type": "string", "description": "name or id; default: the agent's own"}
_WAIT: Final = {"type": "number", "description": f"seconds, at most {WAIT_MAX_S:g}"}
_CHARS: Final = {"type": "integer", "description": f"of output, default {CHARS}"}
_ONCE: Final = {"type": "string", "description": "idempotency key: a retry with it acts once"}
_INTENT: Final = {"type": "string", "description": "why, for the record"}
_PROMPT: Final = {"type": "string", "description": "its reference, for the record"}
_EXPECTS: Final = {"type": "string", "description": "expected effect, for the record"}


def _tool(
    name: str,
    description: str,
    required: tuple[str, ...] = (),
    reads: bool = False,
    **fields: Json,
) -> Json:
    return {
        "name": name,
        "description": description,
        "inputSchema": {
            "type": "object",
            "properties": fields,
            "additionalProperties": False,
            **({"required": list(required)} if required else {}),
        },
        "annotations": {"readOnlyHint": reads, "openWorldHint": False},
    }


_TEXT: Final = {"type": "string"}
_NUMBER: Final = {"type": "integer"}
_STRINGS: Final = {"type": "array", "items": {"type": "string"}}
TOOLS: Final[tuple[Json, ...]] = (
    _tool(
        "run",
        "Run one command line in the session's shell and return its exit code and output. A "
        "command that takes longer than wait_s goes on: state running.",
        ("command",),
        command=_TEXT,
        session=_SESSION,
        wait_s=_WAIT,
        max_chars=_CHARS,
        once=_ONCE,
        intent=_INTENT,
        expects=_EXPECTS,
        prompt=_PROMPT,
    ),
    _tool(
        "read",
        "State, exit code and new output of a ref from run; or the session's output exactly from "
        "a cursor, page by page. Waits up to wait_s for news.",
        reads=True,
        cursor=_TEXT,
        ref=_TEXT,
        wait_s=_WAIT,
        max_chars=_CHARS,
    ),
    _tool(
        "send",
        "Type into the program in the foreground. Presses nothing that is not named: add the key "
        "Enter to enter a line.",
        text=_TEXT,
        keys={**_STRINGS, "description": "Enter, C-c, Up, Escape, Tab, ..."},
        paste={"type": "boolean", "description": "as one bracketed paste"},
        session=_SESSION,
        wait_s=_WAIT,
        once=_ONCE,
        intent=_INTENT,
        prompt=_PROMPT,
    ),
    _tool(
        "wait",
        "Wait until one condition holds: idle, input, secret, exit, command, port:N, text:REGEX in "
        "the output since your last run or send.",
        ("until",),
        reads=True,
        until=_STRINGS,
        since={"type": "string", "description": "cursor or ref: text from there on"},
        session=_SESSION,
        wait_s=_WAIT,
    ),
    _tool(
        "screen",
        "The screen as a person sees it, for full-screen programs.",
        reads=True,
        session=_SESSION,
    ),
    _tool("sessions", "The sessions that you can use.", reads=True),
    _tool(
        "graph",
        "Processes with their operator, listening ports and the foreground program, from the "
        "kernel. port: the process that listens there. wrote: files that a process has open.",
        reads=True,
        session=_SESSION,
        port=_NUMBER,
        wrote={"type": "boolean"},
    ),
    _tool(
        "turn",
        "The turn to write: show, request, release, or hand it to an operator.",
        do={"enum": ["show", "request", "release", "hand"]},
        to=_TEXT,
        session=_SESSION,
        wait_s=_WAIT,
    ),
    _tool(
        "stop",
        "Signal a process and its children, or the foreground program (default). INT first, then "
        "TERM, then KILL.",
        pid=_NUMBER,
        signal={"enum": ["INT", "TERM", "KILL"]},
        session=_SESSION,
    ),
)
# By the name of the set.
SETS: Final[dict[str, tuple[Json, ...]]] = {
    "files": (
        _tool(
            "find_files",
            "List a directory of the session; or, with pattern or text, search below it.",
            reads=True,
            path=_TEXT,
            pattern={"type": "string", "description": "of the name: *.py"},
            text={"type": "string", "description": "in lines of the files, exact"},
            session=_SESSION,
        ),
        _tool(
            "read_file",
            "Text of a file, whole lines; next is the line to go on with.",
            ("path",),
            reads=True,
            path=_TEXT,
            line={"type": "integer", "description": "first, default 1"},
            lines={"type": "integer", "description": "how many"},
            max_chars=_CHARS,
            session=_SESSION,
        ),
        _tool(
            "write_file",
            "Write a whole file; missing directories are made.",
            ("path", "text"),
            path=_TEXT,
            text=_TEXT,
            session=_SESSION,
            once=_ONCE,
            intent=_INTENT,
        ),
        _tool(
            "edit_file",
            "Replace old by new in a file. old is exact text that occurs once, or use all.",
            ("path", "old", "new"),
            path=_TEXT,
            old=_TEXT,
            new=_TEXT,
            all={"type": "boolean"},
            session=_SESSION,
            once=_ONCE,
            intent=_INTENT,
        ),
    ),
    "branches": (
        _tool(
            "branch",
            "Live copies of a session with memory and files. fork makes n; diff shows what one "
            "changed; keep commits its files and discards the others; discard ends it.",
            do={"enum": ["fork", "list", "diff", "keep", "discard"]},
            n=_NUMBER,
            path=_TEXT,
            take={**_STRINGS, "description": "keep: where both changed, the branch's file"},
            leave={**_STRINGS, "description": "keep: the file as it is"},
            session=_SESSION,
            once=_ONCE,
        ),
    ),
    "forward": (
        _tool(
            "forward",
            "Bring a listening TCP port of the session to a loopback address of this machine.",
            do={"enum": ["open", "list", "close"]},
            port=_NUMBER,
            session=_SESSION,
            intent=_INTENT,
        ),
    ),
}


def chosen(sets: tuple[str, ...]) -> tuple[Json, ...]:
    """The default tools and those of the sets."""
    return (*TOOLS, *(tool for name in sets for tool in SETS[name]))
