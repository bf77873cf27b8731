"""Advice in errors for callers that do not type commands.

Hosts and the client's inner rooms write advice for the command line. Where the text names a command
or an option, another face replaces the advice by a row of its own table. Other advice stays.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from holdfast.model.errors import HoldfastError

COMMAND: Final = re.compile(r"`holdfast\b|\bholdfast [a-z]|(^|[\s(`])--?[a-z]")


def without_commands(error: HoldfastError, advice: Mapping[str, str]) -> HoldfastError:
    """The same error, with advice by the error's name or by the name of a class above it."""
    if error.recover and COMMAND.search(error.recover):
        names = (getattr(kind, "name", "") for kind in type(error).__mro__)
        error.recover = next(advice[name] for name in names if name in advice)
    return error
