"""Characters with a width on which terminals disagree.

After such a character the column of the cursor is not known, so a painter states the column again.
Terminals disagree on emoji (one column in tables before Unicode 9), on characters of several code
points, and on characters that are invisible, private or not assigned.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

CACHED = 4096
_CJK = (
    (0x2E80, 0x303E),
    (0x3041, 0x4DBF),
    (0x4E00, 0xA4CF),
    (0xAC00, 0xD7A3),
    (0xF900, 0xFAFF),
    (0xFE30, 0xFE6F),
    (0xFF00, 0xFFE6),
    (0x20000, 0x3FFFD),
)
_DOUBTFUL_CATEGORIES = {"Mn", "Me", "Mc", "Cf", "Co", "Cn"}


@lru_cache(CACHED)
def contested(text: str) -> bool:
    """Whether terminals may disagree on the columns of the text of one cell."""
    if len(text) != 1:
        return bool(text)
    if text < "\x7f":
        return False
    code = ord(text)
    if any(first <= code <= last for first, last in _CJK):
        return False
    wide = unicodedata.east_asian_width(text) in "WF"
    return wide or code >= 0x1F000 or unicodedata.category(text) in _DOUBTFUL_CATEGORIES
