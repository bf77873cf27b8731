"""Which requests are acts, the kind of each in the record, and the bytes that actors sign (P1).

Client and host both call `content` with the request as sent. The signed bytes and the executed
bytes are the same, or the signature does not hold. Two requests that ask for different effects
differ in place, kind or content, so an actor cannot claim later to have meant another request. The
statement (core/record/statement.py) has place, kind, client and number.

    operation      | content
    ---------------|-----------------------------------------------------------------------------
    run            | the bytes of `text`; if `stdin` is true, NUL and "stdin" behind them
    send           | the bytes of `text`, and CR if `keys` is ["Enter"]. With other keys, or if the
                   | text begins with NUL: NUL, then canonical {keys, text}, the text in hex
    turn           | canonical {act, to}; `to` may be null
    rename         | canonical {name}
    signal         | canonical {pid, signal, tree}
    checkpoint.remove | canonical {checkpoint}
    fork           | canonical {check, n, name}
    keep           | canonical {check, leave, others, take}
    discard        | nothing
    reap           | canonical {choice}
    checkpoint     | canonical {check, stop}, and {to} if `to` is given
    move           | canonical {check, machine}
    checkpoint.every | canonical {every_s, to}, each if it is given and not 0 or empty
    restore        | nothing; canonical {checkpoint, fallback, lost} with those that are given
    rehome         | canonical {on}
    end            | nothing
    seize          | nothing; canonical {stop} if `stop` is true
    halt, resume   | nothing; canonical {operator} if `operator` is given
    on the machine | canonical {op, ...}: each field that is not null, except `seq`, `signed`,
                   | `hold`, `once` and `meeting`

Canonical is canonical JSON (model/canonical.py). The bytes of a text are its UTF-8; a byte that is
not UTF-8 travels as the lone surrogate U+DC00 + byte, and counts as that byte. Inside canonical
JSON, a text with lone surrogates is {"hex": ...}. Instead of `env` stands a hash: BLAKE2b-128, in
hex, of the canonical list of [name, value in hex], sorted.

The kind of an act is in the table of operations; of a `send` with `paste` it is `paste`. A `turn`
with `act` "show" is no act, and has no signature.

Fields that change only how the client waits for the answer and reads it are not signed:

- every act: `hold`, the wait for an approval;
- every act on a session but `turn`: `intent` and `expects`, which the record has as the host's
  testimony;
- `run`: `timeout`, `resume` and `for_terminal`, which concern the output that this client gets;
- `run` and `send`: `prompt`, likewise;
- `turn`: `wait`, after which the request leaves the queue;
- `end`: `again`, with which a repeat of the request may find the session ended already;
- `files.get`: `from` and `version`, with which a repeat of the request continues;
- `files.ls`: `after` and `limit`, and `files.search`: `limit`, which choose a part of the answer.

A client may change them when it repeats a request, and the repeat is the same act.
"""

from __future__ import annotations

from holdfast.core.contract.table import MACHINE, OPERATIONS
from holdfast.model import canonical
from holdfast.model.errors import NotFound, Usage
from holdfast.model.printable import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Final

try:
    from _blake2 import blake2b  # hashlib would load OpenSSL for the same function
except ImportError:
    from hashlib import blake2b

KINDS: Final = {one.name: one.kind for one in OPERATIONS.values() if one.place == "session"}
ON_MACHINE: Final = {one.name: one.kind for one in OPERATIONS.values() if one.place == MACHINE}
# Acts that cannot be undone: for them the name of a session counts only as a whole. The name of a
# branch begins with that of its parent, which may be gone.
WHOLE_NAMES: Final = frozenset(("end", "forget", "keep", "discard"))
# Kinds of acts that a keeper applies. The keeper remembers the numbers, also if the host crashes.
BY_KEEPER: Final = frozenset(("command", "line", "paste"))
# `op`, `seq`, `signed` and `hold` describe the request, not the act. `once` is in the statement.
# `meeting` is a secret, which must not be in the record.
NOT_SIGNED: Final = frozenset(("op", "seq", "signed", "hold", "once", "meeting"))
# Of a `new`: the surroundings of the client. They may differ when another process repeats the act.
_SURROUNDINGS: Final = frozenset(("env", "size", "umask", "agent", "token"))


# The client's own words about an act, and the most characters of each. `prompt` is a reference,
# such as "conversation 12, message 4", and never the prompt itself.
MEANT: Final = {"intent": 1000, "expects": 1000, "prompt": 200}
# Behind the text of a `run` that reads the input of its client.
WITH_STDIN: Final = b"\0stdin"


def is_act(op: str, fields: Mapping[str, object]) -> bool:
    return op in ON_MACHINE or (
        op in KINDS and not (op == "turn" and fields.get("act", "show") == "show")
    )


def changes(op: str, fields: Mapping[str, object]) -> bool:
    """Whether the request has an effect, so that a lost answer leaves the effect unknown."""
    if OPERATIONS[op].harmless:
        return False
    return is_act(op, fields) or not OPERATIONS[op].act


def refuse_beginning(op: str, word: str, session: str, name: str) -> None:
    """Refuse an act that cannot be undone if the word is only the beginning of the name."""
    if op in WHOLE_NAMES and word != name and not session.startswith(word):
        raise NotFound(
            f"no session {word[:80]!a}; did you mean {name}?",
            f"`{op}` cannot be undone, so it takes whole names only",
        )


def place(op: str, fields: Mapping[str, object]) -> str:
    """Where an act is recorded: the session that the request names, or the machine."""
    return MACHINE if op in ON_MACHINE else str(fields["session"])


def meant(fields: Mapping[str, object]) -> dict[str, str]:
    """The purpose, the expected effect and the prompt of an act, in the words of its client."""
    found = {name: str(fields[name]) for name in MEANT if fields.get(name)}
    for name, text in found.items():
        if len(text) > MEANT[name]:
            raise Usage(f"{name} has at most {MEANT[name]} characters")
    return {name: printable(text) for name, text in found.items()}


def meant_in_words(facts: Mapping[str, object], most: int) -> str:
    said = ((name, facts.get(name)) for name in MEANT)
    return "; ".join(f"{name}: {printable(str(text))[:most]}" for name, text in said if text)


def kind(op: str, fields: Mapping[str, object]) -> str:
    return "paste" if op == "send" and fields.get("paste") else KINDS.get(op) or ON_MACHINE[op]


def content(op: str, fields: Mapping[str, object]) -> bytes:
    """The bytes that the actor commits to; ValueError for a text that no bytes stand for.

    LookupError for an operation without an entry: no act may be signed with nothing by mistake.
    """
    if op in ON_MACHINE:
        return _whole(op, fields)
    if op not in CONTENTS:
        raise LookupError(f"{op}: an act on a session needs an entry in CONTENTS")
    return CONTENTS[op](fields)


def _whole(op: str, fields: Mapping[str, object]) -> bytes:
    """The operation and all fields, for acts on the machine."""
    signed = {
        name: _plain(name, value)
        for name, value in fields.items()
        if value is not None and name not in NOT_SIGNED
    }
    return canonical.encode({"op": op, **signed})


def intention(op: str, fields: Mapping[str, Any]) -> bytes:
    """The content by which an act and a retry under the same idempotency key are compared.

    Of a `new` the surroundings of the client do not count, except variables that it set on purpose.
    A client computes `expires` from its clock, so only its presence counts.
    """
    if op in ("invite", "grant") and fields.get("expires") is not None:
        return _whole(op, {**fields, "expires": True})
    if op != "new":
        return content(op, fields)
    set_here = {name: fields["env"].get(name) for name in fields.get("given") or ()}
    asked = {name: value for name, value in fields.items() if name not in _SURROUNDINGS}
    return _whole(op, {**asked, **({"env": set_here} if set_here else {})})


def _nothing(fields: Mapping[str, object]) -> bytes:
    """For an act that place and kind describe completely."""
    return b""


def _given(fields: Mapping[str, object], name: str) -> bytes:
    """For an act with a single optional field; nothing if the field is absent."""
    value = fields.get(name)
    return b"" if not value else canonical.encode({name: _plain("", value)})


def _restore(fields: Mapping[str, object]) -> bytes:
    given = {name: fields.get(name) for name in ("checkpoint", "fallback", "lost")}
    known = {name: value for name, value in given.items() if value not in (None, "")}
    return canonical.encode(known) if known else b""


def _those(fields: Mapping[str, object], *names: str) -> dict[str, object]:
    """The fields of these names that are given and not empty."""
    return {name: _plain("", value) for name in names if (value := fields.get(name))}


def _run(fields: Mapping[str, Any]) -> bytes:
    """The text, which has no NUL; and that the command reads the client's input.

    The bytes of the input are not signed: the client signs before it has read them.
    """
    return _bytes(fields["text"]) + (WITH_STDIN if fields.get("stdin") else b"")


def _typed(fields: Mapping[str, Any]) -> bytes:
    """Text and keys; `paste` is the kind of the act."""
    text, keys = _bytes(fields["text"]), list(fields.get("keys") or ())
    if keys == ["Enter"]:
        text, keys = text + b"\r", []
    if not keys and not text.startswith(b"\0"):
        return text
    return b"\0" + canonical.encode({"keys": [str(key) for key in keys], "text": text.hex()})


def _turn(fields: Mapping[str, object]) -> bytes:
    return canonical.encode(
        {"act": _plain("", fields.get("act")), "to": _plain("", fields.get("to"))}
    )


def _name(fields: Mapping[str, object]) -> bytes:
    return canonical.encode({"name": _plain("", fields["name"])})


def _signal(fields: Mapping[str, object]) -> bytes:
    return canonical.encode(
        {
            "pid": fields["pid"],
            "signal": _plain("", fields["signal"]),
            "tree": bool(fields.get("tree", False)),
        }
    )


def _file(op: str, signed: Mapping[str, object]) -> Callable[[Mapping[str, object]], bytes]:
    """The operation, because all operations on files have one kind, and the signed fields."""

    def content(fields: Mapping[str, object]) -> bytes:
        asked = {name: fields.get(name, default) for name, default in signed.items()}
        return canonical.encode(
            {"op": op, **{name: _plain("", value) for name, value in asked.items()}}
        )

    return content


# Of each operation on files: the signed fields, with the value that an absent field has.
_FILES: Final[Mapping[str, Mapping[str, object]]] = {
    "files.ls": {"path": "."},
    "files.stat": {"path": None},
    "files.get": {"path": None},
    "files.search": {"pattern": None, "path": ".", "text": ""},
    "files.put": {
        "path": None,
        "name": "",
        "size": None,
        "sha256": "",
        "mode": None,
        "parents": False,
    },
    "files.rm": {"path": None, "recursive": False},
    "files.mv": {"path": None, "to": None},
}


# Of every act on a session; acts on the machine sign all fields.
CONTENTS: Final[Mapping[str, Callable[[Mapping[str, object]], bytes]]] = {
    "run": _run,
    "send": _typed,
    "turn": _turn,
    "rename": _name,
    "signal": _signal,
    "end": _nothing,
    "checkpoint": lambda fields: canonical.encode(
        {name: bool(fields.get(name, False)) for name in ("check", "stop")} | _those(fields, "to")
    ),
    "fork": lambda fields: canonical.encode(
        {
            "check": bool(fields.get("check", False)),
            "n": fields.get("n", 1),
            "name": _plain("", fields.get("name") or ""),
        }
    ),
    "keep": lambda fields: canonical.encode(
        {
            **{name: bool(fields.get(name, False)) for name in ("check", "others")},
            **{name: _plain("", fields.get(name) or ()) for name in ("leave", "take")},
        }
    ),
    "discard": _nothing,
    "checkpoint.remove": lambda fields: canonical.encode({"checkpoint": fields["checkpoint"]}),
    "restore": _restore,
    "reap": lambda fields: canonical.encode({"choice": _plain("", fields["choice"])}),
    "move": lambda fields: canonical.encode(
        {"check": bool(fields.get("check", False)), "machine": _plain("", fields["machine"])}
    ),
    "checkpoint.every": lambda fields: canonical.encode(_those(fields, "every_s", "to")),
    "rehome": lambda fields: canonical.encode({"on": bool(fields.get("on", False))}),
    "forward": lambda fields: canonical.encode({"port": fields["port"]}),
    "seize": lambda fields: _given(fields, "stop"),
    "halt": lambda fields: _given(fields, "operator"),
    "resume": lambda fields: _given(fields, "operator"),
    **{op: _file(op, signed) for op, signed in _FILES.items()},
}


def _plain(name: str, value: Any) -> object:
    """A value in a form fit for the record; of an environment, which has secrets, only the hash."""
    if name == "env":
        named = {
            str(key): str(item).encode("utf-8", "surrogatepass").hex()
            for key, item in value.items()
        }
        return blake2b(
            canonical.encode(_plain("", sorted(named.items()))), digest_size=16
        ).hexdigest()
    if isinstance(value, list | tuple):
        return [_plain("", item) for item in value]
    if isinstance(value, str) and any("\ud800" <= c <= "\udfff" for c in value):
        return {"hex": value.encode("utf-8", "surrogatepass").hex()}
    if isinstance(value, float):
        raise ValueError(f"{name} is no whole number")
    return value


def _bytes(text: str) -> bytes:
    """The client's original bytes: bytes that are not UTF-8 travel as lone surrogates."""
    return text.encode("utf-8", "surrogateescape")
