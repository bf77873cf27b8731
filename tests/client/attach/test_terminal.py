"""The user's terminal: raw while attached, restored after; no wait for a stalled terminal."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from holdfast.client import start
from holdfast.client.attach import overlay, terminal
from holdfast.home import Home
from holdfast.host.terminal.screen import Screen
from holdfast.model.errors import Impossible, Unavailable, Usage
from tests.support.terminal_modes import DIRT, FRESH_LINE, state

SOURCE = Path(terminal.__file__).parents[3]
LEAVE = (
    "import sys; from holdfast.client.attach.terminal import UserTerminal; t = UserTerminal(); "
    "t.enter(); t.write(b'IN'); "
    "sys.stdin.buffer.raw.read(1); t.leave(); t.leave()"
)


def run_on(slave: int, script: str, *args: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *args],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        env={"PYTHONPATH": str(SOURCE), "PATH": os.environ["PATH"]},
    )


def read_until(master: int, wanted: bytes) -> bytes:
    data = b""
    while wanted not in data:
        assert select.select([master], [], [], 120)[0], data
        data += os.read(master, 4096)
    return data


def test_leaving_restores_the_modes_that_entering_changed() -> None:
    master, slave = os.openpty()
    before = termios.tcgetattr(slave)
    process = run_on(slave, LEAVE)
    read_until(master, b"IN")
    assert termios.tcgetattr(slave) != before
    os.write(master, b"x")
    data = read_until(master, terminal.RESTORE_TITLE)
    assert process.wait(120) == 0 and data.count(terminal.farewell(0, 0)) == 1
    assert termios.tcgetattr(slave) == before
    os.close(master)
    os.close(slave)


def test_a_stalled_terminal_does_not_keep_the_client_from_leaving() -> None:
    script = (
        "from holdfast.client.attach.terminal import UserTerminal\n"
        "t = UserTerminal(); t.enter()\nwhile t.pending is None: t.write(b'x' * 4096)\nt.leave()"
    )
    master, slave = os.openpty()
    before = termios.tcgetattr(slave)
    process = run_on(slave, script)
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
        [
            sys.executable,
            "-c",
            "from holdfast.client.attach.terminal import UserTerminal; UserTerminal()",
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env={"PYTHONPATH": str(SOURCE)},
    )
    assert b"attach needs a terminal" in done.stderr


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


def test_leaving_keeps_the_modes_of_the_user() -> None:
    """Modes whose default differs between terminals, or that people choose."""
    mine = b"\x1b[?1007l\x1b[?1036l\x1b[?12h"
    before = Screen(80, 24)
    before.feed(mine + FRESH_LINE)
    screen = Screen(80, 24)
    screen.feed(
        mine + terminal.SAVE + b"\x1b[?1007h\x1b[?1036h\x1b[?12l" + terminal.farewell(80, 24)
    )
    assert state(screen) == state(before)


SESSIONS = [
    {"id": f"id{n}", "name": f"n{n}\x1b[31m", "state": "live", "idle_s": float(n)}
    for n in range(40)
]


@pytest.mark.parametrize("size", [(80, 24), (20, 5), (2, 2), (1, 1), (0, 0), (300, 100)])
def test_overlays_fit_and_cannot_act(size: tuple[int, int]) -> None:
    for page in (
        overlay.help_page("name\x1b]0;x\x07", "id", "C-\\"),
        overlay.sessions_page(SESSIONS, "id3"),
    ):
        drawn = overlay.page(page, *size)
        text = drawn.rpartition(b"\x1b[H")[2].rpartition(b"\x1b[?2026l")[0]
        lines = text.split(b"\r\n")
        assert len(lines) <= max(size[1], 2) and all(len(line) <= max(size[0], 2) for line in lines)
        assert b"\x1b" not in text and b"\x07" not in text


def test_a_notice_leaves_the_cursor_and_is_not_drawn_on_a_tiny_terminal() -> None:
    drawn = overlay.notice("long \x1b words " * 10, 30, 10)
    assert drawn.startswith(b"\x1b7") and drawn.endswith(b"\x1b8") and b"\x1b[1;1H" in drawn
    assert overlay.notice("x", 30, 1) == overlay.notice("x", 0, 0) == b""


def test_a_notice_does_not_land_inside_an_escape_sequence() -> None:
    r, w = os.pipe()
    term = object.__new__(terminal.UserTerminal)
    term.out, term.pending = w, memoryview(b"half a frame")
    term.write_between(b"notice")
    term.pending = None
    term.write_between(b"later")
    assert os.read(r, 100) == b"later"
    os.close(r)
    os.close(w)


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
def test_the_last_error_of_a_dying_host_is_the_clients_error(
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
    start.mark_stopped(home, True)  # no directory: no mark, and no error
    assert not start.is_stopped(home)
    os.mkdir(home.run)
    start.mark_stopped(home, True)
    start.mark_stopped(home, True)
    assert start.is_stopped(home)
    start.mark_stopped(home, False)
    start.mark_stopped(home, False)
    assert not start.is_stopped(home)
