"""What the worker reads: directories, attributes, contents. Every answer has a bound."""

from __future__ import annotations

import fnmatch
import hashlib
import heapq
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from holdfast.host.requests.files.session_root import Refusal, SessionRoot, kind_of, version_of

Json = dict[str, Any]
Told = Callable[[Json], None]

CHUNK_BYTES = 256 * 1024
HASHED_BYTES = 64 << 20  # between two signs of life
PAGE_BYTES = 2 << 20  # of names in one page, so that the reply fits into a frame
SEARCH_FILES = 200_000
SEARCH_S = 10.0
SEARCH_FILE_BYTES = 16 << 20  # of each file that is searched for a text
SEARCH_DEPTH = 64  # open directories at a time
LINE_CHARS = 500


def info(name: str, facts: os.stat_result, directory: int) -> Json:
    kind = kind_of(facts.st_mode)
    found = {
        "name": name,
        "type": kind,
        "size": facts.st_size,
        "mode": facts.st_mode & 0o7777,
        "modified": facts.st_mtime_ns / 1e9,
        "owner": facts.st_uid,
    }
    if kind == "link":
        try:
            found["target"] = os.readlink(name, dir_fd=directory)
        except OSError:
            pass
    return found


def ls(root: SessionRoot, q: Json) -> Json:
    """A page of a directory; a file is a page of its own."""
    path = root.absolute(q["path"])
    try:
        directory = root.directory(path)
    except NotADirectoryError:
        one = stat(root, q)
        return {"path": path, "entries": [] if q["after"] else [one], "more": False}
    try:
        with os.scandir(directory) as entries:
            names = heapq.nsmallest(
                q["limit"] + 1, (one.name for one in entries if one.name > q["after"])
            )
        found: list[Json] = []
        size = 0
        for name in names[: q["limit"]]:
            if (size := size + 200 + 6 * len(name)) > PAGE_BYTES:
                break
            try:
                facts = os.stat(name, dir_fd=directory, follow_symlinks=False)
                found.append(info(name, facts, directory))
            except FileNotFoundError:
                pass  # removed meanwhile
        last = found[-1]["name"] if found else ""
        return {"path": path, "entries": found, "more": any(name > last for name in names)}
    finally:
        os.close(directory)


def stat(root: SessionRoot, q: Json) -> Json:
    path = root.absolute(q["path"])
    with root.opened(path, os.O_PATH | os.O_NOFOLLOW) as fd:
        facts = os.fstat(fd)
        name = path.rstrip("/").rpartition("/")[2] or "/"
        found = info(name, facts, -1) | {"path": path, "version": version_of(facts)}
        if found["type"] == "link":
            found["target"] = os.readlink("", dir_fd=fd)
        return found


def get(root: SessionRoot, q: Json, tell: Told, give: Callable[[memoryview], None]) -> Json:
    """Sends the content up to the size that the file has now."""
    path, at = root.absolute(q["path"]), q["from"]
    fd = root.readable(path)
    try:
        facts = os.fstat(fd)
        version, size = version_of(facts), facts.st_size
        if q["version"] and q["version"] != version:
            raise Refusal("changed", f"{path} changed since the transfer began")
        if at > size:
            raise Refusal("usage", f"{path} has {size} bytes; {at} is beyond the end")
        about = {
            "path": path,
            "size": size,
            "mode": facts.st_mode & 0o7777,
            "modified": facts.st_mtime_ns / 1e9,
            "version": version,
        }
        tell(about)
        digest = hashlib.sha256()
        for _ in hashed(fd, digest, at, tell):
            pass
        buffer = memoryview(bytearray(CHUNK_BYTES))
        while at < size:
            count = os.preadv(fd, [buffer[: min(CHUNK_BYTES, size - at)]], at)
            if not count:
                break
            digest.update(buffer[:count])
            give(buffer[:count])
            at += count
        changed = version_of(os.fstat(fd)) != version
        return about | {"size": at, "sha256": digest.hexdigest(), "changed": changed}
    finally:
        os.close(fd)


def hashed(fd: int, digest: Any, end: int, tell: Told) -> Iterator[None]:
    """Adds the beginning of a file to a hash, with a sign of life now and then."""
    buffer, at = memoryview(bytearray(1 << 20)), 0
    while at < end:
        count = os.preadv(fd, [buffer[: min(len(buffer), end - at)]], at)
        if not count:
            raise Refusal("changed", "the file became shorter")
        digest.update(buffer[:count])
        at += count
        if at % HASHED_BYTES < count:
            tell({"alive": at})
        yield


class _Enough(Exception):
    """The search has reached a bound."""


def search(root: SessionRoot, q: Json) -> Json:
    path = root.absolute(q["path"])
    hunt = _Search(q["pattern"], os.fsencode(q["text"]), q["limit"])
    top, cut = root.directory(path), ""
    try:
        hunt.walk(top, "", os.fstat(top).st_dev, 0)
    except _Enough as e:
        cut = str(e)
    finally:
        os.close(top)
    return {"path": path, "matches": hunt.found, "cut": cut, "unreadable": hunt.unreadable}


class _Search:
    """Stays on the file system where it began, so that it enters no /proc and no dead mount."""

    def __init__(self, pattern: str, text: bytes, limit: int) -> None:
        self._pattern, self._text, self._limit = pattern, text, limit
        self._end = time.monotonic() + SEARCH_S
        self._seen = self._size = 0
        self.found: list[Json] = []
        self.unreadable = 0

    def walk(self, directory: int, prefix: str, device: int, depth: int) -> None:
        with os.scandir(directory) as entries:
            names = heapq.nsmallest(SEARCH_FILES, (one.name for one in entries))
        for name in names:
            self._seen += 1
            if self._seen > SEARCH_FILES:
                raise _Enough("files")
            if time.monotonic() > self._end:
                raise _Enough("time")
            try:
                self._entry(directory, name, prefix, device, depth)
            except OSError:
                self.unreadable += 1

    def _entry(self, directory: int, name: str, prefix: str, device: int, depth: int) -> None:
        facts = os.stat(name, dir_fd=directory, follow_symlinks=False)
        kind = kind_of(facts.st_mode)
        if fnmatch.fnmatchcase(name, self._pattern):
            if not self._text:
                self._add({"path": prefix + name, "type": kind, "size": facts.st_size})
            elif kind == "file":
                self._lines(directory, name, prefix, facts.st_size)
        if kind == "directory" and facts.st_dev == device:
            if depth >= SEARCH_DEPTH:
                raise OSError
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            below = os.open(name, flags, dir_fd=directory)
            try:
                if os.fstat(below).st_dev == device:
                    self.walk(below, f"{prefix}{name}/", device, depth + 1)
            finally:
                os.close(below)

    def _lines(self, directory: int, name: str, prefix: str, size: int) -> None:
        beside = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        try:
            if kind_of(os.fstat(beside).st_mode) != "file":
                return
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
            with os.fdopen(os.open(f"/proc/self/fd/{beside}", flags), "rb") as file:
                data = file.read(SEARCH_FILE_BYTES)
        finally:
            os.close(beside)
        if self._text not in data or b"\0" in data[:CHUNK_BYTES]:
            return
        for number, line in enumerate(data.split(b"\n"), 1):
            if self._text in line:
                shown = line.decode("utf-8", "replace")[:LINE_CHARS]
                self._add(
                    {
                        "path": prefix + name,
                        "type": "file",
                        "size": size,
                        "line": number,
                        "text": shown,
                    }
                )

    def _add(self, match: Json) -> None:
        self._size += 200 + 6 * len(match["path"]) + 6 * len(match.get("text", ""))
        if len(self.found) >= self._limit or self._size > PAGE_BYTES:
            raise _Enough("matches")
        self.found.append(match)
