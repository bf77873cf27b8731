"""Background tasks run to their end; their errors reach the log or a caller; saves are gathered."""

from __future__ import annotations

import asyncio
import gc

import pytest

from holdfast.host.runtime import saver as module
from holdfast.host.runtime.saver import Saver
from holdfast.host.runtime.tasks import SerialTasks, Tasks, to_the_end
from holdfast.model.errors import Refused


async def fail(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    "owner,error,logged",
    [("me", ValueError("x"), ["me"]), ("me", Refused("x"), []), (None, ValueError("x"), [])],
)
def test_a_defect_is_logged_with_its_owner_and_an_answer_is_not(
    owner: str | None, error: Exception, logged: list[str]
) -> None:
    seen = list[str]()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: seen.append(context["message"]))
        tasks = Tasks(owner)
        tasks.spawn(fail(error))
        await tasks.wait(60)
        gc.collect()

    asyncio.run(main())
    assert seen == logged


def test_tasks_are_waited_for_and_cancelled() -> None:
    async def main() -> None:
        tasks, go, done = Tasks("me"), asyncio.Event(), list[str]()

        async def work() -> None:
            await go.wait()
            done.append("done")

        tasks.spawn(work())
        endless = tasks.spawn(asyncio.Event().wait())
        gc.collect()
        go.set()
        await tasks.wait(0.05)
        assert done == ["done"] and not endless.done()
        tasks.cancel()
        await tasks.wait(60)
        assert endless.cancelled()

    asyncio.run(main())


def test_serial_tasks_run_in_order_and_survive_their_caller() -> None:
    async def main() -> None:
        tasks, done = SerialTasks(), list[int]()

        async def work(number: int) -> int:
            await asyncio.sleep(0)
            done.append(number)
            return number

        callers = [asyncio.ensure_future(tasks.do(work(n))) for n in range(3)]
        await asyncio.sleep(0)
        callers[0].cancel()
        assert await callers[2] == 2 and done == [0, 1, 2]

    asyncio.run(main())


def test_changes_are_saved_together_and_one_write_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SAVE_S", 0.01)

    async def main() -> None:
        begun, disk, ended = asyncio.Semaphore(0), asyncio.Semaphore(0), asyncio.Semaphore(0)
        running = 0

        async def save() -> None:
            nonlocal running
            running += 1
            assert running == 1
            begun.release()
            await disk.acquire()
            running -= 1
            ended.release()

        tasks = Tasks("me")
        saver = Saver(save, tasks.spawn)
        for _ in range(5):
            saver.soon()
        assert saver.unsaved
        await begun.acquire()
        saver.soon()  # during the write: needs another write
        now = asyncio.ensure_future(saver.now())
        for _ in range(3):
            disk.release()
        await now
        for _ in range(3):  # the first write, the requested write, and the write for the change
            await ended.acquire()
        await tasks.wait(60)
        assert not saver.unsaved and ended.locked() and begun._value == 2
        saver.soon()
        saver.close()
        saver.soon()  # a change that is noticed while the host closes
        assert not saver.unsaved

    asyncio.run(main())


def test_a_slow_write_makes_the_next_one_wait_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAVE_S", 0.001)

    async def main() -> None:
        tasks, writes = Tasks("me"), 0

        async def save() -> None:
            nonlocal writes
            writes += 1
            await asyncio.wait({asyncio.get_running_loop().create_future()}, timeout=0.01)

        saver = Saver(save, tasks.spawn, share=1000)
        await saver.now()
        saver.soon()
        await asyncio.wait({asyncio.get_running_loop().create_future()}, timeout=0.1)
        assert writes == 1 and saver.unsaved
        saver.close()

    asyncio.run(main())


@pytest.mark.parametrize("late", [False, True])
def test_r2_the_way_back_of_cancelled_work_is_not_interrupted(late: bool) -> None:
    """Work that was too late to stop gives its result, however often the caller is cancelled."""
    steps = list[str]()

    async def main() -> str:
        began, go_on = asyncio.Event(), asyncio.Event()

        async def work() -> str:
            try:
                began.set()
                await go_on.wait()
                return "done"
            finally:
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                steps.append("back")

        caller = asyncio.ensure_future(to_the_end(work(), lambda: not late))
        await began.wait()
        for _ in range(3):
            caller.cancel("gave up")
            await asyncio.sleep(0)
        assert not caller.done()
        go_on.set()
        return await caller

    if late:
        assert asyncio.run(main()) == "done"
    else:
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(main())
    assert steps == ["back"]
