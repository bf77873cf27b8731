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
from holdfast.host.screen import Screen
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
        assert select.select([master], [], [], 120)[0], data
        data += os.read(master, 4096)
    return data


def test_leaving_restores_what_entering_changed() -> None:
    master, slave, process = spawn(LEAVE)
    before = termios.tcgetattr(slave)
    read_until(master, b"IN")
    assert termios.tcgetattr(slave) != before
    os.write(master, b"x")
    data = read_until(master, terminal.RESTORE_TITLE)
    assert process.wait(120) == 0 and data.count(terminal.farewell(0, 0)) == 1
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
    assert process.wait(60) == 0
    assert time.monotonic() - begun < 30
    assert termios.tcgetattr(slave) == before, (
        "modes must be restored though the sequences could not be written"
    )
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


# What a program in a session may have left its terminal in. Everything passes the viewers' filter.
DIRT = {
    "mouse": b"".join(b"\x1b[?%dh" % n for n in (9, 1000, 1002, 1003, 1005, 1015, 1006, 1016)),
    "mouse, highlighted": b"\x1b[?1001h",
    "paste, focus, colour scheme": b"\x1b[?2004h\x1b[?1004h\x1b[?2031h",
    "alternate screen": b"\x1b[?1049h",
    "alternate screen, old": b"\x1b[?47h",
    "alternate screen, other": b"\x1b[?1047h",
    "cursor": b"\x1b[?25l\x1b[5 q",
    "cursor, blinking": b"\x1b[?12h",
    "keypad and cursor keys": b"\x1b=\x1b[?1h",
    "keys": b"\x1b[>4;2m\x1b[?67h\x1b[?1036l\x1b[?1039h\x1b[?1035l",
    "kitty keys": b"\x1b[>1u\x1b[>31u",
    "kitty keys, on both screens": b"\x1b[>1u\x1b[?1049h\x1b[>3u\x1b[=5u",
    "colours": b"\x1b]4;1;rgb:11/22/33\x1b\\\x1b]10;#123456\x1b\\\x1b]11;#654321\x1b\\\x1b]12;#abcdef\x1b\\",
    "pen and link": b'\x1b[1;3;4;31;44m\x1b]8;;https://example.org\x1b\\\x1b[1"q',
    "region": b"\x1b[5;10r\x1b[?6h",
    "margins": b"\x1b[?69h\x1b[3;20s",
    "insert, no wrap": b"\x1b[4h\x1b[?7l",
    "reverse wrap": b"\x1b[?45h\x1b[?1045h",
    "line feed, local echo, locked": b"\x1b[20h\x1b[12l\x1b[2h",
    "reverse video": b"\x1b[?5h",
    "charsets": b"\x1b(0\x1b)A\x1b*0\x1b+0\x0e",
    "charset, shifted right": b"\x1b~",
    "tab stops": b"\x1b[3g\x1b[5G\x1bH",
    "saved cursor": b"\x1b[31m\x1b(0\x1b[5;5H\x1b7",
    "scrolling by mouse": b"\x1b[?1007l",
    "held back": b"\x1b[?2026h",
    "in the middle of a sequence": b"\x1b[38;5",
    "in the middle of a string": b"\x1b]0;a title that",
    "in the middle of a picture": b"\x1bP1;2;3q#0",
}


FRESH_LINE = b"\x1b(B\x1b)B\x1b*B\x1b+B\x1b[24;1H\r\n\x1b7"


def state(screen: Screen) -> tuple[object, ...]:
    """All that the emulator knows of itself, but what is written on it."""
    screen.feed(b"\x1b8\x1b[H\x1b[2J")
    others: list[object] = [screen._emulator.mode(number, ansi=True) for number in (2, 12)]
    painted = screen.paint(0)
    for _ in range(3):  # the other screen's stack of keyboard modes
        screen.feed(b"\x1b[?1049h")
        others.append(screen._emulator.kitty_flags)
        screen.feed(b"\x1b[<u")
    return painted, *others


def left(entered: bytes, dirt: bytes) -> tuple[object, ...]:
    """The state of a user's terminal after an attachment in which this was shown."""
    screen = Screen(80, 24)
    screen.feed(b"$ holdfast attach\r\n" + entered + dirt + terminal.farewell(80, 24))
    return state(screen)


@pytest.mark.parametrize("dirt", DIRT.values(), ids=DIRT)
def test_leaving_resets_all_that_a_session_may_have_set(dirt: bytes) -> None:
    clean = Screen(80, 24)
    clean.feed(FRESH_LINE)
    assert left(terminal.SAVE, dirt) == state(clean)


def test_leaving_keeps_what_the_user_had_set() -> None:
    """Modes whose default differs between terminals, or that people choose."""
    mine = b"\x1b[?1007l\x1b[?1036l\x1b[?12h"
    before = Screen(80, 24)
    before.feed(mine + FRESH_LINE)
    screen = Screen(80, 24)
    screen.feed(
        mine + terminal.SAVE + b"\x1b[?1007h\x1b[?1036h\x1b[?12l" + terminal.farewell(80, 24)
    )
    assert state(screen) == state(before)


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


SESSIONS = [
    {"id": f"id{n}", "name": f"n{n}\x1b[31m", "state": "live", "idle_s": float(n)}
    for n in range(40)
]


@pytest.mark.parametrize("size", [(80, 24), (20, 5), (2, 2), (1, 1), (0, 0), (300, 100)])
def test_overlays_fit_and_cannot_act(size: tuple[int, int]) -> None:
    for draw in (lambda o: o.help("name\x1b]0;x\x07", "id"), lambda o: o.choose(SESSIONS, "id3")):
        sheet = Sheet(*size)
        overlay = Overlay(sheet, "C-\\")
        draw(overlay)  # type: ignore[no-untyped-call]
        assert overlay.covering
        text = sheet.drawn.rpartition(b"\x1b[H")[2].rpartition(b"\x1b[?2026l")[0]
        lines = text.split(b"\r\n")
        assert len(lines) <= max(size[1], 2) and all(len(line) <= max(size[0], 2) for line in lines)
        assert b"\x1b" not in text and b"\x07" not in text


def test_a_notice_leaves_the_cursor_and_is_not_drawn_where_it_cannot_be() -> None:
    sheet = Sheet(30, 10)
    Overlay(sheet, "C-b").notice("long \x1b words " * 10)
    assert (
        sheet.drawn.startswith(b"\x1b7")
        and sheet.drawn.endswith(b"\x1b8")
        and b"\x1b[1;1H" in sheet.drawn
    )
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
