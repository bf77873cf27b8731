"""Going on with a stream of output in the middle: the filter as it stood at that byte.

A viewer that comes back says how far it is, not in which state its stream was. That may be inside of something it must not see the
rest of (a clipboard text of 100 KB, removed as it came), and a new filter would take that rest for text. A terminal stream
falls into step at the next escape sequence, so a filter that has seen the bytes before the place is in the right state there.
"""

from __future__ import annotations

from typing import Final

from holdfast.core.filter import ViewerFilter
from holdfast.model.limits import MiB

LOOKBACK_BYTES: Final = MiB // 2  # the end of a longer removed string than this would be shown


def filter_after(before: bytes | None, holding: bool = False) -> ViewerFilter:
    """The filter of a viewer that has been given what there was to give of `before`; a new one if that is not known.

    A viewer's place is never inside of what is held back. Whoever reads on from the last byte seen says so: `holding`.
    """
    found = ViewerFilter()
    if before:
        found.feed(before)
        if found.pending and not holding:
            return ViewerFilter()
    return found
