"""Regular expressions over bytes that are compiled at their first use.

`attach` imports the filter at every start. The import of `re` and the compilation of all of the
filter's expressions take 5 ms, and the output of most sessions needs two of the expressions.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from re import Pattern

_METHODS = ("match", "fullmatch", "search", "sub", "finditer")


class _Compiled:
    """Has the methods of the compiled expression as attributes."""


class _LatePattern(_Compiled):
    def __init__(self, source: bytes) -> None:
        self._source = source

    def __getattr__(self, name: str) -> object:
        import re

        compiled = re.compile(self._source)
        self.__dict__.update({method: getattr(compiled, method) for method in _METHODS})
        # A class without __getattr__ has faster attributes.
        self.__class__ = _Compiled  # type: ignore[assignment]
        return self.__dict__[name]


def late(source: bytes) -> Pattern[bytes]:
    """Return an object with the methods `_METHODS` of `re.compile(source)`."""
    return _LatePattern(source)  # type: ignore[return-value]
