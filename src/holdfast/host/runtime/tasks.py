"""Background tasks of an owner.

The event loop holds only weak references to tasks. An unreferenced task could vanish in the middle
of the work, so the owner keeps every task here until the task ends.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from holdfast.model.errors import HoldfastError

P = ParamSpec("P")
T = TypeVar("T")
Work = Coroutine[Any, Any, T]


async def to_the_end(work: Work[T], may_stop: Callable[[], bool]) -> T:
    """Run `work`, whose way back a second cancellation of the caller would interrupt.

    The first cancellation stops the work, if it may stop, and this returns when it has cleaned up.
    Work that was too late to stop gives its result.
    """
    task, stopped = asyncio.get_running_loop().create_task(work), None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as e:
            if stopped is None and may_stop() and task.cancel():
                stopped = e
    if stopped is not None and task.cancelled():
        raise stopped
    return task.result()


async def wait_out(work: Awaitable[T]) -> T:
    """Await work that no cancellation can stop, such as a thread's.

    A cancelled caller goes on when the work is over: only then it can undo what the work did.
    """
    done = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        await asyncio.gather(done, return_exceptions=True)
        raise


class Tasks:
    def __init__(self, owner: str | None) -> None:
        """`owner` is named in the log when a task fails. None: the callers get the error instead.

        A HoldfastError is an answer to a caller, never a defect, and is not logged.
        """
        self._owner = owner
        self._tasks: set[asyncio.Task[object]] = set()

    def spawn(self, work: Work[T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if self._owner is not None and not isinstance(error, HoldfastError):
            task.get_loop().call_exception_handler({"message": self._owner, "exception": error})

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def wait(self, timeout: float) -> None:
        """Waits until all tasks have ended, or for `timeout` seconds."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout)


class SerialTasks(Tasks):
    """Tasks that run to the end even if the caller is cancelled.

    A change that was made durable must get into memory too.
    """

    def __init__(self) -> None:
        super().__init__(None)
        self._lock = asyncio.Lock()

    async def do(self, work: Work[T]) -> T:
        """Runs `work` after all work that was passed to `do` before."""

        async def go() -> T:
            async with self._lock:
                return await work

        return await asyncio.shield(self.spawn(go()))


class Serial(Protocol):
    """An object with methods that are `serially`."""

    _serially: SerialTasks


S = TypeVar("S", bound=Serial)


def serially(method: Callable[Concatenate[S, P], Work[T]]) -> Callable[Concatenate[S, P], Work[T]]:
    """Runs a method as `SerialTasks.do`: one such call of an object at a time, to the end."""

    @functools.wraps(method)
    async def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._serially.do(method(self, *args, **kwargs))

    return run
