"""The end of a session is told to a viewer after the last screen and the last output."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.core.screen.filter import ViewerFilter
from holdfast.core.screen.letterbox import Cell, Frame
from holdfast.host.lifecycle import after_end
from holdfast.host.session.viewer import Viewer
from holdfast.host.terminal.screen import Screen
from holdfast.wire import frames
from tests.support.checkers.screen_oracle import state as modes


class Stage:
    """A session whose program has ended, and a client that notes the kinds of frames it gets."""

    def __init__(self, cols: int, rows: int) -> None:
        self.sent: list[int] = []
        self.screens: list[bytes] = []
        self.drawn: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        conn: Any = SimpleNamespace(
            channel="",
            client=7,
            blocked=False,
            send=self.send,
            send_pair=lambda header, data: self.sent.append(header[frames.HEADER.size - 1]),
        )
        session: Any = SimpleNamespace(
            loop=asyncio.get_running_loop(),
            size=(100, 30),
            ring=SimpleNamespace(head=500, start=0),
            view=SimpleNamespace(look=lambda question: self.drawn, fed=500, glance=self.glance),
            turn=SimpleNamespace(holder="ann"),
            lane=SimpleNamespace(acked=lambda client: 0),
            scanned=500,
            filter=ViewerFilter(),
        )
        self.session = session
        self.viewer = Viewer(conn, session, cols, rows, observe=True, scrollback=0)
        session.viewers = [self.viewer]

    def send(self, frame: bytes) -> None:
        self.sent.append(frame[frames.HEADER.size - 1])
        self.screens.append(bytes(frames.read_screen(frame[frames.HEADER.size :])[-1]))

    def glance(self, question: Any) -> tuple[int, Frame]:
        return 500, frame("the last line")


def frame(text: str) -> Frame:
    line = tuple(Cell(one, 1, b"") for one in text.ljust(100))
    return Frame(100, 30, 0, 0, True, (line,) * 30, "")


def test_s6_a_viewer_that_allows_it_gets_clipboard_writes_from_the_host() -> None:
    """The viewer beside it, who did not allow them, goes on with the session's filter."""

    async def main() -> None:
        stage = Stage(100, 30)
        output = b"1\x1b]52;c;Y29weQ==\x072\x1b]52;c;?\x073"
        shared = stage.session.filter.feed(output)
        stage.session.ring = SimpleNamespace(
            head=len(output),
            start=0,
            span=lambda start, size: memoryview(output)[start : start + size],
            intact=lambda start: True,
            copy=lambda start, end: output[start:end],
        )
        stage.session.scanned = 0
        got: list[bytes] = []
        conn: Any = stage.viewer.conn
        conn.send_pair = lambda header, data: got.append(bytes(data))
        viewer = Viewer(conn, stage.session, 100, 30, True, 0, clipboard=True)
        await viewer.begin(0)
        viewer.before_new(0, stage.session.filter)
        viewer.give(0, len(output), shared, 0, 0)
        stage.session.scanned = len(output)
        viewer.pump()
        assert b"".join(got) == b"1\x1b]52;c;Y29weQ==\x0723"
        assert shared == b"123"

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("tag", [0, 5])
def test_s6_a_viewer_that_attached_at_the_end_gets_its_first_screen_before_the_end(
    tag: int,
) -> None:
    async def main() -> None:
        stage = Stage(100, 30)
        stage.viewer.tag = tag
        painting = asyncio.ensure_future(stage.viewer.begin(None))
        await asyncio.sleep(0)
        finishing = asyncio.ensure_future(after_end._let_finish(stage.session))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not finishing.done(), "the end would be told before there is a screen"
        stage.drawn.set_result((500, b"the last line"))
        await painting
        await finishing
        assert stage.sent == [frames.SCREEN]

    asyncio.run(asyncio.wait_for(main(), 60))


def test_s6_a_viewer_of_another_size_is_drawn_the_last_output_before_the_end() -> None:
    async def main() -> None:
        stage = Stage(60, 20)
        stage.drawn.set_result((400, frame("not the last line")))
        await stage.viewer.begin(None)
        stage.viewer.pump()  # as the end of a session does: the drawing is due in a moment
        await after_end._let_finish(stage.session)
        assert stage.sent == [frames.SCREEN, frames.OUTPUT]

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("size", [(60, 20), (120, 40)])
def test_s6_attaching_at_another_size_keeps_the_users_screen(size: tuple[int, int]) -> None:
    """The user's screen goes into the terminal's history, also if the session then resizes."""

    async def main() -> None:
        stage = Stage(*size)
        terminal = Screen(*size, 100)
        terminal.feed(b"$ important\r\nanswer\r\n$ holdfast attach\r\n\x1b[?1000h\x1b[?1049hvim")
        stage.drawn.set_result((400, frame("the session")))
        await stage.viewer.begin(None)
        terminal.feed(stage.screens[-1])
        assert modes(terminal)["alternate"] is modes(terminal)["mode 1000"] is False
        stage.session.size = size
        session = Screen(*size, 100)
        session.feed(b"the session\r\n")
        stage.session.view.look = lambda question: answered(question(session))
        await stage.viewer.refresh(frames.SCREEN_RESIZE, over=False)
        terminal.feed(stage.screens[-1])
        lines = [line.rstrip() for line in (*terminal.history_text(100), *terminal.text())]
        assert lines[: lines.index("$ holdfast attach")] == ["$ important", "answer"]
        assert [line for line in lines if line][3:] == ["the session"]

    asyncio.run(asyncio.wait_for(main(), 60))


async def answered(answer: bytes) -> tuple[int, bytes]:
    return 500, answer
