"""References (S8): each names a session, an act or a range of output for good.

hf:SESSION              the session
hf:SESSION@EPOCH        one incarnation of it
hf:SESSION@EPOCH#N      act number N
hf:SESSION@EPOCH:A-B    output bytes A up to B (absolute offsets)

An entry of a record is no act: its number is never written behind `#`, see `entry`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from holdfast.model.errors import Usage
from holdfast.model.ids import ALPHABET, ID_CHARS

_REFERENCE = re.compile(
    rf"hf:([{ALPHABET}]{{{ID_CHARS}}})"
    r"(?:@(\d{1,18})(?:#(\d{1,18})|:(\d{1,18})-(\d{1,18}))?)?\Z",
    re.ASCII,
)


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


def entry(session: str, epoch: int, number: int) -> str:
    """An entry of the record, for an act whose number in the session is not known."""
    return f"entry {number} of {Ref(session, epoch)}"


def parse_ref(text: str) -> Ref:
    m = _REFERENCE.match(text)
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
