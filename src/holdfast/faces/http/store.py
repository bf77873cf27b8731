"""Private lists of a service operator, as files in HOME/http, mode 0600."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from holdfast.home import Home, private
from holdfast.model.ids import check_name

if TYPE_CHECKING:
    from holdfast.model.jsontext import Json

FILE_BYTES: Final = 4 << 20


class Store:
    """The list `name` of one operator; a change is written whole, by one process at a time."""

    def __init__(self, home: Home, operator: str, name: str) -> None:
        self._directory, self._name = f"{home.state}/http", name
        self._path = f"{self._directory}/{check_name(operator)}.{name}"
        self._seen: tuple[int, ...] | None = None
        self._entries: list[Json] = []

    def entries(self) -> list[Json]:
        """The list; read again only if the file has changed."""
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return []
        seen = (found.st_ino, found.st_mtime_ns, found.st_size)
        if seen != self._seen:
            recover = f"move {self._path} away; its entries have to be made again"
            self._entries = private.entries(self._path, FILE_BYTES, self._name, recover)
            self._seen = seen
        return self._entries

    @contextlib.contextmanager
    def changing(self) -> Iterator[list[Json]]:
        """The list, to be changed in place; written when the block ends without an error."""
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        lock = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._seen = None
            entries = list(self.entries())
            yield entries
            private.keep(self._path, self._name, entries)
            self._seen = None
        finally:
            os.close(lock)
