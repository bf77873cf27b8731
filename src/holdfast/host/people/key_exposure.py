"""Whether code in a session could read the private key of an approver.

In a plain session code runs as the account that has the key files. Such code could act as any
operator with a key there, so an approval signed by such a key proves nothing. The same holds for a
client that runs inside the session: its terminal belongs to the session.

    key file under a passphrase            not readable: a person has to type the passphrase
    key file of another account, private   not readable, unless the code is root's
    plain key file that the account opens  readable
    unknown contents                       readable, if the account may open the file
    no such file in this home              not readable: the key was made elsewhere
                                           (`operator add --key`) and is used from there

The last line assumes that a key from elsewhere was left there. A copy in another directory of the
same account cannot be found from here. Nor does this stop code of the host's own account from
tracing the host: contained sessions do.
"""

from __future__ import annotations

import asyncio
import os
import stat
from typing import TYPE_CHECKING, Final, Protocol

from holdfast.home import Home, keys
from holdfast.model import canonical, signing

if TYPE_CHECKING:
    from holdfast.host.storage.store import SessionRow

FIX: Final = (
    "protect the key with a passphrase (`holdfast operator lock {name}`), "
    "approve from another account or device, or have the agent work in a contained session"
)


class Recorded(Protocol):
    """A session, as far as its first process is concerned."""

    @property
    def record(self) -> SessionRow: ...


def account(session: Recorded | None) -> int:
    """The account of a session's code, from the kernel; the host's own account without a session.

    A process that hides its owner counts as root's.
    """
    if session is None:
        return os.geteuid()
    try:
        return os.stat(f"/proc/{session.record.root_pid}").st_uid
    except OSError:
        return 0


def readable(home: Home, operator: str, key: bytes, uid: int) -> bool:
    """Whether code of this account can read the private part of `key` without help.

    Reads files: not for the loop's thread.
    """
    folder = keys.directory(home)
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return any(_gives(f"{folder}/{name}", operator, key, uid) for name in names)


class OpenKeys:
    """Keys that code of the host's account could read in this home since the host started.

    The host remembers each such key: the same code may also move the file.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._found: set[bytes] = set()

    async def has(self, operator: str, key: bytes) -> bool:
        about = (self._home, operator, key, os.geteuid())
        if key not in self._found and await asyncio.to_thread(readable, *about):
            self._found.add(key)
        return key in self._found


def _gives(path: str, operator: str, key: bytes, uid: int) -> bool:
    try:
        info = os.stat(path)
    except OSError:
        return False
    if not stat.S_ISREG(info.st_mode) or not _may_open(path, info, uid):
        return False
    try:
        with open(path, "rb") as file:
            value = canonical.decode(file.read(keys.FILE_BYTES))
        if signing.read(value["public"]) != key:
            return False
        return "locked" not in value or "private" in value
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return os.path.basename(path) == operator + keys.SUFFIX


def _may_open(path: str, info: os.stat_result, uid: int) -> bool:
    """Decides by owner and mode of the file and its directory.

    An owner can change the mode; a group that may read counts as everybody.
    """
    try:
        folder = os.stat(os.path.dirname(path))
    except OSError:
        return True
    return uid == 0 or (
        (info.st_uid == uid or bool(info.st_mode & (stat.S_IRGRP | stat.S_IROTH)))
        and (folder.st_uid == uid or bool(folder.st_mode & (stat.S_IXGRP | stat.S_IXOTH)))
    )
