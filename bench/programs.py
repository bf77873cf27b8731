"""The programs inside the measured sessions, and the data they print.

    python programs.py screen LINES live|static FIFO
    python programs.py counter LOG
    python programs.py clock

Started by path, not as a module of the package: a session's program must not depend on where the
harness was started.
"""

from __future__ import annotations

import fcntl
import functools
import os
import pty
import random
import shlex
import signal
import sys
import time
from collections.abc import Sequence

TOP, END = "TOPM4RK", "ENDM4RK"
READY, PROMPT = b"READYM4RK", b"PROMPTM4RK"
BLOCK_BYTES = 1 << 20
NEWLINE = "\\n"  # as printf reads it
TICK_S = 0.002
CLOCK_S = 0.01
REPAINT_S = 3.0
# The program of an idle session; known by its argv, and no part of a tool's own memory
IDLE = (
    "sleep",
    "86399",
)

_WORDS = (
    "request",
    "served",
    "from",
    "cache",
    "user",
    "session",
    "opened",
    "closed",
    "retry",
    "timeout",
    "ok",
    "failed",
    "compiling",
    "linking",
)


@functools.cache
def block(ansi: bool, size: int = BLOCK_BYTES) -> bytes:
    """About `size` bytes of log lines, always the same;

    `ansi`: with colours, wide characters, cursor movement.
    """
    dice, lines, total = random.Random(7), [], 0
    while total < size:
        words = " ".join(dice.choice(_WORDS) for _ in range(dice.randint(4, 14)))
        day, hour, minute = dice.randint(1, 28), dice.randint(0, 23), dice.randint(0, 59)
        stamp = f"2024-05-{day:02} {hour:02}:{minute:02}:{dice.random() * 60:06.3f}"
        level, module = dice.choice(("INFO", "WARN", "ERROR")), f"mod{dice.randint(1, 99)}"
        if not ansi:
            line = f"{stamp} {level} {module}: {words}"
        else:
            kind = dice.random()
            line = (
                f"\x1b[90m{stamp}\x1b[0m \x1b[1;{dice.randint(31, 36)}m{level}\x1b[0m "
                f"\x1b[38;5;{dice.randint(16, 231)}m{module}\x1b[39m {words}"
            )
            if kind < 0.2:
                colour = ";".join(str(dice.randint(0, 255)) for _ in range(3))
                line += f" \x1b[48;2;{colour}m \u2713 \u65e5\u672c \x1b[0m"
            if kind < 0.1:
                line = f"\r\x1b[K{line}\x1b[3D\x1b[4m...\x1b[24m"
        lines.append(line)
        total += len(line.encode()) + 1
    return ("\n".join(lines) + "\n").encode()


def as_shown(data: bytes) -> bytes:
    """What a terminal in its ordinary mode makes of the program's output (ONLCR)."""
    return data.replace(b"\n", b"\r\n")


def paint(rows: int, cols: int) -> str:
    """A full screen as top draws it: the first row begins with TOP, the last with END."""
    out = ["\x1b[?1049h\x1b[H\x1b[2J", f"\x1b[1;1H\x1b[7m{TOP} load average: 0.10 0.20 0.13\x1b[0m"]
    for y in range(2, rows):
        row = f"{y * 137:7} root      20   0 {y * 7919:8} {y * 31:6} R {y:5.1f} program-{y}"[:cols]
        out.append(f"\x1b[{y};1H\x1b[3{y % 7 + 1}m{row}\x1b[0m")
    return "".join(out) + f"\x1b[{rows};1H{END}"


# ---------------------------------------------------------------- argv of session programs


def echo(ready: str) -> list[str]:
    """Echo every byte; report in the fifo `ready` once the terminal is set for that."""
    return ["sh", "-c", f"stty raw -echo; echo ready >{shlex.quote(ready)}; exec cat"]


def prompt() -> list[str]:
    return ["sh", "-c", f"{_say(PROMPT)}; exec cat"]


def flood(data: str, go: str, done: str, watched: bool) -> list[str]:
    """Print a file when told to, and report when done.

    Answers each typed line with READY until `go` is typed, so every viewer is known to be there.
    Then waits for the fifo `go`, prints the file, reports in the fifo `done`, and shows END again
    and again, since a tool may drop it.
    """
    handshake = (
        f'while read -r x && [ "$x" != go ]; do {_say(READY, NEWLINE)}; done; ' if watched else ""
    )
    data, go, done = (shlex.quote(path) for path in (data, go, done))
    return [
        "sh",
        "-c",
        f"{handshake}read -r x <{go}; cat {data}; echo done >{done}; "
        f"while {_say(END.encode(), NEWLINE)}; do sleep 0.2; done",
    ]


def screen(lines: int, mode: str, ready: str) -> list[str]:
    return [sys.executable, os.path.abspath(__file__), "screen", str(lines), mode, ready]


def counter(log: str) -> list[str]:
    return [sys.executable, os.path.abspath(__file__), "counter", log]


def clock() -> list[str]:
    """Shows the time, between two marks, again and again."""
    return [sys.executable, os.path.abspath(__file__), "clock"]


def fan_out(pipes: Sequence[str], argv: Sequence[str]) -> list[str]:
    """Copy the program's output into each pipe: the least that a tool for sharing must do."""
    return [sys.executable, os.path.abspath(__file__), "fan_out", str(len(pipes)), *pipes, *argv]


def reader(pipe: str) -> list[str]:
    return ["sh", "-c", f"stty raw -echo; exec cat {shlex.quote(pipe)}"]


def _say(mark: bytes, end: str = "") -> str:
    """A shell command that shows the mark, which neither its echo nor its arguments contain."""
    text = mark.decode()
    return f"printf '{text[:2]}%s{end}' {text[2:]}"


# ---------------------------------------------------------------- running


def run_fan_out(pipes: Sequence[str], argv: Sequence[str]) -> None:
    outs = [os.open(pipe, os.O_WRONLY) for pipe in pipes]
    for out in outs:
        fcntl.fcntl(out, fcntl.F_SETPIPE_SZ, 1 << 20)
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp(argv[0], list(argv))
    while True:
        data = os.read(terminal, 1 << 16)
        for out in outs:
            left = memoryview(data)
            while len(left):
                left = left[os.write(out, left) :]


def run_screen(lines: int, mode: str, ready: str) -> None:
    """Lines, then a full screen.

    live: repaints when the size changes, and now and then; static: never.
    """
    for i in range(lines):
        sys.stdout.write(
            f"{i:6} the quick brown fox jumps over the lazy dog and goes on for a while\n"
        )

    def draw(*_: object) -> None:
        size = os.get_terminal_size(0)
        sys.stdout.write(paint(size.lines or 24, size.columns or 80))
        sys.stdout.flush()

    signal.signal(signal.SIGWINCH, draw if mode == "live" else signal.SIG_IGN)
    draw()
    with open(ready, "w") as fifo:
        fifo.write("drawn\n")
    while True:
        time.sleep(REPAINT_S)
        if mode == "live":
            draw()


def run_counter(log: str) -> None:
    """Print a tick every 2 ms to the terminal and, with its time, to the log."""
    with open(log, "w", buffering=1) as f:
        i = 0
        while True:
            os.write(1, b"tick %d\n" % i)
            f.write(f"{i} {time.monotonic():.6f}\n")
            i += 1
            time.sleep(TICK_S)


def run_clock() -> None:
    while True:
        os.write(1, b"<%d>\r\n" % time.monotonic_ns())
        time.sleep(CLOCK_S)


if __name__ == "__main__":
    if sys.argv[1] == "clock":
        run_clock()
    elif sys.argv[1] == "screen":
        run_screen(int(sys.argv[2]), sys.argv[3], sys.argv[4])
    elif sys.argv[1] == "fan_out":
        count = int(sys.argv[2])
        run_fan_out(sys.argv[3 : 3 + count], sys.argv[3 + count :])
    else:
        run_counter(sys.argv[2])
