"""STAND-IN, NOT THE ORIGINAL. The original of this file was overwritten by mistake on 15 Nov at 08:57 while
`core/filter.py` was being split, and no copy of it was found (untracked; no snapshot had it). Whoever owns it:
please put the original back. This holds only the two names that the tree imports: LINK_SCHEMES, whose value is the
filter's, and QUERY_HINT, guessed from its use in `host/session.py`; it may hint too often or miss odd spellings.
"""

from __future__ import annotations

import re

from holdfast.core.filter import LINK_SCHEMES

__all__ = ["LINK_SCHEMES", "QUERY_HINT"]

QUERY_HINT = re.compile(
    rb"\x05|\x1b(?:Z|[P_]|\][0-9]+;|\[(?:[<-?]?[0-9;:]*[ -/]*[cnxtpquSywv|R]|\?[0-9;]*[mgh]))"
)
