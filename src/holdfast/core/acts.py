"""Which requests are acts on a session, what kind each is in the record, and the exact bytes that its actor signs a commitment to (P1).

Client and host both call `content`: what is signed and what is done are the same bytes or the signature does not hold. It is injective: two
different requests never have the same content, so nobody can say afterwards that something else was meant.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.model import canonical

KINDS: Final = {"run": "command", "send": "line", "turn": "turn", "seize": "seize", "halt": "halt", "resume": "resume", "end": "end", "rename": "rename"}
TYPED: Final = frozenset(("run", "send"))          # their repeats are known by their numbers, also after a crash
SIGNED: Final = ("statement", "signature", "salt")


def parts(signed: Mapping[str, Any]) -> tuple[str, str, str]:
    """Statement, signature and salt; ValueError if these are not they."""
    if set(signed) != set(SIGNED) or not all(isinstance(part, str) for part in signed.values()):
        raise ValueError(f"a signature has {', '.join(SIGNED)}")
    return signed["statement"], signed["signature"], signed["salt"]


def is_act(op: str, fields: Mapping[str, Any]) -> bool:
    return op in KINDS and not (op == "turn" and fields.get("act", "show") == "show")


def kind(op: str, fields: Mapping[str, Any]) -> str:
    return "paste" if op == "send" and fields.get("paste") else KINDS[op]


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
        return canonical.encode({"act": fields.get("act"), "to": fields.get("to")})
    if op == "rename":
        return canonical.encode({"name": fields["name"]})
    return b""


def _bytes(text: str) -> bytes:
    """As the client had it: bytes that are no UTF-8 travel as lone surrogates."""
    return text.encode("utf-8", "surrogateescape")
