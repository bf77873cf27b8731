"""Small files that only this account may read; each is written whole or not at all."""

from __future__ import annotations

import os
import stat

from holdfast.model import canonical
from holdfast.model.errors import Refused, Unavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.model.jsontext import Json


def read(path: str, most: int) -> bytes | None:
    """The content, or None if there is no file.

    A file with a wrong owner or mode is refused, not repaired: other users may have read the file.
    """
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            if (
                not stat.S_ISREG(found.st_mode)
                or found.st_uid != os.geteuid()
                or found.st_mode & 0o077
            ):
                raise Refused(
                    f"{path} is not private to this account",
                    f"check who could read it, then `chmod 600 {path}`, or remove it",
                )
            data = file.read(most + 1)
    except FileNotFoundError:
        return None
    except OSError as e:
        raise Unavailable(
            f"cannot read {path}: {e.strerror}", "make it readable for this account"
        ) from e
    if len(data) > most:
        raise Unavailable(f"{path} is longer than {most} bytes", "move it away")
    return data


def entries(path: str, most: int, name: str, recover: str) -> list[Json]:
    """Return the list of a file {v, NAME: [..]}, or an empty list if there is no file."""
    if (data := read(path, most)) is None:
        return []
    try:
        value = canonical.decode(data.strip())
        if value["v"] != 1 or not isinstance(value[name], list):
            raise ValueError("another version")
    except (ValueError, KeyError, TypeError) as e:
        raise damaged(path, e, recover) from e
    found: list[Json] = value[name]
    return found


def keep(path: str, name: str, entries: list[Json]) -> None:
    write(path, canonical.encode({"v": 1, name: entries}) + b"\n")


def damaged(path: str, why: Exception, recover: str) -> Unavailable:
    return Unavailable(f"{path} is damaged: {why}", recover)


def write(path: str, data: bytes) -> None:
    fresh = f"{path}.{os.urandom(4).hex()}"
    try:
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.rename(fresh, path)
        except BaseException:
            os.unlink(fresh)
            raise
        sync_directory(os.path.dirname(path) or ".")
    except OSError as e:
        raise Unavailable(
            f"cannot write {path}: {e.strerror}", "free disk space or make the directory writable"
        ) from e


def sync_directory(path: str | os.PathLike[str]) -> None:
    """Make the names in a directory durable: without this, a power cut can undo a rename."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
