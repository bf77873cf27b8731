"""`collections.deque`, without the rest of `collections`, whose import takes 1 ms of an attach."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections import deque
else:
    from _collections import deque

__all__ = ["deque"]
