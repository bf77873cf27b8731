"""An event loop that calls back for hot descriptors without going through asyncio's queue.

asyncio wraps each ready descriptor in a handle, a context and a place in a queue. That costs
some 20 us before the host sees a key or an output byte, twice per echoed key. The callback of a
descriptor added with `add_hot` runs inside `select` itself. All other descriptors take asyncio's
ordinary path. A hot callback may schedule any callback: the loop runs right after `select`.
"""

from __future__ import annotations

import asyncio
import select
import selectors
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol


class HasFileno(Protocol):
    def fileno(self) -> int: ...


FileObject = int | HasFileno

_ERRORS = select.EPOLLERR | select.EPOLLHUP


class _Registered(Mapping[FileObject, selectors.SelectorKey]):
    """The keys of a selector by descriptor or by file object: asyncio asks by either."""

    def __init__(self, keys: dict[int, selectors.SelectorKey]) -> None:
        self._keys = keys

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[int]:
        return iter(self._keys)

    def __getitem__(self, fileobj: FileObject) -> selectors.SelectorKey:
        return self._keys[_fd(fileobj)]


class HotSelector(selectors.BaseSelector):
    """An epoll selector. `on_error` gets the exceptions of hot callbacks."""

    def __init__(self, on_error: Callable[[BaseException], None]) -> None:
        self._epoll = select.epoll()
        self._keys: dict[int, selectors.SelectorKey] = {}
        self._hot: dict[int, Callable[[], None]] = {}
        self._on_error = on_error

    # ------------------------------------------------------------ hot descriptors

    def add_hot(self, fd: int, callback: Callable[[], None]) -> None:
        """`callback` runs whenever `fd` is readable (or broken)."""
        self._hot[fd] = callback
        key = self._keys.get(fd)
        if key is None:
            self._epoll.register(fd, select.EPOLLIN)
        else:
            self._epoll.modify(fd, select.EPOLLIN | _mask(key.events))

    def remove_hot(self, fd: int) -> None:
        if self._hot.pop(fd, None) is not None:
            key = self._keys.get(fd)
            if key is None:
                self._epoll.unregister(fd)
            else:
                self._epoll.modify(fd, _mask(key.events))

    # ------------------------------------------------------------ the interface of selectors

    def register(
        self, fileobj: FileObject, events: int, data: object = None
    ) -> selectors.SelectorKey:
        fd = _fd(fileobj)
        if fd in self._keys:
            raise KeyError(f"{fileobj!r} is registered already")
        key = selectors.SelectorKey(fileobj, fd, events, data)
        if fd in self._hot:
            self._epoll.modify(fd, select.EPOLLIN | _mask(events))
        else:
            self._epoll.register(fd, _mask(events))
        self._keys[fd] = key
        return key

    def unregister(self, fileobj: FileObject) -> selectors.SelectorKey:
        fd = _fd(fileobj)
        key = self._keys.pop(fd)
        try:
            if fd in self._hot:
                self._epoll.modify(fd, select.EPOLLIN)
            else:
                self._epoll.unregister(fd)
        except OSError:
            pass  # the owner has already closed the descriptor
        return key

    def modify(
        self, fileobj: FileObject, events: int, data: object = None
    ) -> selectors.SelectorKey:
        fd = _fd(fileobj)
        if fd not in self._keys:
            raise KeyError(f"{fileobj!r} is not registered")
        key = selectors.SelectorKey(fileobj, fd, events, data)
        self._epoll.modify(fd, _mask(events) | (select.EPOLLIN if fd in self._hot else 0))
        self._keys[fd] = key
        return key

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        wait = -1.0 if timeout is None else max(0.0, timeout)
        try:
            events = self._epoll.poll(wait)
        except InterruptedError:
            return []
        rest: list[tuple[int, int]] = []
        for fd, event in events:
            hot = self._hot.get(fd)
            if hot is not None and event & (select.EPOLLIN | _ERRORS):
                try:
                    hot()
                except Exception as e:
                    self._on_error(e)
                event &= ~select.EPOLLIN
            rest.append((fd, event))
        # After all hot callbacks, which may replace keys: for a key whose callback was cancelled,
        # asyncio would remove the registration of the descriptor, although it is a new one.
        ready: list[tuple[selectors.SelectorKey, int]] = []
        for fd, event in rest:
            key = self._keys.get(fd)
            if key is not None and event:
                mask = (selectors.EVENT_READ if event & ~select.EPOLLOUT else 0) | (
                    selectors.EVENT_WRITE if event & ~select.EPOLLIN else 0
                )
                if mask & key.events:
                    ready.append((key, mask & key.events))
        return ready

    def get_map(self) -> Mapping[FileObject, selectors.SelectorKey]:
        return _Registered(self._keys)

    def close(self) -> None:
        self._epoll.close()
        self._keys.clear()
        self._hot.clear()


def _mask(events: int) -> int:
    return (select.EPOLLIN if events & selectors.EVENT_READ else 0) | (
        select.EPOLLOUT if events & selectors.EVENT_WRITE else 0
    )


def _fd(fileobj: FileObject) -> int:
    return fileobj if isinstance(fileobj, int) else int(fileobj.fileno())


class HotLoop(asyncio.SelectorEventLoop):
    """The host's loop: asyncio's own, on a HotSelector."""

    def __init__(self) -> None:
        self.hot = HotSelector(
            lambda e: self.call_exception_handler({"message": "in a hot callback", "exception": e})
        )
        super().__init__(self.hot)


def add_hot(loop: asyncio.AbstractEventLoop, fd: int, callback: Callable[[], None]) -> None:
    """Calls back when `fd` is readable: inside `select` on a HotLoop, as a reader on any other."""
    if isinstance(loop, HotLoop):
        loop.hot.add_hot(fd, callback)
    else:
        loop.add_reader(fd, callback)


def remove_hot(loop: asyncio.AbstractEventLoop, fd: int) -> None:
    if isinstance(loop, HotLoop):
        loop.hot.remove_hot(fd)
    else:
        loop.remove_reader(fd)
