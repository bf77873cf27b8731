"""Files of other operators that the programs of an act opened, found while the act runs (P3).

The gate knows the files that a command names. A program reads more: make's `include`, a sourced
library, an imported module. The kernel reports these opens afterwards, so the outcome of the act
names their authors. An act without a later outcome (a typed line) gets an entry for them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from holdfast.core.originators.originators import Shaped

ACTS_KEPT: Final = 256
FILES_MAX: Final = 16  # of one act; each further author is still named once


class Includes:
    """The included files of a session, by act."""

    def __init__(self) -> None:
        self._found: OrderedDict[int, dict[Shaped, None]] = OrderedDict()
        self._awaited: set[int] = set()  # acts whose outcome is still to be recorded

    def expect(self, act: int) -> None:
        """Note that the outcome of this act will be recorded later."""
        self._awaited.add(act)

    def note(self, act: int, items: Iterable[Shaped]) -> tuple[Shaped, ...]:
        """Note opened files; return those that need an entry, because the outcome is recorded."""
        known = self._found.setdefault(act, {})
        self._found.move_to_end(act)
        if len(self._found) > ACTS_KEPT:
            self._found.popitem(last=False)
        new = list[Shaped]()
        for one in items:
            named = any(other.actor == one.actor for other in known)
            if one not in known and (len(known) < FILES_MAX or not named):
                known[one] = None
                new.append(one)
        return () if act in self._awaited else tuple(new)

    def take(self, act: int) -> tuple[Shaped, ...]:
        """Return the files for the outcome, which is recorded now."""
        self._awaited.discard(act)
        return tuple(self._found.get(act, ()))
