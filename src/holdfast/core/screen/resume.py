"""Continue a stream of output in the middle, with the filter state at that byte.

A returning viewer states its offset, not the state of its stream. The offset may be inside of a
removed sequence (a clipboard text of 100 KB), and a new filter would take the rest for text. A
terminal stream synchronises at the next escape sequence, so a filter that has seen the preceding
bytes is in the right state.
"""

from __future__ import annotations

from holdfast.core.screen.filter import ViewerFilter
from holdfast.model.limits import MiB

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

LOOKBACK_BYTES: Final = MiB // 2  # the end of a removed string longer than this would be shown


def filter_after(
    before: bytes | None, holding: bool = False, clipboard: bool = False
) -> ViewerFilter:
    """Return the filter of a viewer that has received `before`; a new filter if that is unknown.

    The offset of a viewer is never inside of held bytes. A reader that continues from the last byte
    it saw says so by `holding`.
    """
    found = ViewerFilter(clipboard)
    if before:
        found.feed(before)
        if found.pending and not holding:
            return ViewerFilter(clipboard)
    return found
