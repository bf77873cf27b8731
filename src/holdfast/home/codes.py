"""Passwords derived from open invitation codes, so that a restarted host still accepts the codes.

    HOME/run/ID.code     canonical JSON {v, boot, password}, mode 0600

The host removes the file before it answers the first newcomer with the code, or when the invitation
ends. So a guess counts even if the host dies before answering, and killing the host does not buy
a second guess. A file is valid only in the boot that wrote the file, so no fsync is needed: after a
power failure the file is ignored. The password is not the code; the password admits a newcomer only
through a key exchange (core/sealed/meeting.py). A reader of the file could try codes offline, as
with the verifier in the database; only this account can read the file.
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
    """Best effort: without the file the code is valid as long as this host lives."""
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
    """Remove the file. True if the file is certainly gone."""
    try:
        os.unlink(_path(home, id))
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def listing(home: Home, boot: str) -> dict[str, bytes]:
    """The passwords of this boot, by id. Removes unreadable files and files of other boots."""
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
