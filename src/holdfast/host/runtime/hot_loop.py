"""A selector with a short way for hot descriptors.

asyncio wraps each ready descriptor into a handle, a context and a place in a queue: some 20 us before a key or an output byte is
looked at, twice per echoed key. Descriptors added with `add_hot` have their callback run right where the kernel reported them;
everything else goes the ordinary way. Callbacks may schedule whatever they like: the loop comes round right after.
"""

from __future__ import annotations

import asyncio
import select
import selectors
from collections.abc import Callable, Mapping
from typing import Any

_ERRORS = select.EPOLLERR | select.EPOLLHUP


class HotSelector(selectors.BaseSelector):
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

    # ------------------------------------------------------------ what asyncio uses

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
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

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        fd = _fd(fileobj)
        key = self._keys.pop(fd)
        try:
            if fd in self._hot:
                self._epoll.modify(fd, select.EPOLLIN)
            else:
                self._epoll.unregister(fd)
        except OSError:
            pass  # closed by its owner before
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
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
        ready: list[tuple[selectors.SelectorKey, int]] = []
        for fd, event in events:
            hot = self._hot.get(fd)
            if hot is not None and event & (select.EPOLLIN | _ERRORS):
                try:
                    hot()
                except Exception as e:
                    self._on_error(e)
                event &= ~select.EPOLLIN
            key = self._keys.get(fd)
            if key is not None and event:
                mask = (selectors.EVENT_READ if event & ~select.EPOLLOUT else 0) | (
                    selectors.EVENT_WRITE if event & ~select.EPOLLIN else 0
                )
                if mask & key.events:
                    ready.append((key, mask & key.events))
        return ready

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys[_fd(fileobj)]

    def close(self) -> None:
        self._epoll.close()
        self._keys.clear()
        self._hot.clear()


def _mask(events: int) -> int:
    return (select.EPOLLIN if events & selectors.EVENT_READ else 0) | (
        select.EPOLLOUT if events & selectors.EVENT_WRITE else 0
    )


def _fd(fileobj: Any) -> int:
    return fileobj if isinstance(fileobj, int) else int(fileobj.fileno())


class HotLoop(asyncio.SelectorEventLoop):
    """The host's loop: asyncio's own, on a HotSelector."""

    def __init__(self) -> None:
        self.hot = HotSelector(
            lambda e: self.call_exception_handler({"message": "in a hot callback", "exception": e})
        )
        super().__init__(self.hot)


def add_hot(loop: asyncio.AbstractEventLoop, fd: int, callback: Callable[[], None]) -> None:
    """The short way where the loop has one, the ordinary one elsewhere."""
    if isinstance(loop, HotLoop):
        loop.hot.add_hot(fd, callback)
    else:
        loop.add_reader(fd, callback)


def remove_hot(loop: asyncio.AbstractEventLoop, fd: int) -> None:
    if isinstance(loop, HotLoop):
        loop.hot.remove_hot(fd)
    else:
        loop.remove_reader(fd)
