"""A listener that raises does not keep the other listeners from being called."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.core.originators.lineage import UNKNOWN
from holdfast.host.engine import Engine
from holdfast.host.lifecycle.after_end import bury
from holdfast.host.originators.lineage import Lineages
from holdfast.host.runtime.notify import tell
from holdfast.host.runtime.tasks import Tasks
from holdfast.host.session.commands import Commands
from holdfast.host.session.ending import Ending
from holdfast.host.session.session import Session
from holdfast.host.shell import SessionDirectories
from holdfast.host.storage.events import Events
from holdfast.host.storage.store import SessionRow
from holdfast.wire.ring import FLAG_EOF

NONCE = "n" * 16


def broken(*_: Any) -> None:
    raise ZeroDivisionError("one that is broken")


def logged() -> list[Any]:
    """The errors that the loop would have logged."""
    found = list[Any]()
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: found.append(context.get("exception"))
    )
    return found


class SessionObserver:
    def __init__(self, raises: bool = False) -> None:
        self.told = list[str]()
        self._raises = raises

    def _tell(self, what: str) -> None:
        self.told.append(what)
        if self._raises:
            broken()

    def open(self) -> None:
        self._tell("open")

    def begin(self, session: Any) -> None:
        self._tell("begin")

    def catch_up(self) -> None:
        self._tell("catch_up")

    def end(self, session: Any) -> None:
        self._tell("end")

    def close(self) -> None:
        self._tell("close")


def session(directory: Path) -> Any:
    loop = asyncio.get_running_loop()
    commands = Commands(
        {"shell": "bash", "nonce": NONCE, "by": "ann"},
        SessionDirectories.as_outside(directory, directory),
        str(directory),
        {},
        root=os.getpid(),
    )
    return SimpleNamespace(
        id="s",
        loop=loop,
        keeper_pid=os.getpid(),
        commands=commands,
        writable_directory=str(directory),
        host_only_directory=str(directory),
        ended=loop.create_future(),
        spawn=loop.create_task,
        ring=SimpleNamespace(accepted=0),
    )


def test_a_listener_that_removes_itself_does_not_skip_the_next(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told, listeners = list[int](), list[Any]()

    def once(number: int) -> None:
        told.append(number)
        listeners.remove(once)

    listeners += [once, broken, told.append]
    tell(listeners, 7)
    tell(listeners, 8)
    assert told == [7, 7, 8]
    assert [
        one
        for one in caplog.records
        if one.exc_info is not None and one.exc_info[0] is ZeroDivisionError
    ]


def test_a_process_exit_reaches_all_followers(tmp_path: Path) -> None:
    async def main() -> None:
        errors, told, lineages, one = (
            logged(),
            list[tuple[str, int]](),
            Lineages(),
            session(tmp_path),
        )
        lineages.on_change += [broken, lambda session, what, pid, *_: told.append((what, pid))]
        lineages.begin(one)
        try:
            lineages._forked(os.getpid(), 1 << 22)
            lineages._exited(1 << 22, 0)
        finally:
            lineages.end(one)
            one.commands.close()
        assert told == [("started", 1 << 22), ("exited", 1 << 22)] and len(errors) == 2

    asyncio.run(main())


def test_the_begin_and_end_of_a_session_reach_all_observers(tmp_path: Path) -> None:
    async def main() -> None:
        errors, lineages, one = logged(), Lineages(), session(tmp_path)
        first, second = SessionObserver(raises=True), SessionObserver()
        lineages.observers += [first, second]
        lineages.open()
        lineages.begin(one)
        one.commands.before_marks()
        lineages.end(one)
        assert not lineages._owner
        lineages.close()
        one.commands.close()
        assert first.told == second.told == ["open", "begin", "catch_up", "end", "close"]
        assert [type(error) for error in errors] == [ZeroDivisionError] * 5

    asyncio.run(main())


def test_a_mark_is_taken_though_an_observer_fails(tmp_path: Path) -> None:
    async def main() -> None:
        errors, told = logged(), list[Any]()
        commands = Commands(
            {"shell": "bash", "nonce": NONCE, "by": "ann"},
            SessionDirectories.as_outside(tmp_path, tmp_path),
            str(tmp_path),
            {},
            root=os.getpid(),
        )
        commands.before_marks = broken
        commands.watchers += [broken, told.append]
        commands.feed(0, memoryview(f"\x1b]7717;{NONCE};1;P;0\a".encode()))
        commands.close()
        assert commands.shell.at_prompt and len(told) == 1 and len(errors) == 2

    asyncio.run(main())


def test_an_ended_session_is_cleaned_up_though_an_observer_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The keeper waits to be released."""

    async def main() -> None:
        errors, last, buried = (
            logged(),
            SessionObserver(),
            asyncio.get_running_loop().create_future(),
        )

        async def bury(engine: Any, session: Any) -> None:
            buried.set_result(session)

        monkeypatch.setattr("holdfast.host.engine.bury", bury)
        worst = SessionObserver(raises=True)
        engine: Any = SimpleNamespace(
            sessions={},
            ended={},
            _burying=Tasks("the end of a session"),
            held_acts=SimpleNamespace(session_changed=broken),
            journal=SimpleNamespace(post=broken),
            _observers=(worst,) * 4,
            execgate=last,
            incarnations=SimpleNamespace(buried=lambda session, burial: None),
            near_end=SimpleNamespace(ended=broken),
        )
        engine.leave = lambda one: Engine.leave(engine, one)
        one: Any = SimpleNamespace(id="s", record="its record")
        Engine._over(engine, one)
        assert (
            await buried is one
            and engine.ended == {"s": "its record"}
            and last.told == ["end"]
            and len(errors) >= 4
        )

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_session_ends_with_its_program_though_the_last_look_fails() -> None:
    """Otherwise callers that wait for the end, and the keeper, would wait for ever."""

    async def main() -> None:
        errors, loop = logged(), asyncio.get_running_loop()
        record: Any = SimpleNamespace(
            ended=None, exit_code=None, reason="", survivors=0, state="live"
        )
        closed = list[str]()
        one: Any = SimpleNamespace(
            id="s",
            loop=loop,
            record=record,
            view=SimpleNamespace(look=broken),
            viewers=[SimpleNamespace(pump=broken)],
            streams=[broken],
            ring=SimpleNamespace(start=0, head=7),
            keeper_pid=os.getpid(),
            change=broken,
            lane=SimpleNamespace(close=lambda: closed.append("lane")),
            ended=loop.create_future(),
            pace=SimpleNamespace(returned=asyncio.Event()),
            link=SimpleNamespace(unmute=broken, welcome=SimpleNamespace(root_pid=1)),
            commands=SimpleNamespace(lineage=SimpleNamespace(ending=lambda: UNKNOWN), kind="bash"),
            ref="hf:s@1",
        )
        one.pace.returned.set()
        await Ending(one)._finish(3 << 8)
        assert (
            one.ended.done()
            and (record.exit_code, record.reason, record.output_end, record.state)
            == (3, "exited", 7, "ended")
            and closed == ["lane"]
            and errors
        )

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_keeper_is_released_though_a_viewer_fails(tmp_path: Path) -> None:
    async def main() -> None:
        errors, done, told = logged(), list[str](), list[str]()

        class Watching(tuple[Any, ...]):
            def __new__(cls, *viewers: Any) -> Watching:
                return super().__new__(cls, viewers)

            leave = staticmethod(broken)

        class Kept:
            async def run(self, *_: Any, **__: Any) -> None:
                done.append("written")

        async def dispose() -> None:
            broken()

        async def in_thread(*_: Any) -> None:
            done.append("group")

        async def nothing(*_: Any) -> None:
            pass

        record: Any = SessionRow("s", "work", "ended", 1, 0.0, [], "", "")
        watching: Any = Watching(
            SimpleNamespace(conn=SimpleNamespace(event=broken)),
            SimpleNamespace(conn=SimpleNamespace(event=lambda name, **_: told.append(name))),
        )
        one: Any = SimpleNamespace(
            id="s",
            record=record,
            viewers=watching,
            streams=[],
            link=SimpleNamespace(send=lambda packet: done.append("released")),
            dispose=dispose,
            writable_directory=str(tmp_path / "s"),
        )
        engine: Any = SimpleNamespace(
            home=SimpleNamespace(run=str(tmp_path)),
            store=Kept(),
            ended={},
            halter=SimpleNamespace(in_thread=in_thread, groups=SimpleNamespace(remove=None)),
            forget_old=lambda: done.append("old ones"),
            threads=SimpleNamespace(of=nothing),
            own_directories=SimpleNamespace(remove=nothing),
            incarnations=SimpleNamespace(
                saved_session=lambda _: False, awaited=lambda _: False, saved_by_now=nothing
            ),
            near_end=SimpleNamespace(coming=lambda _: False, keeps=lambda _: False),
        )
        await bury(engine, one)
        assert (
            done == ["written", "released", "group", "old ones"]
            and told == ["ended"]
            and len(errors) == 5
        )

    asyncio.run(asyncio.wait_for(main(), 60))


def test_output_reaches_all_viewers_though_one_fails() -> None:
    async def main() -> None:
        errors, told = logged(), list[str]()
        one: Any = SimpleNamespace(
            link=SimpleNamespace(closed=False),
            lane=SimpleNamespace(settle=lambda: None, awaited=True),
            ring=SimpleNamespace(flags=FLAG_EOF, head=7),
            scanned=7,
            viewers=[
                SimpleNamespace(pump=broken),
                SimpleNamespace(pump=lambda: told.append("viewer")),
            ],
            view=SimpleNamespace(fed=7),
            streams=[broken, lambda: told.append("stream")],
            pace=SimpleNamespace(look=lambda: told.append("pace")),
            commands=SimpleNamespace(watchers=[]),
            end_of=SimpleNamespace(draining=True, output_over=lambda: told.append("end")),
        )
        Session.look_at_ring(one)
        assert told == ["viewer", "stream", "pace", "end"] and len(errors) == 2

    asyncio.run(main())


def test_an_event_reaches_all_followers_and_its_publisher_goes_on() -> None:
    async def main() -> None:
        errors, told, posted = logged(), list[str](), list[Any]()
        store: Any = SimpleNamespace(post=posted.append)
        events = Events(store)
        events.follow(broken)
        events.follow(lambda: told.append("told"))
        events.note("s", "session.exited", {})
        assert told == ["told"] and len(posted) == 1 and len(errors) == 1

    asyncio.run(main())
