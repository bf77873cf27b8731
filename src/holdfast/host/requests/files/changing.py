"""What the worker changes: uploads, removals, moves.

An upload goes to a part file in the directory of its target and gets its name at the end, so that
no program ever sees half a file. The name of the part file has the key of the upload: the same
upload continues there after the death of the host or of the client.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Callable
from typing import Any

from holdfast.host.requests.files.looking import hashed
from holdfast.host.requests.files.session_root import Refusal, SessionRoot, kind_of
from holdfast.host.runtime.file_key import key_of

Json = dict[str, Any]
Told = Callable[[Json], None]
NEW_MODE = 0o644
PART_SUFFIX = ".hf-part"
LOCK_TRIES, LOCK_AGAIN_S = 600, 0.05  # 30 s


def parent(root: SessionRoot, path: str) -> tuple[int, str]:
    """A descriptor of the directory, and the name in it."""
    above, _, name = path.rstrip("/").rpartition("/")
    if name in ("", ".", ".."):
        raise Refusal("usage", f"{path} has no name that could be changed")
    return root.open(above or "/", os.O_PATH | os.O_DIRECTORY), name


def make_parents(root: SessionRoot, path: str) -> None:
    """Makes the missing directories above a path."""
    names = [name for name in path.split("/")[:-1] if name]
    for count in range(1, len(names) + 1):
        below = "/" + "/".join(names[:count])
        try:
            os.close(root.open(below, os.O_PATH | os.O_DIRECTORY))
        except FileNotFoundError:
            folder, name = parent(root, below)
            try:
                os.mkdir(name, 0o755, dir_fd=folder)
            except FileExistsError:
                pass
            finally:
                os.close(folder)


def put(root: SessionRoot, q: Json, tell: Told, take: Callable[[], memoryview]) -> Json:
    """Receives a file. `upload`: the key of an upload that can continue, else empty."""
    path = q["path"]
    if q["parents"]:
        make_parents(root, path)
    folder, name = parent(root, path)
    try:
        before = _facts(folder, name)
        if before is not None and kind_of(before.st_mode) not in ("file", "link"):
            raise Refusal("refused", f"{path} is no regular file ({kind_of(before.st_mode)})")
        part = _part(folder, name, q, path)
        try:
            return _received(part, folder, name, q, before, tell, take)
        finally:
            os.close(part)
    finally:
        os.close(folder)


def _received(
    part: int,
    folder: int,
    name: str,
    q: Json,
    before: os.stat_result | None,
    tell: Told,
    take: Callable[[], memoryview],
) -> Json:
    digest, at = hashlib.sha256(), os.fstat(part).st_size
    for _ in hashed(part, digest, at, tell):
        pass
    temporary = _part_name(name, q)
    tell({"offset": at, "path": q["path"]})
    try:
        while data := take():
            digest.update(data)
            at += len(data)
            while data:
                data = data[os.write(part, data) :]
        if q["sha256"] and (digest.hexdigest() != q["sha256"] or at != q["size"]):
            raise Refusal("changed", "the uploaded bytes are not those that were announced")
    except BaseException as e:
        if isinstance(e, Refusal) or not q["upload"]:
            os.unlink(temporary, dir_fd=folder)
        raise
    mode = q["mode"]
    if mode is None:
        kept = before is not None and stat.S_ISREG(before.st_mode)
        mode = before.st_mode & 0o777 if kept and before is not None else NEW_MODE
    os.fchmod(part, mode)
    os.fsync(part)
    os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    _sync(folder)
    return {
        "path": q["path"],
        "size": at,
        "mode": mode,
        "sha256": digest.hexdigest(),
        "replaced": before is not None,
        **_written(part),
    }


def _part_name(name: str, q: Json) -> str:
    return f".{name[:150]}.{q['upload'] or q['random']}{PART_SUFFIX}"


def _part(folder: int, name: str, q: Json, path: str) -> int:
    """The part file, with a lock: two clients do not continue one upload at the same time."""
    temporary, flags = _part_name(name, q), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = -1
    try:
        fd = os.open(temporary, flags | os.O_NONBLOCK, dir_fd=folder)
        facts = os.fstat(fd)
        ours = stat.S_ISREG(facts.st_mode) and facts.st_uid == os.geteuid() and facts.st_nlink == 1
        if not ours:
            raise Refusal("refused", f"{temporary} is not a part of this upload")
        if facts.st_size > q["size"]:
            os.ftruncate(fd, 0)
    except FileNotFoundError:
        if q["again"] and not _there(folder, name, q):
            raise Refusal("outcome_unknown", f"{path}: the host ended during this upload") from None
        fd = os.open(temporary, flags | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
    except BaseException:
        if fd >= 0:
            os.close(fd)
        raise
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            time.sleep(LOCK_AGAIN_S)  # a worker whose client has left is about to end
    else:
        os.close(fd)
        raise Refusal("busy", f"{path}: the same upload is under way")
    os.lseek(fd, 0, os.SEEK_END)
    return fd


def _there(folder: int, name: str, q: Json) -> bool:
    """Whether the target has the content: to write the same bytes again changes nothing."""
    facts = _facts(folder, name)
    if facts is None or not stat.S_ISREG(facts.st_mode) or facts.st_size != q["size"]:
        return False
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, dir_fd=folder), "rb") as file:
        found: str = hashlib.file_digest(file, "sha256").hexdigest()
    return found == str(q["sha256"])


def rm(root: SessionRoot, q: Json) -> Json:
    folder, name = parent(root, q["path"])
    try:
        facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISDIR(facts.st_mode):
            os.unlink(name, dir_fd=folder)
        elif not q["recursive"]:
            try:
                os.rmdir(name, dir_fd=folder)
            except OSError as e:
                if e.errno != errno.ENOTEMPTY:
                    raise
                raise Refusal("refused", f"{q['path']} is a directory with entries") from None
        else:
            import shutil

            shutil.rmtree(name, dir_fd=folder)  # by descriptors: it follows no link
        _sync(folder)
        return {"path": q["path"], "type": kind_of(facts.st_mode)}
    finally:
        os.close(folder)


def mv(root: SessionRoot, q: Json) -> Json:
    source, name = parent(root, q["path"])
    try:
        target, to = parent(root, q["to"])
        try:
            os.rename(name, to, src_dir_fd=source, dst_dir_fd=target)
            _sync(target)
            _sync(source)
            flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(to, flags, dir_fd=target)
            try:
                return {"path": q["path"], "to": q["to"], **_written(fd)}
            finally:
                os.close(fd)
        except OSError as e:
            if e.errno != errno.EXDEV:
                raise
            why = "the target is on another file system: copy it with a command"
            raise Refusal("impossible", why) from None
        finally:
            os.close(target)
    finally:
        os.close(source)


def _facts(folder: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _sync(folder: int) -> None:
    """Makes a change of names durable."""
    fd = os.open(f"/proc/self/fd/{folder}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _written(fd: int) -> Json:
    """The identity of a file, for the table of authors."""
    facts, key = os.fstat(fd), key_of(fd)
    shown = None if key is None else key.hex()
    return {"written": [shown, facts.st_ctime_ns, facts.st_size]}
