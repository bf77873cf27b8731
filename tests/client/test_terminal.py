"""The user's terminal: raw while attached, restored after, and nobody waits for one that stands still."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from holdfast.client import start, terminal
from holdfast.client.overlay import Overlay
from holdfast.home import Home
from holdfast.model.errors import Impossible, Unavailable, Usage

SOURCE = Path(terminal.__file__).parents[2]
LEAVE = (
    "import sys; from holdfast.client.terminal import UserTerminal; t = UserTerminal(); t.enter(); t.write(b'IN'); "
    "sys.stdin.buffer.raw.read(1); t.leave(); t.leave()"
)


def spawn(script: str, *args: str) -> tuple[int, int, subprocess.Popen[bytes]]:
    master, slave = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", script, *args],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        env={"PYTHONPATH": str(SOURCE), "PATH": os.environ["PATH"]},
    )
    return master, slave, process


def read_until(master: int, wanted: bytes) -> bytes:
    data = b""
    while wanted not in data:
        assert select.select([master], [], [], 20)[0], data
        data += os.read(master, 4096)
    return data


def test_leaving_restores_what_entering_changed() -> None:
    master, slave, process = spawn(LEAVE)
    before = termios.tcgetattr(slave)
    read_until(master, b"IN")
    assert termios.tcgetattr(slave) != before
    os.write(master, b"x")
    data = read_until(master, terminal.RESTORE_TITLE)
    assert process.wait(20) == 0 and terminal.RESET in data and data.count(terminal.RESTORE_TITLE) == 1
    assert termios.tcgetattr(slave) == before
    os.close(master)
    os.close(slave)


def test_a_terminal_that_takes_nothing_does_not_keep_us() -> None:
    script = (
        "from holdfast.client.terminal import UserTerminal\n"
        "t = UserTerminal(); t.enter()\nwhile t.pending is None: t.write(b'x' * 4096)\nt.leave()"
    )
    master, slave, process = spawn(script)
    before = termios.tcgetattr(slave)
    begun = time.monotonic()
    assert process.wait(20) == 0
    assert time.monotonic() - begun < 10
    assert termios.tcgetattr(slave) == before, "modes must be restored though the sequences could not be written"
    os.close(master)
    os.close(slave)


def test_attach_needs_a_terminal_on_both_sides() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from holdfast.client.terminal import UserTerminal; UserTerminal()"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env={"PYTHONPATH": str(SOURCE)},
    )
    assert b"attach needs a terminal" in done.stderr


class Sheet(terminal.UserTerminal):
    """Keeps what is drawn."""

    def __init__(self, cols: int, rows: int) -> None:
        self.pending = None
        self._size = (cols, rows)
        self.drawn = b""

    def size(self) -> tuple[int, int]:
        return self._size

    def write(self, data: bytes | memoryview) -> None:
        self.drawn += bytes(data)


SESSIONS = [{"id": f"id{n}", "name": f"n{n}\x1b[31m", "state": "live", "idle_s": float(n)} for n in range(40)]


@pytest.mark.parametrize("size", [(80, 24), (20, 5), (2, 2), (1, 1), (0, 0), (300, 100)])
def test_overlays_fit_and_cannot_act(size: tuple[int, int]) -> None:
    for draw in (lambda o: o.help("name\x1b]0;x\x07", "id"), lambda o: o.choose(SESSIONS, "id3")):
        sheet = Sheet(*size)
        overlay = Overlay(sheet, "C-\\")
        draw(overlay)  # type: ignore[no-untyped-call]
        assert overlay.covering
        text = sheet.drawn.partition(b"\x1b[H")[2].rpartition(b"\x1b[?2026l")[0]
        lines = text.split(b"\r\n")
        assert len(lines) <= max(size[1], 2) and all(len(line) <= max(size[0], 2) for line in lines)
        assert b"\x1b" not in text and b"\x07" not in text


def test_a_notice_leaves_the_cursor_and_is_not_drawn_where_it_cannot_be() -> None:
    sheet = Sheet(30, 10)
    Overlay(sheet, "C-b").notice("long \x1b words " * 10)
    assert sheet.drawn.startswith(b"\x1b7") and sheet.drawn.endswith(b"\x1b8") and b"\x1b[10;1H" in sheet.drawn
    for small in (Sheet(30, 1), Sheet(0, 0)):
        Overlay(small, "C-b").notice("x")
        assert small.drawn == b""
    busy = Sheet(30, 10)
    busy.pending = memoryview(b"half a frame")
    Overlay(busy, "C-b").notice("x")
    assert busy.drawn == b"", "a notice in the middle of somebody's escape sequence"


@pytest.mark.parametrize(
    ("said", "code", "error", "message", "recover"),
    [
        (b"holdfast host: bad config\n  repair it\n", 2, Usage, "bad config", "repair it"),
        (b"holdfast host: not private\n  chmod\n", 7, Impossible, "not private", "chmod"),
        (b"warning\nholdfast host: full\n  free space\n", 5, Unavailable, "full", "free space"),
        (b"Traceback\n  x\nImportError: no x\n", 1, Unavailable, "ImportError: no x", "host.log"),
        (b"", -9, Unavailable, "ended with -9", "host.log"),
    ],
)
def test_what_a_host_said_before_it_died_is_the_clients_error(
    said: bytes, code: int, error: type[Exception], message: str, recover: str
) -> None:
    r, w = os.pipe()
    os.write(w, said)
    os.close(w)
    got = start._complaint(r, code, Home("/h", "", True))
    os.close(r)
    assert type(got) is error and message in got.message and recover in got.recover


def test_the_marker_of_a_stopped_host(tmp_path: Path) -> None:
    home = Home(str(tmp_path), "", True)
    start.mark_stopped(home, True)  # no directory: nothing to mark, and no error
    assert not start.is_stopped(home)
    os.mkdir(home.run)
    start.mark_stopped(home, True)
    start.mark_stopped(home, True)
    assert start.is_stopped(home)
    start.mark_stopped(home, False)
    start.mark_stopped(home, False)
    assert not start.is_stopped(home)
