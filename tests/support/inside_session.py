"""The programs inside a session under test: raw mode, exact bytes.

inside.py record FILE COUNT     reads COUNT bytes as they come and keeps them in FILE
inside.py emit FILE             waits for a key, then writes FILE's bytes between BEGIN and END
inside.py modes                 sets every mode of full-screen programs, then waits for a key
inside.py sizes FILE            appends each size of the terminal to FILE
"""

from __future__ import annotations

import os
import select
import signal
import sys
import tty
from collections.abc import Callable


def put(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def record(path: str, count: str) -> None:
    tty.setraw(0)
    put(b"READY")
    left = int(count)
    with open(path, "wb", buffering=0) as f:
        while left > 0:
            data = os.read(0, 65536)
            f.write(data)
            left -= len(data)
    put(b"DONE")
    os.read(0, 1)


def emit(path: str) -> None:
    tty.setraw(0)
    put(b"READY")
    os.read(0, 1)
    with open(path, "rb") as f:
        put(b"BEGIN" + f.read() + b"END")
    os.read(0, 1)


def modes() -> None:
    tty.setraw(0)
    put(
        b"\x1b[?1049h\x1b[?1000h\x1b[?1002h\x1b[?1006h\x1b[?1004h\x1b[?2004h\x1b[?1h\x1b=\x1b[?25l\x1b[2;10r\x1b[31mREADY"
    )
    os.read(0, 1)


def sizes(path: str) -> None:
    wake_r, wake_w = os.pipe2(os.O_NONBLOCK)
    signal.signal(signal.SIGWINCH, lambda *_: None)
    signal.set_wakeup_fd(wake_w)
    with open(path, "a", buffering=1) as f:
        while True:
            size = os.get_terminal_size(0)
            f.write(f"{size.columns}x{size.lines}\n")
            put(b"\r\nSIZE %dx%d " % (size.columns, size.lines))
            if wake_r in select.select([wake_r], [], [])[0]:
                os.read(wake_r, 100)


ACTS: dict[str, Callable[..., None]] = {
    "record": record,
    "emit": emit,
    "modes": modes,
    "sizes": sizes,
}

if __name__ == "__main__":
    ACTS[sys.argv[1]](*sys.argv[2:])
