"""The environment that a client hands to other programs: a new session, or a host that it starts.

The client's own credential is never part of it. A remote machine gets only the variables that the
caller named, and those that describe language and terminal: local paths mean nothing there.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Final

CREDENTIAL: Final = "HOLDFAST_CREDENTIAL"
CARRIED: Final = ("LANG", "LC_ALL", "LC_CTYPE", "LC_MESSAGES", "COLORTERM", "TZ")


def handed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without secrets of this client."""
    return {name: value for name, value in environ.items() if name != CREDENTIAL}


def for_session(environ: Mapping[str, str], given: Collection[str], away: bool) -> dict[str, str]:
    """The environment of a new session. `given`: the variables that the caller set for it."""
    return {
        name: value
        for name, value in environ.items()
        if name in given or (name in CARRIED if away else name != CREDENTIAL)
    }
