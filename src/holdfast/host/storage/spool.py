"""The spool of a session: its newest output, for its next incarnation after a loss of memory.

    STATE/spool/SESSION/        mode 0700
      output-NUMBER             segments of the output, oldest first

Output is appended. A full segment is closed and a new one begun; the oldest segments are deleted so
that all of them stay within the limit. No byte is ever written twice: a new host and a failed write
begin a new segment, because the end of the old one may be torn.

The files are sealed with a key of the installation (spool_format.py). That protects a copy of the
disk that lacks `keys/machine`. It does not protect against programs of the same account, which can
read that key.

Each method blocks on the disk. At most one thread may use a spool at a time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Final, NamedTuple

from holdfast.host.storage import spool_format as sealed
from holdfast.host.storage.spool_files import DiskFiles, Files
from holdfast.model.errors import Impossible, Unavailable
from holdfast.model.ids import is_session_id
from holdfast.model.limits import (
    SPOOL_BYTES,
    SPOOL_BYTES_MAX,
    SPOOL_FILES_MAX,
    SPOOL_PASS_BYTES,
    SPOOL_SEGMENTS,
)

_OUTPUT: Final = "output-"
_DISK: Final = DiskFiles()


class Spooled(NamedTuple):
    """The stored output: pieces in ascending order. Where a piece does not begin at the end of the
    one before, the output in between was not stored. `damaged`: what could not be read, in words.
    """

    pieces: tuple[tuple[int, bytes], ...]
    damaged: str

    @property
    def end(self) -> int:
        """The offset after the newest stored byte; 0 without output."""
        return self.pieces[-1][0] + len(self.pieces[-1][1]) if self.pieces else 0


class Spool:
    def __init__(
        self,
        top: str,
        session: str,
        epoch: int,
        key: bytes,
        limit: int = SPOOL_BYTES,
        files: Files = _DISK,
    ) -> None:
        """`top`: `Home.spool`. `epoch`: of the incarnation that writes now. `key`:
        `keys.spool_key` of the machine. `limit`: bytes of all segments on disk; 0: no output."""
        self._top, self.session, self.directory = top, session, f"{top}/{session}"
        self._epoch, self._key, self._files = epoch, key, files
        self._limit, self._segment_bytes = limit, limit // SPOOL_SEGMENTS
        self._made = False
        self._sizes: dict[int, int] | None = None  # number of each segment -> its length
        self._end: int | None = None  # known after the first look at the files
        self._fd = -1
        self._sealer: sealed.Sealer | None = None

    # ------------------------------------------------------------ output

    @property
    def end(self) -> int:
        """The offset after the newest byte that is durable; 0: none."""
        return self._open()

    def append(self, offset: int, data: bytes) -> None:
        """Store output; durable on return. Output before `end` is left out.

        Unavailable: the disk refused. What an earlier call stored is still there, and the call may
        be repeated.
        """
        end = self._open()
        data, offset = data[max(0, end - offset) :], max(offset, end)
        if not data or not self._limit:
            return
        with self._writing():
            try:
                while data:
                    count = self._append(offset, data)
                    data, offset = data[count:], offset + count
                self._files.sync(self._fd)
            except OSError:
                self._abandon()
                raise
        self._end = offset

    def load(self) -> Spooled:
        """All output that is stored. Impossible: nothing can be opened, with the reason."""
        pieces, end, damaged = list[tuple[int, list[bytes]]](), -1, list[str]()
        refused: Impossible | None = None
        for number in sorted(self._numbers()):
            name = _name(number)
            try:
                found = self._segment(number)
            except FileNotFoundError:
                continue
            except OSError as e:
                damaged.append(f"{name}: {e.strerror or e}")
                continue
            except (sealed.Foreign, sealed.OtherVersion) as e:
                damaged.append(f"{name}: {e}")
                refused = self._unreadable(name, str(e))
                continue
            if found.damage:
                damaged.append(f"{name}: {found.damage}")
            for offset, data in found.records:
                data, offset = data[max(0, end - offset) :], max(offset, end)
                if not data:
                    continue
                if offset == end:
                    pieces[-1][1].append(data)
                else:
                    pieces.append((offset, [data]))
                end = offset + len(data)
        if refused is not None and not pieces:
            raise refused
        return Spooled(tuple((at, b"".join(some)) for at, some in pieces), "; ".join(damaged))

    def remove(self) -> None:
        """Delete everything."""
        self._close()
        self._sizes, self._end, self._made = None, None, False
        with self._writing():
            try:
                names = self._files.listdir(self.directory)
            except FileNotFoundError:
                return
            for name in sorted(names):
                with contextlib.suppress(FileNotFoundError):
                    self._files.unlink(f"{self.directory}/{name}")
            self._files.remove_directory(self.directory)
            self._files.sync_path(self._top)

    def close(self) -> None:
        """Keep the files; the next `append` begins a new segment."""
        self._close()

    # ------------------------------------------------------------ segments

    def _open(self) -> int:
        """Learn what earlier hosts have stored; returns its end."""
        if self._sizes is None or self._end is None:
            with self._writing():
                self._sizes = {n: self._files.size(self._path(n)) for n in self._numbers()}
                if self._end is None:
                    self._end = self._stored_end(sorted(self._sizes, reverse=True))
        return self._end

    def _stored_end(self, numbers: list[int]) -> int:
        for number in numbers:
            # The host that wrote it may have been killed before it could wait for the disk.
            self._files.sync_path(self._path(number))
            with contextlib.suppress(OSError, sealed.Foreign, sealed.OtherVersion):
                if records := self._segment(number).records:
                    return max(at + len(data) for at, data in records)
        return 0

    def _append(self, offset: int, data: bytes) -> int:
        """Write one record; returns how many bytes of `data` it has."""
        assert self._sizes is not None
        newest = max(self._sizes, default=0)
        if self._sealer is None or self._room(newest) < min(len(data), self._segment_bytes // 16):
            newest = self._begin(newest + 1)
        assert self._sealer is not None
        count = min(len(data), self._room(newest), SPOOL_PASS_BYTES)
        self._write(self._fd, self._sealer.record(offset, data[:count]))
        self._sizes[newest] += count + sealed.RECORD_EXTRA_BYTES
        return count

    def _room(self, number: int) -> int:
        """How much output the next record of this segment may have."""
        assert self._sizes is not None
        return self._segment_bytes - self._sizes[number] - sealed.RECORD_EXTRA_BYTES

    def _begin(self, number: int) -> int:
        """Begin a new segment, and delete the oldest ones beyond the limit."""
        assert self._sizes is not None
        if self._sealer is not None:
            self._files.sync(self._fd)
        self._close()
        self._make_directories()
        while self._sizes and (
            sum(self._sizes.values()) + self._segment_bytes > self._limit
            or len(self._sizes) >= SPOOL_FILES_MAX
        ):
            oldest = min(self._sizes)
            with contextlib.suppress(FileNotFoundError):
                self._files.unlink(self._path(oldest))
            del self._sizes[oldest]
        self._fd = self._files.create(self._path(number))
        self._sizes[number] = sealed.HEADER_BYTES
        self._sealer = self._new_sealer(sealed.OUTPUT)
        self._write(self._fd, self._sealer.header())
        self._files.sync_path(self.directory)
        return number

    def _abandon(self) -> None:
        """After a failed write: keep what is durable, and begin a new segment the next time."""
        self._close()
        self._sizes = None
        with contextlib.suppress(OSError, ValueError):
            newest = max(self._numbers())
            empty = False
            with contextlib.suppress(sealed.Foreign, sealed.OtherVersion):
                empty = not self._segment(newest).records
            if empty:  # otherwise each try on a full disk would leave a file
                self._files.unlink(self._path(newest))

    def _close(self) -> None:
        self._sealer = None
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            with contextlib.suppress(OSError):
                self._files.close(fd)

    def _segment(self, number: int) -> sealed.Contents:
        data = self._files.read(self._path(number), SPOOL_BYTES_MAX)
        found = sealed.read(self._key, sealed.OUTPUT, self.session, data)
        return found or sealed.Contents(0, (), "")

    def _numbers(self) -> list[int]:
        try:
            names = self._files.listdir(self.directory)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as e:
            raise self._unreadable("", e.strerror or str(e)) from e
        found = (name.removeprefix(_OUTPUT) for name in names if name.startswith(_OUTPUT))
        return [int(word) for word in found if len(word) == 8 and word.isdecimal()]

    def _path(self, number: int) -> str:
        return f"{self.directory}/{_name(number)}"

    # ------------------------------------------------------------ helpers

    def _new_sealer(self, kind: int) -> sealed.Sealer:
        return sealed.Sealer(
            self._key, kind, self.session, self._epoch, os.urandom(sealed.SALT_BYTES)
        )

    def _make_directories(self) -> None:
        if not self._made:
            self._files.make_directory(self._top)
            self._files.make_directory(self.directory)
            self._files.sync_path(os.path.dirname(self._top))
            self._files.sync_path(self._top)
            self._made = True

    def _write(self, fd: int, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[self._files.write(fd, bytes(left)) :]

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            raise Unavailable(
                f"cannot write {self.directory}: {e.strerror or e}",
                "free disk space or make the directory writable",
            ) from e

    def _unreadable(self, name: str, why: str) -> Impossible:
        return Impossible(
            f"cannot open {self.directory}/{name}: {why}",
            "restore this home with its own keys/machine, or run the release that wrote it",
        )


def _name(number: int) -> str:
    return f"{_OUTPUT}{number:08}"


def sessions(top: str, files: Files = _DISK) -> list[str]:
    """The ids of all sessions that have a spool below `top`."""
    try:
        return sorted(name for name in files.listdir(top) if is_session_id(name))
    except FileNotFoundError:
        return []
