"""Programs to run inside a session under test, and the output that each of them must print.

The file is both. Imported, it gives the expected output. Run by its path (`python workload.py NAME
ARGS`, standard library only, so it starts in 20 ms and needs no installed package), it is the
program.

    flood BLOCKS CODE            prints so many blocks as fast as the terminal takes them, exits
                                 with CODE
    busy LOG BURST PAUSE_MS CODE prints bursts of blocks and records its input, until the input STOP
    record LOG CODE              records its input, silently, until STOP
    lines LOG                    records each line it reads, from a terminal in line mode without
                                 echo, until the end of input
    ask LOG                      asks its terminal every query of QUERIES once, records all input,
                                 until STOP
    questions LOG COUNT SEED     asks queries of QUERIES, COUNT in all, each after the answer to the
                                 last; prints floods and pauses in between, so that snapshots of the
                                 screen are taken meanwhile; records the count of right answers
    scene SEED                   draws another screen for every key: wide characters, colours,
                                 regions, both screens

Every block contains its number and its content follows from the number. So a lost, doubled or
changed byte is seen where it is, and a stream of any length can be checked without storing the
output. Terminals are set raw: the session's ring holds the program's output byte for byte. Blocks
contain sequences that viewers must not get (an order to resize the window) but none that is
answered, because an answer is input and would be recorded.
"""

from __future__ import annotations

import os
import random
import select
import sys
import termios
import time
import tty

STOP = b"\x04"
READY = b"READY\r\n"  # the program has its terminal raw and listens
FIRST = b"\x1b[0m<<<\r\n"  # before the first block
LAST = b"\x1b[0m>>>\r\n"  # after the last block

_UNITS = (
    b"plain text and numbers 0123456789 ",
    b"\x1b[31mred\x1b[0m ",
    b"\x1b[1;38;2;255;128;0mtrue colour\x1b[0m ",
    "Grüße, 漢字かな, кириллица ".encode(),
    b"words words words words words ",
    "e\u0301 \U0001f600 ".encode(),
    b"\x1b[48;5;21mblue\x1b[m\r\n",
    b"\x1b[K",
    b"tab\tstop ",
    b"0123456789abcdef" * 4,
)
_RARE = (
    b"\x1b[8;24;80t",
    b"\x1b]0;a title\x07",
    b"\x1b]8;;https://example.org\x1b\\link\x1b]8;;\x1b\\ ",
)  # a filter's work
_STEPS = 61  # a prime: block lengths repeat late


# For `python -c`: argv[1] processes that fork for argv[2] seconds, a third of them daemons that
# left their session.
FORKING = """
import os, signal, sys, time
breadth, end = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
wait, go = os.pipe()
def life():
    os.close(go)
    os.read(wait, 1)                    # until all are there: forking starves the others
    while time.monotonic() < end:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
for n in range(breadth):
    if os.fork() == 0:
        if n % 3 == 0:
            os.setsid()
            if os.fork():
                os._exit(0)
        try:
            life()
        finally:
            os._exit(0)
os.close(go)
print("FORKING", flush=True)
signal.pause()
"""


def block(number: int) -> bytes:
    """Block `number`: the number, then 1 to 60 units that follow from it, some of them rare."""
    rng = number * 2654435761 % 4294967296
    parts = [b"\x1b[0m[%d]" % number]
    for _ in range(1 + number % (_STEPS - 1)):
        rng = (rng * 1103515245 + 12345) % 2147483648
        parts.append(_UNITS[(rng >> 16) % len(_UNITS)])
    if number % 4 == 0:
        parts.append(_RARE[number // 4 % len(_RARE)])
    parts.append(b"\r\n")
    return b"".join(parts)


def blocks(count: int) -> bytes:
    return b"".join(block(n) for n in range(count))


def flood(count: int) -> bytes:
    """All output of `flood` and `busy` when they print `count` blocks."""
    return READY + FIRST + blocks(count) + LAST


def tagged(client: int, number: int, size: int) -> bytes:
    """An input that no other equals, of about `size` bytes, without control characters."""
    tag = b"<%d.%d:" % (client, number)
    filler = (b"%x" % (client * 1000003 + number * 10007 + 1)) * (size // 4 + 1)
    return tag + filler[: max(0, size - len(tag) - 1)] + b">"


QUERIES: tuple[tuple[bytes, bytes], ...] = (
    (b"\x1b[c", b"\x1b[?62;22c"),  # DA1
    (b"\x1b[>c", b"\x1b[>1;277;0c"),  # DA2
    (b"\x1b[5n", b"\x1b[0n"),  # DSR: are you there
    (b"\x1b[3;7H\x1b[6n", b"\x1b[3;7R"),  # CPR: where is the cursor
    (b"\x1b[?2004h\x1b[?2004$p", b"\x1b[?2004;1$y"),  # DECRQM
    (b"\x1b[?2004l\x1b[?2004$p", b"\x1b[?2004;2$y"),
    (b"\x1b[4$p", b"\x1b[4;2$y"),
    (b"\x1b[=c", b"\x1bP!|00000000\x1b\\"),  # DA3
    (b"\x1b[>q", b"\x1bP>|holdfast\x1b\\"),  # XTVERSION
    (b"\x1bP$qm\x1b\\", b"\x1bP1$r0m\x1b\\"),  # DECRQSS
    (b"\x1b[?u", b"\x1b[?0u"),  # kitty keyboard flags
    # OSC 10 and 11: the text and background colours that the program has set
    (b"\x1b]10;#010203\x1b\\\x1b]10;?\x1b\\", b"\x1b]10;rgb:0101/0202/0303\x1b\\"),
    (b"\x1b]11;#040506\x07\x1b]11;?\x07", b"\x1b]11;rgb:0404/0505/0606\x07"),
)
"""What is asked, and the one answer that must come back."""


# ---------------------------------------------------------------- the programs


def _raw() -> None:
    tty.setraw(0, termios.TCSANOW)


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def _open_log(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def _log(log: int, data: bytes) -> bool:
    """Append the input to the log; True if it ends the program."""
    typed, stop, _ = data.partition(STOP)
    os.write(log, typed)
    return bool(stop)


def _flood(count: int, code: int) -> int:
    _raw()
    _write(READY + FIRST)
    for first in range(0, count, 64):
        _write(b"".join(block(n) for n in range(first, min(first + 64, count))))
    _write(LAST)
    termios.tcdrain(1)
    return code


def _busy(path: str, burst: int, pause_ms: int, code: int) -> int:
    log = _open_log(path)
    _raw()
    _write(READY + FIRST)
    number, stopped = 0, False
    while not stopped:
        _write(b"".join(block(n) for n in range(number, number + burst)))
        number += burst
        wait = pause_ms
        while not stopped and select.select([0], [], [], wait / 1000)[0]:
            stopped = _log(log, os.read(0, 65536))
            wait = 0
    _write(LAST)
    with open(path + ".count", "w") as f:
        f.write(str(number))
    return code


def _record(path: str, code: int) -> int:
    log = _open_log(path)
    _raw()
    _write(READY)
    while not _log(log, os.read(0, 65536)):
        pass
    return code


def _lines(path: str) -> int:
    log = _open_log(path)
    mode = termios.tcgetattr(0)
    mode[3] &= ~(termios.ECHO | termios.ECHONL)
    termios.tcsetattr(0, termios.TCSANOW, mode)
    _write(READY)
    while line := os.read(0, 65536):
        os.write(log, line)
    return 0


def _ask(path: str) -> int:
    log = _open_log(path)
    _raw()
    _write(READY)
    stopped = False
    for query, answer in QUERIES:
        _write(query)
        got = b""
        while not stopped and len(got) < len(answer):
            data = os.read(0, 65536)
            stopped = _log(log, data)
            got += data
    _write(b"ASKED\r\n")
    while not stopped:
        stopped = _log(log, os.read(0, 65536))
    return 0


def _questions(path: str, count: int, seed: int) -> int:
    """Waits for each answer without a limit, and prints nothing meanwhile."""
    rng = random.Random(seed)
    _raw()
    _write(READY)
    right = 0
    for number in range(count):
        if rng.random() < 0.3:
            _write(b"".join(block(n) for n in range(rng.choice((4, 40, 400)))))
        if rng.random() < 0.03:
            pause_s = rng.uniform(0.9, 1.1)  # after a second of silence the host saves a screen
            time.sleep(pause_s)
        query, answer = rng.choice(QUERIES)
        _write(query)
        got = b""
        while len(got) < len(answer):
            got += os.read(0, 65536)
        right += got == answer
        with open(path, "w") as log:
            log.write(f"{right} {number + 1}")
    return 0


def scene(seed: int, step: int, cols: int = 80, rows: int = 24) -> bytes:
    """One drawing; the same for the same numbers. Ends without an open sequence.

    Odd seeds have characters that combine, on which emulators disagree.
    """
    rng = random.Random(seed * 1000 + step)
    out = [b"\x1b]0;scene %d\x07" % step]
    if rng.random() < 0.3:
        out.append(
            rng.choice(
                (b"\x1b[?1049h\x1b[2J", b"\x1b[?1049l", b"\x1b[2J", b"\x1b[?25l", b"\x1b[?25h")
            )
        )
    region = rng.random() < 0.3
    top = rng.randint(1, rows - 4)
    out.append(b"\x1b[%d;%dr" % (top, rng.randint(top + 2, rows)) if region else b"\x1b[r")
    texts = [
        "Grüße",
        "漢字",
        "\U0001f600",
        "кот",
        "plain",
        "─│┌┐",
        "한글",
        "日本語テキスト",
        "ａｂ",
    ]
    if seed % 2:
        texts += ["e\u0301a\u0308", "\U0001f44d\U0001f3fd", "नमस्ते"]
    for _ in range(rng.randint(5, 40)):
        out.append(b"\x1b[%d;%dH" % (rng.randint(1, rows), rng.randint(1, cols - 16)))
        out.append(
            rng.choice(
                (
                    b"\x1b[0m",
                    b"\x1b[1m",
                    b"\x1b[4;3m",
                    b"\x1b[7m",
                    b"\x1b[38;2;%d;%d;%dm" % tuple(rng.randrange(256) for _ in range(3)),
                    b"\x1b[48;2;%d;%d;%dm" % tuple(rng.randrange(256) for _ in range(3)),
                    b"\x1b[38;5;%dm" % rng.randrange(256),
                )
            )
        )
        out.append(rng.choice(texts).encode())
        whole = (
            () if region else (b"\x1b[L", b"\x1b[M")
        )  # outside of a region emulators differ about these
        out.append(
            rng.choice(
                (
                    b"",
                    b"",
                    b"",
                    b"\x1b[K",
                    b"\n",
                    b"\x1b[2@",
                    b"\x1b[P",
                    b"\x1bM",
                    b"\x1b[3X",
                    b"\t",
                    *whole,
                )
            )
        )
    out.append(b"\x1b[0m\x1b[%d;%dH" % (rng.randint(1, rows), rng.randint(1, cols - 1)))
    return b"".join(out)


def _scene(seed: int) -> int:
    _raw()
    _write(READY)
    step = 0
    while (key := os.read(0, 1)) and key != STOP:
        _write(scene(seed, step))
        step += 1
    _write(b"\x1b[?1049l\x1b[r")
    return 0


def main(argv: list[str]) -> int:
    name, *args = argv
    if name == "flood":
        return _flood(int(args[0]), int(args[1]))
    if name == "busy":
        return _busy(args[0], int(args[1]), int(args[2]), int(args[3]))
    if name == "record":
        return _record(args[0], int(args[1]))
    if name == "lines":
        return _lines(args[0])
    if name == "ask":
        return _ask(args[0])
    if name == "questions":
        return _questions(args[0], int(args[1]), int(args[2]))
    if name == "scene":
        return _scene(int(args[0]))
    raise SystemExit(f"no workload {name}")


def command(name: str, *args: str | int) -> list[str]:
    """The argument list that runs a workload."""
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), name, *(str(a) for a in args)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
