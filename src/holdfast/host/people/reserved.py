"""Tells `doctor` about operators that an earlier build let in under a reserved name.

`doctor` runs without the host and cannot read a database that a host has open.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from holdfast.host.people.rights import Rights
from holdfast.model.reserved_names import is_reserved


def report(file: str, rights: Rights) -> None:
    """Write the names to this file, or remove it if there are none."""
    living = (name for name in rights.names() if rights.devices(name, all=False))
    names = sorted(filter(is_reserved, living))
    with contextlib.suppress(OSError):
        if names:
            Path(file).write_text("\n".join(names))
        else:
            os.unlink(file)
