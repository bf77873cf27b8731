"""Real full-screen programs, cut anywhere: less, top, vim, htop and tmux on a real terminal.

Each program is driven by keys and its output recorded; a program is waited for until its output
pauses. Then, for many cuts at random bytes, a restored screen, a blank terminal and a terminal full
of another program's state are compared with the original, at once and after more output; and the
painted bytes with a second emulator.
"""

from __future__ import annotations

import fcntl
import os
import pty
import random
import select
import shutil
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.host.terminal.screen import Screen
from tests.support.checkers.screen_oracle import differences, emulator, second_opinion, state

COLS, ROWS = 80, 24
CUTS = int(os.environ.get("HOLDFAST_SCREEN_CUTS", "50"))
HISTORY = 30
PAUSE_S = 0.15  # output that stopped for this long has been drawn
DEADLINE_S = 120.0
DRAWN_BYTES = 5_000  # each draws more
DRAWN_S = 0.8  # programs that never stop are given this long
LINES = "".join(
    f"{i:05d} {'日本語 wide ' * (i % 5)}{'héllo wörld ' * (i % 9)}\n" for i in range(3000)
)
CSI = b"\x1b["

KEYS = {
    "less": [
        b" ",
        b" ",
        b"jjj",
        b"k",
        b"/0012\n",
        b"n",
        b"b",
        b"G",
        b"g",
        b"50%",
        b"h",
        b"q",
        b"q",
    ],
    "top": [b"", b"c", b"1", b"E", b"z", b"x", b"", CSI + b"B", b"f", b"q", b"V", b"", b"q"],
    "vim": [
        b":set nu mouse=a bg=dark termguicolors\n",
        b":hi Normal guibg=#203040 guifg=#e0d0c0\n",
        b":hi StatusLine guibg=#803010\n:syntax on\n",
        b"jjjj\x06",
        b"ihello\x1b",
        b"dd",
        b":split\n",
        b"\x06",
        b":vsplit\n",
        b"G",
        b"vjj",
        b"\x1b",
        b":help\n",
        b":qa!\n",
    ],
    "htop": [b"", CSI + b"B", b"t", b"h", b"q", b"/sh\x1b", b"S\x1b", CSI + b"6~", b"", b"q"],
    "tmux": [
        b"ls -la /usr\n",
        b"\x02%",
        b"seq 100\n",
        b'\x02"',
        b"top -d 1\n",
        b"\x02o",
        b"less LINES\n",
        b" ",
        b"\x02[",
        CSI + b"5~",
        b"q",
        b"q",
        b"\x02z",
        b"printf '\\033]2;title\\007'\n",
        b"\x02z",
        b"\x02:kill-server\n",
    ],
}
COMMANDS = {
    "less": ["sh", "-c", "seq 40; less LINES; echo bye"],
    "top": ["top", "-d", "0.3"],
    "vim": ["sh", "-c", "seq 40; vim -u NONE -i NONE -n -N LINES; echo bye"],
    "htop": ["htop", "-d", "3"],
    "tmux": ["tmux", "-L", "screen-test", "-f", "/dev/null", "new", "sh"],
}


def record(argv: list[str], keys: list[bytes], cwd: Path) -> bytes:
    """The output of a program on a terminal that answers its queries, driven by keys."""
    keep = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    env = {
        **keep,
        "TERM": "xterm-256color",
        "LC_ALL": "C.UTF-8",
        "TMUX_TMPDIR": str(cwd),
        "HTOPRC": str(cwd / "htoprc"),
    }
    pid, master = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        os.execvpe(argv[0], argv, env)
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLS, 0, 0))
    model, output = Screen(COLS, ROWS), bytearray()

    def drawn() -> bool:
        end = time.monotonic() + DRAWN_S
        while (left := end - time.monotonic()) > 0:
            if not select.select([master], [], [], min(PAUSE_S, left))[0]:
                return True
            try:
                data = os.read(master, 65536)
            except OSError:
                return False
            output.extend(data)
            if reply := model.feed(data):
                os.write(master, reply)
        return True

    try:
        end = time.monotonic() + DEADLINE_S
        assert select.select([master], [], [], DEADLINE_S)[0], f"{argv} does not begin"
        alive = drawn()
        for key in keys:
            if alive:
                os.write(master, key)
                alive = drawn()
        while (
            alive and len(output) <= DRAWN_BYTES and time.monotonic() < end
        ):  # a busy machine: the program has yet to read the keys
            alive = drawn()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(master)
        if argv[0] == "tmux":
            subprocess.run(
                [*argv[:3], "kill-server"], env=env, check=False, stderr=subprocess.DEVNULL
            )
    return bytes(output)


@pytest.fixture(scope="module", params=list(KEYS))
def recorded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[bytes]:
    name = request.param
    if not shutil.which(name):
        pytest.skip(f"{name} is not installed")
    cwd = tmp_path_factory.mktemp(name)
    (cwd / "LINES").write_text(LINES)
    output = record(COMMANDS[name], KEYS[name], cwd)
    assert len(output) > DRAWN_BYTES, f"{name} drew nothing: {output[:200]!r}"
    yield output


OTHER_STATE = (
    b"other\r\n" * 30
    + b"\x1b[?1049h\x1b[3;10r\x1b[?6h\x1b[31;44mxx\x1b[?69h\x1b[5;20s\x1b(0\x0e\x1b[>5u"
    + b"\x1b[?1000h\x1b[?1006h\x1b[?2004h\x1b[4h\x1b[?7l\x1b[?25l\x1b[3g\x1b[5 q\x1b[?1h"
    + b"\x1b=\x1b7\x1b]8;;http://x\x07\x1b[20h\x1b[?2026h"
    + b"\x1b]2;half a title"
)


def test_s6_a_program_cut_anywhere_goes_on_alike(recorded: bytes) -> None:
    choice = random.Random(len(recorded))
    original, fed = Screen(COLS, ROWS), 0
    for cut in sorted(choice.randrange(len(recorded)) for _ in range(CUTS)):
        original.feed(recorded[fed:cut])
        fed = cut
        ground = cut - original.pending
        restored, painted = Screen.restore(original.save()), original.paint(100)
        viewers = [Screen(COLS, ROWS), Screen(COLS, ROWS)]
        viewers[1].feed(OTHER_STATE)
        for viewer in viewers:
            viewer.feed(painted)
        rows, cursor = second_opinion(COLS, ROWS, painted)
        here = emulator(original).cursor
        assert (rows, cursor) == (original.text(), (here.x + here.pending_wrap, here.y)), cut

        reference = Screen(COLS, ROWS)
        reference.feed(recorded[:cut])
        wanted = state(reference, HISTORY)
        kept = len(wanted["history"])
        for target in (restored, *viewers):
            target.feed(recorded[ground:cut])
            assert differences(wanted, state(target, kept), ("flows",)) == {}, cut

        more = recorded[cut : cut + choice.choice([1, 5, 50, 700, 5000, len(recorded)])]
        for target in (reference, restored, *viewers):
            target.feed(more)
        wanted = state(reference)
        for target in (restored, *viewers):
            assert differences(wanted, state(target), ("flows",)) == {}, (cut, len(more))
