"""Escaped display of foreign text, in which no character can hide, reorder or act.

An operator has to decide about such a text. Control characters, direction marks, zero-width
characters, unusual blanks, fillers and combining marks on an ASCII character appear as `\\u{...}`.
The spelling is unambiguous: a backslash that would begin such a sequence is itself written
`\\u{5c}`, so two different texts never look the same. Letters of other alphabets stay; `foreign`
reports them, because a Cyrillic a looks like a Latin a.
"""

from __future__ import annotations

import unicodedata
from typing import Final

_INVISIBLE: Final = frozenset(
    "\u115f\u1160\u3164\uffa0\u2800\u034f\u17b4\u17b5\u180b\u180c\u180d\u180e\u180f"
)
_HIDDEN: Final = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))


def shown(text: str, escaped: bool = False) -> str:
    """Return one line that represents the text exactly.

    `escaped`: parts of the text may be escaped already, so backslashes stay as they are.
    """
    if text.isascii() and text.isprintable() and "\\u{" not in text:
        return text
    out: list[str] = []
    for at, c in enumerate(text):
        if c == "\\":
            out.append("\\u{5c}" if not escaped and text.startswith("u{", at + 1) else c)
        elif c.isascii() and c.isprintable():
            out.append(c)
        elif _hides(c, out[-1][-1] if out else " "):
            out.append(f"\\u{{{ord(c):x}}}")
        else:
            out.append(c)
    return "".join(out)


def _hides(c: str, before: str) -> bool:
    kind = unicodedata.category(c)
    if (
        kind in _HIDDEN
        or c in _INVISIBLE
        or (kind == "Zs" and c != " ")
        or 0xFE00 <= ord(c) <= 0xFE0F
        or 0xE0100 <= ord(c) <= 0xE01EF
    ):
        return True
    return kind in ("Mn", "Me") and before.isascii()


def read(line: str) -> str:
    """Return the text that a shown line represents."""
    out, at = list[str](), 0
    while at < len(line):
        if line.startswith("\\u{", at):
            end = line.index("}", at)
            out.append(chr(int(line[at + 3 : end], 16)))
            at = end + 1
        else:
            out.append(line[at])
            at += 1
    return "".join(out)


def foreign(text: str) -> bool:
    """Say whether the text contains letters beyond ASCII, which may be look-alikes."""
    return any(not c.isascii() and c.isalpha() for c in text)
