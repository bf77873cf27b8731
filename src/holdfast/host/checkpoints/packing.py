"""Packs plain files into sealed objects, and unpacks them before a restore.

Both run in threads of their own: hashing, compressing and sealing release the interpreter, and the
host goes on. Content that an earlier checkpoint has stored is not stored again, if the stored
object is still as it was written.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from holdfast.core.checkpoint import manifest as forms
from holdfast.core.checkpoint import pieces
from holdfast.core.checkpoint.manifest import Damaged, Manifest
from holdfast.core.checkpoint.pieces import File, Part, Piece, Slice
from holdfast.host.checkpoints import sealing
from holdfast.host.checkpoints.objects import Objects
from holdfast.host.checkpoints.sealing import ImageKey
from holdfast.model.errors import Impossible
from holdfast.wire import huge_pages, pagemap

THREADS: Final = min(4, os.cpu_count() or 1)
TOLD_BYTES: Final = 16 << 20  # between two reports of progress
_NEW_FILE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_PAGEMAP_MAX: Final = 256 << 20
_KEPT_BYTES: Final = 4 << 20  # above the memory for one object, in each of the C library's heaps
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3

Done = Callable[[int], None]  # told of the bytes so far


class Packed(NamedTuple):
    """`files`, `tree` and `marks`: for the manifest. `bytes`: before; `added`: new stored bytes."""

    files: dict[str, tuple[int, str]]
    tree: dict[str, tuple[Part, ...]]
    marks: tuple[str, ...]
    bytes: int
    added: int


class Sources(NamedTuple):
    """What to pack: a directory of images, and small files from memory. `head`: of the output."""

    images: Path
    parts: Mapping[str, bytes]
    head: int
    left_out: frozenset[str] = frozenset()


class Stopped(Exception):
    """The caller has given up."""


@cache
def _keep_freed_memory() -> None:
    """Have the C library (glibc) keep freed memory up to a bound.

    By default each piece gets fresh memory of the kernel. That takes longer than to compress the
    piece, and the threads wait for each other.
    """
    with contextlib.suppress(AttributeError):
        for option in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD):
            ctypes.CDLL(None).mallopt(option, _KEPT_BYTES)


class Packer:
    """Packs one checkpoint. `known`: size and name of stored objects with the same key, by mark."""

    def __init__(
        self,
        key: ImageKey,
        objects: Objects,
        known: Mapping[str, tuple[int, str]],
        done: Done = lambda count: None,
        stop: threading.Event | None = None,
    ) -> None:
        """`stop`: set by a caller that gives up; `pack` raises Stopped soon."""
        self._key, self._objects, self._known = key, objects, known
        self._stop = stop or threading.Event()
        self._lock = threading.Lock()
        self._found = dict[str, tuple[int, str]]()
        self._written, self._added = list[str](), 0
        self._counted = _Counted(done)

    def pack(self, sources: Sources) -> Packed:
        """Store everything, on the disk. Objects that no manifest names are swept later."""
        _keep_freed_memory()
        opened = _Opened(sources)
        try:
            cut, tree = pieces.cut(opened.files)
            self._objects.begin()
            with ThreadPoolExecutor(THREADS, "pack") as pool:
                packed = pool.map(lambda batch: self._batch(opened, batch), _batches(cut))
                marks = [mark for batch in packed for mark in batch]
        finally:
            opened.close()
        self._objects.keep(self._written)
        ordered = sorted(self._found.items(), key=lambda one: one[1][1])
        places = {mark: number for number, (mark, _) in enumerate(ordered)}
        return Packed(
            {f"{forms.OBJECTS}/{name}": (size, name) for _, (size, name) in ordered},
            {
                file: tuple(part._replace(piece=places[marks[part.piece]]) for part in parts)
                for file, parts in tree.items()
            },
            tuple(places),
            sum(one.size for one in opened.files),
            self._added,
        )

    def _batch(self, opened: _Opened, batch: list[Piece]) -> list[str]:
        """Store pieces; return their marks."""
        content, marks = opened.read(batch), list[str]()
        for piece in batch:
            length = sum(one.length for one in piece)
            marks.append(self._piece(content[:length]))
            content = content[length:]
        return marks

    def _piece(self, content: memoryview) -> str:
        """Store a piece unless it is stored; return its mark."""
        if self._stop.is_set():
            raise Stopped
        mark = self._key.mark(content)
        with self._lock:
            first = mark not in self._found
            if first:
                self._found[mark] = 0, ""  # this thread stores it
        if first:
            self._found[mark] = self._stored(mark, content)
        self._counted.add(len(content))
        return mark

    def _stored(self, mark: str, content: memoryview) -> tuple[int, str]:
        earlier = self._known.get(mark)
        if earlier is not None and self._objects.intact(earlier[1]):
            return earlier
        stored = self._key.seal(mark, content)
        name = sealing.name(stored)
        self._objects.add(name, stored)
        with self._lock:
            self._written.append(name)
            self._added += len(stored)
        return len(stored), name


def _batches(cut: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Pieces that are read together, in order: the interpreter is given up and taken less often."""
    batch, filled = list[Piece](), 0
    for piece in cut:
        length = sum(one.length for one in piece)
        if filled + length > pieces.CONTENT_MAX:
            yield batch
            batch, filled = [], 0
        batch.append(piece)
        filled += length
    yield batch


def _joined(slices: Iterable[Slice]) -> Iterator[Slice]:
    """Slices that follow each other in a file become one."""
    last = Slice("", 0, 0)
    for one in slices:
        if (one.file, one.offset) == (last.file, last.offset + last.length):
            last = last._replace(length=last.length + one.length)
            continue
        if last.length:
            yield last
        last = one
    if last.length:
        yield last


class _Counted:
    def __init__(self, done: Done) -> None:
        self._done, self._lock, self._count, self._told = done, threading.Lock(), 0, 0

    def add(self, count: int) -> None:
        with self._lock:
            self._count += count
            if self._count - self._told >= TOLD_BYTES:
                self._told = self._count
                self._done(self._count)


class _Opened:
    """The files of a checkpoint, to be read by slices."""

    def __init__(self, sources: Sources) -> None:
        self._parts = sources.parts
        self._fds, self._own = dict[str, int](), threading.local()
        self.files = list[File]()
        try:
            for path in sorted(sources.images.iterdir()):
                if path.name not in sources.left_out:
                    name = f"{forms.IMAGES}/{path.name}"
                    self._fds[name] = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            runs = dict(_runs(sources.images))
            for name, fd in self._fds.items():
                self.files.append(File(name, os.fstat(fd).st_size, runs.get(name, ())))
        except BaseException:
            self.close()
            raise
        for name, data in sources.parts.items():
            phase = sources.head - len(data) if name == forms.OUTPUT else 0
            self.files.append(File(name, len(data), (), phase))

    def read(self, batch: list[Piece]) -> memoryview:
        """The content of the pieces, until this thread reads the next ones."""
        buffer, end = self._buffer(), 0
        for one in _joined(one for piece in batch for one in piece):
            begin, end = end, end + one.length
            if (data := self._parts.get(one.file)) is not None:
                buffer[begin:end] = memoryview(data)[one.offset :][: one.length]
            else:
                _read_whole(self._fds[one.file], buffer[begin:end], one.offset)
        return buffer[:end]

    def _buffer(self) -> memoryview:
        """Of this thread: fresh memory for each piece would take longer than to hash it."""
        if not hasattr(self._own, "buffer"):
            self._own.buffer = memoryview(bytearray(pieces.CONTENT_MAX))
        return self._own.buffer  # type: ignore[no-any-return]

    def close(self) -> None:
        for fd in self._fds.values():
            os.close(fd)


def _read_whole(fd: int, into: memoryview, offset: int) -> None:
    while into:
        if not (count := os.preadv(fd, [into], offset)):
            raise OSError("a file became shorter while it was packed")
        into, offset = into[count:], offset + count


def _runs(images: Path) -> Iterable[tuple[str, tuple[tuple[int, int], ...]]]:
    """For each file with memory, the runs of pages in it. Unknown forms are left out."""
    for path in images.glob("pagemap-*.img"):
        try:
            if path.stat().st_size <= _PAGEMAP_MAX:
                number, runs = pagemap.read(path.read_bytes())
                yield f"{forms.IMAGES}/pages-{number}.img", runs
        except (ValueError, IndexError, struct.error):
            continue


# ---------------------------------------------------------------- unpacking


def unpack(
    key: ImageKey,
    objects: Objects,
    manifest: Manifest,
    place: Path,
    done: Done = lambda count: None,
) -> None:
    """Write the images to a directory. Impossible, with the name, if an object is damaged."""
    _keep_freed_memory()
    counted, read = _Counted(done), _reader(key, objects, manifest)
    wanted = dict[int, list[tuple[int, int, Part]]]()  # by object: descriptor, offset, part
    fds = list[int]()

    def write(number: int) -> None:
        content = read(number)
        for fd, offset, part in wanted[number]:
            view = memoryview(content)[part.offset :][: part.length]
            if len(view) != part.length:
                raise _damaged(manifest, number, "it is too short")
            while view:
                count = os.pwrite(fd, view, offset)
                view, offset = view[count:], offset + count
        counted.add(sum(part.length for _, _, part in wanted[number]))

    try:
        for name, parts in manifest.tree.items():
            if not name.startswith(f"{forms.IMAGES}/"):
                continue
            fds.append(fd := os.open(place / Path(name).name, _NEW_FILE, 0o600))
            size = sum(part.length for part in parts)
            if size >= huge_pages.LEAST_BYTES:
                huge_pages.reserve(fd, size, time.monotonic)
                os.ftruncate(fd, size)
            at = 0
            for part in parts:
                wanted.setdefault(part.piece, []).append((fd, at, part))
                at += part.length
        with ThreadPoolExecutor(THREADS, "unpack") as pool:
            for _ in pool.map(write, wanted):
                pass
    finally:
        for fd in fds:
            os.close(fd)


def content(key: ImageKey, objects: Objects, manifest: Manifest, name: str) -> bytes:
    """One file of a checkpoint."""
    read = _reader(key, objects, manifest)
    return b"".join(read(part.piece)[part.offset :][: part.length] for part in manifest.tree[name])


def _reader(key: ImageKey, objects: Objects, manifest: Manifest) -> Callable[[int], bytes]:
    """Reads and checks an object by its place in the manifest.

    The signed manifest names the SHA-256 of the stored bytes, so altered bytes are not opened.
    """
    names = manifest.objects()

    def read(number: int) -> bytes:
        try:
            stored = objects.read(names[number])
            if sealing.name(stored) != names[number]:
                raise Damaged("it was altered")
            return key.open(manifest.marks[number], stored)
        except OSError as e:
            raise _damaged(manifest, number, e.strerror or str(e)) from e
        except (Damaged, IndexError) as e:
            raise _damaged(manifest, number, str(e)) from e

    return read


def _damaged(manifest: Manifest, number: int, why: str) -> Impossible:
    held = [file for file, parts in manifest.tree.items() if any(p.piece == number for p in parts)]
    return Impossible(
        f"{manifest.id} is damaged: object {number} ({', '.join(held[:3])}): {why}",
        "choose an older checkpoint: `holdfast checkpoint --list`",
    )
