"""A file layer in memory: each operation may fail, or be the last before a crash.

It keeps apart what a program sees and what the disk promises: bytes since the last sync of a file,
and names since the last sync of a directory, may or may not survive a crash.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


class Crash(BaseException):
    """The machine stops here. No `except OSError` of the product catches it."""


@dataclass
class Inode:
    data: bytes = b""
    synced: int = 0


Fault = Callable[[int, str], str]  # (number, operation) -> "", "crash", "short", ENOSPC or EIO


@dataclass
class FaultyFiles:
    names: dict[str, Inode] = field(default_factory=dict)  # by path, as programs see them
    durable: dict[str, Inode] = field(default_factory=dict)  # by path, as the disk promises them
    fault: Fault = lambda number, operation: ""
    done: list[str] = field(default_factory=list)  # operations so far
    crashed: bool = False
    _open: dict[int, Inode] = field(default_factory=dict)

    # ------------------------------------------------------------ faults

    def _step(self, operation: str) -> str:
        if self.crashed:
            raise Crash
        found = self.fault(len(self.done), operation)
        self.done.append(operation)
        if found == "crash":
            self.crashed = True
            raise Crash
        if found and found != "short":
            raise OSError(getattr(errno, found), found)
        return found

    def unsynced(self) -> int:
        """The most bytes of a file that no sync covers."""
        return max((len(one.data) - one.synced for one in self.names.values()), default=0)

    def survivors(self) -> Iterator[FaultyFiles]:
        """Every disk that a crash now may leave behind."""
        seen = set[tuple[tuple[str, bytes], ...]]()
        for names in (False, True):
            for count in range(self.unsynced() + 1):
                for zeros in (False, True):
                    left = self.after_crash(names, count, zeros)
                    content = tuple(sorted((p, i.data) for p, i in left.names.items()))
                    if content not in seen:
                        seen.add(content)
                        yield left

    def after_crash(self, names: bool = False, kept: int = 0, zeros: bool = False) -> FaultyFiles:
        """The disk after a crash that leaves this of what no sync covered.

        `names`: the changes of directories. `kept`: bytes of each file. `zeros`: the length of each
        file, with zeros in place of the lost bytes.
        """
        found = dict[str, Inode]()
        for path, inode in (self.names if names else self.durable).items():
            data = inode.data[: inode.synced + kept]
            if zeros:
                data = data.ljust(len(inode.data), b"\0")
            found[path] = Inode(data, len(data))
        return FaultyFiles(dict(found), dict(found))

    # ------------------------------------------------------------ the file layer

    def make_directory(self, path: str) -> None:
        self._step("make_directory")
        while path:
            self.names.setdefault(f"{path}/", Inode())
            path = _parent(path)

    def create(self, path: str) -> int:
        self._step("create")
        self.names[path] = inode = Inode()
        self._open[fd := len(self.done) + 100] = inode
        return fd

    def write(self, fd: int, data: bytes) -> int:
        short = self._step("write") == "short"
        taken = data[: max(1, len(data) // 2)] if short else data
        self._open[fd].data += taken
        return len(taken)

    def sync(self, fd: int) -> None:
        self._step("sync")
        self._open[fd].synced = len(self._open[fd].data)

    def close(self, fd: int) -> None:
        self._step("close")
        del self._open[fd]

    def rename(self, old: str, new: str) -> None:
        self._step("rename")
        self.names[new] = self.names.pop(old)

    def unlink(self, path: str) -> None:
        self._step("unlink")
        if self.names.pop(path, None) is None:
            raise FileNotFoundError(path)

    def remove_directory(self, path: str) -> None:
        self._step("remove_directory")
        del self.names[f"{path}/"]

    def sync_path(self, path: str) -> None:
        self._step("sync_path")
        if path in self.names:
            self.names[path].synced = len(self.names[path].data)
            return
        below = {one for one in {*self.names, *self.durable} if _parent(one) == path}
        for one in below:
            if one in self.names:
                self.durable[one] = self.names[one]
            else:
                del self.durable[one]

    def sync_all(self, path: str) -> None:
        self._step("sync_all")
        for one in self.names.values():
            one.synced = len(one.data)

    def listdir(self, path: str) -> list[str]:
        if f"{path}/" not in self.names:
            raise FileNotFoundError(path)
        return [one[len(path) + 1 :].rstrip("/") for one in self.names if _parent(one) == path]

    def size(self, path: str) -> int:
        return len(self.names[path].data)

    def read(self, path: str, most: int) -> bytes:
        if path not in self.names:
            raise FileNotFoundError(path)
        return self.names[path].data[:most]


def _parent(path: str) -> str:
    return path.rstrip("/").rpartition("/")[0]
