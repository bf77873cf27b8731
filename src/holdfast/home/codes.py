"""What typed codes are made into, for as long as they may be used: so that a host that is started anew still knows them.

    HOME/run/ID.code     canonical JSON {v, boot, password}, mode 0600

The file is there until the first who comes with the code is answered, or the invitation has ended: it is removed *before* that answer, so a guess counts also if the host
dies in between, and nobody gets a second one out of a host that is killed again and again. It counts in the boot in which it was written, so nothing has to be forced
to the disk: what a machine that lost its power remembers is not asked. It is not the code: what lets nobody in but through an exchange with who has it (core/meeting.py); but whoever
reads it could try codes at leisure, as with the verifier in the database. Only this account can.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final

from holdfast.home import Home, private
from holdfast.model import canonical
from holdfast.model.errors import HoldfastError

SUFFIX: Final = ".code"
FILE_BYTES: Final = 1024


def keep(home: Home, id: str, password: bytes, boot: str) -> None:
    """Best effort: without the file the code counts as long as the host lives."""
    with contextlib.suppress(OSError):
        fd = os.open(
            _path(home, id),
            os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW,
            0o600,
        )
        try:
            os.write(fd, canonical.encode({"v": 1, "boot": boot, "password": password.hex()}))
        finally:
            os.close(fd)


def drop(home: Home, id: str) -> bool:
    """Whether it is gone for certain."""
    try:
        os.unlink(_path(home, id))
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def listing(home: Home, boot: str) -> dict[str, bytes]:
    """Those that count, by id. What is of another boot, or cannot be read, is removed."""
    found: dict[str, bytes] = {}
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(home.run)):
            id = name.removesuffix(SUFFIX)
            if id == name:
                continue
            try:
                value = canonical.decode(private.read(_path(home, id), FILE_BYTES) or b"")
                if value["v"] != 1 or value["boot"] != boot:
                    raise ValueError("of another time")
                found[id] = bytes.fromhex(value["password"])
            except (HoldfastError, ValueError, KeyError, TypeError):
                drop(home, id)
    return found


def _path(home: Home, id: str) -> str:
    return f"{home.run}/{id}{SUFFIX}"
