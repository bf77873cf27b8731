"""Identities and references.

A session id is 12 characters of lower-case Crockford base32 (60 random bits): short enough to type, never reused,
and never confused with a path or an option. References (S8) name a session, an act or a range of output for good:

    hf:SESSION              the session
    hf:SESSION@EPOCH        one incarnation of it
    hf:SESSION@EPOCH#N      act number N
    hf:SESSION@EPOCH:A-B    output bytes A up to B (absolute offsets)
"""

from __future__ import annotations

import re
from typing import NamedTuple

from holdfast.model.errors import Usage
from holdfast.model.limits import NAME_CHARS

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
ID_CHARS = 12
OPERATOR_KINDS = ("human", "agent", "service")
_ID = re.compile(rf"[{ALPHABET}]{{{ID_CHARS}}}\Z")
_NAME = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._-]*\Z")
_REF = re.compile(
    rf"hf:([{ALPHABET}]{{{ID_CHARS}}})(?:@(\d{{1,18}})(?:#(\d{{1,18}})|:(\d{{1,18}})-(\d{{1,18}}))?)?\Z",
    re.ASCII,
)


def session_id(random_bytes: bytes) -> str:
    """An id from at least 8 random bytes."""
    n = int.from_bytes(random_bytes[:8], "little")
    return "".join(ALPHABET[(n >> (5 * i)) & 31] for i in range(ID_CHARS))


def is_session_id(text: str) -> bool:
    return _ID.match(text) is not None


def check_name(name: str) -> str:
    """A session or operator name as the surface allows it, or Usage."""
    if len(name) > NAME_CHARS or not _NAME.match(name):
        raise Usage(
            f"bad name {name[:80]!a}",
            f"use letters, digits, '.', '_' and '-', not starting with '-', at most {NAME_CHARS} characters",
        )
    if is_session_id(name):
        raise Usage(f"the name {name!a} looks like a session id", "choose another name")
    return name


class Ref(NamedTuple):
    session: str
    epoch: int | None = None
    act: int | None = None
    output: tuple[int, int] | None = None

    def __str__(self) -> str:
        text = f"hf:{self.session}"
        if self.epoch is not None:
            text += f"@{self.epoch}"
            if self.act is not None:
                text += f"#{self.act}"
            elif self.output is not None:
                text += f":{self.output[0]}-{self.output[1]}"
        return text


def parse_ref(text: str) -> Ref:
    m = _REF.match(text)
    if not m:
        raise Usage(
            f"not a reference: {text[:80]!a}",
            "references look like hf:SESSION@EPOCH#ACT or hf:SESSION@EPOCH:START-END",
        )
    session, epoch, act, a, b = m.groups()
    if a is not None and int(a) > int(b):
        raise Usage(f"empty range in {text!a}", "the start of a range is not above its end")
    return Ref(
        session,
        int(epoch) if epoch else None,
        int(act) if act else None,
        (int(a), int(b)) if a is not None else None,
    )
