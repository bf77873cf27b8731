"""Which requests are acts on a session or on the machine, what kind each is in the record, and the exact bytes that its actor signs a commitment to (P1).

Client and host both call `content`: what is signed and what is done are the same bytes or the signature does not hold. It is injective: two
different requests never have the same content, so nobody can say afterwards that something else was meant.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.model import canonical

try:
    from _blake2 import blake2b  # hashlib would load OpenSSL for the same function
except ImportError:
    from hashlib import blake2b

KINDS: Final = {
    "run": "command",
    "send": "line",
    "turn": "turn",
    "seize": "seize",
    "halt": "halt",
    "resume": "resume",
    "end": "end",
    "rename": "rename",
    "signal": "signal",
}
ON_MACHINE: Final = {
    "new": "spawn",
    "forget": "forget",
    "down": "down",
    "operator.add": "operator",
    "operator.revoke": "revoke",
    "grant": "grant",
    "device.add": "operator",
    "device.rename": "operator",
    "device.revoke": "revoke",
    "relays.changed": "relays",
    "invite": "invite",
    "invite.revoke": "invite",
    "invite.decide": "invite",
}
MACHINE: Final = "machine"  # where those are recorded: no session can have this name
NOT_SIGNED: Final = frozenset(
    (
        "op",
        "seq",
        "signed",
        "hold",  # of a request on the machine: about the request, not about what is asked;
        "meeting",
    )
)  # or a secret, which is not to be in the record
TYPED: Final = frozenset(
    ("run", "send")
)  # their repeats are known by their numbers, also after a crash
SIGNED: Final = ("statement", "signature", "salt")


def parts(signed: Mapping[str, Any]) -> tuple[str, str, str]:
    """Statement, signature and salt; ValueError if these are not they."""
    if set(signed) != set(SIGNED) or not all(isinstance(part, str) for part in signed.values()):
        raise ValueError(f"a signature has {', '.join(SIGNED)}")
    return signed["statement"], signed["signature"], signed["salt"]


def is_act(op: str, fields: Mapping[str, Any]) -> bool:
    return op in ON_MACHINE or (
        op in KINDS and not (op == "turn" and fields.get("act", "show") == "show")
    )


def place(op: str, fields: Mapping[str, Any]) -> str:
    """Where it is recorded: the session as it was named, or the machine."""
    return MACHINE if op in ON_MACHINE else str(fields["session"])


def kind(op: str, fields: Mapping[str, Any]) -> str:
    return "paste" if op == "send" and fields.get("paste") else KINDS.get(op) or ON_MACHINE[op]


def content(op: str, fields: Mapping[str, Any]) -> bytes:
    """ValueError for a text that no bytes stand for."""
    if op == "run":
        return _bytes(fields["text"])
    if op == "send":
        text, keys = _bytes(fields["text"]), list(fields.get("keys") or ())
        if keys == ["Enter"]:
            text, keys = text + b"\r", []
        if not keys and not text.startswith(b"\0"):
            return text
        return b"\0" + canonical.encode({"keys": [str(key) for key in keys], "text": text.hex()})
    if op == "turn":
        return canonical.encode(
            {"act": _plain("", fields.get("act")), "to": _plain("", fields.get("to"))}
        )
    if op == "rename":
        return canonical.encode({"name": _plain("", fields["name"])})
    if op == "signal":
        return canonical.encode(
            {
                "pid": fields["pid"],
                "signal": _plain("", fields["signal"]),
                "tree": bool(fields.get("tree", False)),
            }
        )
    if op in ON_MACHINE:
        return canonical.encode(
            {
                "op": op,
                **{
                    name: _plain(name, value)
                    for name, value in fields.items()
                    if value is not None and name not in NOT_SIGNED and not name.endswith("!")
                },
            }
        )
    return b""


def _plain(name: str, value: Any) -> Any:
    """As it can be written down. An environment has secrets in it: only that it is this one."""
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
    """As the client had it: bytes that are no UTF-8 travel as lone surrogates."""
    return text.encode("utf-8", "surrogateescape")
