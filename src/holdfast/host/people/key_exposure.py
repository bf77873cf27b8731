"""Whether code in a session could approve its own acts: can the account it runs as read the approver's private key, with nobody at hand?

In a plain session code runs as the account that has the key files. It could act as any operator whose key lies there, so an approval
signed by such a key proves nothing. The same holds for a client that runs inside the very session: its terminal is the session's.

    key file under a passphrase            not readable: somebody has to type it
    key file of another account, private   not readable, unless the code is root's
    plain key file that it may open        readable
    its file cannot be made out            readable, if the account may open it: what is not known counts as readable
    no such file in this home              not readable: the key was made elsewhere (`operator add --key`) and is used from there

The last line believes that whoever brought a key from elsewhere left it there. A copy of it in another directory of the same account
cannot be found from here. Nor does this stop code of the host's own account from tracing the host: that is what contained sessions are for.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final

from holdfast.home import Home, keys
from holdfast.model import canonical, signing

if TYPE_CHECKING:
    from holdfast.host.session import Session

FIX: Final = "protect the key with a passphrase (`holdfast operator lock {name}`), approve from another account or device, or have the agent work in a contained session"


def account(session: Session | None) -> int:
    """The account that a session's code runs as, from the kernel; the host's own for what concerns no session. A process that hides
    its owner counts as root's."""
    if session is None:
        return os.geteuid()
    try:
        return os.stat(f"/proc/{session.record.root_pid}").st_uid
    except OSError:
        return 0


def readable(home: Home, operator: str, key: bytes, uid: int) -> bool:
    """Whether code of this account can have the private part of `key` without anybody's help. Reads files: not for the loop's thread."""
    folder = keys.directory(home)
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return any(_gives(f"{folder}/{name}", operator, key, uid) for name in names)


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
    """By owner and mode of the file and its directory. An owner can give itself what the mode denies; a group that may counts as everybody."""
    try:
        folder = os.stat(os.path.dirname(path))
    except OSError:
        return True
    return uid == 0 or (
        (info.st_uid == uid or bool(info.st_mode & (stat.S_IRGRP | stat.S_IROTH)))
        and (folder.st_uid == uid or bool(folder.st_mode & (stat.S_IXGRP | stat.S_IXOTH)))
    )
