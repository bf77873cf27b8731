"""Whether the machine's own key may still make an administrator (`operator recover`).

    HOME/recovery-off   present: recovery is refused for good

The switch is a file and not a row of the database, so a lost database does not turn recovery on
again. No command removes the file.
"""

from __future__ import annotations

import os
from typing import Final

from holdfast.home import Home, private
from holdfast.model import canonical
from holdfast.model.errors import NotAllowed

OFF: Final = "recovery of this machine was switched off for good"


def _path(home: Home) -> str:
    return f"{home.state}/recovery-off"


def is_off(home: Home) -> bool:
    return os.path.lexists(_path(home))


def turn_off(home: Home, by: str, at: int) -> None:
    private.write(_path(home), canonical.encode({"v": 1, "by": by, "at": at}) + b"\n")


def refusal() -> NotAllowed:
    return NotAllowed(
        OFF,
        "an operator with `manage` and `grant` lets others in: `holdfast operator ls`",
    )
